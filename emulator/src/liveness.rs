//! Liveness: from where to where in a kernel a register's value is needed, and whether every read comes after a write.
//!
//! A lane takes one path through the kernel, whatever the others of its warp do, and an instruction changes the lanes that
//! execute it alone. So the paths of the control flow graph say all of a lane's values, also where lanes part. A write
//! under a guard leaves some lanes as they are: it ends no value.

use crate::cfg::Graph;
use std::ops::RangeInclusive;

/// How an instruction uses a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It may read it, and may change it in some lanes.
    Read,
    /// It writes it, in every lane that comes by.
    Write,
    /// It writes it, in the lanes whose guard is true.
    GuardedWrite,
}

/// The use of a register of one kind, by its number among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub pc: usize,
    pub register: usize,
    pub effect: Effect,
}

/// The life of a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    /// The instructions, in order of the text, among which its value is needed or written.
    pub span: RangeInclusive<usize>,
    /// Whether each path to a read writes it first.
    pub is_written_first: bool,
}

impl Life {
    fn stretch(life: &mut Option<Life>, pc: usize) {
        let life = life.get_or_insert(Life {
            span: pc..=pc,
            is_written_first: true,
        });
        life.span = pc.min(*life.span.start())..=pc.max(*life.span.end());
    }
}

/// The lives of the registers of one kind; none for registers without accesses. The accesses are in order of the
/// instructions, reads of an instruction before its writes.
pub(crate) fn lives(graph: &Graph, accesses: &[Access], registers: usize) -> Vec<Option<Life>> {
    let mut lives = vec![None; registers];
    for access in accesses {
        Life::stretch(&mut lives[access.register], access.pc);
    }
    let numbers = shared_between_blocks(graph, accesses, registers);
    let crossing: Vec<usize> = (0..registers)
        .filter(|register| numbers[*register].is_some())
        .collect();
    let mut flow = Flow::new(graph, crossing.len());
    for access in accesses {
        if let Some(number) = numbers[access.register] {
            flow.note(graph.block_of(access.pc), number, access.effect);
        }
    }
    let live_in = flow.live_in(graph);
    let written_in = flow.written_in(graph);
    for block in 0..graph.exit() {
        let stretch = |number: usize, pc: usize, lives: &mut [Option<Life>]| {
            Life::stretch(&mut lives[crossing[number]], pc);
        };
        for number in live_in.row(block).members() {
            stretch(number, graph.first(block), &mut lives);
        }
        for successor in graph.successors(block) {
            for number in live_in.row(*successor).members() {
                stretch(number, graph.last(block), &mut lives);
            }
        }
        for number in flow.read_first.row(block).members() {
            let life = lives[crossing[number]].as_mut().expect("it is read");
            life.is_written_first &= written_in.row(block).has(number);
        }
    }
    lives
}

/// Numbers for the registers whose values may cross the bounds of basic blocks. The others, nearly all, are accessed in one
/// block, which writes them first.
fn shared_between_blocks(
    graph: &Graph,
    accesses: &[Access],
    registers: usize,
) -> Vec<Option<usize>> {
    let mut homes: Vec<Option<usize>> = vec![None; registers];
    let mut crosses = vec![false; registers];
    for access in accesses {
        let block = graph.block_of(access.pc);
        let home = homes[access.register];
        crosses[access.register] |= match home {
            Some(home) => home != block,
            None => access.effect != Effect::Write,
        };
        homes[access.register] = Some(block);
    }
    let mut next = 0..;
    let numbers = crosses.into_iter();
    let number = |crosses: bool| crosses.then(|| next.next().expect("numbers do not end"));
    numbers.map(number).collect()
}

/// A set of registers for each block.
struct Sets {
    words: usize,
    bits: Vec<u64>,
}

/// A set of registers.
#[derive(Clone, Copy)]
struct Set<'a>(&'a [u64]);

impl Set<'_> {
    fn has(self, number: usize) -> bool {
        self.0[number / 64] >> (number % 64) & 1 != 0
    }

    fn members(self) -> impl Iterator<Item = usize> {
        let words = self.0.iter().enumerate();
        words.flat_map(|(i, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(64 * i + bit)
            })
        })
    }
}

impl Sets {
    fn new(blocks: usize, numbers: usize, word: u64) -> Self {
        let words = numbers.div_ceil(64);
        Sets {
            words,
            bits: vec![word; blocks * words],
        }
    }

    fn row(&self, block: usize) -> Set<'_> {
        Set(&self.bits[block * self.words..][..self.words])
    }

    fn insert(&mut self, block: usize, number: usize) {
        self.bits[block * self.words + number / 64] |= 1 << (number % 64);
    }

    /// Changes the set of a block, word by word; whether it differs then.
    fn update(&mut self, block: usize, change: impl Fn(usize, u64) -> u64) -> bool {
        let row = &mut self.bits[block * self.words..][..self.words];
        let mut differs = false;
        for (i, word) in row.iter_mut().enumerate() {
            let after = change(i, *word);
            differs |= after != *word;
            *word = after;
        }
        differs
    }
}

/// Reads and writes of registers, by block.
struct Flow {
    /// Registers that a block reads before it writes them.
    read_first: Sets,
    /// Registers that a block writes in every lane.
    written: Sets,
    numbers: usize,
}

