//! The masks against brute force.

use kernels::abi::{Divisor, ForwardParams, MAX_SEQLEN, Options};
use kernels::attention::options::mask::{
    Causal, Either, Full, Interval, Mask, Prefix, Span, Window, seen_blocks, whole_blocks,
};
use kernels::attention::workload::heads::{HeadGroup, Heads};
use kernels::attention::workload::sequence::{Sequence, Split};
use kernels::attention::workload::walk::{Runs, Walk};
use proptest::prelude::*;
use std::ops::Range;

/// A mask, by its definition.
trait Definition: Mask {
    /// Whether `query` sees `key`, where the last query sees keys up to number `last - 1`.
    fn sees(query: i64, key: i64, offset: i64) -> bool;
}

impl Definition for Full {
    fn sees(_query: i64, _key: i64, _offset: i64) -> bool {
        true
    }
}

impl Definition for Causal {
    fn sees(query: i64, key: i64, offset: i64) -> bool {
        key <= query + offset
    }
}

/// The window of `LEFT` keys before a query's own place and `RIGHT` behind it; -1 for no bound.
#[derive(Clone, Copy)]
struct Within<const LEFT: i32, const RIGHT: i32>(Window);

impl<const LEFT: i32, const RIGHT: i32> Mask for Within<LEFT, RIGHT> {
    const UNIFORM: bool = Window::UNIFORM;
    type Keys = Span;
    type Queries = Span;

    fn new(params: &ForwardParams, sequence: Sequence, split: Split) -> Self {
        let bound = |keys: i32| if keys < 0 { i32::MAX } else { keys };
        let options = Options {
            left: bound(LEFT),
            right: bound(RIGHT),
            ..Options::default()
        };
        let params = ForwardParams { options, ..*params };
        Within(Window::new(&params, sequence, split))
    }

    fn keys(self, query: i32) -> Span {
        self.0.keys(query)
    }

    fn queries(self, key: i32) -> Span {
        self.0.queries(key)
    }

    fn keys_of_block(self, query: i32, first_key: i32) -> Span {
        self.0.keys_of_block(query, first_key)
    }
}

impl<const LEFT: i32, const RIGHT: i32> Definition for Within<LEFT, RIGHT> {
    fn sees(query: i64, key: i64, offset: i64) -> bool {
        let behind = key - (query + offset);
        (LEFT < 0 || -behind <= i64::from(LEFT)) && (RIGHT < 0 || behind <= i64::from(RIGHT))
    }
}

/// Lengths, a split of the keys, and the mask on it.
#[derive(Debug, Clone, Copy)]
struct Case {
    queries: u32,
    keys: u32,
    split: Split,
}

impl Case {
    fn mask<M: Mask>(&self, causal: bool) -> M {
        let params = ForwardParams {
            seqlen_q: self.queries,
            seqlen_kv: self.keys,
            causal: u32::from(causal),
            ..ForwardParams::default()
        };
        M::new(&params, Sequence::new(&params, 0), self.split)
    }

    /// Whether a query sees a key of the split.
    fn sees<M: Definition>(&self, query: u32, key: u32) -> bool {
        let key = i64::from(self.split.first + key);
        let offset = i64::from(self.keys) - i64::from(self.queries);
        M::sees(query.into(), key, offset)
    }

    /// Checks the intervals of all queries and keys, and their blocks, of a mask that should be `D`.
    fn check<D: Definition>(
        &self,
        mask: impl Mask,
        [q_rows, keys]: [u32; 2],
    ) -> Result<(), TestCaseError> {
        let (all_queries, all_keys) = (0..self.queries, 0..self.split.keys);
        for query in all_queries.clone() {
            let seen = mask.keys(query as i32);
            prop_assert!(seen.start() >= 0 && seen.end() <= self.split.keys as i32);
            for key in all_keys.clone() {
                let sees = self.sees::<D>(query, key);
                prop_assert_eq!(seen.contains(key as i32), sees);
                prop_assert_eq!(mask.queries(key as i32).contains(query as i32), sees);
            }
            for first in all_keys.clone().step_by(keys as usize) {
                let in_block = mask.keys_of_block(query as i32, first as i32);
                for key in (first..first + keys).filter(|&key| self.may_be_masked(key)) {
                    let sees = key < self.split.keys && self.sees::<D>(query, key);
                    prop_assert_eq!(in_block.contains((key - first) as i32), sees);
                }
            }
        }
        for first in all_queries.clone().step_by(q_rows as usize) {
            let tile = first..self.queries.min(first + q_rows);
            for part in tile.clone().step_by(16) {
                let part = part..tile.end.min(part + 16);
                self.check_walk::<D, _>(&mask, [tile.clone(), part], keys)?;
            }
        }
        blocks_are_exact(
            [all_queries.clone(), all_keys.clone()],
            [q_rows, keys],
            |query| mask.keys(query),
            |query, key| self.sees::<D>(query, key),
        )?;
        blocks_are_exact(
            [all_keys, all_queries],
            [keys, q_rows],
            |key| mask.queries(key),
            |key, query| self.sees::<D>(query, key),
        )
    }

