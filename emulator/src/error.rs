//! Errors: a module that does not load, a launch that does not fit the kernel, and a
//! kernel that breaks a rule.

use crate::source::Source;
use std::fmt;

/// Why a module did not load or a launch did not finish.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not PTX, or uses a directive that is not supported.
    #[error("{file}:{line}: {message}")]
    Syntax {
        /// Name of the module.
        file: String,
        /// Line, from 1.
        line: u32,
        /// The mistake.
        message: String,
    },
    /// An instruction is not known or its operands do not fit it.
    #[error("{file}:{line}: `{instruction}`: {message}")]
    Instruction {
        /// Name of the module.
        file: String,
        /// Line, from 1.
        line: u32,
        /// The instruction's opcode.
        instruction: String,
        /// The mistake.
        message: String,
    },
    /// The module has no entry of this name.
    #[error("{file} has no entry {entry:?}; it has {}", known.join(", "))]
    NoEntry {
        /// Name of the module.
        file: String,
        /// The name.
        entry: String,
        /// The module's entries.
        known: Vec<String>,
    },
    /// The launch has more or fewer arguments than the kernel has parameters.
    #[error("{kernel} takes {expected} arguments, not {found}")]
    ArgumentCount {
        /// The kernel.
        kernel: String,
        /// Its number of parameters.
        expected: usize,
        /// Number of arguments given.
        found: usize,
    },
    /// An argument is not of its parameter's type.
    #[error("{kernel}: parameter {parameter} takes {expected}, not {found}")]
    ArgumentType {
        /// The kernel.
        kernel: String,
        /// The parameter's name.
        parameter: String,
        /// The type that it takes.
        expected: String,
        /// The type that was given.
        found: String,
    },
    /// The grid, block or shared-memory size is not possible.
    #[error("{kernel}: {what} must be {allowed}, not {found}")]
    LaunchSize {
        /// The kernel.
        kernel: String,
        /// Which size.
        what: &'static str,
        /// The allowed sizes.
        allowed: String,
        /// The given size.
        found: String,
    },
    /// The kernel broke a rule.
    #[error(transparent)]
    Fault(#[from] Box<Fault>),
}

/// A message about a line, before the file's name is known.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    pub line: u32,
    pub message: String,
}

impl SyntaxError {
    pub fn new(line: u32, message: impl Into<String>) -> Self {
        let message = message.into();
        SyntaxError { line, message }
    }

    pub fn of_file(self, file: &str) -> Error {
        Error::Syntax {
            file: file.to_owned(),
            line: self.line,
            message: self.message,
        }
    }
}

/// The report of a kernel that broke a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The rule that was broken.
    pub rule: Rule,
    /// Name of the module.
    pub file: String,
    /// The kernel.
    pub entry: String,
    /// Line of the module, from 1.
    pub line: u32,
    /// The line's text.
    pub instruction: String,
    /// The source line that it was compiled from, where the module has `.loc`.
    pub source: Option<Source>,
    /// Block in the grid: x, y, z.
    pub block: [u32; 3],
    /// Warp in the block.
    pub warp: u32,
    /// The first lane that broke the rule; none where the whole warp did.
    pub lane: Option<u32>,
    /// The address, for accesses to memory.
    pub address: Option<u64>,
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [x, y, z] = self.block;
        writeln!(f, "{}: {}", self.entry, self.rule)?;
        writeln!(f, "  at {}:{}: {}", self.file, self.line, self.instruction)?;
        if let Some(source) = &self.source {
            writeln!(f, "  from {source}")?;
        }
        write!(f, "  block ({x}, {y}, {z}), warp {}", self.warp)?;
        if let Some(lane) = self.lane {
            write!(f, ", lane {lane}")?;
        }
        if let Some(address) = self.address {
            write!(f, ", address {address:#x}")?;
        }
        Ok(())
    }
}