impl Flow {
    fn new(graph: &Graph, numbers: usize) -> Self {
        let empty = || Sets::new(graph.exit() + 1, numbers, 0);
        Flow {
            read_first: empty(),
            written: empty(),
            numbers,
        }
    }

    /// Takes note of an access; a block's come in order.
    fn note(&mut self, block: usize, number: usize, effect: Effect) {
        match effect {
            Effect::Read if !self.written.row(block).has(number) => {
                self.read_first.insert(block, number);
            }
            Effect::Write => self.written.insert(block, number),
            Effect::Read | Effect::GuardedWrite => {}
        }
    }

    /// By block: registers whose values some path from its start reads.
    fn live_in(&self, graph: &Graph) -> Sets {
        let mut live = Sets::new(graph.exit() + 1, self.numbers, 0);
        let mut out = vec![0; live.words];
        let mut changed = true;
        while changed {
            changed = false;
            for block in (0..graph.exit()).rev() {
                out.fill(0);
                for successor in graph.successors(block) {
                    for (out, live) in out.iter_mut().zip(live.row(*successor).0) {
                        *out |= live;
                    }
                }
                let (read, written) = (self.read_first.row(block).0, self.written.row(block).0);
                changed |= live.update(block, |i, _| read[i] | out[i] & !written[i]);
            }
        }
        live
    }

    /// By block: registers that every path to its start writes.
    fn written_in(&self, graph: &Graph) -> Sets {
        let mut before = Sets::new(graph.exit() + 1, self.numbers, u64::MAX);
        before.update(0, |_, _| 0);
        let mut changed = true;
        while changed {
            changed = false;
            for block in 0..graph.exit() {
                let (at_start, written) = (before.row(block).0, self.written.row(block).0);
                let after: Vec<u64> = at_start.iter().zip(written).map(|(a, b)| a | b).collect();
                for successor in graph.successors(block) {
                    changed |= before.update(*successor, |i, word| word & after[i]);
                }
            }
        }
        before
    }
}

#[cfg(test)]
mod tests {
    use super::Effect::{GuardedWrite, Read, Write};
    use super::*;
    use crate::cfg::Successors::{self, Branch, Exit, Next};

    const END: Successors = Exit { guarded: false };

    fn branch(target: usize) -> Successors {
        let guarded = true;
        Branch { target, guarded }
    }

    fn jump(target: usize) -> Successors {
        let guarded = false;
        Branch { target, guarded }
    }

    /// Span of a register's life and whether it is written first, from its accesses.
    fn life(code: &[Successors], accesses: &[(usize, Effect)]) -> (RangeInclusive<usize>, bool) {
        let accesses: Vec<_> = accesses
            .iter()
            .map(|&(pc, effect)| Access {
                pc,
                register: 0,
                effect,
            })
            .collect();
        let [life] = <[_; 1]>::try_from(lives(&Graph::new(code), &accesses, 1)).unwrap();
        let life = life.expect("it has accesses");
        (life.span, life.is_written_first)
    }

    #[test]
    fn a_value_lives_from_its_write_to_its_last_read() {
        let code = [Next, Next, Next, Next, END];
        assert_eq!(life(&code, &[(1, Write), (3, Read)]), (1..=3, true));
        assert_eq!(life(&code, &[(1, Write)]), (1..=1, true));
        assert_eq!(life(&code, &[(2, Read)]), (0..=2, false));
    }

    #[test]
    fn a_value_from_before_a_loop_lives_through_it() {
        // 0: before; 1 to 3: loop; 4: end
        let code = [Next, Next, Next, branch(1), END];
        assert_eq!(life(&code, &[(0, Write), (1, Read)]), (0..=3, true));
        // Each round writes it first.
        assert_eq!(life(&code, &[(1, Write), (2, Read)]), (1..=2, true));
        // A round reads what the last one wrote.
        assert_eq!(life(&code, &[(1, Read), (2, Write)]), (0..=3, false));
    }

    #[test]
    fn a_value_of_one_arm_lives_through_the_other_in_the_text() {
        // 0: branch to 3; 1: one arm; 2: jump to 4; 3: the other arm; 4: both
        let code = [branch(3), Next, jump(4), Next, Next, END];
        assert_eq!(life(&code, &[(1, Write), (4, Read)]), (0..=4, false));
        let both = [(1, Write), (3, Write), (4, Read)];
        assert_eq!(life(&code, &both), (1..=4, true));
    }

    #[test]
    fn a_guarded_write_ends_no_value() {
        let code = [Next, Next, Next, Next, END];
        let accesses = [(0, Write), (2, GuardedWrite), (3, Read)];
        assert_eq!(life(&code, &accesses), (0..=3, true));
        assert_eq!(life(&code, &accesses[1..]), (0..=3, false));
    }

    #[test]
    fn a_read_after_a_loop_that_may_not_run_is_not_proved() {
        // 0: branch to 3; 1 and 2: loop; 3: after
        let code = [branch(3), Next, branch(1), Next, END];
        let (_, is_written_first) = life(&code, &[(1, Write), (3, Read)]);
        assert!(!is_written_first);
    }
}
