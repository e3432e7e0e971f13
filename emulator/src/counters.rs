//! Counters of a launch: instructions, tensor-core work and memory transactions.
//!
//! Shared memory is 32 banks of 4 bytes. The hardware splits an access into phases of 128 bytes: all
//! 32 lanes where each moves up to 4 bytes, half-warps where each moves 8, quarter-warps where each
//! moves 16 (one matrix of `ldmatrix`). A phase takes as many wavefronts as the busiest bank has
//! distinct words; one is ideal, and the others are bank conflicts.
//!
//! Global memory moves in sectors of 32 bytes; the ideal is the number that the moved bytes fill.

use crate::registers::{Row, lanes};
use crate::source::Source;
use std::collections::BTreeMap;

/// The work of one instruction of a kernel, over all warps of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Times that a warp executed it, with all or some of its lanes.
    pub executed: u64,
    /// Lanes that executed it, over all times.
    pub lanes: u64,
    /// Floating-point operations on tensor cores.
    pub flops: u64,
    /// Shared-memory wavefronts.
    pub wavefronts: u64,
    /// Shared-memory wavefronts without bank conflicts.
    pub ideal_wavefronts: u64,
    /// Sectors of global memory.
    pub sectors: u64,
    /// Sectors that the moved bytes fill.
    pub ideal_sectors: u64,
    /// Bytes read from global memory.
    pub bytes_read: u64,
    /// Bytes written to global memory.
    pub bytes_written: u64,
}

impl Tally {
    /// Wavefronts over the ideal.
    #[must_use]
    pub fn bank_conflicts(&self) -> u64 {
        self.wavefronts.saturating_sub(self.ideal_wavefronts)
    }

    /// Sectors over the ideal.
    #[must_use]
    pub fn extra_sectors(&self) -> u64 {
        self.sectors.saturating_sub(self.ideal_sectors)
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        self.executed += other.executed;
        self.lanes += other.lanes;
        self.flops += other.flops;
        self.wavefronts += other.wavefronts;
        self.ideal_wavefronts += other.ideal_wavefronts;
        self.sectors += other.sectors;
        self.ideal_sectors += other.ideal_sectors;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
    }

    /// Counts the wavefronts of an access to shared memory: `bytes` bytes (a power of two, up to 16)
    /// at the address of each `active` lane. All bank conflicts in this project are counted here.
    ///
    /// ```
    /// let mut column = emulator::Tally::default();
    /// column.count_shared(u32::MAX, &std::array::from_fn(|lane| 128 * lane as u64), 4);
    /// assert_eq!((column.wavefronts, column.ideal_wavefronts), (32, 1));
    /// ```
    ///
    /// # Panics
    /// If `bytes` is not from 1 to 128.
    pub fn count_shared(&mut self, active: u32, addresses: &[u64; 32], bytes: u32) {
        assert!((1..=128).contains(&bytes), "a lane accesses 1 to 128 bytes");
        let phase_lanes = (128 / bytes).min(32);
        for phase in 0..32 / phase_lanes {
            let in_phase = (u32::MAX >> (32 - phase_lanes)) << (phase * phase_lanes);
            let active = active & in_phase;
            if active != 0 {
                self.ideal_wavefronts += 1;
                self.wavefronts += u64::from(phase_wavefronts(active, addresses, bytes));
            }
        }
    }

    /// Counts an asynchronous access to `bytes` bytes of shared memory: a bulk copy or an operand of a
    /// product. It moves 128 bytes in a wavefront.
    pub(crate) fn count_bulk(&mut self, bytes: u32) {
        let wavefronts = u64::from(bytes).div_ceil(128);
        self.wavefronts += wavefronts;
        self.ideal_wavefronts += wavefronts;
    }

    /// Counts a bulk copy from or to adjacent bytes of global memory.
    pub(crate) fn count_row(&mut self, address: u64, bytes: u32, writes: bool) {
        let bytes = u64::from(bytes);
        *self.moved(writes) += bytes;
        self.ideal_sectors += bytes.div_ceil(32);
        self.sectors += (address % 32 + bytes).div_ceil(32);
    }

    /// The count of bytes in one direction.
    fn moved(&mut self, writes: bool) -> &mut u64 {
        match writes {
            true => &mut self.bytes_written,
            false => &mut self.bytes_read,
        }
    }

    /// Counts an access of `bytes` bytes a lane to global memory.
    pub(crate) fn count_global(
        &mut self,
        active: u32,
        addresses: &Row<u64>,
        bytes: u32,
        writes: bool,
    ) {
        let mut distinct: Vec<u64> = lanes(active).map(|lane| addresses[lane]).collect();
        *self.moved(writes) += u64::from(bytes) * distinct.len() as u64;
        distinct.sort_unstable();
        distinct.dedup();
        self.ideal_sectors += (u64::from(bytes) * distinct.len() as u64).div_ceil(32);
        distinct.iter_mut().for_each(|address| *address /= 32);
        distinct.dedup();
        self.sectors += distinct.len() as u64;
    }
}

/// Distinct words in the busiest bank.
fn phase_wavefronts(active: u32, addresses: &Row<u64>, bytes: u32) -> u32 {
    let mut words: Vec<u64> = lanes(active)
        .flat_map(|lane| {
            let first = addresses[lane] / 4;
            first..first + u64::from(bytes.div_ceil(4))
        })
        .collect();
    words.sort_unstable();
    words.dedup();
    let mut banks = [0; 32];
    for word in words {
        banks[(word % 32) as usize] += 1;
    }
    banks.into_iter().max().unwrap_or(0)
}

