//! Runs PTX on the CPU, strictly enough to find what a GPU hides.
//!
//! [`Module::parse`] reads the text that a compiler produced, [`Memory`] holds the buffers, and
//! [`launch`] runs a kernel over them. A kernel that breaks a [`Rule`] ends with a [`Fault`] that says
//! where and why. A kernel that breaks none returns its [`Counters`].
//!
//! # What is modelled
//! - Instructions that rustc's back end and this project's assembly use, one file for each family in
//!   `instructions`. A module with any other instruction does not load.
//! - Mbarriers, bulk and tensor copies, bulk reductions, proxy fences, `wgmma` and `setmaxnreg`, in modules whose target
//!   is `sm_90` or later. A [`TensorMap`] takes the place of what the driver encodes.
//! - FP8, e4m3 and e5m2: `cvt` of pairs, `mma` and `wgmma`, in modules whose target is `sm_89` or later.
//! - Warps of 32 lanes in lockstep. Lanes that part at a branch run one way after the other and
//!   meet at its immediate post-dominator.
//! - Blocks run in parallel; blocks of a kernel with atomics, reductions or sleeps take turns. The warps of a block take
//!   turns of 1 to 64 instructions. [`Options::seed`] decides who comes next.
//! - Launches run one after another, and may begin early: before `griddepcontrol.wait` a block may write no global memory, nor read what
//!   a launch wrote since the last one began that has no such wait, for that one waits at its start. No block ends without
//!   the wait, if its kernel has one.
//! - Every register, byte of shared memory and byte of global memory knows whether it was written.
//! - Shared memory knows who touched it last, and which barriers (`bar`, `bar.warp`, `mbarrier`) lie
//!   between. So the emulator finds a race whatever the order in which the warps ran.
//! - Copies arrive as late as the rules allow. A `cp.async` lands when its thread waits for it, and
//!   until then nobody may touch its destination. A bulk copy to shared memory lands when no warp can
//!   go on without it, and only threads that waited for the phase of its mbarrier may touch its
//!   destination.
//! - Bulk copies and `wgmma` see what threads wrote to shared memory only after a `fence.proxy.async`.
//! - A `wgmma` is complete when a warp waits for its group. Until then that warp's other instructions
//!   may not touch its registers, and nobody may write what it reads of shared memory. It needs a
//!   `wgmma.fence` after other accesses to its registers.
//! - The four warps of a warpgroup execute a `wgmma` or `setmaxnreg` together, with all lanes.
//! - `setmaxnreg` moves registers between the warps of a block, which has as many as its launch bounds
//!   give. A warp waits until there are enough.
//! - A wait at an mbarrier gives false at least once where its phase is not complete. Warps that wait
//!   for a phase that nothing completes are a deadlock, reported with what each warp waits for.
//! - A collective instruction needs all the lanes that it names, together. Lanes that would reach it
//!   from another branch count as missing, although some hardware lets them pass.
//!
//! # Where the PTX manual leaves results open
//! - `mma` and `wgmma` with f32 accumulation: products are exact unless they overflow. They are added to
//!   the accumulator one by one in order of `k`, each sum rounded to nearest in f32. With f16
//!   accumulation the f32 sum is rounded to f16 once for each instruction.
//! - `wgmma` of FP8 with f32 accumulation keeps fewer bits of products if [`Options::truncated_fp8_sums`] says so, which
//!   models Hopper's tensor cores.
//! - The lane that `elect.sync` chooses depends on the members and on [`Options::seed`].
//! - `ex2`, `lg2`, `rsqrt` and `tanh` with `.approx`, and `div.full`, are computed in f64 and rounded to
//!   nearest; `rcp` and `sqrt` with `.approx` are rounded to nearest.
//! - A NaN that arithmetic produces is `0x7fffffff`, of 16 bits `0x7fff`, of FP8 `0x7f`. Division of an integer by zero gives all ones.
//!
//! Results beside an H200's, on a million random operands each (bit patterns of all kinds, and the
//! ranges that a softmax meets):
//!
//! | instructions | results that differ |
//! |---|---|
//! | f32 `add`, `sub`, `mul`, `fma`, `min`, `max`, `div.rn`, `sqrt.rn`, `.ftz` and `.sat`; `cvt`; integer arithmetic and bits; `shfl`, `redux` | none, in no bit |
//! | `ex2.approx.ftz` of -30 to 0 | 62 %, by 1 ulp, 1.3 % by 2 |
//! | `lg2.approx` of 1 to 4096 | 43 %, by 1 ulp; more only where the result is near 0 |
//! | `rcp`, `rsqrt`, `sqrt` with `.approx`, of positive operands | 13 %, 22 %, 17 %, by 1 ulp |
//! | `mma` m16n8k16 of f16, operands in -1 to 1 | 61 %, most by 1 or 2 ulp, more after cancellation: tensor cores add several products at once and truncate |
//! | `mma` m16n8k16 of bf16 | 8 %, likewise |
//! | o of the f16 forward kernels (2 heads, 300 queries, 500 keys) | 0.4 % (head dim 32) to 2.4 % (256), by at most 1.2e-4 |
//! | o of the bf16 forward kernels | 0.03 % to 0.2 %, by at most 4.9e-4 |
//! | lse of all forward kernels | 25 % to 37 %, by at most 3 ulp |
//!
//! # What is not modelled
//! - Time, caches, and the number of registers or blocks that fit a multiprocessor: a thread that gave
//!   registers back is not held to what it kept.
//! - Shared memory of other blocks of a cluster: the barrier of a cluster is there, and who a block is in it.
//! - Memory orders weaker than the rules above.
//! - Races in global memory, between threads or with bulk copies.
//! - Lanes that hardware lets run ahead of each other within a warp, other than as a race in shared
//!   memory.
//!
//! # Extending it
//! Each file in `instructions` has a `decode` that looks at the opcode and returns a closure. The
//! closure executes the instruction for the active lanes, through a `Context` that checks that
//! registers were written. A new instruction is a match arm in its family's file, or a file in the
//! list of `instructions/mod.rs`.

mod barrier;
mod block;
mod body;
mod bulk;
mod bytes;
mod cfg;
mod clocks;
mod cluster;
mod context;
mod copies;
mod counters;
mod decode;
mod error;
mod findings;
mod grid;
mod host;
mod instructions;
mod kernel;
mod launch;
mod liveness;
mod mbarrier;
mod memory;
mod module;
mod modules;
mod nan;
mod parser;
mod pool;
mod products;
mod random;
mod registers;
mod setting;
mod shadow;
mod shared;
mod slots;
mod source;
mod syntax;
mod tensor_map;
mod warp;
mod warpgroup;

pub use counters::{Counters, Line, PerMma, Tally};
pub use error::{Access, Error, Fault, Rule};
pub use findings::{Finding, FindingKind};
pub use kernel::{Kernel, Parameter, ParameterType};
pub use launch::{Argument, launch};
pub use memory::{Memory, MemoryError, Permission};
pub use module::Module;
pub use setting::Options;
pub use source::Source;
pub use tensor_map::{Swizzle, TensorMap};
