//! Jobs of a launch that stores dS: jobs of keys compute dK, dV and dS, jobs of queries compute dQ from dS.
//!
//! Blocks take jobs in order, as they begin. Device memory bounds jobs of queries, the tensor cores bound jobs of keys: so
//! both kinds run side by side. First come the keys of a few waves of heads, then keys and queries of one head each in turns,
//! then the queries that are left. Memory holds dS of few waves at a time; later waves overwrite earlier ones.

use super::{Divisor, Order};

/// The jobs of a launch.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The order of the tiles of queries.
    pub order: Order,
    /// Query heads of a batch entry.
    pub heads: Divisor,
    /// Query heads whose dS the memory holds. A head's number modulo this is its place.
    pub ring: Divisor,
    /// Key/value heads of a wave.
    wave: Divisor,
    /// Jobs of both kinds of a key/value head.
    both: Divisor,
    /// Jobs of keys of a key/value head.
    keys: u32,
    /// Jobs of queries of a key/value head.
    queries: u32,
    /// Jobs of keys that come before the first job of queries.
    first: u32,
    /// Jobs of both kinds that follow in turns.
    mixed: u32,
    /// Key/value heads.
    kv_heads: u32,
    /// Panels of dS that jobs of keys of a key/value head store, one for each 64 keys.
    panels: u32,
    /// Waves whose dS the memory holds.
    ring_waves: u32,
    /// Unused.
    padding: u32,
}

/// A job, with its place among the jobs of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoredJob {
    /// dK, dV and dS of a tile of keys.
    Keys(u32),
    /// dQ of a tile of queries.
    Queries(u32),
}

/// A counter that a job waits for, and the number that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// Index of the counter.
    pub counter: u32,
    /// The least number at which the job goes on.
    pub least: u32,
}

/// Sizes of [`Stored`] jobs; none is 0.
#[derive(Clone, Copy, Debug)]
pub struct StoredSizes {
    /// Key/value heads of all batch entries.
    pub kv_heads: u32,
    /// Query heads that share a key/value head.
    pub group: u32,
    /// Query heads of a batch entry.
    pub heads: u32,
    /// Tiles of keys of a head.
    pub key_tiles: u32,
    /// Jobs of a tile of keys: 1, or 2 of half a tile each.
    pub tile_jobs: u32,
    /// Tiles of queries of a head.
    pub query_tiles: u32,
    /// Key/value heads of a wave.
    pub wave: u32,
    /// Waves whose keys come before the first queries.
    pub first_waves: u32,
    /// Waves whose dS the memory holds: all, or more than come first. A wave overwrites the one so many waves before, whose
    /// queries must come before its keys.
    pub ring_waves: u32,
}

impl Stored {
    /// The jobs of a launch.
    pub const fn new(sizes: StoredSizes) -> Self {
        let StoredSizes {
            kv_heads,
            group,
            wave,
            first_waves,
            ..
        } = sizes;
        let keys = sizes.key_tiles * sizes.tile_jobs;
        let queries = sizes.query_tiles * group;
        let first_heads = if first_waves * wave < kv_heads {
            first_waves * wave
        } else {
            kv_heads
        };
        Stored {
            order: Order::new(kv_heads * group, sizes.query_tiles, [wave * group, 1]),
            heads: Divisor::new(sizes.heads),
            ring: Divisor::new(sizes.ring_waves * wave * group),
            wave: Divisor::new(wave),
            both: Divisor::new(keys + queries),
            keys,
            queries,
            first: first_heads * keys,
            mixed: (kv_heads - first_heads) * (keys + queries),
            kv_heads,
            panels: 2 * sizes.key_tiles,
            ring_waves: sizes.ring_waves,
            padding: 0,
        }
    }

    /// All jobs.
    pub const fn jobs(&self) -> u32 {
        self.kv_heads * self.both.value
    }

    /// The number of counters, which are 0 before the launch: of each wave the panels of dS stored, and the jobs of
    /// queries that have read their dS.
    pub const fn counters(&self) -> u32 {
        2 * self.kv_heads.div_ceil(self.wave.value)
    }

