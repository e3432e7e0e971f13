//! The emulator's tests: instructions and rules by hand-written kernels, and the real kernels, whole
//! and mutated.

mod asynchronous;
mod attention;
mod fuzz;
mod instructions;
mod kernels;
mod mutants;
mod rules;
mod tiny;
