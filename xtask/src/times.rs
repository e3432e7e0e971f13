//! Where the time of `cargo xtask test` goes.

use crate::table;
use anyhow::{Context, Result};
use comfy_table::Table;
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

    /// The steps, then groups of tests from a file of lines `SECONDS GROUP`. Tests run side by side, so seconds of groups add
    /// up to more than their step took.
    pub fn table(&self, groups: &Path) -> Result<Table> {
        let text = fs::read_to_string(groups).with_context(|| groups.display().to_string())?;
        let mut groups = parse(&text)?;
        groups.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let of_groups: f64 = groups.iter().map(|(_, seconds)| seconds).sum();
        let steps = self.0.iter().map(|&(name, seconds)| (name, seconds));
        let total: f64 = self.0.iter().map(|(_, seconds)| seconds).sum();
        let heads = [("all steps", total)].into_iter();
        let rows = heads
            .chain(steps)
            .chain([("tests of devices, one after the other", of_groups)])
            .chain(groups);
        let header = ["what", "seconds"].map(str::to_owned);
        let rows = rows.map(|(what, seconds)| vec![what.to_owned(), format!("{seconds:.0}")]);
        Ok(table::numbers(header, rows))
    }
}

/// Groups with their seconds.
fn parse(text: &str) -> Result<Vec<(&str, f64)>> {
    let lines = text.lines();
    lines
        .map(|line| group(line).with_context(|| format!("not SECONDS GROUP: {line}")))
        .collect()
}

fn group(line: &str) -> Option<(&str, f64)> {
    let (seconds, group) = line.split_once(' ')?;
    Some((group, seconds.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{Times, parse};

    #[test]
    fn groups_stand_below_the_steps_from_the_longest() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&file, "1.4 cpu::lengths\n62.000 emulator::kernels\n").expect("written");
        let times = Times(vec![("setup", 3.0), ("tests", 40.0)]);
        let table = times.table(file.path()).expect("lines").to_string();
        let places = [
            "all steps",
            "43",
            "setup",
            "tests",
            "63",
            "emulator::kernels",
            "62",
            "cpu::lengths",
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
