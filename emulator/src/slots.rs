//! Slots: the rows of a warp's register file, which registers share whose lives do not meet.
//!
//! A compiler gives a kernel thousands of registers, each written once, of which few live at a time. With a row for each
//! a warp would have megabytes of them.

use crate::liveness::Life;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The rows of registers, and how many rows there are, by a linear scan (Poletto and Sarkar, "Linear Scan Register
/// Allocation"). Registers without a life have row 0.
pub(crate) fn assign(lives: &[Option<Life>]) -> (Vec<u32>, usize) {
    let mut order: Vec<_> = lives
        .iter()
        .enumerate()
        .filter_map(|(register, life)| Some((&life.as_ref()?.span, register)))
        .collect();
    order.sort_by_key(|(span, register)| (*span.start(), *register));
    let mut rows = vec![0; lives.len()];
    let mut living = BinaryHeap::new();
    let (mut free, mut count) = (Vec::new(), 0);
    for (span, register) in order {
        while let Some(Reverse((last, row))) = living.peek().copied()
            && last < *span.start()
        {
            living.pop();
            free.push(row);
        }
        // The row freed last is the likeliest to be in the host's cache.
        let row = free.pop().unwrap_or_else(|| {
            count += 1;
            count - 1
        });
        living.push(Reverse((*span.end(), row)));
        rows[register] = row;
    }
    (rows, count as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::RangeInclusive;

    fn rows<const N: usize>(spans: [RangeInclusive<usize>; N]) -> (Vec<u32>, usize) {
        let life = |span| {
            Some(Life {
                span,
                is_written_first: true,
            })
        };
        assign(&spans.map(life))
    }

    #[test]
    fn lives_that_meet_have_rows_of_their_own() {
        let (rows, count) = rows([0..=9, 1..=3, 3..=5, 4..=6, 7..=8]);
        assert_eq!(count, 3);
        for (a, b) in [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3)] {
            assert_ne!(rows[a], rows[b], "{a} and {b}");
        }
    }

    #[test]
    fn a_chain_of_short_lives_takes_two_rows() {
        let (_, count) = rows([0..=1, 1..=2, 2..=3, 3..=4]);
        assert_eq!(count, 2);
    }
}
