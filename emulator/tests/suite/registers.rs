//! Registers that share rows of a warp's file: every lane computes what it would compute alone, whatever way the others
//! take, and what was never written is found on every way.

use crate::tiny::{broken, module_for, run_module, schedule, warp};
use emulator::Rule;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Registers of a random program, each written once, or changed on some way.
const VALUES: usize = 200;

/// A statement of a random program, over numbered values.
enum Statement {
    /// `to = (a + b) ^ constant`, if a guard's value is odd.
    Set {
        to: usize,
        a: usize,
        b: usize,
        constant: u32,
        guard: Option<usize>,
    },
    /// Which way a lane goes depends on its value.
    Branch(usize, Vec<Statement>, Vec<Statement>),
    /// One to four rounds, as the value says; `count` is the program's own.
    Loop {
        value: usize,
        count: usize,
        body: Vec<Statement>,
    },
}

/// Makes random programs.
struct Programs {
    random: StdRng,
    /// The next value that no statement writes.
    next: usize,
}

impl Programs {
    fn fresh(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    fn one_of(&mut self, known: &[usize]) -> usize {
        // Mostly a late one, so that most lives are short.
        let back = self.random.random_range(1..=known.len().min(4));
        let any = self.random.random_range(1..=known.len());
        let place = if self.random.random_bool(0.8) {
            back
        } else {
            any
        };
        known[known.len() - place]
    }

    /// Statements over the values that are `known`, and those they add to them.
    fn block(&mut self, known: &mut Vec<usize>, depth: u32) -> Vec<Statement> {
        let length = self.random.random_range(1..10);
        let mut statements = Vec::new();
        for _ in 0..length {
            let kind = if depth > 0 {
                self.random.random_range(0..8)
            } else {
                7
            };
            let value = self.one_of(known);
            statements.push(match kind {
                0 => {
                    let ways = [(); 2].map(|()| self.block(&mut known.clone(), depth - 1));
                    let [taken, other] = ways;
                    Statement::Branch(value, taken, other)
                }
                1 => {
                    let count = self.fresh();
                    let body = self.block(&mut known.clone(), depth - 1);
                    Statement::Loop { value, count, body }
                }
                _ => {
                    let (a, b) = (value, self.one_of(known));
                    let guard = self.random.random_bool(0.3).then(|| self.one_of(known));
                    let changes = guard.is_some() || self.random.random_bool(0.3);
                    let to = if changes {
                        self.one_of(known)
                    } else {
                        self.fresh()
                    };
                    known.retain(|value| *value != to);
                    known.push(to);
                    let constant = self.random.random();
                    Statement::Set {
                        to,
                        a,
                        b,
                        constant,
                        guard,
                    }
                }
            });
            if self.next > VALUES - 50 {
                break;
            }
        }
        statements
    }
}

/// The PTX of some statements; labels have numbers of their own.
fn text(statements: &[Statement], labels: &mut u32, to: &mut String) {
    for statement in statements {
        *labels += 1;
        let label = *labels;
        let odd = |value: usize| format!("and.b32 %bit, %v{value}, 1; setp.ne.b32 %p, %bit, 0;\n");
        match statement {
            Statement::Set {
                to: target,
                a,
                b,
                constant,
                guard,
            } => {
                let guarded = guard.map_or("", |_| "@%p ");
                *to += &guard.map_or(String::new(), odd);
                *to += &format!("add.s32 %sum, %v{a}, %v{b};\n");
                *to += &format!("{guarded}xor.b32 %v{target}, %sum, {constant};\n");
            }
            Statement::Branch(value, taken, other) => {
                *to += &(odd(*value) + &format!("@%p bra $taken{label};\n"));
                text(other, labels, to);
                *to += &format!("bra $met{label};\n$taken{label}:\n");
                text(taken, labels, to);
                *to += &format!("$met{label}:\n");
            }
            Statement::Loop { value, count, body } => {
                *to += &format!("and.b32 %v{count}, %v{value}, 3;\n$round{label}:\n");
                text(body, labels, to);
                *to += &format!(
                    "setp.ne.b32 %p, %v{count}, 0; sub.s32 %v{count}, %v{count}, 1;
                    @%p bra $round{label};\n"
                );
            }
        }
    }
}

/// The results of a lane that runs alone.
fn compute(statements: &[Statement], values: &mut [u32; VALUES]) {
    for statement in statements {
        match statement {
            Statement::Set {
                to,
                a,
                b,
                constant,
                guard,
            } => {
                if guard.is_none_or(|guard| values[guard] & 1 != 0) {
                    values[*to] = values[*a].wrapping_add(values[*b]) ^ constant;
                }
            }
            Statement::Branch(value, taken, other) => {
                let way = if values[*value] & 1 != 0 {
                    taken
                } else {
                    other
                };
                compute(way, values);
            }
            Statement::Loop { value, body, .. } => {
                for _ in 0..=values[*value] & 3 {
                    compute(body, values);
                }
            }
        }
    }
}

#[test]
fn lanes_on_different_ways_keep_their_values() {
    for seed in 0..300 {
        let mut programs = Programs {
            random: StdRng::seed_from_u64(seed),
            next: 2,
        };
        let mut known = vec![0, 1];
        let program = programs.block(&mut known, 3);
        let shown: Vec<usize> = known.iter().rev().take(8).copied().collect();
        let mut body = format!(
            ".reg .pred %p; .reg .b32 %bit, %sum, %v<{VALUES}>;
            mul.lo.s32 %v0, %tid, -1640531535; shr.u32 %v1, %v0, 7;\n"
        );
        text(&program, &mut 0, &mut body);
        for (i, value) in shown.iter().enumerate() {
            body += &format!("st.global.b32 [%out+{}], %v{value};\n", 4 * i);
        }
        let options = emulator::Options {
            instruction_budget: 1_000_000,
            ..schedule(seed)
        };
        let found = run_module(&module_for("sm_80", 8, &body), 64, &[], &options);
        let found = found.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{body}"));
        for (thread, words) in found.iter().enumerate() {
            let mut values = [0; VALUES];
            values[0] = (thread as u32).wrapping_mul(2_654_435_761);
            values[1] = values[0] >> 7;
            compute(&program, &mut values);
            for (word, value) in words.iter().zip(&shown) {
                assert_eq!(
                    *word, values[*value],
                    "seed {seed}, thread {thread}\n{body}"
                );
            }
        }
    }
}

#[test]
fn a_value_outlives_the_other_way() {
    // Lanes above 15 write %r1 while those below hold %r0, and all read theirs after they met.
    let words = warp(
        "setp.gt.u32 %p0, %lane, 15;
        @%p0 bra $high;
        add.s32 %r0, %lane, 100;
        bra $met;
        $high: add.s32 %r1, %lane, 200;
        $met: @%p0 st.global.b32 [%out], %r1;
        @!%p0 st.global.b32 [%out], %r0;",
        &[],
    );
    for (lane, words) in words.iter().enumerate() {
        let expected = lane as u32 + if lane > 15 { 200 } else { 100 };
        assert_eq!(words[0], expected);
    }
}

#[test]
fn what_one_way_does_not_write_is_found() {
    let unwritten = |name: &str| Rule::UninitialisedRegister {
        name: name.to_owned(),
    };
    let ways = |high: &str, low: &str| {
        format!(
            "mov.b32 %r9, 7; add.s32 %r8, %r9, 1;
            setp.gt.u32 %p0, %lane, 15;
            @%p0 bra $high;
            {low}
            bra $met;
            $high: {high}
            $met: st.global.b32 [%out], %r0;"
        )
    };
    let write = "mov.b32 %r0, %lane;";
    warp(&ways(write, write), &[]);
    assert_eq!(broken(&ways(write, ""), 32, &[]), unwritten("%r0"));
    assert_eq!(broken(&ways("", write), 32, &[]), unwritten("%r0"));
    // A guard that is false for some.
    let guarded = "setp.gt.u32 %p1, %lane, 0; @%p1 mov.b32 %r0, %lane;";
    assert_eq!(broken(&ways(write, guarded), 32, &[]), unwritten("%r0"));
    // A loop that some lanes leave before the write.
    let late = "mov.b32 %r1, 0;
        $round: setp.ge.u32 %p0, %r1, %lane;
        @%p0 bra $out;
        mov.b32 %r0, %r1; add.s32 %r1, %r1, 1;
        bra $round;
        $out: st.global.b32 [%out], %r0;";
    assert_eq!(broken(late, 32, &[]), unwritten("%r0"));
}

#[test]
fn a_row_taken_over_does_not_count_as_written() {
    // %r1 takes over the row of %r0, which is dead by then.
    let body = "mov.b32 %r0, 5; st.global.b32 [%out], %r0;
        setp.gt.u32 %p0, %lane, 40;
        @%p0 mov.b32 %r1, 6;
        st.global.b32 [%out], %r1;";
    let name = "%r1".to_owned();
    assert_eq!(broken(body, 32, &[]), Rule::UninitialisedRegister { name });
}
