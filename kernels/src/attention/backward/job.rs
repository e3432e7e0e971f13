//! Which keys a block has, and which queries see them.

use crate::abi::{BackwardParams, ForwardParams};
use crate::attention::Visits;
use crate::attention::options::mask::{Interval, Mask, Span};
use crate::attention::workload::alternate::tile_head;
use crate::attention::workload::sequence::Sequence;
use core::ops::Range;

/// The key tile of a block, and the query tiles that see some of it.
#[derive(Clone, Copy)]
pub struct Job<M> {
    /// The lengths.
    pub sequence: Sequence,
    /// Which queries see a key.
    pub mask: M,
    /// The key/value head of the batch entry.
    pub kv_head: u32,
    /// The number of the key tile.
    pub tile: u32,
    /// Its first key.
    pub first_key: u32,
    /// The first visit to a query tile that sees one of its keys.
    pub first: u32,
    /// The visit after the last.
    pub end: u32,
    /// The query tiles that it visits.
    pub visits: Visits<M>,
}

impl<M: Mask> Job<M> {
    /// The job at a place of the order, in tiles of `bc` keys and `br` queries. Heads begin with their last key tile if
    /// `descends`, else with the first.
    #[inline(always)]
    pub fn at(params: &ForwardParams, place: u32, [bc, br]: [u32; 2], descends: bool) -> Self {
        let (_, tile, head) = params.order.place(place);
        let (batch, kv_head) = tile_head::<M>(params, head);
        let sequence = Sequence::bounded(params, batch);
        let mask = M::new(params, sequence, sequence.whole());
        // The order begins with the last tile; under the causal mask the first key tile has the most queries.
        let tile = match descends {
            true => tile,
            false => sequence.keys.div_ceil(bc) - 1 - tile,
        };
        let first_key = tile * bc;
        let visits = visits_of(params, sequence, [kv_head, tile], br);
        let seen = visits.of(Range {
            start: mask.queries(first_key as i32).start() as u32 / br,
            end: end_of(mask, sequence, [first_key, bc], br),
        });
        Job {
            sequence,
            mask,
            kv_head,
            tile,
            first_key,
            first: seen.start,
            end: seen.end,
            visits,
        }
    }

    /// The words that [`of`](Self::of) makes the job from, without divisions.
    #[inline(always)]
    pub fn words(&self) -> [u32; 4] {
        [self.tile, self.sequence.batch, self.kv_head, self.first]
    }

    /// The job of a block in tiles of `bc` keys and `br` queries, from its [words](Self::words).
    #[inline(always)]
    pub fn of(params: &ForwardParams, words: [u32; 4], bc: u32, br: u32) -> Self {
        let [tile, batch, kv_head, first] = words;
        let sequence = Sequence::bounded(params, batch);
        let (mask, first_key) = (M::new(params, sequence, sequence.whole()), tile * bc);
        let visits = visits_of(params, sequence, [kv_head, tile], br);
        let end = end_of(mask, sequence, [first_key, bc], br);
        Job {
            sequence,
            mask,
            kv_head,
            tile,
            first_key,
            first,
            end: visits.of(end..end).end,
            visits,
        }
    }

    /// Steps of the block: the query tiles of all heads of the group.
    #[inline(always)]
    pub fn steps(&self, params: &ForwardParams) -> u32 {
        (self.end - self.first) * params.group.value
    }

    /// The job with the mask of a query head of the group.
    #[inline(always)]
    pub fn of_head(self, params: &ForwardParams, in_group: u32) -> Self {
        match M::HAS_HEADS {
            true => Job {
                mask: self.mask.of_head(params, self.head(params, in_group)),
                ..self
            },
            false => self,
        }
    }

    /// The queries that see a key: none if it does not exist.
    #[inline(always)]
    pub fn queries(&self, key: u32) -> M::Queries {
        match key < self.sequence.keys {
            true => self.mask.queries(key as i32),
            false => M::Queries::default(),
        }
    }

    /// The keys of the tile that a query sees, counted from the tile's first one: none if the query does not exist.
    #[inline(always)]
    pub fn keys(&self, query: u32) -> M::Keys {
        match query < self.sequence.queries {
            true => self.mask.keys(query as i32),
            false => M::Keys::default(),
        }
        .counted_from(self.first_key as i32)
    }

    /// The queries that see all of `count` keys from `first` on, if there are no [gaps](Interval::has_gaps).
    #[inline(always)]
    pub fn whole(&self, first: u32, count: u32) -> Span {
        // The last key is seen first by the latest query, and the first key last by the earliest one.
        let last = self.queries(first + count - 1);
        let end = match M::Keys::HAS_START {
            true if last.end() > 0 => self.queries(first).end(),
            _ => last.end(),
        };
        let start = last.start();
        Span { start, end }
    }

