//! What a call in FP8 rounds, and by which kernels.

use crate::forward::main_kernel::MainKernel;
use crate::forward::{Problem, RawForward};
use crate::options::descales_ref;
use crate::tensor_map::has_map;
use kernels::abi::DescalesRef;
use kernels::catalog::Auxiliary;
use kernels::layout::element::CHUNK;
use kernels::layout::fp8::row_lanes;

/// What a call rounds, and by which kernels.
pub struct Inputs {
    /// Elements of rows of q and k.
    pub dim: u32,
    /// Elements of rows of v.
    pub dim_v: u32,
    /// Numbers of a rounded row of q or k.
    pub row_bytes: usize,
    /// Whether q and k are rotated.
    pub rotates: bool,
    /// What multiplies q, k and v of e4m3.
    pub descales: [DescalesRef; 3],
    /// Whether the main kernel rounds q: of 16 bits, and where a map can describe it.
    pub kernel_rounds_q: bool,
    /// What rounds k, and q otherwise.
    pub rounds_rows: Auxiliary,
    /// What finds moments of v, and what rounds it.
    pub rounds_values: [Auxiliary; 2],
}

impl Inputs {
    /// The inputs of a call whose problem has dims that are [padded](Problem::in_vectors).
    pub fn new(kernel: &MainKernel, p: &Problem, args: &RawForward) -> Self {
        let rotates = args.options.fp8.is_some_and(|fp8| fp8.hadamard);
        let row_bytes = match rotates {
            true => (CHUNK * row_lanes(p.dim as u32)) as usize,
            false => p.dim.next_multiple_of(16),
        };
        let of_16_bits = Inputs {
            dim: p.dim as u32,
            dim_v: p.dim_v as u32,
            row_bytes,
            rotates,
            descales: Default::default(),
            kernel_rounds_q: kernel.rounds_q && !rotates && has_map(&args.q),
            rounds_rows: Auxiliary::RoundRows(kernel.dtype),
            rounds_values: [
                Auxiliary::Moments(kernel.dtype),
                Auxiliary::RoundValues(kernel.dtype),
            ],
        };
        match args.options.e4m3 {
            None => of_16_bits,
            Some(e4m3) => Inputs {
                dim: args.q.shape[3] as u32,
                dim_v: args.v.shape[3] as u32,
                descales: e4m3.descales().map(|of| descales_ref(of, false)),
                kernel_rounds_q: false,
                rounds_rows: Auxiliary::ScaleRows,
                rounds_values: [Auxiliary::MomentsE4m3, Auxiliary::TransposeValues],
                ..of_16_bits
            },
        }
    }
}
