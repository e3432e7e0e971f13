//! Sequences of variable lengths on a GPU: a launch turns offsets or lengths into what queries and keys see.

use super::pages::{expect_pages, read_keys};
use super::{RawOptions, Sequences, Spaced, of_kernels};
use crate::device::Device;
use crate::device::driver::RawStream;
use crate::error::Result;
use crate::forward::Problem;
use crate::plan::{Step, Steps};
use crate::spread::Spread;
use crate::tensor::RawTensor;
use kernels::abi::{
    Divisor, KeyRange, LengthsRef, Options, QueryRange, QueryTile, RangesParams, UnitsRef,
};
use kernels::catalog::{self, Auxiliary, Family};
use std::mem::offset_of;

/// The tables that a call reads of its sequences, beside the ranges of keys.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tables {
    /// Sequences in place of what the options say.
    pub spaced: Option<Spaced>,
    /// Whether it reads the ranges of queries: gradients do, and what rounds keys.
    pub of_keys: bool,
    /// Whether kernels read the lengths of each entry's sequence themselves: then there are no tables.
    pub by_lengths: bool,
    /// The units of the keys of all entries, of whose lengths kernels read.
    pub units: Option<Units>,
    /// The tiles of packed queries.
    pub tiles: Option<QueryTiles>,
    /// How queries and keys of packed sequences are spread.
    pub spread: [Option<Spread>; 2],
}

impl Tables {
    /// The tables of a backward pass, of sequences that may be spaced.
    pub fn of_gradients(spaced: Option<Spaced>, spread: [Option<Spread>; 2]) -> Self {
        Tables {
            spaced,
            of_keys: true,
            spread,
            ..Tables::default()
        }
    }
}

/// Into which [units](kernels::abi::UnitsRef) the keys of all entries are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Units {
    /// How many of one size all keys make at most.
    pub whole: u32,
    /// The multiple of keys at which they begin.
    pub step: u32,
    /// The least keys of one that is not its entry's last.
    pub least: u32,
}

impl Units {
    /// The units of so many entries, as kernels read them, without offsets.
    pub fn of_kernels(self, entries: u32) -> UnitsRef {
        UnitsRef {
            offsets: 0,
            count: Divisor::new(self.whole + entries),
            whole: Divisor::new(self.whole),
            step: Divisor::new(self.step),
            least: self.least,
        }
    }
}

/// The [tiles](QueryTile) of packed queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryTiles {
    /// How many there may be.
    pub count: u32,
    /// Rows of each.
    pub rows: u32,
    /// Heads that share a tile.
    pub group: u32,
}

impl Steps {
    /// The options that kernels read, which stand at `place` of the parameter blocks of the launches to come. With
    /// sequences a launch finds the ranges of keys, and the other `tables`.
    ///
    /// # Errors
    /// If there are too many rows for a launch, or the workspace overflows.
    pub(crate) fn options(
        &mut self,
        p: &Problem,
        tensors: &RawOptions,
        tables: Tables,
        place: usize,
    ) -> Result<Options> {
        let mut options = of_kernels(p, tensors);
        if !tensors.has_ranges() {
            return Ok(options);
        }
        // Without lengths they fill their rows.
        let named = tensors.sequences.as_ref().map(Sequences::named);
        let addresses = named.map_or([0; 2], |parts| parts.map(|(_, tensor)| tensor.address));
        let first_keys = tensors.first_keys.map_or(0, |first| first.address);
        let Tables {
            spaced,
            of_keys,
            units,
            tiles,
            spread,
            by_lengths,
        } = tables;
        if by_lengths {
            let [q, kv] = addresses;
            options.lengths = LengthsRef { q, kv, first_keys };
            if let Some(units) = units {
                options.units = units.of_kernels(p.batch as u32);
                options.units.offsets = self.reserve([p.batch + 1, 1, size_of::<u32>()])?;
                let of_units = place + offset_of!(Options, units);
                self.places.push(of_units + offset_of!(UnitsRef, offsets));
            }
            return Ok(options);
        }
        let padded = Spaced {
            rows: [p.seqlen_q, p.seqlen_kv],
            lengths: addresses,
            sharing: 1,
        };
        let (spaced, [q, kv], count) = match (spaced, tensors.sequences) {
            (None, Some(Sequences::Packed { q, .. })) => (Spaced::NONE, addresses, q.shape[0] - 1),
            (None, Some(sequences @ Sequences::PackedQueries { .. })) => {
                let rows = [0, p.seqlen_kv];
                let spaced = Spaced {
                    rows,
                    ..Spaced::NONE
                };
                (spaced, addresses, sequences.key_entries())
            }
            (spaced, _) => {
                let spaced = spaced.unwrap_or(padded);
                (spaced, spaced.lengths, p.seqlen_q / spaced.rows[0])
            }
        };
        let [queries, keys] = spaced.rows.map(|rows| rows as u32);
        let steps = spread.map(|spread| spread.map_or(0, |spread| spread.step));
        let rows = |side: usize, own| spread[side].map_or(own, |spread| spread.rows);
        let rows = [rows(0, p.seqlen_q), rows(1, p.seqlen_kv)];
        options.key_ranges = self.reserve([p.batch, rows[0], size_of::<KeyRange>()])?;
        self.places.push(place + offset_of!(Options, key_ranges));
        let mut places = vec![offset_of!(RangesParams, key_ranges)];
        if of_keys {
            options.query_ranges = self.reserve([p.batch, rows[1], size_of::<QueryRange>()])?;
            self.places.push(place + offset_of!(Options, query_ranges));
            places.push(offset_of!(RangesParams, query_ranges));
        }
        let mut params = RangesParams {
            q,
            kv,
            key_ranges: options.key_ranges,
            query_ranges: options.query_ranges,
            first_keys,
            sequences: count as u32,
            batch: p.batch as u32,
            seqlen_q: p.seqlen_q as u32,
            seqlen_kv: p.seqlen_kv as u32,
            left: options.left,
            right: options.right,
            queries,
            keys,
            sharing: spaced.sharing as u32,
            heads: p.heads as u32,
            spread_q: steps[0],
            spread_kv: steps[1],
            rows_q: rows[0] as u32,
            rows_kv: rows[1] as u32,
            ..RangesParams::default()
        };
        if tensors.has_slopes_of_sequences() {
            params.slopes = options.alibi;
            params.slopes_sequence = options.alibi_batch;
            params.slopes_head = options.alibi_head;
            params.query_slopes = self.reserve([p.heads, rows[0], size_of::<f32>()])?;
            places.push(offset_of!(RangesParams, query_slopes));
            options.alibi = params.query_slopes;
            options.alibi_batch = 0;
            options.alibi_head = rows[0] as i64;
            self.places.push(place + offset_of!(Options, alibi));
        }
        if let Some(tiles) = tiles {
            options.tiles = self.reserve([tiles.count as usize, 1, size_of::<QueryTile>()])?;
            params.tiles = options.tiles;
            params.tile_count = tiles.count;
            params.tile_rows = tiles.rows;
            params.group = tiles.group;
            self.places.push(place + offset_of!(Options, tiles));
            places.push(offset_of!(RangesParams, tiles));
        }
        let keys = if of_keys { rows[1] } else { 0 };
        self.find_ranges(p.batch as u128 * (rows[0] + keys) as u128, &params, &places)?;
        Ok(options)
    }

