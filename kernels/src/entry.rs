//! The entry points: one instance of a generic kernel for each row of the table.

use crate::forward::forward;
use crate::mask::{Causal, Full, Mask};
use crate::params::ForwardParams;
use crate::table::{Tile, forward_kernels, sm80_tile};
use crate::tile::{Bf16, F16};

macro_rules! entries {
    ($($name:ident => $element:ty, $dim:literal, $mask:ty;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn $name(params: ForwardParams) {
                const TILE: Tile = sm80_tile($dim, <$mask as Mask>::CAUSAL);
                const {
                    assert!(TILE.stages == 1 || TILE.stages == 2, "one stage or two");
                }
                // SAFETY: the launch is the caller's promise.
                unsafe {
                    forward::<
                        $element,
                        $mask,
                        { TILE.warps as usize },
                        { (TILE.q_rows / TILE.warps / 16) as usize },
                        { $dim / 16 },
                        { (TILE.keys / 16) as usize },
                        { TILE.q_in_registers },
                        { TILE.stages as usize },
                    >(&params);
                }
            }
        )*
    };
}

forward_kernels!(entries);
