//! Copies of tensors to where their rows start at multiples of 16 bytes.

use super::Spec;
use super::collectives::Collectives;

/// The pack kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pack;

impl Pack {
    /// Rows of a head that a block copies.
    pub const ROWS: u32 = 64;
    const WARPS: u32 = 4;
}

impl Spec for Pack {
    fn name(&self) -> String {
        "pack".into()
    }

    fn threads(&self) -> u32 {
        32 * Self::WARPS
    }

    fn blocks_per_sm(&self) -> u32 {
        8
    }

    /// What the warps copy at a time: 16 bytes a lane.
    fn shared_bytes(&self) -> u32 {
        16 * self.threads()
    }

    fn instance(&self) -> String {
        let (warps, rows) = (Self::WARPS, Self::ROWS);
        format!("(PackParams) = attention::pack::pack::<{warps}, {rows}>")
    }

    fn collectives(&self) -> Collectives {
        Collectives::NONE
    }
}