    /// Checks the walk of a part of a tile's rows: it visits each block of the tile once, from the last to the first; passes what
    /// the part does not see; and calls nothing whole that a row sees in part.
    fn check_walk<D: Definition, M: Mask>(
        &self,
        mask: &M,
        [tile, part]: [Range<u32>; 2],
        bc: u32,
    ) -> Result<(), TestCaseError> {
        let ends = |rows: &Range<u32>| [rows.start, rows.end - 1].map(|row| mask.keys(row as i32));
        let seen = seen_blocks(ends(&tile), bc);
        let walk = Walk::<M::Keys>::new(seen.clone(), seen_blocks(ends(&part), bc));
        let visits = visits(&walk, whole_blocks(ends(&part), bc));
        let order = visits.iter().map(|&(j, _)| j);
        prop_assert!(order.eq(seen.clone().rev()), "{:?} of {:?}", visits, seen);
        let mut is_first = true;
        for (j, visit) in visits {
            let keys = j * bc..(j + 1) * bc;
            let count = |row: u32| {
                let keys = keys.clone().filter(|&key| key < self.split.keys);
                keys.filter(|&key| self.sees::<D>(row, key)).count()
            };
            match visit {
                Visit::Passed => prop_assert!(part.clone().all(|row| count(row) == 0)),
                Visit::Edge => is_first = false,
                Visit::Whole => {
                    prop_assert!(!is_first, "the first own block sets the maxima");
                    prop_assert!(part.clone().all(|row| count(row) == bc as usize));
                }
            }
        }
        Ok(())
    }

    /// Whether a kernel asks for this key: one that exists, or a ragged end, which only the last split has.
    fn may_be_masked(&self, key: u32) -> bool {
        key < self.split.keys || self.split.first + self.split.keys == self.keys
    }
}

/// What rows do with a block that their tile visits.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Visit {
    Passed,
    Edge,
    Whole,
}

/// The visits of a walk, in the loops of the kernels.
fn visits<I: Interval>(walk: &Walk<I>, whole: Range<u32>) -> Vec<(u32, Visit)> {
    let mut visits = Vec::new();
    let mut j = walk.end();
    while walk.passes_first(j) {
        j -= 1;
        visits.push((j, Visit::Passed));
    }
    if walk.sees(j) {
        let mut runs = Runs::<I>::new(walk.own_start(), j, whole);
        loop {
            while j > runs.edge() {
                j -= 1;
                visits.push((j, Visit::Edge));
            }
            while j > runs.whole() {
                j -= 1;
                visits.push((j, Visit::Whole));
            }
            if !runs.has_other_edge(j) {
                break;
            }
        }
    }
    while walk.passes_last(j) {
        j -= 1;
        visits.push((j, Visit::Passed));
    }
    visits
}

/// Checks the blocks of columns that tiles of rows see: no more and no fewer than needed.
fn blocks_are_exact<I: Interval>(
    [rows, columns]: [Range<u32>; 2],
    [tile, block]: [u32; 2],
    interval: impl Fn(i32) -> I,
    sees: impl Fn(u32, u32) -> bool,
) -> Result<(), TestCaseError> {
    for first in rows.clone().step_by(tile as usize) {
        let tile_rows = first..rows.end.min(first + tile);
        let ends = [first, tile_rows.end - 1].map(|row| interval(row as i32));
        let (seen, whole) = (seen_blocks(ends, block), whole_blocks(ends, block));
        prop_assert!(whole.is_empty() || seen.start <= whole.start && whole.end <= seen.end);
        for number in 0..columns.end.div_ceil(block) {
            let pairs = || {
                let columns = number * block..(number + 1) * block;
                tile_rows
                    .clone()
                    .flat_map(move |row| columns.clone().map(move |column| (row, column)))
            };
            let visible = |&(row, column): &(u32, u32)| column < columns.end && sees(row, column);
            let (some, all) = (pairs().any(|p| visible(&p)), pairs().all(|p| visible(&p)));
            prop_assert_eq!(seen.contains(&number), some, "{}: {:?}", number, seen);
            prop_assert_eq!(whole.contains(&number), all, "{}: {:?}", number, whole);
        }
    }
    Ok(())
}

