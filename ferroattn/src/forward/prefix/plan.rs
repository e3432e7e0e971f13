//! The plan of a call with a prefix: those of its parts, and the merge of their results, in one workspace.

use super::divide::{Call, Divided, as_one_entry, of_entries};
use crate::attention::{Attention, Wanted};
use crate::device::Facts;
use crate::error::{Error, Result};
use crate::merge::{RawMerge, RawPart, merge_of};
use crate::options::{PREFIX, Part};
use crate::plan::{Plan, Steps};
use crate::tensor::{Dtype, RawTensor};
use kernels::abi::{MergeParams, MergeParts, PartRef};
use std::mem::offset_of;

impl Divided {
    /// The launches of the call; none on the CPU.
    ///
    /// # Errors
    /// The conditions of [`Attention::forward`].
    pub fn plan(&self, attention: &Attention, facts: Option<&Facts>, dtype: Dtype) -> Result<Plan> {
        let plan = |call: &Call| attention.plan_of(&call.problem, facts, dtype, &call.args);
        let Divided { prefix, own } = self;
        let Some(prefix) = prefix else {
            return plan(own);
        };
        if facts.is_none() {
            plan(prefix)?;
            return plan(own);
        }
        if let Wanted::Planned(_) = attention.kernel {
            return Err(Error::NoOption(PREFIX));
        }
        let mut steps = Steps::default();
        // Where a copy of q lies, in the form of one entry.
        let q = match as_one_entry(own.args.q) {
            Some(q) => (q, false),
            None => (pack_as_one_entry(&mut steps, own.args.q)?, true),
        };
        let (first, second) = (steps.reserve_part(prefix)?, steps.reserve_part(own)?);
        let of_prefix = part_of(prefix, first, Some(q), steps.end()?);
        steps.append(plan(&of_prefix)?)?;
        let of_own = plan(&part_of(own, second, None, steps.end()?))?;
        let (kernel, splits) = (of_own.kernel, of_own.splits);
        steps.append(of_own)?;

        let batch = own.problem.batch;
        let dim_v = own.args.o.shape[3];
        let first = RawPart {
            o: of_entries(first.o, batch),
            lse: of_entries(first.lse, batch),
        };
        let [first, second] = [first, second].map(|mut part| {
            part.o.shape[3] = dim_v;
            part
        });
        let merged = RawPart {
            o: own.args.o,
            lse: own.args.lse,
        };
        let args = RawMerge {
            first,
            second,
            merged,
        };
        let mut merge = merge_of(dtype.of_kernels()?, &args)?;
        for step in &mut merge.steps {
            step.places.extend(PLACES_OF_PARTS);
        }
        steps.steps.extend(merge.steps);
        Ok(steps.finish(kernel, splits))
    }
}

/// The places of the parts' addresses in the parameters of a merge.
const PLACES_OF_PARTS: [usize; 4] = {
    let parts = offset_of!(MergeParams, parts);
    let first = parts + offset_of!(MergeParts, first);
    let second = parts + offset_of!(MergeParts, second);
    let (o, lse) = (offset_of!(PartRef, o.address), offset_of!(PartRef, lse));
    [first + o, first + lse, second + o, second + lse]
};

/// Adds a copy of q to the workspace, as the rows of one entry, with zeros behind rows that are no whole pieces of 16 bytes.
fn pack_as_one_entry(steps: &mut Steps, q: RawTensor) -> Result<RawTensor> {
    let [batch, heads, rows, dim] = q.shape;
    let [of_entry, of_head, of_row, stride] = q.strides;
    // Copies lie in the order of their axes.
    let copy = steps.pack_whole(RawTensor {
        address: q.address,
        shape: [heads, batch, rows, dim],
        strides: [of_head, of_entry, of_row, stride],
    })?;
    let of_row = dim.next_multiple_of(8);
    let of_head = batch * rows * of_row;
    Ok(RawTensor {
        address: copy,
        shape: [1, heads, batch * rows, of_row],
        strides: [0, of_head as isize, of_row as isize, 1],
    })
}

impl Steps {
    /// Reserves o and lse of a part in the workspace. Rows of o are whole pieces of 16 bytes.
    fn reserve_part(&mut self, call: &Call) -> Result<RawPart> {
        let p = call.problem.in_vectors();
        let [batch, heads, rows, dim_v] = p.o_shape();
        let o = self.reserve([batch * heads, rows * dim_v, size_of::<u16>()])?;
        let lse = self.reserve([batch * heads, rows, size_of::<f32>()])?;
        Ok(RawPart {
            o: RawTensor {
                address: o,
                ..RawTensor::row_major(p.o_shape())
            },
            lse: RawTensor {
                address: lse,
                ..RawTensor::row_major(p.lse_shape())
            },
        })
    }
}

/// The call of a part with its outputs, and q if it has one and that is a copy, in the workspace: their addresses count from where the
/// part's own workspace begins.
fn part_of(call: &Call, outputs: RawPart, q: Option<(RawTensor, bool)>, begin: u64) -> Call {
    let from_begin = |address: u64| address.wrapping_sub(begin);
    let (mut args, mut has_copy) = (call.args, false);
    (args.o, args.lse) = (outputs.o, outputs.lse);
    args.o.address = from_begin(args.o.address);
    args.lse.address = from_begin(args.lse.address);
    if let Some((q, is_copy)) = q {
        (args.q, has_copy) = (q, is_copy);
        if is_copy {
            args.q.address = from_begin(q.address);
        }
    }
    args.options.part = Part {
        outputs: true,
        q: has_copy,
    };
    Call { args, ..*call }
}
