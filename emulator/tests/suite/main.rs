//! The emulator's tests: instructions and rules by hand-written kernels, and a short fuzz run. The real
//! kernels, whole and mutated, run in the tests of all devices.

mod asynchronous;
mod clusters;
mod fp8_sums;
mod fuzz;
mod granules;
mod instructions;
mod launches;
mod mutants;
mod pipeline;
mod reductions;
mod registers;
mod ring;
mod rules;
mod tensor_copy;
mod tiny;
mod wgmma;
