//! What the emulator counted, in summary.

use crate::report::empty_table;
use attention::emulator::{Counters, Finding, Line, Source, Tally};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// What a launch did; serialised, an element of `counters` in a `--json` line.
#[derive(Serialize)]
pub struct Summary {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Warp-instructions by kind.
    instructions: BTreeMap<String, u64>,
    mma: u64,
    mma_flops: u64,
    /// Ratios to the number of `mma`; `None` if there was none.
    per_mma: Option<BTreeMap<&'static str, f64>>,
    barriers: u64,
    /// Accesses to memory by instruction.
    accesses: Vec<Access>,
    /// PTX lines with bank conflicts.
    bank_conflicts: Vec<Place>,
    /// PTX lines that touch more sectors than their bytes fill.
    uncoalesced: Vec<Place>,
    /// The lines of both lists, equal ones together.
    #[serde(skip)]
    findings: Vec<Finding>,
}

/// What the instructions of one opcode did to memory.
#[derive(Serialize)]
struct Access {
    instruction: String,
    executed: u64,
    wavefronts: u64,
    ideal_wavefronts: u64,
    sectors: u64,
    ideal_sectors: u64,
    bytes_read: u64,
    bytes_written: u64,
}

/// An instruction with more wavefronts or sectors than it needs.
#[derive(Serialize)]
struct Place {
    line: u32,
    /// `FILE:LINE` in Rust, where the PTX has it.
    source: Option<String>,
    instruction: String,
    extra: u64,
}

impl Summary {
    pub fn new(kernel: &'static str, counters: &Counters) -> Self {
        let total = counters.total();
        let touches = |tally: &Tally| tally.wavefronts + tally.sectors > 0;
        let mut opcodes: Vec<&str> = Vec::new();
        for line in counters.lines.iter().filter(|line| touches(&line.tally)) {
            if !opcodes.contains(&line.opcode.as_str()) {
                opcodes.push(&line.opcode);
            }
        }
        let access = |opcode: &str| {
            let tally = counters.total_of(opcode);
            Access {
                instruction: opcode.to_owned(),
                executed: tally.executed,
                wavefronts: tally.wavefronts,
                ideal_wavefronts: tally.ideal_wavefronts,
                sectors: tally.sectors,
                ideal_sectors: tally.ideal_sectors,
                bytes_read: tally.bytes_read,
                bytes_written: tally.bytes_written,
            }
        };
        let place = |line: &Line, extra| Place {
            line: line.line,
            source: line.source.as_ref().map(Source::to_string),
            instruction: line.opcode.clone(),
            extra,
        };
        Summary {
            kernel,
            instructions: counters
                .by_kind()
                .into_iter()
                .map(|(kind, count)| (kind.to_owned(), count))
                .collect(),
            mma: counters.mma(),
            mma_flops: total.flops,
            per_mma: counters.per_mma().map(|ratios| {
                BTreeMap::from([
                    ("instructions", ratios.instructions),
                    ("ldmatrix", ratios.loads),
                    ("shared_wavefronts", ratios.wavefronts),
                ])
            }),
            barriers: counters.barriers(),
            accesses: opcodes.into_iter().map(access).collect(),
            bank_conflicts: counters
                .bank_conflicts()
                .map(|line| place(line, line.tally.bank_conflicts()))
                .collect(),
            uncoalesced: counters
                .uncoalesced()
                .map(|line| place(line, line.tally.extra_sectors()))
                .collect(),
            findings: counters.findings(),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let kinds: Vec<_> = self
            .instructions
            .iter()
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        writeln!(f, "warp-instructions: {}", kinds.join(", "))?;
        writeln!(
            f,
            "mma: {} ({} FLOP); barriers, by warp: {}",
            self.mma, self.mma_flops, self.barriers
        )?;
        if let Some(ratios) = &self.per_mma {
            let ratios: Vec<_> = ratios
                .iter()
                .map(|(what, ratio)| format!("{what} {ratio:.2}"))
                .collect();
            writeln!(f, "for each mma: {}", ratios.join(", "))?;
        }
        let mut table = empty_table(
            &[
                "access",
                "executed",
                "wavefronts",
                "ideal",
                "sectors",
                "ideal",
                "bytes read",
                "bytes written",
            ],
            &[1, 2, 3, 4, 5, 6, 7],
        );
        for access in &self.accesses {
            table.add_row([
                access.instruction.clone(),
                access.executed.to_string(),
                access.wavefronts.to_string(),
                access.ideal_wavefronts.to_string(),
                access.sectors.to_string(),
                access.ideal_sectors.to_string(),
                access.bytes_read.to_string(),
                access.bytes_written.to_string(),
            ]);
        }
        write!(f, "{table}")?;
        for finding in &self.findings {
            write!(f, "\n{finding}")?;
        }
        Ok(())
    }
}
