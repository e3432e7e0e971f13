//! Products under way: the `wgmma` that a warp has issued and not waited for.
//!
//! Registers of such a product are the tensor cores': the warp's other instructions may not touch
//! them. Only products of the same shape may go on with the same accumulators. A product sees what
//! other instructions did to its registers only after a `wgmma.fence`.

use crate::error::{Rule, Violation};
use crate::registers::{Reg, Registers};
use std::sync::Arc;

/// The registers of a product.
#[derive(Clone)]
pub(crate) struct Operands {
    pub accumulators: Arc<[Reg<u32>]>,
    /// The left operand, if it lies in registers.
    pub left: Option<[Reg<u32>; 4]>,
}

/// A product that the warp has not waited for.
struct UnderWay {
    /// Its number among the products of the warpgroup, from 1.
    number: u32,
    /// The group that it belongs to, counted from 0.
    group: u32,
    line: u32,
    operands: Operands,
}

/// How a register is used.
#[derive(Clone, Copy, Default)]
struct Use {
    /// Products under way that accumulate in it.
    accumulating: u32,
    /// Products under way that read it as their left operand.
    reading: u32,
    /// When another instruction accessed it last, and the instruction's line.
    accessed: u64,
    line: u32,
}

/// The registers that a kernel's products use, by numbers of their own.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// By number of a register of 32 bits.
    numbers: Vec<Option<u32>>,
    count: usize,
}

impl Numbers {
    /// The registers in products, of `words` registers of 32 bits.
    pub fn new(in_products: &[Reg<u32>], words: usize) -> Self {
        let mut numbers = vec![None; words];
        let mut count = 0;
        for register in in_products {
            numbers[register.index()].get_or_insert_with(|| {
                count += 1;
                count - 1
            });
        }
        let count = count as usize;
        Numbers { numbers, count }
    }

    /// Whether a product uses a register.
    pub fn has(&self, register: Reg<u32>) -> bool {
        self.numbers[register.index()].is_some()
    }

    #[inline(always)]
    fn of(&self, register: Reg<u32>) -> usize {
        self.numbers[register.index()].expect("a product uses it") as usize
    }
}

/// The products of a warp.
#[derive(Default)]
pub(crate) struct Products {
    /// When the warp executed its last `wgmma.fence`.
    fenced: Option<u64>,
    /// Groups that the warp has closed.
    closed: u32,
    under_way: Vec<UnderWay>,
    numbers: Arc<Numbers>,
    /// By number of a register in products.
    uses: Vec<Use>,
}

impl Products {
    pub fn new(numbers: &Arc<Numbers>) -> Self {
        Products {
            uses: vec![Use::default(); numbers.count],
            numbers: Arc::clone(numbers),
            ..Products::default()
        }
    }

    /// Another instruction accesses registers that products use, at a time that the warp counts.
    pub fn access(
        &mut self,
        accessed: &[Reg<u32>],
        now: u64,
        line: u32,
        registers: &Registers,
    ) -> Result<(), Box<Violation>> {
        for register in accessed {
            let used = &mut self.uses[self.numbers.of(*register)];
            if used.accumulating | used.reading != 0 {
                return Err(self.pending(*register, registers));
            }
            (used.accessed, used.line) = (now, line);
        }
        Ok(())
    }

    /// `wgmma.fence`
    pub fn fence(&mut self, now: u64) {
        self.fenced = Some(now);
    }

    /// Issues a product.
    pub fn issue(
        &mut self,
        operands: &Operands,
        number: u32,
        line: u32,
        registers: &Registers,
    ) -> Result<(), Box<Violation>> {
        let fenced = self.fenced;
        let fenced = fenced.ok_or_else(|| Violation::of_warp(Rule::NoProductFence))?;
        let Operands { accumulators, left } = operands;
        let mut earlier = self.under_way.iter();
        let goes_on = earlier.any(|product| {
            let others = product.operands.accumulators.iter();
            others
                .map(|r| r.index())
                .eq(accumulators.iter().map(|r| r.index()))
        });
        let left = left.iter().flatten();
        let all = accumulators.iter().map(|r| (r, goes_on));
        for (register, may_accumulate) in all.chain(left.clone().map(|r| (r, false))) {
            let used = self.uses[self.numbers.of(*register)];
            let is_accumulator = !left.clone().any(|r| r.index() == register.index());
            if used.accumulating > 0 && !may_accumulate || used.reading > 0 && is_accumulator {
                return Err(self.pending(*register, registers));
            }
            if used.accessed > fenced {
                let register = registers.word_name(*register);
                let rule = Rule::MissingProductFence {
                    register,
                    line: used.line,
                };
                return Err(Violation::of_warp(rule));
            }
        }
        self.count(operands, 1);
        self.under_way.push(UnderWay {
            number,
            group: self.closed,
            line,
            operands: operands.clone(),
        });
        Ok(())
    }

    /// `wgmma.commit_group`
    pub fn commit(&mut self) {
        self.closed += 1;
    }

    /// `wgmma.wait_group`: all but the `pending` youngest groups are complete. Gives the number of the
    /// last product that is.
    pub fn wait(&mut self, pending: u32) -> Option<u32> {
        let complete = self.closed.saturating_sub(pending);
        let is_complete = |product: &mut UnderWay| product.group < complete;
        let done: Vec<_> = self.under_way.extract_if(.., is_complete).collect();
        for product in &done {
            self.count(&product.operands, u32::MAX);
        }
        done.iter().map(|product| product.number).max()
    }

    /// The line of a product under way.
    pub fn unfinished(&self) -> Option<u32> {
        self.under_way.first().map(|product| product.line)
    }

    /// Adds to the counts of products that use some registers, modulo 2^32.
    fn count(&mut self, operands: &Operands, change: u32) {
        for register in &*operands.accumulators {
            let count = &mut self.uses[self.numbers.of(*register)].accumulating;
            *count = count.wrapping_add(change);
        }
        for register in operands.left.iter().flatten() {
            let count = &mut self.uses[self.numbers.of(*register)].reading;
            *count = count.wrapping_add(change);
        }
    }

    /// The violation of an access to a register of a product under way.
    #[cold]
    fn pending(&self, register: Reg<u32>, registers: &Registers) -> Box<Violation> {
        let mut products = self.under_way.iter().rev();
        let product = products.find(|product| {
            let Operands { accumulators, left } = &product.operands;
            let mut all = accumulators.iter().chain(left.iter().flatten());
            all.any(|r| r.index() == register.index())
        });
        let line = product.expect("a product uses it").line;
        let register = registers.word_name(register);
        Violation::of_warp(Rule::PendingProduct { register, line })
    }
}