/// A rule, named after the way in which a kernel breaks it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rule {
    /// An access to global memory that does not lie in one buffer.
    #[error("global access of {bytes} bytes outside every buffer")]
    GlobalOutOfBounds {
        /// Size of the access.
        bytes: u32,
    },
    /// A global address that is not a multiple of the access's size.
    #[error("global access of {bytes} bytes at an address that is not a multiple of {bytes}")]
    GlobalMisaligned {
        /// Size of the access.
        bytes: u32,
    },
    /// A store to a read-only buffer.
    #[error("store to a read-only buffer")]
    GlobalReadOnly,
    /// A load of global memory that nobody wrote.
    #[error("read of global memory that was never written")]
    GlobalUninitialised,
    /// Before `griddepcontrol.wait`, a write to global memory, or a read of what a launch wrote since the last one began that has no
    /// such wait: one that waits at its start.
    #[error("access before griddepcontrol.wait to global memory that launches before may use")]
    EarlyAccess,
    /// A block of a kernel with a `griddepcontrol.wait` ends without it: the launch behind it would not wait for those before.
    #[error("the block ends without its griddepcontrol.wait")]
    NeverWaited,
    /// An access outside the block's shared memory.
    #[error("shared access of {bytes} bytes outside the block's shared memory")]
    SharedOutOfBounds {
        /// Size of the access.
        bytes: u32,
    },
    /// A shared address that is not a multiple of the access's size.
    #[error("shared access of {bytes} bytes at an address that is not a multiple of {bytes}")]
    SharedMisaligned {
        /// Size of the access.
        bytes: u32,
    },
    /// A read of shared memory that nobody wrote.
    #[error("read of shared memory that was never written")]
    SharedUninitialised,
    /// An access to the destination of a `cp.async` before its thread waited for it.
    #[error(
        "access to the destination of a cp.async (line {line}) that its thread did not wait for"
    )]
    PendingCopy {
        /// Line of the `cp.async`.
        line: u32,
    },
    /// An access to the destination of a bulk copy before its thread waited for the copy's phase.
    #[error(
        "access to the destination of a bulk copy (line {line}) before a wait for its mbarrier's phase"
    )]
    PendingBulkCopy {
        /// Line of the `cp.async.bulk`.
        line: u32,
    },
    /// A write to the source of a bulk copy before its thread waited for the copy.
    #[error("write to the source of a bulk copy (line {line}) that its thread did not wait for")]
    BulkCopySource {
        /// Line of the `cp.async.bulk`.
        line: u32,
    },
    /// A bulk copy or product of what a thread wrote, with no `fence.proxy.async` between.
    #[error(
        "asynchronous access to shared memory that a thread wrote (line {line}) with no fence.proxy.async between"
    )]
    MissingProxyFence {
        /// Line of the write.
        line: u32,
    },
    /// A bulk copy of a size that is not a multiple of 16 bytes.
    #[error("bulk copy of {bytes} bytes, not a multiple of 16")]
    BulkCopySize {
        /// Size of the copy.
        bytes: u32,
    },
    /// A tensor copy whose tensor map is none, or has other dimensions.
    #[error("{what}")]
    InvalidTensorMap {
        /// The mistake.
        what: &'static str,
    },
    /// A tensor copy to global memory of a box that begins at a negative coordinate: an illegal instruction on an H200.
    #[error("a box stored from coordinate {coordinate} on, before the tensor")]
    StoreBeforeTensor {
        /// The coordinate.
        coordinate: i32,
    },
    /// The block ends while a bulk copy still reads or writes its shared memory.
    #[error("the block ends while this bulk copy is under way")]
    UnfinishedBulkCopy,
    /// A write to an operand of a `wgmma` that the writer does not know to be complete.
    #[error(
        "write to shared memory that a wgmma (line {line}) may still read: no wgmma.wait_group between"
    )]
    ProductSource {
        /// Line of the `wgmma`.
        line: u32,
    },
    /// An access to a register of a `wgmma` that its warp did not wait for.
    #[error(
        "access to register {register} of a wgmma (line {line}) with no wgmma.wait_group between"
    )]
    PendingProduct {
        /// The register.
        register: String,
        /// Line of the `wgmma`.
        line: u32,
    },
    /// A `wgmma` on a register that another instruction accessed, with no `wgmma.fence` between.
    #[error(
        "wgmma on register {register}, which line {line} accessed, with no wgmma.fence between"
    )]
    MissingProductFence {
        /// The register.
        register: String,
        /// Line of the access.
        line: u32,
    },
    /// A `wgmma` in a warp that has executed no `wgmma.fence`.
    #[error("the first wgmma of a warp needs a wgmma.fence before it")]
    NoProductFence,
    /// A `wgmma` whose operand has no meaning.
    #[error("{what}")]
    ProductMisused {
        /// The mistake.
        what: &'static str,
    },
    /// A warp ends while its `wgmma` is under way.
    #[error("the warp ends with no wgmma.wait_group for a wgmma (line {line})")]
    UnfinishedProduct {
        /// Line of the `wgmma`.
        line: u32,
    },
    /// A `setmaxnreg` that has no meaning.
    #[error("{what}")]
    RegistersMisused {
        /// The mistake.
        what: &'static str,
    },
    /// An instruction of a warpgroup in a block that lacks one of its four warps.
    #[error("the block ends before the fourth warp of this warpgroup")]
    IncompleteWarpgroup,
    /// An mbarrier instruction on memory that holds no mbarrier.
    #[error("no mbarrier.init made this address an mbarrier")]
    MbarrierNotInitialised,
    /// A bulk copy that names an mbarrier of which the asynchronous proxy does not know.
    #[error(
        "bulk copy on an mbarrier with no fence.mbarrier_init or fence.proxy.async after its mbarrier.init"
    )]
    MbarrierNotFenced,
    /// An access to the bytes of an mbarrier by other instructions than its own.
    #[error("access to the bytes of an mbarrier (mbarrier.init at line {line})")]
    MbarrierAccessed {
        /// Line of the `mbarrier.init`.
        line: u32,
    },
    /// An arrival in a phase before any wait saw the phase before it complete.
    #[error("arrival at an mbarrier before a wait saw that its phase {phase} is complete")]
    MbarrierUnobserved {
        /// The phase that nobody waited for, from 0.
        phase: u32,
    },
    /// More arrivals than a phase lacks, or none.
    #[error("arrival of {count} at an mbarrier whose phase lacks {pending} of {expected}")]
    MbarrierArrivals {
        /// The arrivals.
        count: u32,
        /// Arrivals that the phase lacked.
        pending: u32,
        /// Arrivals that complete a phase.
        expected: u32,
    },
    /// A transaction count beyond what an mbarrier can hold.
    #[error("transaction count {bytes} of an mbarrier; it goes from -(2^20 - 1) to 2^20 - 1")]
    MbarrierBytes {
        /// The transaction count.
        bytes: i64,
    },
    /// A use of an mbarrier that has no meaning.
    #[error("{what}")]
    MbarrierMisused {
        /// The mistake.
        what: &'static str,
    },
    /// Warps wait for each other, for bytes that no copy brings, or for registers that nobody gives.
    #[error("no warp can go on: {waiting}")]
    Deadlock {
        /// The wait of every warp.
        waiting: String,
    },
    /// Two threads touch a shared address, one writing, with no barrier between.
    #[error(
        "{access} of shared memory races with the {earlier} by {thread}{}: no barrier between",
        line.map_or(String::new(), |line| format!(" (line {line})"))
    )]
    SharedRace {
        /// This thread's access.
        access: Access,
        /// The other thread's access.
        earlier: Access,
        /// The other thread, as warp and lane; several lanes if the access was collective.
        thread: String,
        /// Line of the other access, known for writes.
        line: Option<u32>,
    },
    /// A read of a register that was never written.
    #[error("read of register {name}, which was never written")]
    UninitialisedRegister {
        /// The register.
        name: String,
    },
    /// A collective instruction that lacks a lane.
    #[error("collective instruction for lanes {needed:#010x}, reached by {reached:#010x}")]
    MissingLanes {
        /// Mask of the lanes the instruction needs.
        needed: u32,
        /// Mask of the lanes that execute it together.
        reached: u32,
    },
    /// A lane executes a collective whose member mask does not name it.
    #[error("lane outside the member mask {members:#010x}")]
    NotAMember {
        /// The member mask.
        members: u32,
    },
    /// An operand that must be the same in all lanes, and is not.
    #[error("{what} differs between the lanes")]
    NotUniform {
        /// Which operand.
        what: &'static str,
    },
    /// A barrier that some of its threads do not reach.
    #[error("barrier {barrier} is never complete: {missing}")]
    BarrierNotReached {
        /// Barrier number.
        barrier: u32,
        /// The warps that are missing, and where they are.
        missing: String,
    },
    /// A use of a barrier that has no meaning.
    #[error("{what}")]
    BarrierMisused {
        /// The mistake.
        what: &'static str,
    },
    /// A `bra.uni` that only some lanes take.
    #[error("bra.uni diverges")]
    DivergentUniformBranch,
    /// The kernel reached `trap`.
    #[error("trap")]
    Trap,
    /// The kernel ran past its last instruction.
    #[error("ran past the end of the kernel")]
    NoReturn,
    /// A warp executed more instructions than allowed.
    #[error("did not end within {budget} instructions of a warp")]
    Budget {
        /// The allowance.
        budget: u64,
    },
}