prop_compose! {
    /// Lengths, and one of the splits of the keys, in whole blocks.
    fn cases()(queries in 1..=90_u32, keys in 1..=90_u32, per_split in 1..=6_u32, number in 0..9_u32)
        -> Case
    {
        let per_split = 16 * per_split;
        let first = number % keys.div_ceil(per_split) * per_split;
        let split = Split { first, keys: per_split.min(keys - first), is_first: first == 0 };
        Case { queries, keys, split }
    }
}

/// Br and Bc.
fn sizes() -> impl Strategy<Value = [u32; 2]> {
    [16_u32..=48, 1_u32..=3].prop_map(|[br, bc]| [br, 16 * bc])
}

proptest! {
    #[test]
    fn full(case in cases(), sizes in sizes()) {
        case.check::<Full>(case.mask::<Full>(false), sizes)?;
        case.check::<Full>(case.mask::<Either>(false), sizes)?;
    }

    #[test]
    fn causal(case in cases(), sizes in sizes()) {
        case.check::<Causal>(case.mask::<Causal>(true), sizes)?;
        case.check::<Causal>(case.mask::<Either>(true), sizes)?;
    }

    #[test]
    fn window(case in cases(), sizes in sizes()) {
        case.check::<Within<0, 0>>(case.mask::<Within<0, 0>>(false), sizes)?;
        case.check::<Within<19, 0>>(case.mask::<Within<19, 0>>(false), sizes)?;
        case.check::<Within<70, 3>>(case.mask::<Within<70, 3>>(false), sizes)?;
        case.check::<Within<-1, 0>>(case.mask::<Within<-1, 0>>(false), sizes)?;
        case.check::<Within<2, -1>>(case.mask::<Within<2, -1>>(false), sizes)?;
        case.check::<Full>(case.mask::<Within<-1, -1>>(false), sizes)?;
    }

    /// Later rows of a group see no fewer keys, so that the ends of a tile give its blocks.
    #[test]
    fn packed_rows_are_in_order(case in cases(), group in 1..=5_u32) {
        let params = ForwardParams { group: Divisor::new(group), ..ForwardParams::default() };
        let (mask, heads) = (case.mask::<Causal>(true), HeadGroup::new(&params, 1));
        let limits = (0..heads.row_count(case.queries))
            .map(|row| mask.keys(heads.query_and_head(row).0 as i32).end);
        prop_assert!(limits.is_sorted());
    }
}

#[test]
fn the_longest_sequences_do_not_overflow() {
    let longest = MAX_SEQLEN;
    for (queries, keys) in [(longest, longest), (longest, 1), (1, longest)] {
        let split = Split {
            first: 0,
            keys,
            is_first: true,
        };
        let case = Case {
            queries,
            keys,
            split,
        };
        let mask: Causal = case.mask(true);
        let last_tile = (longest.next_multiple_of(1024) - 1) as i32;
        let end = |query| Interval::end(mask.keys(query));
        assert_eq!(end(queries as i32 - 1), keys as i32);
        assert_eq!(end(last_tile), keys as i32);
        let first_sees = (i64::from(keys) - i64::from(queries) + 1).max(0);
        assert_eq!(i64::from(end(0)), first_sees);
        let last_key = mask.queries(keys as i32 - 1);
        assert_eq!(
            (last_key.start, last_key.end),
            (queries as i32 - 1, queries as i32)
        );
        let first_key = (i64::from(queries) - i64::from(keys)).max(0);
        assert_eq!(i64::from(mask.queries(0).start), first_key);

        let all: Within<-1, -1> = case.mask(false);
        let in_last_tile = (queries.next_multiple_of(1024) - 1) as i32;
        for query in [0, queries as i32 - 1, in_last_tile] {
            assert_eq!(
                (all.keys(query).start, all.keys(query).end),
                (0, keys as i32)
            );
        }
        let own: Within<0, 0> = case.mask(false);
        let last = own.keys(queries as i32 - 1);
        assert_eq!((last.start, last.end), (keys as i32 - 1, keys as i32));
    }

    // The last split of the longest sequence, with no mask and with one.
    let first = longest / 64 * 64;
    let split = Split {
        first,
        keys: longest - first,
        is_first: false,
    };
    let case = Case {
        queries: longest,
        keys: longest,
        split,
    };
    let all = split.keys as i32;
    for causal in [false, true] {
        let mask: Either = case.mask(causal);
        let end = |query| -> i32 { Prefix::end(mask.keys(query)) };
        assert_eq!(end(longest as i32 - 1), all);
        assert_eq!(end(0), if causal { 0 } else { all });
    }
}