    /// Adds the launch that finds the ranges of so many rows, and divides the queries, if there are tiles to write.
    ///
    /// # Errors
    /// If there are too many rows for a launch.
    fn find_ranges(&mut self, rows: u128, params: &RangesParams, places: &[usize]) -> Result<()> {
        let kernel = catalog::kernel(Family::Auxiliary(Auxiliary::Ranges));
        let divides = u128::from(params.tile_count > 0);
        let blocks = rows.div_ceil(u128::from(kernel.launch.threads)) + divides;
        let shared_bytes = kernel.launch.shared_bytes;
        let step = Step::new(kernel.into(), blocks, shared_bytes, params, places)?;
        self.steps.push(step);
        Ok(())
    }
}

impl RawOptions {
    /// Checks offsets, lengths, first keys, entries of a cache of so many, pages, and a prefix, in the memory of a GPU, if the call wants that.
    ///
    /// # Errors
    /// Names the first number that is not allowed; or what the device reports.
    ///
    /// # Safety
    /// The conditions of [`Attention::forward_raw`](crate::Attention::forward_raw).
    pub(crate) unsafe fn check_lengths(
        &self,
        p: &Problem,
        cache: usize,
        device: &Device,
        stream: RawStream,
    ) -> Result<()> {
        let numbers = self.numbers(p, cache)?;
        let has_numbers = !numbers.is_empty() || self.pages.is_some();
        let (true, Some(gpu)) = (self.check_lengths && has_numbers, device.gpu()) else {
            return Ok(());
        };
        let download = |tensor: &RawTensor<1>| {
            // All queries of each entry.
            if tensor.address == 0 {
                return Ok(Vec::new());
            }
            let mut numbers = vec![0_i32; tensor.shape[0]];
            // SAFETY: the elements are in the device's memory, by the caller's word; the stream has done its work.
            unsafe {
                gpu.driver()
                    .download(tensor.address, bytemuck::cast_slice_mut(&mut numbers))?;
            }
            Ok(numbers)
        };
        // SAFETY: the stream is valid by the caller's word.
        unsafe { gpu.driver().wait(stream)? };
        for numbers in &numbers {
            numbers.expect(&download(&numbers.tensor)?)?;
        }
        // SAFETY: as above.
        unsafe { self.expect_prefix(p, cache, device)? };
        let Some(table) = self.pages else {
            return Ok(());
        };
        let sequences = self.sequences.as_ref();
        let sequences = sequences.map(|sequences| sequences.try_map(download));
        let sequences = sequences.transpose()?;
        let all = self.keys_of_entry(p);
        for entry in 0..table.shape[0] {
            let numbers = download(&table.row(entry, size_of::<i32>()))?;
            let keys = read_keys(all, sequences.as_ref(), entry);
            expect_pages(all, entry, &numbers, keys, cache)?;
        }
        Ok(())
    }
}
