//! Where the time of `cargo xtask test` goes.

use crate::table;
use anyhow::{Context, Result};
use comfy_table::Table;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

/// Seconds of each step, in order.
#[derive(Default)]
pub struct Times(Vec<(&'static str, f64)>);

impl Times {
    /// Runs a step.
    pub fn step(&mut self, name: &'static str, run: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        run()?;
        self.0.push((name, start.elapsed().as_secs_f64()));
        Ok(())
    }

    /// The steps, then groups `DEVICE::FILE` and the longest tests of a file of lines `SECONDS DEVICE::FILE::NAME`. Tests run side
    /// by side, so their seconds add up to more than their step took.
    pub fn table(&self, tests: &Path) -> Result<Table> {
        let text = fs::read_to_string(tests).with_context(|| tests.display().to_string())?;
        let tests = parse(&text)?;
        let mut groups: BTreeMap<&str, f64> = BTreeMap::new();
        for (test, seconds) in &tests {
            *groups.entry(group(test)).or_default() += seconds;
        }
        let of_groups: f64 = groups.values().sum();
        let steps = self.0.iter().map(|&(name, seconds)| (name, seconds));
        let total: f64 = self.0.iter().map(|(_, seconds)| seconds).sum();
        let heads = [("all steps", total)].into_iter();
        let rows = heads
            .chain(steps)
            .chain([("tests of devices, one after the other", of_groups)])
            .chain(longest_first(groups))
            .chain(longest_first(tests).take(LONGEST));
        let header = ["what", "seconds"].map(str::to_owned);
        let rows = rows.map(|(what, seconds)| vec![what.to_owned(), format!("{seconds:.0}")]);
        Ok(table::numbers(header, rows))
    }
}

/// Tests that the table lists by name.
const LONGEST: usize = 20;

/// Names with their seconds, from the longest.
fn longest_first<'a>(
    times: impl IntoIterator<Item = (&'a str, f64)>,
) -> impl Iterator<Item = (&'a str, f64)> {
    let mut times: Vec<_> = times.into_iter().collect();
    times.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    times.into_iter()
}

/// Tests with their seconds.
fn parse(text: &str) -> Result<Vec<(&str, f64)>> {
    let lines = text.lines();
    lines
        .map(|line| test(line).with_context(|| format!("not SECONDS TEST: {line}")))
        .collect()
}

fn test(line: &str) -> Option<(&str, f64)> {
    let (seconds, test) = line.split_once(' ')?;
    Some((test, seconds.parse().ok()?))
}

/// `DEVICE::FILE` of a test.
fn group(test: &str) -> &str {
    let mut ends = test.match_indices("::").map(|(end, _)| end);
    &test[..ends.nth(1).unwrap_or(test.len())]
}

#[cfg(test)]
mod tests {
    use super::{Times, parse};

    #[test]
    fn groups_and_tests_stand_below_the_steps_from_the_longest() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let lines =
            "1.4 cpu::lengths::q1_kv1\n41.000 emulator::kernels::a::b\n21.0 emulator::kernels::c\n";
        std::fs::write(&file, lines).expect("written");
        let times = Times(vec![("setup", 3.0), ("tests", 40.0)]);
        let table = times.table(file.path()).expect("lines").to_string();
        let places = [
            "all steps",
            "43",
            "setup",
            "tests",
            "63",
            "emulator::kernels ",
            "62",
            "cpu::lengths ",
            "emulator::kernels::a::b",
            "41",
            "emulator::kernels::c",
        ]
        .map(|part| {
            table
                .find(part)
                .unwrap_or_else(|| panic!("no {part} in {table}"))
        });
        assert!(places.is_sorted(), "{table}");
    }

    #[test]
    fn a_line_without_seconds_is_refused() {
        assert!(parse("emulator::kernels").is_err());
        assert!(parse("many emulator::kernels").is_err());
        assert_eq!(parse("").expect("no lines"), []);
    }
}
