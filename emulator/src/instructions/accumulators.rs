//! Accumulators of the tensor cores: f32, or pairs of f16 that are rounded once for each instruction.

use super::convert::f16_row;
use super::elements::F16;
use super::tiles::{self, Tile};
use crate::registers::{Row, row_of};

/// A type of accumulators: how a tile of them lies in registers.
pub(super) trait Accumulator {
    /// Registers of a tile of 8x8.
    const REGISTERS: usize;

    /// The tile of registers, given by their number.
    fn read<'a, X>(registers: impl Fn(usize) -> Result<&'a Row<u32>, X>) -> Result<Tile<f32>, X>;

    /// Writes a tile to its registers.
    fn write(tile: &Tile<f32>, put: impl FnMut(usize, Row<u32>));
}

/// Accumulators of f32: a register of even columns, and one of odd columns.
pub(super) struct Single;

/// Accumulators of f16: a register of pairs.
pub(super) struct Half;

impl Accumulator for Single {
    const REGISTERS: usize = 2;

    #[inline(always)]
    fn read<'a, X>(registers: impl Fn(usize) -> Result<&'a Row<u32>, X>) -> Result<Tile<f32>, X> {
        Ok(tiles::from_words(registers(0)?, registers(1)?))
    }

    #[inline(always)]
    fn write(tile: &Tile<f32>, mut put: impl FnMut(usize, Row<u32>)) {
        let [even, odd] = tiles::to_words(tile);
        put(0, even);
        put(1, odd);
    }
}

impl Accumulator for Half {
    const REGISTERS: usize = 1;

    #[inline(always)]
    fn read<'a, X>(registers: impl Fn(usize) -> Result<&'a Row<u32>, X>) -> Result<Tile<f32>, X> {
        Ok(tiles::widened::<F16>(&tiles::from_register::<F16>(
            registers(0)?,
            0,
        )))
    }

    #[inline(always)]
    fn write(tile: &Tile<f32>, mut put: impl FnMut(usize, Row<u32>)) {
        let [even, odd] = tiles::to_words(tile).map(|words| f16_row(&words));
        put(
            0,
            row_of(|lane| u32::from(odd[lane]) << 16 | u32::from(even[lane])),
        );
    }
}