    /// Whether a query tile, which starts at `first`, has a pair with a key of this tile that does not see each other.
    #[inline(always)]
    pub fn masks(&self, first: u32, [bc, br]: [u32; 2]) -> bool {
        let whole = self.whole(self.first_key, bc);
        M::Queries::may_have_gaps()
            || (first as i32) < whole.start
            || whole.end < (first + br) as i32
    }

    /// Key tiles that begin before this one and have a part in the dq of the query tile that starts at `first`, as this one has.
    #[inline(always)]
    pub fn tiles_before(&self, params: &ForwardParams, first: u32, [bc, br]: [u32; 2]) -> u32 {
        if !M::Keys::HAS_START {
            return self.tile;
        }
        let tile = [self.sequence.batch, self.kv_head, first / br];
        let blocks = [0, self.sequence.keys.div_ceil(bc)];
        let visits = Visits::<M>::new(&params.options.blocks, tile, blocks);
        let mut seen = self.mask.keys(first as i32).start() as u32 / bc..self.tile;
        if M::descends() {
            seen = self.tile + 1..self.mask.keys_begun((first + br - 1) as i32).div_ceil(bc);
        }
        let before = visits.of(seen);
        before.end - before.start
    }

    /// The query tile of a step.
    #[inline(always)]
    pub fn query_tile(&self, step: Step) -> u32 {
        self.visits.block(step.tile)
    }

    /// A query head of the group, in its batch entry.
    #[inline(always)]
    pub fn head(&self, params: &ForwardParams, in_group: u32) -> u32 {
        self.kv_head * params.group.value + in_group
    }

    /// Number of a query head of the group among the heads of all batch entries.
    #[inline(always)]
    pub fn head_index(&self, params: &ForwardParams, in_group: u32) -> u64 {
        let head = self.head(params, in_group);
        self.sequence.head_index(params, head)
    }

    /// Number of a row of a query head of the group among the padded rows of all heads.
    #[inline(always)]
    pub fn padded_row(&self, params: &BackwardParams, in_group: u32, row: u32) -> u64 {
        let head = self.head_index(&params.forward, in_group);
        head * u64::from(params.padded_rows) + u64::from(row)
    }
}

/// The query tiles that a key tile of a key/value head visits.
#[inline(always)]
fn visits_of<M: Mask>(
    params: &ForwardParams,
    sequence: Sequence,
    [kv_head, tile]: [u32; 2],
    br: u32,
) -> Visits<M> {
    let tile = [sequence.batch, kv_head, tile];
    let blocks = [0, sequence.queries.div_ceil(br)];
    Visits::new(&params.options.query_blocks, tile, blocks)
}

/// The query tile after the last that sees one of `bc` keys from `first_key` on.
#[inline(always)]
fn end_of<M: Mask>(mask: M, sequence: Sequence, [first_key, bc]: [u32; 2], br: u32) -> u32 {
    let end = match M::Keys::HAS_START {
        true => {
            let last = (first_key + bc).min(sequence.keys) - 1;
            mask.queries(last as i32).end() as u32
        }
        false => sequence.queries,
    };
    end.div_ceil(br)
}

/// Intervals of a tile's queries, counted from the first query of the 16-query tile number `nt`.
#[inline(always)]
pub fn below<I: Interval>(seen: [I; 2], nt: usize) -> [I; 2] {
    seen.map(|queries| queries.counted_from(16 * nt as i32))
}

/// A query tile of a head: a step of the block.
#[derive(Clone, Copy)]
pub struct Step {
    /// The query head in the group.
    pub head: u32,
    /// The number of the visit: of the query tile, where no boolean mask leaves tiles out.
    pub tile: u32,
}

impl Step {
    /// The first step of a job.
    #[inline(always)]
    pub fn first<M>(job: &Job<M>) -> Self {
        Step {
            head: 0,
            tile: job.first,
        }
    }

    /// The step after this one.
    #[inline(always)]
    #[must_use]
    pub fn next<M>(self, job: &Job<M>) -> Self {
        let last = self.tile + 1 == job.end;
        Step {
            head: self.head + u32::from(last),
            tile: if last { job.first } else { self.tile + 1 },
        }
    }

    /// How many steps of the job come before.
    #[inline(always)]
    pub fn number<M>(self, job: &Job<M>) -> u32 {
        self.head * (job.end - job.first) + self.tile - job.first
    }

    /// Whether no step of the job comes before.
    #[inline(always)]
    pub fn is_first<M>(self, job: &Job<M>) -> bool {
        self.head == 0 && self.tile == job.first
    }

    /// The step before this one, which is not the first.
    #[inline(always)]
    #[must_use]
    pub fn previous<M>(self, job: &Job<M>) -> Self {
        let first = self.tile == job.first;
        Step {
            head: self.head - u32::from(first),
            tile: if first { job.end - 1 } else { self.tile - 1 },
        }
    }
}
