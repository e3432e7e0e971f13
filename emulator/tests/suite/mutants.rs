//! Mutants of a kernel: changes of its text that the emulator must catch under every schedule.

use emulator::Error;
use std::ops::Range;

/// A mutant: its name, the text that it replaces at all places, the new text, and a part of the report that catches it.
pub type Mutant = (&'static str, &'static str, &'static str, &'static str);

/// The fault of a run, if it has one; `outcome` says whether its result is right.
pub fn fault(outcome: Result<bool, Error>) -> Option<String> {
    match outcome {
        Ok(is_right) => (!is_right).then(|| "wrong result".to_owned()),
        Err(Error::Fault(fault)) => Some(fault.rule.to_string()),
        Err(error) => panic!("{error}"),
    }
}

/// Asserts that `fault` finds every mutant of `text` under each of several schedules.
pub fn assert_caught(
    kernel: &str,
    text: &str,
    mutants: &[Mutant],
    seeds: Range<u64>,
    fault: impl Fn(&str, u64) -> Option<String>,
) {
    let mut missed = Vec::new();
    for (what, from, to, says) in mutants {
        assert!(text.contains(from), "{what} changes nothing");
        let mutant = text.replace(from, to);
        for seed in seeds.clone() {
            match fault(&mutant, seed) {
                Some(fault) if fault.contains(says) && seed > 0 => {}
                Some(fault) if fault.contains(says) => println!("{what:50} {kernel:24} {fault}"),
                other => missed.push(format!("{what}, seed {seed}: {other:?}")),
            }
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:#?}");
}