    /// Job number `number`, in the order in which blocks take them.
    #[inline(always)]
    pub const fn job(&self, number: u32) -> StoredJob {
        if number < self.first {
            return StoredJob::Keys(number);
        }
        let after = number - self.first;
        if after >= self.mixed {
            let (heads, _) = self.both.divide(self.mixed);
            return StoredJob::Queries(heads * self.queries + after - self.mixed);
        }
        let (head, in_head) = self.both.divide(after);
        let turns = if self.keys < self.queries {
            self.keys
        } else {
            self.queries
        };
        let (is_queries, index) = if in_head < 2 * turns {
            (in_head % 2 == 0, in_head / 2)
        } else {
            (self.keys < self.queries, in_head - turns)
        };
        if is_queries {
            StoredJob::Queries(head * self.queries + index)
        } else {
            StoredJob::Keys(self.first + head * self.keys + index)
        }
    }

    /// The wave of query head `head`, counted over all batch entries, where `group` heads share a key/value head.
    #[inline(always)]
    pub const fn wave(&self, head: u32, group: Divisor) -> u32 {
        self.wave.divide(group.divide(head).0).0
    }

    /// Index of the counter of a wave's stored panels.
    pub const fn stored(wave: u32) -> u32 {
        2 * wave
    }

    /// Index of the counter of a wave's jobs of queries that have read their dS.
    pub const fn read(wave: u32) -> u32 {
        2 * wave + 1
    }

    /// The count that jobs of queries of a wave wait for: all of the wave's dS.
    #[inline(always)]
    pub const fn all_stored(&self, wave: u32) -> Awaited {
        let left = self.kv_heads - wave * self.wave.value;
        let heads = if left < self.wave.value {
            left
        } else {
            self.wave.value
        };
        Awaited {
            counter: Self::stored(wave),
            least: heads * self.panels,
        }
    }

    /// The count that jobs of keys wait for before they store a wave's dS: the dS that they overwrite is read. None
    /// where they overwrite nothing.
    #[inline(always)]
    pub const fn memory_free(&self, wave: u32) -> Option<Awaited> {
        if wave < self.ring_waves {
            return None;
        }
        Some(Awaited {
            counter: Self::read(wave - self.ring_waves),
            least: self.wave.value * self.queries,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    extern crate std;
    use std::collections::HashSet;
    use std::vec;

    fn sizes() -> impl Strategy<Value = StoredSizes> {
        (
            1u32..20,
            1u32..4,
            1u32..6,
            1u32..3,
            1u32..6,
            1u32..20,
            1u32..5,
            1u32..4,
        )
            .prop_map(
                |(kv_heads, group, key_tiles, tile_jobs, query_tiles, wave, first, more)| {
                    let wave = wave.min(kv_heads);
                    StoredSizes {
                        kv_heads,
                        group,
                        heads: kv_heads * group,
                        key_tiles,
                        tile_jobs,
                        query_tiles,
                        wave,
                        first_waves: first,
                        ring_waves: (first + more).min(kv_heads.div_ceil(wave)),
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn every_job_has_one_number(sizes in sizes()) {
            let stored = Stored::new(sizes);
            let jobs: HashSet<_> = (0..stored.jobs()).map(|number| stored.job(number)).collect();
            prop_assert_eq!(jobs.len() as u32, stored.jobs());
            let (keys, queries) = (sizes.kv_heads * stored.keys, sizes.kv_heads * stored.queries);
            let exists = |job: &StoredJob| match *job {
                StoredJob::Keys(place) => place < keys,
                StoredJob::Queries(place) => place < queries,
            };
            prop_assert!(jobs.iter().all(exists));
        }

        /// A block waits only for blocks that began before it, and these end.
        #[test]
        fn jobs_wait_for_earlier_ones(sizes in sizes()) {
            let stored = Stored::new(sizes);
            let mut counters = vec![0; stored.counters() as usize];
            for number in 0..stored.jobs() {
                let (wave, awaited) = match stored.job(number) {
                    StoredJob::Keys(place) => {
                        let wave = place / (sizes.wave * stored.keys);
                        (wave, stored.memory_free(wave))
                    }
                    StoredJob::Queries(place) => {
                        let wave = place / (sizes.wave * stored.queries);
                        (wave, Some(stored.all_stored(wave)))
                    }
                };
                if let Some(Awaited { counter, least }) = awaited {
                    prop_assert!(counters[counter as usize] >= least, "job {}", number);
                }
                match stored.job(number) {
                    StoredJob::Keys(_) => {
                        counters[Stored::stored(wave) as usize] += 2 / sizes.tile_jobs;
                    }
                    StoredJob::Queries(_) => counters[Stored::read(wave) as usize] += 1,
                }
            }
        }
    }
}
