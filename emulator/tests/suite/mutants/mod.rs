//! Mutants of the real kernels: each has one fault, as a slip in a kernel or a compiler's wrong
//! turn would make it, and each must be reported, by a rule or by a wrong result.
//!
//! `cargo test -p emulator mutant -- --nocapture` prints what caught each.

mod change;
mod combine;
mod decode;
mod forward;
mod pack;
mod packed;
pub mod ring;
mod shared_rows;

use crate::attention::{Failure, Modules, Problem, check, combine, forward, named, pack, ptx};
use ::kernels::catalog::{Family, Kernel};
use emulator::{Error, Module, Options};

/// Which of the lines that fit a mutation it changes.
#[derive(Clone, Copy)]
enum Which {
    Nth(usize),
    Last,
    All,
}
use Which::{All, Last, Nth};

struct Mutant {
    what: &'static str,
    kernel: &'static str,
    /// What the changed lines contain.
    pattern: &'static str,
    which: Which,
    change: fn(&str) -> String,
}

const FULL: &str = "forward_f16_d64";

/// Ragged, with grouped heads, aligned and not, split and not, and with scores that raise the maxima
/// of some rows in the main loop.
fn problems(kernel: &Kernel) -> [Problem; 4] {
    let p = Problem {
        heads: 2,
        seqlen_q: 150,
        seqlen_kv: 210,
        causal: true,
        ..Problem::square(0, forward(kernel).dim)
    };
    [
        p,
        Problem {
            gap: 8,
            kv_heads: 2,
            ..p
        },
        Problem {
            gap: 3,
            splits: 2,
            ..p
        },
        Problem { rise: 0.25, ..p },
    ]
}

impl Mutant {
    /// The module's text with the fault in it.
    fn apply(&self, text: &str) -> String {
        let fitting: Vec<usize> = text
            .lines()
            .enumerate()
            .filter(|(_, line)| line.contains(self.pattern) && !line.contains("//"))
            .map(|(index, _)| index)
            .collect();
        let changed = match self.which {
            Nth(n) => fitting.get(n).map_or(&[][..], std::slice::from_ref),
            Last => fitting.last().map_or(&[][..], std::slice::from_ref),
            All => &fitting[..],
        };
        assert!(
            !changed.is_empty(),
            "{}: no line with {:?}",
            self.what,
            self.pattern
        );
        let lines = text.lines().enumerate().map(|(index, line)| {
            if changed.contains(&index) {
                (self.change)(line)
            } else {
                line.to_owned()
            }
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// What catches it.
    fn caught(&self) -> Option<String> {
        let mutated = named(self.kernel);
        // A combine kernel shows its faults after one that splits, the pack kernel before any.
        let kernel = match mutated.family {
            Family::Combine(_) | Family::Pack(_) => named(FULL),
            _ => mutated,
        };
        let text = self.apply(&ptx(mutated));
        let module = Module::parse(&text, self.what).unwrap_or_else(|e| panic!("{e}"));
        let mut modules = Modules::of(kernel);
        if mutated == combine(kernel) {
            modules.combine = module;
        } else if mutated == pack() {
            modules.pack = module;
        } else {
            modules.kernel = module;
        }
        for seed in 0..3 {
            for p in problems(kernel) {
                let options = Options {
                    seed,
                    instruction_budget: 1 << 20,
                    ..Options::default()
                };
                match check(kernel, &modules, &p, &options) {
                    Ok(_) => {}
                    Err(Failure::Error(Error::Fault(fault))) => {
                        return Some(format!("{} (line {})", fault.rule, fault.line));
                    }
                    Err(Failure::Error(other)) => panic!("{}: {other}", self.what),
                    Err(Failure::Wrong(wrong)) => return Some(format!("wrong result: {wrong}")),
                }
            }
        }
        None
    }
}

#[test]
fn every_mutant_is_caught() {
    let mut missed = Vec::new();
    let families = [
        forward::MUTANTS,
        shared_rows::MUTANTS,
        decode::MUTANTS,
        combine::MUTANTS,
        pack::MUTANTS,
        packed::MUTANTS,
    ];
    for mutant in families.into_iter().flatten() {
        match mutant.caught() {
            Some(by) => println!("{:50} {:24} {by}", mutant.what, mutant.kernel),
            None => missed.push(mutant.what),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:#?}");
}