/// A direction of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Read,
    /// A store, or the landing of a copy.
    Write,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Access::Read => "read",
            Access::Write => "write",
        })
    }
}

/// A broken rule, before entry, line, block and warp are added.
#[derive(Debug)]
pub(crate) struct Violation {
    pub rule: Rule,
    /// The warp, if it is not the one that executes the instruction.
    pub warp: Option<usize>,
    pub lane: Option<u32>,
    pub address: Option<u64>,
}

impl Violation {
    /// The violation, by another warp.
    pub fn by(mut self: Box<Self>, warp: usize) -> Box<Self> {
        self.warp = Some(warp);
        self
    }

    /// A violation of the whole warp.
    pub fn of_warp(rule: Rule) -> Box<Self> {
        Box::new(Violation {
            rule,
            warp: None,
            lane: None,
            address: None,
        })
    }

    /// A violation by the first lane of `lanes`.
    pub fn of_lanes(rule: Rule, lanes: u32) -> Box<Self> {
        Box::new(Violation {
            rule,
            warp: None,
            lane: Some(lanes.trailing_zeros()),
            address: None,
        })
    }

    /// A violation by an access to memory.
    pub fn at(rule: Rule, lane: u32, address: u64) -> Box<Self> {
        Box::new(Violation {
            rule,
            warp: None,
            lane: Some(lane),
            address: Some(address),
        })
    }
}
