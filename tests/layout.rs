//! The memory layouts that tensors are tested in.

use serde::{Deserialize, Serialize};

/// How a `[batch, heads, rows, dim]` tensor lies in memory. The dim stride is always 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// Row-major.
    #[default]
    Bhnd,
    /// Heads beside each other in a row, as a projection leaves them: `[batch, rows, heads, dim]`.
    Bnhd,
    /// Rows, heads and batches with gaps of a multiple of 8 elements: rows start at multiples of 16
    /// bytes.
    Padded,
    /// Row-major, one element away from 16-byte alignment.
    Shifted,
    /// A row stride that is no multiple of 8, and an aligned first element.
    OddRows,
    /// A head stride that is no multiple of 8, and an aligned first element.
    OddHeads,
    /// A batch stride that is no multiple of 8, and an aligned first element.
    OddBatches,
    /// Rows from the last to the first.
    Reversed,
    /// One head serves all batches and heads: strides of zero. For inputs only.
    Broadcast,
    /// One head serves all, with a row stride that is no multiple of 8. For inputs only.
    OddBroadcast,
    /// One row serves all rows of a head, one element away from 16-byte alignment. For inputs only.
    OneRow,
    /// Rows from the last to the first, with a stride that is no multiple of 8.
    OddReversed,
    /// Heads more than 2^31 elements apart.
    FarHeads,
    /// Rows so far apart that 129 of them reach beyond 2^31 elements.
    FarRows,
    /// Rows as far apart, with a stride that is no multiple of 8.
    OddFarRows,
}

impl Layout {
    /// Layouts of outputs, without the [far](Layout::FarHeads) ones.
    pub const OUTPUTS: &[Layout] = &[
        Layout::Bhnd,
        Layout::Bnhd,
        Layout::Padded,
        Layout::Shifted,
        Layout::OddRows,
        Layout::OddHeads,
        Layout::OddBatches,
        Layout::Reversed,
        Layout::OddReversed,
    ];

    /// Layouts that only inputs can have.
    pub const BROADCASTS: &[Layout] = &[Layout::Broadcast, Layout::OddBroadcast, Layout::OneRow];

    /// Layouts whose rows do not start at multiples of 16 bytes, if there are several rows, heads and batches.
    /// They suit outputs, too; the [far](Layout::OddFarRows) one is not among them.
    pub const ODD: &[Layout] = &[
        Layout::Shifted,
        Layout::OddRows,
        Layout::OddHeads,
        Layout::OddBatches,
        Layout::OddReversed,
    ];

    /// Strides of a tensor of this shape, in elements.
    #[must_use]
    pub fn strides(self, [_, heads, rows, dim]: [usize; 4]) -> [isize; 4] {
        let [heads, rows, dim] = [heads, rows, dim].map(|extent| extent as isize);
        // Strides of axes that nest in the usual order, with a gap after each.
        let nested = |row: isize, head_gap: isize, batch_gap: isize| {
            let head = rows * row + head_gap;
            [heads * head + batch_gap, head, row, 1]
        };
        match self {
            Layout::Bhnd | Layout::Shifted => nested(dim, 0, 0),
            Layout::Bnhd => [rows * heads * dim, dim, heads * dim, 1],
            Layout::Padded => nested(dim + 8, 16, 24),
            Layout::OddRows => nested(dim + 3, (8 - rows * 3).rem_euclid(8), 0),
            Layout::OddHeads => nested(dim, 1, (8 - heads).rem_euclid(8)),
            Layout::OddBatches => nested(dim, 0, 1),
            Layout::Reversed => {
                let [batch, head, row, _] = nested(dim, 0, 0);
                [batch, head, -row, 1]
            }
            Layout::OddReversed => {
                let [batch, head, row, _] = nested(dim + 5, 0, 0);
                [batch, head, -row, 1]
            }
            Layout::Broadcast => [0, 0, dim, 1],
            Layout::OddBroadcast => [0, 0, dim + 1, 1],
            Layout::OneRow => [heads * dim, dim, 0, 1],
            Layout::FarHeads => nested(dim, 1 << 31, 0),
            Layout::FarRows => nested((1 << 24) + 8, 0, 0),
            Layout::OddFarRows => nested((1 << 24) + 9, 0, 0),
        }
    }

    /// Distance of the first element from 16-byte alignment, in elements.
    #[must_use]
    pub fn shift(self) -> usize {
        usize::from(matches!(self, Layout::Shifted | Layout::OneRow))
    }
}
