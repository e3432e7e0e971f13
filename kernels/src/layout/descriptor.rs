//! Matrix descriptors: where the operands of `wgmma` lie in shared memory.
//!
//! A tile is stored in *panels* of 64 or 32 columns of two bytes, one after the other. A panel has rows of
//! 128 or 64 bytes, and the chunks of 16 bytes of each row permuted by the XOR swizzle of that width, as TMA writes
//! them. The pattern repeats every 8 rows.
//!
//! ```text
//! panel 0                 panel 1
//! row 0: columns 0..64    row 0: columns 64..128
//! row 1: columns 0..64    ...
//! ```
//!
//! One tile serves both products: its rows as the rows of Q or K, [`K`] columns at a time
//! ([`Panels::rows`]), and its columns as the columns of V, [`K`] rows at a time ([`Panels::columns`]).

use super::element::{BYTES, CHUNK, K};

/// Columns of the widest panels: rows of 128 bytes.
const LINE: u32 = 128 / BYTES;

/// A matrix descriptor (PTX manual, "Matrix Descriptor Format"), as two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The address in units of 16 bytes, and from bit 16 the leading offset.
    pub low: u32,
    /// The stride offset, and from bit 30 the swizzle.
    pub high: u32,
}

impl Descriptor {
    /// The operand `bytes` bytes further, a multiple of 16. One addition, and no more if `bytes` is a constant: an
    /// address in bytes would need a shift for each operand, which the compiler would hold in registers.
    #[must_use]
    #[inline(always)]
    pub const fn skip(self, bytes: u32) -> Self {
        Descriptor {
            low: self.low + bytes / 16,
            ..self
        }
    }
}

/// A tile of panels in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panels {
    /// Shared address: a multiple of 1024.
    pub base: u32,
    /// Rows of each panel: a multiple of 8.
    pub rows: u32,
    /// Columns of a panel: 128 or 64 bytes.
    pub width: u32,
}

impl Panels {
    /// The widest panels whose columns divide the head dim.
    #[must_use]
    #[inline(always)]
    pub const fn width_for(dim: u32) -> u32 {
        if dim.is_multiple_of(LINE) {
            LINE
        } else {
            LINE / 2
        }
    }

    /// Bytes of a panel.
    #[must_use]
    #[inline(always)]
    pub const fn panel_bytes(self) -> u32 {
        self.rows * self.width * BYTES
    }

    /// The tile without its first panels.
    #[must_use]
    #[inline(always)]
    pub const fn skip_panels(self, panels: u32) -> Self {
        let base = self.base + panels * self.panel_bytes();
        Panels { base, ..self }
    }

    /// The tile from row `first` on, a multiple of 8; its panels are as far apart as before.
    #[must_use]
    #[inline(always)]
    pub const fn skip_rows(self, first: u32) -> Self {
        let base = self.base + first * self.width * BYTES;
        Panels { base, ..self }
    }

    /// The operand of the first `K` columns, and the rows from `first` on, a multiple of 8.
    #[must_use]
    #[inline(always)]
    pub const fn rows(self, first: u32) -> Descriptor {
        // The leading offset is not used: the instruction reads 32 bytes of each row, within the swizzle's width.
        self.descriptor(self.base + first * self.width * BYTES, 16)
    }

    /// The operand of all columns and the first `K` rows, transposed.
    #[must_use]
    #[inline(always)]
    pub const fn columns(self) -> Descriptor {
        self.descriptor(self.base, self.panel_bytes())
    }

    /// Bytes from the operand of the first `K` columns to slice `slice`.
    #[must_use]
    #[inline(always)]
    pub const fn to_columns(self, slice: u32) -> u32 {
        let slices = self.width / K;
        slice / slices * self.panel_bytes() + slice % slices * K * BYTES
    }

    /// Bytes from the operand of the first `K` rows to slice `slice`.
    #[must_use]
    #[inline(always)]
    pub const fn to_rows(self, slice: u32) -> u32 {
        slice * K * self.width * BYTES
    }

    #[inline(always)]
    const fn descriptor(self, address: u32, leading: u32) -> Descriptor {
        let swizzle = if self.width == LINE { 1 } else { 2 };
        Descriptor {
            low: address / 16 + ((leading / 16) << 16),
            high: 8 * self.width * BYTES / 16 + (swizzle << 30),
        }
    }

