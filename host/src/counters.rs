//! A summary of the emulator's counters.

use crate::report::table;
use ferroattn::emulator::{Counters, Line, Source, Tally};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::{fmt, iter};

/// The work of a launch: displayed, a summary; serialised, an element of `counters` in a `--json` line.
pub struct Summary {
    /// Name of the kernel.
    pub kernel: &'static str,
    pub counters: Counters,
}

/// A number of accesses to memory: its heading in the table, its field in JSON, where it comes from.
type Column = (&'static str, &'static str, fn(&Tally) -> u64);

const COLUMNS: [Column; 7] = [
    ("executed", "executed", |tally| tally.executed),
    ("wavefronts", "wavefronts", |tally| tally.wavefronts),
    ("ideal", "ideal_wavefronts", |tally| tally.ideal_wavefronts),
    ("sectors", "sectors", |tally| tally.sectors),
    ("ideal", "ideal_sectors", |tally| tally.ideal_sectors),
    ("bytes read", "bytes_read", |tally| tally.bytes_read),
    ("bytes written", "bytes_written", |tally| {
        tally.bytes_written
    }),
];

impl Summary {
    /// The opcodes that touch memory, in program order, and what each did.
    fn accesses(&self) -> Vec<(&str, Tally)> {
        let mut accesses: Vec<(&str, Tally)> = Vec::new();
        for Line { opcode, tally, .. } in &self.counters.lines {
            let touches = tally.wavefronts + tally.sectors > 0;
            if touches && accesses.iter().all(|(known, _)| known != opcode) {
                accesses.push((opcode, self.counters.total_of(opcode)));
            }
        }
        accesses
    }

    /// Ratios to the number of `mma`, by name; `None` if there was none.
    fn per_mma(&self) -> Option<[(&'static str, f64); 3]> {
        let ratios = self.counters.per_mma()?;
        Some([
            ("instructions", ratios.instructions),
            ("ldmatrix", ratios.loads),
            ("shared_wavefronts", ratios.wavefronts),
        ])
    }
}

impl Serialize for Summary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let counters = &self.counters;
        let access = |(opcode, tally): (&str, Tally)| {
            let numbers = COLUMNS.map(|(_, field, number)| (field, number(&tally)));
            let mut access: Value = numbers.into_iter().collect();
            access["instruction"] = opcode.into();
            access
        };
        let place = |line: &Line, extra: u64| {
            json!({
                "line": line.line,
                "source": line.source.as_ref().map(Source::to_string),
                "instruction": line.opcode,
                "extra": extra,
            })
        };
        let conflicts = counters.bank_conflicts();
        let uncoalesced = counters.uncoalesced();
        let summary = json!({
            "kernel": self.kernel,
            "instructions": counters.by_kind(),
            "mma": counters.mma(),
            "mma_flops": counters.total().flops,
            "per_mma": self.per_mma().map(Value::from_iter),
            "barriers": counters.barriers(),
            "accesses": Vec::from_iter(self.accesses().into_iter().map(access)),
            "bank_conflicts": Vec::from_iter(conflicts.map(|line| place(line, line.tally.bank_conflicts()))),
            "uncoalesced": Vec::from_iter(uncoalesced.map(|line| place(line, line.tally.extra_sectors()))),
        });
        summary.serialize(serializer)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let counters = &self.counters;
        let kinds = counters.by_kind().into_iter();
        let kinds = Vec::from_iter(kinds.map(|(kind, count)| format!("{kind} {count}")));
        writeln!(f, "warp-instructions: {}", kinds.join(", "))?;
        writeln!(
            f,
            "mma: {} ({} FLOP); barriers, by warp: {}",
            counters.mma(),
            counters.total().flops,
            counters.barriers()
        )?;
        if let Some(ratios) = self.per_mma() {
            let ratios = ratios.map(|(what, ratio)| format!("{what} {ratio:.2}"));
            writeln!(f, "for each mma: {}", ratios.join(", "))?;
        }
        let rows = self.accesses().into_iter().map(|(opcode, tally)| {
            let numbers = COLUMNS.map(|(heading, _, number)| (heading, number(&tally).to_string()));
            iter::once(("access", opcode.to_owned())).chain(numbers)
        });
        write!(f, "{}", table(rows, 1..=COLUMNS.len()))?;
        for finding in counters.findings() {
            write!(f, "\n{finding}")?;
        }
        Ok(())
    }
}
