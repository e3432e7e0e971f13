//! The places of a tile's chunks: the kernels' own, or under any of CuTe's swizzles.

use kernels::layout::swizzle::{CHUNK_BYTES, Swizzle};
use std::fmt;
use std::str::FromStr;

/// Elements of a chunk.
const CHUNK: u32 = CHUNK_BYTES / 2;

/// A name or numbers on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// Row after row.
    None,
    /// A free chunk after each row.
    Pad,
    /// The kernels' own.
    Own,
    /// A swizzle of CuTe.
    Cute(Cute),
}

impl FromStr for Arrangement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Arrangement::None),
            "pad" => Ok(Arrangement::Pad),
            "own" => Ok(Arrangement::Own),
            numbers => Cute::parse(numbers).map(Arrangement::Cute),
        }
    }
}

/// CuTe's `Swizzle<B, M, S>`: XORs bits `M + S..M + S + B` of a 16-bit element's index into bits `M..M + B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cute {
    b: u32,
    m: u32,
    s: u32,
}

impl fmt::Display for Cute {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Swizzle<{},{},{}>", self.b, self.m, self.s)
    }
}

impl Cute {
    fn parse(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u32>, _> = text.split(',').map(|n| n.trim().parse()).collect();
        let Ok(&[b, m, s]) = numbers.as_deref() else {
            return Err("take own, none, pad, or B,M,S as in 3,3,3".to_owned());
        };
        let cute = Cute { b, m, s };
        let wrong = if m < 3 {
            "would tear chunks of 8 elements apart; take M from 3 on"
        } else if s < b {
            "would XOR bits with themselves; take S of at least B"
        } else if b > 5 || m > 10 || s > 10 {
            "is for larger tiles than these; take B up to 5, M and S up to 10"
        } else {
            return Ok(cute);
        };
        Err(format!("{cute} {wrong}"))
    }

    /// The swizzled index of an element.
    pub fn index(self, element: u32) -> u32 {
        let mask = (1 << self.b) - 1;
        element ^ (((element >> (self.m + self.s)) & mask) << self.m)
    }
}

impl Arrangement {
    /// Fails if some chunks of a tile of `rows` rows, each of `dim` elements, would lie outside it.
    pub fn check(self, rows: u32, dim: u32) -> Result<(), String> {
        let Arrangement::Cute(cute) = self else {
            return Ok(());
        };
        // Elements within which chunks move.
        let block = 1 << (cute.m + cute.b);
        let fills = |rows: &u32| (rows * dim).is_multiple_of(block);
        if fills(&rows) {
            return Ok(());
        }
        Err(format!(
            "{cute} moves chunks within {block} elements, which {rows} rows of {dim} do not fill; \
             take a multiple of {} rows",
            (1..).find(fills).expect("a power of two is reached")
        ))
    }

    /// Byte offset of a chunk in a tile whose rows have `dim` elements.
    pub fn offset(self, dim: u32, row: u32, chunk: u32) -> u32 {
        let swizzle = match self {
            Arrangement::None => Swizzle::none,
            Arrangement::Pad => Swizzle::padded,
            Arrangement::Own => Swizzle::new,
            Arrangement::Cute(cute) => return 2 * cute.index(row * dim + chunk * CHUNK),
        };
        swizzle(dim / CHUNK).offset(row, chunk)
    }
}

/// CuTe's name for the kernels' swizzle of a head dim; `None` if CuTe has none.
pub fn cute_of_own(dim: u32) -> Option<Cute> {
    let b = if dim < 64 { 2 } else { 3 };
    let s = dim.ilog2().max(6) - 3;
    dim.is_power_of_two().then_some(Cute { b, m: 3, s })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn cute(text: &str) -> Cute {
        Cute::parse(text).unwrap()
    }

    #[test]
    fn every_swizzle_is_a_permutation() {
        let mut seen = 0;
        for (b, m, s) in
            (0..6).flat_map(|b| (3..6).flat_map(move |m| (b..8).map(move |s| (b, m, s))))
        {
            for (rows, dim) in [(16, 32), (12, 64), (64, 96), (8, 256)] {
                let placement: Arrangement = format!("{b},{m},{s}").parse().unwrap();
                if placement.check(rows, dim).is_err() {
                    continue;
                }
                let offsets: HashSet<u32> = (0..rows)
                    .flat_map(|row| (0..dim / 8).map(move |chunk| (row, chunk)))
                    .map(|(row, chunk)| placement.offset(dim, row, chunk))
                    .collect();
                assert_eq!(offsets.len() as u32, rows * dim / 8, "{placement:?}");
                let whole = |offset: &u32| offset.is_multiple_of(16) && *offset < 2 * rows * dim;
                assert!(offsets.iter().all(whole), "{placement:?}");
                seen += 1;
            }
        }
        assert!(seen > 200, "{seen}");
    }

    /// Computed by hand: row 5 of 64 elements starts at 320 = 0b101_000_000, and 5 goes into the chunk.
    #[test]
    fn bits_are_xored() {
        assert_eq!(cute("3,3,3").index(320), 320 + 5 * 8);
        assert_eq!(cute("3,3,3").index(320 + 3 * 8 + 7), 320 + (3 ^ 5) * 8 + 7);
        // Bit 8 goes into bit 5; bit 7 is 0.
        assert_eq!(cute("2,4,3").index(0b11_0000_0000), 0b11_0010_0000);
        assert_eq!(cute("0,3,3").index(12345), 12345);
    }

    /// Chunk bits start at bit 3. Row bits start at bit 6, 7 and 8 for rows of 64, 128 and 256 elements; rows of 32
    /// use the row's second bit on. No swizzle of CuTe moves rows of other sizes, no powers of two, as the kernels do.
    #[test]
    fn own_swizzles_have_names() {
        let names = [32, 64, 128, 256].map(|dim| cute_of_own(dim).unwrap().to_string());
        let expected = ["2,3,3", "3,3,3", "3,3,4", "3,3,5"].map(|name| format!("Swizzle<{name}>"));
        assert_eq!(names, expected);
        for dim in (32..=256).step_by(32) {
            let chunks = (0..64).flat_map(|row| (0..dim / CHUNK).map(move |chunk| (row, chunk)));
            let all = (1..=3).flat_map(|b| (b..=10).map(move |s| Cute { b, m: 3, s }));
            let mut alike = all.filter(|cute| {
                let [cute, own] = [Arrangement::Cute(*cute), Arrangement::Own];
                let mut chunks = chunks.clone();
                chunks
                    .all(|(row, chunk)| cute.offset(dim, row, chunk) == own.offset(dim, row, chunk))
            });
            assert_eq!(alike.next(), cute_of_own(dim), "{dim}");
        }
    }

    #[test]
    fn bad_input_says_what_would_work() {
        let error = |text: &str| Arrangement::from_str(text).unwrap_err();
        for text in ["", "cute", "3,3", "3,3,3,3", "3,-3,3", "3,3,x"] {
            assert!(error(text).contains("own, none, pad, or B,M,S"), "{text}");
        }
        assert!(error("3,2,3").contains("M from 3 on"));
        assert!(error("3,3,2").contains("S of at least B"));
        assert!(error("3,4294967295,3").contains("M and S up to 10"));
        let error = Arrangement::Cute(cute("3,4,3")).check(15, 32).unwrap_err();
        assert!(error.contains("multiple of 4 rows"), "{error}");
    }
}
