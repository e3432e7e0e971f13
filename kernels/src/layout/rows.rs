//! Where the rows of a tile lie in global memory.

use crate::abi::Divisor;

/// Rows of elements in global memory. Elements of a row lie side by side.
pub trait Rows: Copy {
    /// Elements of a row.
    fn elements(&self) -> u32;

    /// Address of a row.
    fn at(&self, row: u32) -> u64;

    /// Address of a row, from `above`, the address of the row that lies `down` rows before it.
    fn below(&self, above: u64, down: u32, row: u32) -> u64;

    /// The number of the page where a row lies, which is read before [its address](Self::in_page) is known.
    #[inline(always)]
    fn page(&self, _row: u32) -> u32 {
        0
    }

    /// Address of a row in its page, or `address` where rows have no pages.
    #[inline(always)]
    fn in_page(&self, address: u64, _page: u32, _row: u32) -> u64 {
        address
    }

    /// The rows without the first `rows` rows.
    fn skip(self, rows: u32) -> Self;

    /// The rows without the first `bytes` bytes of each.
    fn skip_bytes(self, bytes: u64) -> Self;
}

/// Rows of one head or of a matrix, a stride apart.
#[derive(Clone, Copy, Debug)]
pub struct Strided {
    /// Address of row 0.
    pub address: u64,
    /// Bytes from a row to the next.
    pub row_bytes: i64,
    /// Elements of a row.
    pub elements: u32,
}

impl Rows for Strided {
    #[inline(always)]
    fn elements(&self) -> u32 {
        self.elements
    }

    #[inline(always)]
    fn at(&self, row: u32) -> u64 {
        self.address
            .wrapping_add_signed(i64::from(row) * self.row_bytes)
    }

    #[inline(always)]
    fn below(&self, above: u64, down: u32, _row: u32) -> u64 {
        above.wrapping_add_signed(i64::from(down) * self.row_bytes)
    }

    #[inline(always)]
    fn skip(self, rows: u32) -> Self {
        let address = self.at(rows);
        Strided { address, ..self }
    }

    #[inline(always)]
    fn skip_bytes(self, bytes: u64) -> Self {
        let address = self.address.wrapping_add(bytes);
        Strided { address, ..self }
    }
}

/// Rows of several heads in turns: every head's first row, then every head's second row, and so on.
#[derive(Clone, Copy, Debug)]
pub struct Grouped {
    /// Rows of the first head.
    pub head: Strided,
    /// Bytes from a head to the next.
    pub head_bytes: i64,
    /// Heads.
    pub heads: Divisor,
    /// Rows skipped.
    pub first: u32,
}

impl Rows for Grouped {
    #[inline(always)]
    fn elements(&self) -> u32 {
        self.head.elements
    }

    #[inline(always)]
    fn at(&self, row: u32) -> u64 {
        let (row, head) = self.heads.divide(self.first + row);
        let offset = i64::from(row) * self.head.row_bytes + i64::from(head) * self.head_bytes;
        self.head.address.wrapping_add_signed(offset)
    }

    #[inline(always)]
    fn below(&self, _above: u64, _down: u32, row: u32) -> u64 {
        self.at(row)
    }

    #[inline(always)]
    fn skip(self, rows: u32) -> Self {
        let first = self.first + rows;
        Grouped { first, ..self }
    }

    #[inline(always)]
    fn skip_bytes(self, bytes: u64) -> Self {
        let head = self.head.skip_bytes(bytes);
        Grouped { head, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks that the rows lie at `expected`, however they are reached.
    fn lie_at(rows: impl Rows, expected: impl Fn(u32) -> u64) -> Result<(), TestCaseError> {
        for row in 0..40 {
            prop_assert_eq!(rows.at(row), expected(row));
            for down in 0..=row {
                prop_assert_eq!(rows.below(rows.at(row - down), down, row), expected(row));
                prop_assert_eq!(rows.skip(down).at(row - down), expected(row));
            }
            prop_assert_eq!(rows.skip_bytes(48).at(row), expected(row) + 48);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn rows_lie_where_their_strides_say(
            address in 1_u64 << 40..1 << 41, row_bytes in -5_000_i64..5_000,
            head_bytes in -50_000_i64..50_000, heads in 1_u32..9,
        ) {
            let head = Strided { address, row_bytes, elements: 64 };
            lie_at(head, |row| address.wrapping_add_signed(i64::from(row) * row_bytes))?;
            let rows = Grouped { head, head_bytes, heads: Divisor::new(heads), first: 0 };
            lie_at(rows, |row| {
                let (row, head) = (i64::from(row / heads), i64::from(row % heads));
                address.wrapping_add_signed(row * row_bytes + head * head_bytes)
            })?;
        }
    }
}
