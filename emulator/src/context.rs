//! What an instruction finds when lanes of a warp execute it.

use crate::bulk::BulkCopies;
use crate::counters::Tally;
use crate::error::{Rule, Violation};
use crate::mbarrier::Mbarriers;
use crate::registers::{LANES, Reg, Row, Value};
use crate::setting::Setting;
use crate::shared::{Accessor, Shared};
use crate::warp::Warp;

/// The context of an instruction: the active lanes of a warp and all they can reach.
pub(crate) struct Context<'a> {
    /// The lanes that execute it.
    pub active: u32,
    /// The instruction's line.
    pub line: u32,
    pub warp: &'a mut Warp,
    pub shared: &'a mut Shared,
    pub mbarriers: &'a mut Mbarriers,
    pub bulk: &'a mut BulkCopies,
    pub launch: &'a Setting,
    /// Whether the block has waited for the launches before.
    pub has_waited: &'a mut bool,
    /// The block's position in the grid.
    pub block: [u32; 3],
    pub tally: &'a mut Tally,
}

impl Context<'_> {
    /// A register's values in the active lanes; the others mean nothing.
    #[inline(always)]
    pub fn row<T: Value>(&self, reg: Reg<T>) -> Result<&Row<T>, Box<Violation>> {
        self.warp.registers.read(reg, self.active)
    }

    /// A copy of a [row](Self::row).
    #[inline(always)]
    pub fn read<T: Value>(&self, reg: Reg<T>) -> Result<Row<T>, Box<Violation>> {
        self.row(reg).copied()
    }

    #[inline(always)]
    pub fn write<T: Value>(&mut self, reg: Reg<T>, value: Row<T>) {
        self.warp.registers.write(reg, self.active, value);
    }

    /// Reads an operand that must be the same in all active lanes.
    pub fn read_uniform<T: Value + PartialEq>(
        &self,
        reg: Reg<T>,
        what: &'static str,
    ) -> Result<T, Box<Violation>> {
        let row = self.read(reg)?;
        let first = row[self.active.trailing_zeros() as usize];
        let differs = |lane: &usize| self.active >> lane & 1 != 0 && row[*lane] != first;
        match (0..LANES).find(differs) {
            None => Ok(first),
            Some(lane) => Err(Violation::of_lanes(Rule::NotUniform { what }, 1 << lane)),
        }
    }

    /// Fails unless all lanes of `needed` execute the instruction together.
    pub fn require(&self, needed: u32) -> Result<(), Box<Violation>> {
        let reached = self.active;
        if needed & !reached == 0 {
            return Ok(());
        }
        Err(Violation::of_lanes(
            Rule::MissingLanes { needed, reached },
            needed & !reached,
        ))
    }

    /// The shared memory, and the identity under which a lane accesses it.
    #[inline(always)]
    pub fn shared_as(&mut self, lane: u32) -> (&mut Shared, Accessor<'_>) {
        (self.shared, self.warp.accessor(lane, self.line))
    }
}
