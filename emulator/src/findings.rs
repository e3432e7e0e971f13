//! Findings: instructions that take more wavefronts or sectors than their bytes need.

use crate::counters::{Counters, Line};
use crate::source::Source;
use std::fmt;

/// The subject of a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FindingKind {
    /// Lanes meet in a bank of shared memory; counted in wavefronts.
    BankConflict,
    /// Lanes use a part of each sector of global memory; counted in sectors.
    Uncoalesced,
}

/// Instructions of one opcode that waste alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The kind of waste.
    pub kind: FindingKind,
    /// The opcode, with its modifiers.
    pub opcode: String,
    /// PTX line of each instruction, ascending, from 1.
    pub lines: Vec<u32>,
    /// Rust source lines, in order of the PTX; empty where the PTX has no `.loc`.
    pub sources: Vec<Source>,
    /// Wavefronts or sectors, over all executions of all `lines`.
    pub actual: u64,
    /// Wavefronts or sectors that the same bytes need.
    pub ideal: u64,
}

impl Finding {
    /// Wavefronts or sectors beyond the ideal.
    #[must_use]
    pub fn extra(&self) -> u64 {
        self.actual.saturating_sub(self.ideal)
    }
}

/// The key of equal findings: kind, opcode, and `actual : ideal` in lowest terms.
type Key<'a> = (FindingKind, &'a str, u64, u64);

impl Counters {
    /// Bank conflicts and uncoalesced accesses, the most wasteful first; equal ones are one finding.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        findings(self)
    }
}

/// The findings of a launch, the most wasteful first.
fn findings(counters: &Counters) -> Vec<Finding> {
    let mut groups: Vec<(Key, Finding)> = Vec::new();
    for (kind, line) in counters.lines.iter().flat_map(wasteful) {
        let (actual, ideal) = kind.counts(line);
        let divisor = greatest_common_divisor(actual, ideal);
        let key = (
            kind,
            line.opcode.as_str(),
            actual / divisor,
            ideal / divisor,
        );
        let place = groups.iter().position(|(other, _)| *other == key);
        let place = place.unwrap_or_else(|| {
            let finding = Finding {
                kind,
                opcode: line.opcode.clone(),
                lines: Vec::new(),
                sources: Vec::new(),
                actual: 0,
                ideal: 0,
            };
            groups.push((key, finding));
            groups.len() - 1
        });
        let (_, finding) = &mut groups[place];
        finding.lines.push(line.line);
        if let Some(source) = &line.source
            && !finding.sources.contains(source)
        {
            finding.sources.push(source.clone());
        }
        finding.actual += actual;
        finding.ideal += ideal;
    }
    let mut findings: Vec<_> = groups.into_iter().map(|(_, finding)| finding).collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.extra()));
    findings
}

/// The kinds of waste in a line.
fn wasteful(line: &Line) -> impl Iterator<Item = (FindingKind, &Line)> {
    [FindingKind::BankConflict, FindingKind::Uncoalesced]
        .into_iter()
        .filter(|kind| {
            let (actual, ideal) = kind.counts(line);
            actual > ideal
        })
        .map(move |kind| (kind, line))
}

impl FindingKind {
    /// Actual and ideal count of a line.
    fn counts(self, line: &Line) -> (u64, u64) {
        let tally = &line.tally;
        match self {
            FindingKind::BankConflict => (tally.wavefronts, tally.ideal_wavefronts),
            FindingKind::Uncoalesced => (tally.sectors, tally.ideal_sectors),
        }
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        greatest_common_divisor(b, a % b)
    }
}

impl fmt::Display for Finding {
    /// One line, such as `bank conflicts: ld.shared.b32 takes 4 wavefronts for 1 ideal, 96 extra; 2
    /// instructions, PTX lines 40, 44 (kernels/src/tile/copy.rs:31)`.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (what, unit) = match self.kind {
            FindingKind::BankConflict => ("bank conflicts", "wavefronts"),
            FindingKind::Uncoalesced => ("not coalesced", "sectors"),
        };
        let ratio = (10.0 * self.actual as f64 / self.ideal as f64).round() / 10.0;
        let (opcode, extra) = (&self.opcode, self.extra());
        write!(
            f,
            "{what}: {opcode} takes {ratio} {unit} for 1 ideal, {extra} extra; "
        )?;
        match self.lines[..] {
            [line] => write!(f, "PTX line {line}")?,
            _ => {
                let count = self.lines.len();
                write!(f, "{count} instructions, PTX lines {}", ranges(&self.lines))?;
            }
        }
        let sources: Vec<_> = self.sources.iter().map(Source::to_string).collect();
        match sources[..] {
            [] => Ok(()),
            _ => write!(f, " ({})", shortened(&sources)),
        }
    }
}

/// Ascending numbers, with runs as ranges: `3-5, 9`.
fn ranges(numbers: &[u32]) -> String {
    let runs: Vec<_> = numbers
        .chunk_by(|a, b| a + 1 == *b)
        .map(|run| match run {
            [first, .., last] => format!("{first}-{last}"),
            _ => run[0].to_string(),
        })
        .collect();
    shortened(&runs)
}

/// A list whose middle is left out where it is long.
fn shortened(items: &[String]) -> String {
    const FIRST: usize = 4;
    match items {
        [first @ .., last] if first.len() > FIRST => {
            format!("{}, ... {last}", first[..FIRST].join(", "))
        }
        _ => items.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Tally;

    /// A line whose wavefronts are `actual` where `ideal` would do.
    fn line(line: u32, opcode: &str, actual: u64, ideal: u64) -> Line {
        Line {
            line,
            opcode: opcode.to_owned(),
            source: Some(Source {
                file: "copy.rs".into(),
                line: 7,
            }),
            tally: Tally {
                wavefronts: actual,
                ideal_wavefronts: ideal,
                ..Tally::default()
            },
        }
    }

    #[test]
    fn equal_conflicts_are_one_finding() {
        let mut lines: Vec<_> = (0..50)
            .map(|i| line(10 + i, "ld.shared.b32", 8, 2))
            .collect();
        lines.push(line(90, "ld.shared.b32", 4, 1));
        lines.push(line(91, "ld.shared.b32", 2, 1));
        lines.push(line(92, "st.shared.b32", 4, 1));
        lines.push(line(93, "st.shared.b32", 1, 1));
        let findings = findings(&Counters { lines });
        let texts: Vec<_> = findings.iter().map(Finding::to_string).collect();
        assert_eq!(
            texts,
            [
                "bank conflicts: ld.shared.b32 takes 4 wavefronts for 1 ideal, 303 extra; \
                 51 instructions, PTX lines 10-59, 90 (copy.rs:7)",
                "bank conflicts: st.shared.b32 takes 4 wavefronts for 1 ideal, 3 extra; \
                 PTX line 92 (copy.rs:7)",
                "bank conflicts: ld.shared.b32 takes 2 wavefronts for 1 ideal, 1 extra; \
                 PTX line 91 (copy.rs:7)",
            ]
        );
    }

    #[test]
    fn long_lists_are_shortened() {
        let even: Vec<u32> = (1..=20).map(|n| 2 * n).collect();
        assert_eq!(ranges(&even), "2, 4, 6, 8, ... 40");
        assert_eq!(ranges(&even[..5]), "2, 4, 6, 8, 10");
        assert_eq!(ranges(&[1, 2, 3, 7]), "1-3, 7");
    }
}
