//! A tile of rows, loaded by TMA.

use crate::layout::{descriptor::Panels, element};
use crate::ptx::tensor;
use crate::tile::registers::opaque;

/// Starts the copies of a tile's panels, with all `K * DT` columns, from row `row` of a head on.
///
/// # Safety
/// The conditions of [`tensor::load`], for each panel.
#[inline(always)]
pub unsafe fn load<const DT: usize>(to: Panels, map: u64, [row, head, batch]: [u32; 3], full: u32) {
    let mut panel = 0;
    while panel < element::K * DT as u32 / to.width {
        let (place, column) = (to.base + panel * to.panel_bytes(), panel * to.width);
        let [column, row, head, batch] = [column, row, head, batch].map(|at| at as i32);
        // SAFETY: the caller's promise.
        unsafe { tensor::load(place, map, column, row, head, batch, full) }
        // Opaque: the loop stays one, 24 to 240 instructions fewer.
        panel = opaque(panel + 1);
    }
}
