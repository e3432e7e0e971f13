//! Runs PTX on the CPU, strictly enough to find what a GPU hides.
//!
//! [`Module::parse`] reads the text that a compiler produced, [`Memory`] holds the buffers, and
//! [`launch`] runs a kernel over them. A kernel that breaks a [`Rule`] is stopped with a [`Fault`]
//! that says where and why; one that runs through returns its [`Counters`].
//!
//! # What is modelled
//! - The instructions of `sm_80` that rustc's back end and this project's assembly use, one file a
//!   family in `instructions`. A module with any other does not load.
//! - Warps of 32 lanes in lockstep. Lanes that part at a branch run one way after the other and
//!   meet at its immediate post-dominator.
//! - Blocks are independent and run in parallel. The warps of a block take turns of 1 to 64
//!   instructions, in an order drawn from [`Options::seed`].
//! - Every register, byte of shared memory and byte of global memory knows whether it was written.
//! - Shared memory knows who touched it last, and whether a barrier (`bar`, `bar.warp`) lies
//!   between: a race is found whatever the order the warps ran in. A `cp.async` lands when its
//!   thread waits for it and not before; until then nobody may touch its destination.
//! - A collective instruction needs all the lanes it names, together: lanes that would reach it
//!   from another branch, which hardware may or may not let pass, are missing.
//!
//! # Where the PTX manual leaves results open
//! - `mma` with f32 accumulation: products are exact (but for overflow), and are added to the
//!   accumulator one by one in order of `k`, each sum rounded to nearest in f32. With f16
//!   accumulation the f32 sum is rounded to f16 once.
//! - `ex2`, `lg2` and `rsqrt` with `.approx`, and `div.full`, are computed in f64 and rounded to
//!   nearest; `rcp` and `sqrt` with `.approx` are rounded to nearest.
//! - A NaN that arithmetic produces is `0x7fffffff`. Division of an integer by zero gives all ones.
//!
//! Compared with an H200, on a million random operands each (bit patterns of all kinds,
//! and the ranges that a softmax meets):
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
//! # What is not
//! Time, caches, and the number of registers or blocks that fit a multiprocessor. Memory orders
//! weaker than the rules above. Races between blocks in global memory. Lanes that hardware lets run
//! ahead of each other within a warp, other than as a race in shared memory. `bar.warp.sync` of only
//! some lanes orders no memory here.
//!
//! # Extending it
//! Each file in `instructions` has a `decode` that looks at the opcode and returns a closure that
//! executes it for the active lanes; add a match arm to the family's file, or a file to the list in
//! `instructions/mod.rs`. The closure reads and writes registers through its `Context`, which
//! checks that they were written and keeps to the active lanes.
//!
//! What `sm_90a` adds has its place too. `mbarrier` and `wgmma.wait_group` block a warp as `bar.sync`
//! does: an `Action` of its own, and a state of the warp that the block's scheduler resolves. Bulk
//! copies and `wgmma` operands in shared memory are accesses that stay pending in `shared`'s shadow,
//! as those of `cp.async` do. A cluster is a group of blocks that run together, in place of one.

mod block;
mod bulk;
mod cfg;
mod clocks;
mod counters;
mod decode;
mod error;
mod findings;
mod instructions;
mod launch;
mod mbarrier;
mod memory;
mod module;
mod registers;
mod shared;
mod source;
mod syntax;
mod warp;

pub use counters::{Counters, Line, PerMma, Tally};
pub use error::{Access, Error, Fault, Rule};
pub use findings::{Finding, FindingKind};
pub use launch::{Argument, Options, launch};
pub use memory::{Memory, MemoryError, Permission};
pub use module::{Kernel, Module, Parameter, ParameterType};
pub use source::Source;