/// An instruction and what it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Line of the module, from 1.
    pub line: u32,
    /// The instruction's opcode, with its modifiers.
    pub opcode: String,
    /// The source line that it was compiled from, where the PTX has `.loc`.
    pub source: Option<Source>,
    /// Its work.
    pub tally: Tally,
}

/// The work of a launch. Wavefronts, sectors and bytes are zero unless
/// [`Options::counters`](crate::Options) is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The instructions that were executed, in program order.
    pub lines: Vec<Line>,
}

/// The work of a launch for each `mma` that a warp executes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerMma {
    /// Warp-instructions of all kinds, the `mma` included.
    pub instructions: f64,
    /// `ldmatrix` instructions.
    pub loads: f64,
    /// Shared-memory wavefronts of loads, stores and copies, of 128 bytes each where nothing is wasted.
    pub wavefronts: f64,
}

impl Counters {
    /// The sum over all instructions.
    #[must_use]
    pub fn total(&self) -> Tally {
        self.total_of("")
    }

    /// The sum over the instructions whose opcode starts with `prefix`, such as `"st.shared"`.
    #[must_use]
    pub fn total_of(&self, prefix: &str) -> Tally {
        let mut total = Tally::default();
        for line in self.lines.iter().filter(|l| l.opcode.starts_with(prefix)) {
            total.add(&line.tally);
        }
        total
    }

    /// Warp-instructions by the opcode up to its first dot.
    #[must_use]
    pub fn by_kind(&self) -> BTreeMap<&str, u64> {
        let mut kinds = BTreeMap::new();
        for line in &self.lines {
            let kind = line.opcode.split('.').next().unwrap_or_default();
            *kinds.entry(kind).or_default() += line.tally.executed;
        }
        kinds
    }

    /// Number of `mma` that warps executed.
    #[must_use]
    pub fn mma(&self) -> u64 {
        self.total_of("mma").executed
    }

    /// Ratios to the number of `mma`; none where there was no `mma`.
    ///
    /// ```
    /// # use emulator::{Counters, Line, Tally};
    /// # let line = |opcode: &str, executed, wavefronts| Line {
    /// #     line: 1,
    /// #     opcode: opcode.to_owned(),
    /// #     source: None,
    /// #     tally: Tally { executed, wavefronts, ..Tally::default() },
    /// # };
    /// # let counters = Counters { lines: vec![line("ldmatrix.x4", 2, 8), line("mma.sync", 4, 0)] };
    /// let ratios = counters.per_mma().expect("some mma");
    /// assert_eq!((ratios.instructions, ratios.loads, ratios.wavefronts), (1.5, 0.5, 2.0));
    /// ```
    #[must_use]
    pub fn per_mma(&self) -> Option<PerMma> {
        let mma = self.mma();
        let ratio = |count: u64| count as f64 / mma as f64;
        let total = self.total();
        (mma > 0).then(|| PerMma {
            instructions: ratio(total.executed),
            loads: ratio(self.total_of("ldmatrix").executed),
            wavefronts: ratio(total.wavefronts),
        })
    }

    /// Arrivals of warps at barriers of the block.
    #[must_use]
    pub fn barriers(&self) -> u64 {
        let warp_barriers = self.total_of("bar.warp").executed;
        self.total_of("bar").executed - warp_barriers
    }

    /// The instructions with bank conflicts.
    pub fn bank_conflicts(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|l| l.tally.bank_conflicts() > 0)
    }

    /// The instructions that touch more sectors than their bytes fill.
    pub fn uncoalesced(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|l| l.tally.extra_sectors() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(bytes: u32, address: impl Fn(u64) -> u64) -> (u64, u64) {
        let mut tally = Tally::default();
        let addresses = std::array::from_fn(|lane| address(lane as u64));
        tally.count_shared(u32::MAX, &addresses, bytes);
        (tally.wavefronts, tally.ideal_wavefronts)
    }

    #[test]
    fn words_of_one_bank_take_turns() {
        assert_eq!(shared(4, |lane| 4 * lane), (1, 1));
        assert_eq!(shared(4, |lane| 8 * lane), (2, 1));
        assert_eq!(shared(4, |lane| 128 * lane), (32, 1));
    }

    #[test]
    fn lanes_that_share_a_word_share_a_wavefront() {
        assert_eq!(shared(4, |_| 64), (1, 1));
        assert_eq!(shared(2, |lane| 2 * lane), (1, 1));
    }

    #[test]
    fn wide_accesses_run_in_phases() {
        assert_eq!(shared(8, |lane| 8 * lane), (2, 2));
        assert_eq!(shared(16, |lane| 16 * lane), (4, 4));
        // Rows of 128 bytes: all lanes of a quarter-warp in the same four banks.
        assert_eq!(shared(16, |lane| 128 * lane), (32, 4));
    }

    #[test]
    fn sectors_are_32_bytes() {
        let mut tally = Tally::default();
        tally.count_global(
            u32::MAX,
            &std::array::from_fn(|lane| 4 * lane as u64),
            4,
            false,
        );
        assert_eq!(
            (tally.sectors, tally.ideal_sectors, tally.bytes_read),
            (4, 4, 128)
        );
        let mut tally = Tally::default();
        tally.count_global(
            0xff,
            &std::array::from_fn(|lane| 16 + 4 * lane as u64),
            4,
            true,
        );
        assert_eq!(
            (tally.sectors, tally.ideal_sectors, tally.bytes_written),
            (2, 1, 32)
        );
    }
}
