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
//! # Where the PTX manual leaves rounding open
//! - `mma` with f32 accumulation: products are exact (but for overflow), and are added to the
//!   accumulator one by one in order of `k`, each sum rounded to nearest in f32. Tensor cores add
//!   several at once and truncate, so results differ from hardware's in the last bits. With f16
//!   accumulation the f32 sum is rounded to f16 once.
//! - `ex2`, `lg2`, `rcp`, `sqrt`, `rsqrt`, `div`, `sin`, `cos` and `tanh` with `.approx` (or `.full`)
//!   are computed in f64 and rounded to nearest: at least as exact as hardware's.
//! - A NaN that arithmetic produces is `0x7fffffff`.
//!
//! # What is not
//! Time, caches, and the number of registers or blocks that fit a multiprocessor. Memory orders
//! weaker than the rules above. Races between blocks in global memory. Lanes that hardware lets run
//! ahead of each other within a warp, other than as a race in shared memory. `bar.warp.sync` of only
//! some lanes orders no memory here.
//!
//! # Adding an instruction
//! Each file in `instructions` has a `decode` that looks at the opcode and returns a closure that
//! executes it for the active lanes; add a match arm to the family's file, or a file to the list in
//! `instructions/mod.rs`. The closure reads and writes registers through its `Context`, which
//! checks that they were written and keeps to the active lanes.

mod block;
mod cfg;
mod counters;
mod decode;
mod error;
mod instructions;
mod launch;
mod memory;
mod module;
mod registers;
mod shared;
mod syntax;
mod warp;

pub use counters::{Counters, Line, Tally};
pub use error::{Access, Error, Fault, Rule};
pub use launch::{Argument, Options, launch};
pub use memory::{Memory, MemoryError, Permission};
pub use module::{Kernel, Module, Parameter, ParameterType};
