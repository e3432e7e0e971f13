//! Each instruction family by hand-written kernels, against what the PTX manual says. A file has the name of its
//! family in `emulator/src/instructions`.

mod atomic;
mod barrier;
mod control;
mod convert;
mod cp_async;
mod float;
mod fp8;
mod integer;
mod ldmatrix;
mod memory;
mod mma;
mod movement;
mod pairs;
mod setmaxnreg;
mod shuffle;
mod stmatrix;

use crate::tiny::warp;

/// Evaluates one instruction `op %r0, ...` of 32-bit operands in one thread.
#[track_caller]
fn eval(instruction: &str, operands: &[u32]) -> u32 {
    let mut body = String::new();
    for (i, operand) in operands.iter().enumerate() {
        body += &format!("mov.b32 %r{}, {operand};", i + 1);
    }
    body += &format!("{instruction}; st.global.b32 [%out], %r0;");
    warp(&body, &[])[0][0]
}

#[track_caller]
fn eval_f32(instruction: &str, operands: &[f32]) -> f32 {
    let bits: Vec<u32> = operands.iter().map(|x| x.to_bits()).collect();
    f32::from_bits(eval(instruction, &bits))
}
