//! The control flow graph, and where diverged lanes meet again: the immediate post-dominator of a branch.

/// Where control goes after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Successors {
    /// To the next instruction.
    Next,
    /// To the target, and for lanes whose guard is false to the next instruction.
    Branch { target: usize, guarded: bool },
    /// Nowhere; lanes whose guard is false go to the next instruction.
    Exit { guarded: bool },
    /// Nowhere, with a fault: other ways meet as if this one were not there.
    Trap { guarded: bool },
}

/// For each guarded branch, the first instruction that every path from both of its arms runs through.
/// None where the arms meet only at the kernel's end.
pub(crate) fn reconvergence_points(code: &[Successors], graph: &Graph) -> Vec<Option<usize>> {
    let dominators = graph.immediate_post_dominators();
    let mut points = vec![None; code.len()];
    for (block, last) in graph.last.iter().enumerate() {
        if let Some(Successors::Branch { guarded: true, .. }) = code.get(*last) {
            let meeting = dominators[block].filter(|b| *b != graph.exit());
            points[*last] = meeting.map(|b| graph.first[b]);
        }
    }
    points
}

/// Basic blocks in program order, and after them the exit.
pub(crate) struct Graph {
    first: Vec<usize>,
    last: Vec<usize>,
    successors: Vec<Vec<usize>>,
}

impl Graph {
    pub fn new(code: &[Successors]) -> Self {
        let mut is_first = vec![false; code.len() + 1];
        is_first[0] = true;
        for (pc, successors) in code.iter().enumerate() {
            if *successors != Successors::Next {
                is_first[pc + 1] = true;
            }
            if let Successors::Branch { target, .. } = successors {
                is_first[*target] = true;
            }
        }
        let first: Vec<usize> = (0..code.len()).filter(|pc| is_first[*pc]).collect();
        let exit = first.len();
        let block_of = |pc: usize| first.binary_search(&pc).unwrap_or(exit);
        let ends = first.iter().skip(1).copied().chain([code.len()]);
        let last: Vec<usize> = ends.map(|end| end.saturating_sub(1)).collect();
        let successors = last[..exit].iter().map(|&pc| match code[pc] {
            Successors::Next => vec![block_of(pc + 1)],
            Successors::Branch {
                target,
                guarded: false,
            } => vec![block_of(target)],
            Successors::Branch {
                target,
                guarded: true,
            } => vec![block_of(target), block_of(pc + 1)],
            Successors::Exit { guarded: false } => vec![exit],
            Successors::Exit { guarded: true } => vec![exit, block_of(pc + 1)],
            Successors::Trap { guarded: false } => vec![],
            Successors::Trap { guarded: true } => vec![block_of(pc + 1)],
        });
        Graph {
            successors: successors.collect(),
            first,
            last,
        }
    }

    /// The number of the exit, and of blocks.
    pub fn exit(&self) -> usize {
        self.first.len()
    }

    /// A block's first instruction.
    pub fn first(&self, block: usize) -> usize {
        self.first[block]
    }

    /// A block's last instruction.
    pub fn last(&self, block: usize) -> usize {
        self.last[block]
    }

    /// The blocks that follow a block.
    pub fn successors(&self, block: usize) -> &[usize] {
        &self.successors[block]
    }

    /// The block of an instruction.
    pub fn block_of(&self, pc: usize) -> usize {
        self.first.partition_point(|first| *first <= pc) - 1
    }

    /// Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", on the reversed graph.
    /// None for blocks from which no path leads to the exit.
    fn immediate_post_dominators(&self) -> Vec<Option<usize>> {
        let order = self.post_order_from_exit();
        let mut rank = vec![usize::MAX; self.exit() + 1];
        for (i, block) in order.iter().enumerate() {
            rank[*block] = i;
        }
        let mut dominators = vec![None; self.exit() + 1];
        dominators[self.exit()] = Some(self.exit());
        let mut changed = true;
        while changed {
            changed = false;
            for &block in order.iter().rev().filter(|b| **b != self.exit()) {
                let known = self.successors[block]
                    .iter()
                    .filter(|s| dominators[**s].is_some());
                let meeting = known.copied().reduce(|mut a, mut b| {
                    while a != b {
                        while rank[a] < rank[b] {
                            a = dominators[a].expect("known");
                        }
                        while rank[b] < rank[a] {
                            b = dominators[b].expect("known");
                        }
                    }
                    a
                });
                changed |= dominators[block] != meeting;
                dominators[block] = meeting;
            }
        }
        dominators
    }

    /// Post-order of the reversed graph; the exit comes last.
    fn post_order_from_exit(&self) -> Vec<usize> {
        let mut predecessors = vec![Vec::new(); self.exit() + 1];
        for (block, successors) in self.successors.iter().enumerate() {
            for successor in successors {
                predecessors[*successor].push(block);
            }
        }
        let mut order = Vec::new();
        let mut seen = vec![false; self.exit() + 1];
        let mut path = vec![(self.exit(), 0)];
        seen[self.exit()] = true;
        while let Some((block, next)) = path.last_mut() {
            let block = *block;
            if let Some(&predecessor) = predecessors[block].get(*next) {
                *next += 1;
                if !seen[predecessor] {
                    seen[predecessor] = true;
                    path.push((predecessor, 0));
                }
            } else {
                order.push(block);
                path.pop();
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Successors::{Branch, Exit, Next};

    const END: Successors = Exit { guarded: false };

    fn reconvergence_points(code: &[Successors]) -> Vec<Option<usize>> {
        super::reconvergence_points(code, &Graph::new(code))
    }

    fn branch(target: usize) -> Successors {
        Branch {
            target,
            guarded: true,
        }
    }

    fn jump(target: usize) -> Successors {
        Branch {
            target,
            guarded: false,
        }
    }

    #[test]
    fn if_else_meets_after_both() {
        let code = [branch(3), Next, jump(4), Next, Next, END];
        assert_eq!(reconvergence_points(&code)[0], Some(4));
    }

    #[test]
    fn a_loop_meets_at_its_exit() {
        let code = [Next, Next, branch(1), Next, END];
        assert_eq!(reconvergence_points(&code)[2], Some(3));
    }

    #[test]
    fn a_branch_out_of_a_loop_meets_behind_the_loop() {
        // 0: loop { 1: if c break to 4; 2: work } 3: after; 4: both
        let code = [Next, branch(4), branch(0), Next, Next, END];
        let points = reconvergence_points(&code);
        assert_eq!((points[1], points[2]), (Some(4), Some(4)));
    }

    #[test]
    fn arms_that_both_end_never_meet() {
        let code = [branch(2), END, END];
        assert_eq!(reconvergence_points(&code)[0], None);
    }

    #[test]
    fn a_trap_keeps_no_one_from_meeting() {
        let trap = Successors::Trap { guarded: false };
        let code = [branch(4), branch(3), jump(4), trap, Next, END];
        assert_eq!(reconvergence_points(&code)[0], Some(4));
    }

    #[test]
    fn endless_loops_and_empty_code_do_no_harm() {
        assert_eq!(reconvergence_points(&[branch(0), jump(1)]), [None, None]);
        assert!(reconvergence_points(&[]).is_empty());
    }
}