    /// Address of the chunk at a row and column.
    #[must_use]
    #[inline(always)]
    pub const fn chunk(self, row: u32, column: u32) -> u32 {
        let (panel, in_panel) = (column / self.width, column % self.width);
        let chunk = in_panel / CHUNK;
        let key = if self.width == LINE {
            row % 8
        } else {
            row / 2 % 4
        };
        self.base + panel * self.panel_bytes() + row * self.width * BYTES + (chunk ^ key) * 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    extern crate std;
    use std::collections::HashSet;

    fn panels() -> impl Strategy<Value = (Panels, u32)> {
        let dims = prop::sample::select(crate::catalog::HEAD_DIMS);
        (dims, 1u32..20, 0u32..100).prop_map(|(dim, groups, base)| {
            let panels = Panels {
                base: base * 1024,
                rows: 16 * groups,
                width: Panels::width_for(dim),
            };
            (panels, dim)
        })
    }

    /// The address that the tensor cores compute from a descriptor: of the chunk at `row`, `bytes` bytes along it, in
    /// panel `panel` (PTX manual, "Strides" of canonical layouts), under the swizzle of address bits.
    fn address(descriptor: Descriptor, row: u32, bytes: u32, panel: u32) -> u32 {
        let Descriptor { low, high } = descriptor;
        let (leading, stride) = ((low >> 16) * 16, (high & 0x3fff) * 16);
        let (row_bytes, mask) = match high >> 30 {
            1 => (128, 7),
            2 => (64, 3),
            other => panic!("swizzle {other}"),
        };
        let linear = (low & 0x3fff) * 16 + panel * leading + row / 8 * stride;
        let linear = linear + row % 8 * row_bytes + bytes;
        linear ^ ((linear >> 7 & mask) << 4)
    }

    proptest! {
        #[test]
        fn every_chunk_has_its_place((panels, dim) in panels()) {
            let places = (0..panels.rows).flat_map(|row| {
                (0..dim / 8).map(move |chunk| panels.chunk(row, 8 * chunk))
            });
            let places: HashSet<_> = places.collect();
            prop_assert_eq!(places.len() as u32, panels.rows * dim / 8);
            let end = panels.base + panels.rows * dim * 2;
            prop_assert!(places.iter().all(|&p| p % 16 == 0 && (panels.base..end).contains(&p)));
        }

        /// 16 columns of 8 rows and more: Q and K.
        #[test]
        fn rows_are_found((panels, dim) in panels(), first in 0u32..40, slice in 0u32..16) {
            prop_assume!(panels.base + panels.rows * dim * 2 <= 0x3fff * 16);
            let (first, slice) = (first % (panels.rows / 8) * 8, slice % (dim / 16));
            let operand = panels.rows(first).skip(panels.to_columns(slice));
            for row in 0..panels.rows - first {
                for half in 0..2 {
                    prop_assert_eq!(
                        address(operand, row, 16 * half, 0),
                        panels.chunk(first + row, 16 * slice + 8 * half)
                    );
                }
            }
        }

        /// All columns of 16 rows: V.
        #[test]
        fn columns_are_found((panels, dim) in panels(), slice in 0u32..20) {
            prop_assume!(panels.base + panels.rows * dim * 2 <= 0x3fff * 16);
            let slice = slice % (panels.rows / 16);
            let operand = panels.columns().skip(panels.to_rows(slice));
            for row in 0..16 {
                for column in (0..dim).step_by(8) {
                    let (panel, bytes) = (column / panels.width, column % panels.width * 2);
                    prop_assert_eq!(
                        address(operand, row, bytes, panel),
                        panels.chunk(16 * slice + row, column)
                    );
                }
            }
        }

        /// The rows that `ldmatrix` reads at once, and that TMA writes of a column.
        #[test]
        fn eight_rows_of_a_chunk_lie_in_distinct_banks((panels, dim) in panels(), row in 0u32..40, chunk in 0u32..32) {
            let (row, column) = (row % (panels.rows / 8) * 8, chunk % (dim / 8) * 8);
            let groups: HashSet<_> = (0..8)
                .map(|i| panels.chunk(row + i, column) / 16 % 8)
                .collect();
            prop_assert_eq!(groups.len(), 8);
        }
    }
}
