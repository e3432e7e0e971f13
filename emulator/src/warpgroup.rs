//! Warpgroups: four warps, from a multiple of four on, that execute some instructions together.

use crate::clocks::ALL_LANES;
use crate::counters::Tally;
use crate::error::{Rule, Violation};
use crate::pool::Pool;
use crate::registers::{Pred, Reg, Value};
use crate::shared::{Accessor, Shared};
use crate::warp::{WARPS, Warp};

/// The context of a warpgroup's instruction. All lanes of the four warps execute it.
pub(crate) struct Warpgroup<'a> {
    pub number: usize,
    pub warps: &'a mut [Warp],
    pub shared: &'a mut Shared,
    /// The block's registers; none in a kernel without launch bounds.
    pub pool: Option<&'a mut Pool>,
    /// The instruction's line.
    pub line: u32,
    pub tally: &'a mut Tally,
    /// Whether to count wavefronts.
    pub counters: bool,
    /// Whether sums of FP8 products lose bits.
    pub truncates_sums: bool,
}

/// Executes an instruction in the four warps of a warpgroup.
pub(crate) type WarpgroupOperation = Box<dyn OnWarpgroup>;

/// A closure that works on a warpgroup, with one function in its table, like [`OnLanes`](crate::decode::OnLanes).
pub(crate) trait OnWarpgroup: Send + Sync {
    fn execute(&self, warpgroup: &mut Warpgroup) -> Result<(), Box<Violation>>;
}

impl<F: Fn(&mut Warpgroup) -> Result<(), Box<Violation>> + Send + Sync> OnWarpgroup for F {
    fn execute(&self, warpgroup: &mut Warpgroup) -> Result<(), Box<Violation>> {
        self(warpgroup)
    }
}

impl Warpgroup<'_> {
    /// Reads an operand that must be the same in all lanes of the warpgroup.
    pub fn read_uniform<T: Value + PartialEq>(
        &self,
        reg: Reg<T>,
        what: &'static str,
    ) -> Result<T, Box<Violation>> {
        let mut first = None;
        for warp in &*self.warps {
            let row = warp.registers.read(reg, u32::MAX);
            let row = row.map_err(|violation| violation.by(warp.index))?;
            let first = *first.get_or_insert(row[0]);
            if let Some(lane) = row.iter().position(|value| *value != first) {
                let violation = Violation::of_lanes(Rule::NotUniform { what }, 1 << lane);
                return Err(violation.by(warp.index));
            }
        }
        Ok(first.expect("a warpgroup has warps"))
    }

    /// Reads a predicate that must be the same in all lanes of the warpgroup.
    pub fn read_uniform_predicate(
        &self,
        predicate: Pred,
        what: &'static str,
    ) -> Result<bool, Box<Violation>> {
        let mut first = None;
        for warp in &*self.warps {
            let set = warp.registers.read_predicate(predicate, u32::MAX);
            let set = set.map_err(|violation| violation.by(warp.index))?;
            let expected = 0_u32.wrapping_sub(*first.get_or_insert(set & 1));
            let differs = set ^ expected;
            if differs != 0 {
                let violation = Violation::of_lanes(Rule::NotUniform { what }, differs);
                return Err(violation.by(warp.index));
            }
        }
        Ok(first == Some(1))
    }

    /// The shared memory, and the identities under which the four warps access it.
    pub fn shared_as(&mut self) -> (&mut Shared, [Accessor<'_>; WARPS]) {
        let warps = &*self.warps;
        let accessors = std::array::from_fn(|i| warps[i].accessor(ALL_LANES, self.line));
        (self.shared, accessors)
    }
}
