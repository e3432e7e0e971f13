//! Where the kernels of a backward pass read its inputs and write its gradients.

use super::RawBackward;
use crate::error::Result;
use crate::plan::Steps;
use crate::spread::Spread;
use kernels::abi::{BackwardParams, ForwardParams, TensorRef};
use std::mem::offset_of;

/// The tensors of a backward pass as kernels see them: in place, or in the workspace.
pub(super) struct Tensors {
    pub q: TensorRef,
    pub k: TensorRef,
    pub v: TensorRef,
    pub o: TensorRef,
    /// Address of lse.
    pub lse: u64,
    pub d_o: TensorRef,
    /// Address of the gradient of lse; 0 if there is none.
    pub d_lse: u64,
    pub dq: TensorRef,
    pub dk: TensorRef,
    pub dv: TensorRef,
}

impl Tensors {
    /// Copies inputs whose rows are not aligned, or whose sequences are spread, and finds places for such outputs.
    ///
    /// # Errors
    /// If a tensor is too large for a launch, or the workspace overflows.
    pub fn new(
        steps: &mut Steps,
        args: &RawBackward,
        [of_queries, of_keys]: [Option<&Spread>; 2],
    ) -> Result<Self> {
        let forward = offset_of!(BackwardParams, forward);
        let [q, k, v, o, lse] = [
            offset_of!(ForwardParams, q.address),
            offset_of!(ForwardParams, k.address),
            offset_of!(ForwardParams, v.address),
            offset_of!(ForwardParams, o.address),
            offset_of!(ForwardParams, lse),
        ]
        .map(|place| forward + place);
        let d_lse = offset_of!(BackwardParams, d_lse);
        let [d_o, dq, dk, dv] = [
            offset_of!(BackwardParams, d_o.address),
            offset_of!(BackwardParams, dq.address),
            offset_of!(BackwardParams, dk.address),
            offset_of!(BackwardParams, dv.address),
        ];
        // It may be read in pieces of any address.
        let reads_o = args.o.shape[3].is_multiple_of(8) && of_queries.is_none();
        Ok(Tensors {
            q: steps.spread_input(args.q, of_queries, q)?,
            k: steps.spread_input(args.k, of_keys, k)?,
            v: steps.spread_input(args.v, of_keys, v)?,
            o: match reads_o {
                true => args.o.into(),
                false => steps.spread_input(args.o, of_queries, o)?,
            },
            lse: steps.spread_numbers(args.lse, of_queries, lse)?,
            d_o: steps.spread_input(args.d_o, of_queries, d_o)?,
            d_lse: match args.d_lse {
                None => 0,
                Some(numbers) => steps.spread_numbers(numbers, of_queries, d_lse)?,
            },
            dq: steps.spread_output(args.dq, of_queries, dq)?,
            dk: steps.spread_output(args.dk, of_keys, dk)?,
            dv: steps.spread_output(args.dv, of_keys, dv)?,
        })
    }
}
