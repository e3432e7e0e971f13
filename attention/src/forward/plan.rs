//! The plan of an attention call: copies of inputs whose rows are not aligned, attention and, where it splits the
//! keys, the kernel that combines the splits.

use super::chosen::Chosen;
use super::schedule::{Schedule, group, main_loop};
use super::{Problem, RawForward};
use crate::error::Result;
use crate::pack::pack;
use crate::plan::{Plan, Step, Workspace};
use kernels::abi::{Divisor, ForwardParams, LadderParams, Order, TensorRef};
use kernels::catalog::{self, Combine, Family, Kernel};
use kernels::ladder::NaivePass;
use kernels::ladder::table::Loop;
use std::mem::offset_of;

/// The plan for a [valid](Problem::validate) problem, by a schedule of a kernel that serves it.
pub fn plan(
    chosen: Chosen,
    problem: &Problem,
    schedule: &Schedule,
    args: &RawForward,
) -> Result<Plan> {
    let (q_shape, kv_shape) = (problem.q_shape(), problem.kv_shape());
    let kernel = chosen.kernel;
    let [q, o] = [args.q, args.o].map(|tensor| normalized(tensor, q_shape));
    let [k, v] = [args.k, args.v].map(|tensor| normalized(tensor, kv_shape));
    let mut inputs = [q, k, v];
    let mut workspace = Workspace::default();
    let mut steps = Vec::new();
    let mut places = Vec::new();
    for ((input, shape), place) in inputs.iter_mut().zip([q_shape, kv_shape, kv_shape]).zip([
        offset_of!(ForwardParams, q.address),
        offset_of!(ForwardParams, k.address),
        offset_of!(ForwardParams, v.address),
    ]) {
        if !input.is_aligned() {
            let (step, copy) = pack(*input, shape, &mut workspace)?;
            *input = copy;
            steps.push(step);
            places.push(place);
        }
    }
    let [q, k, v] = inputs;
    let naive = main_loop(kernel) == Some(Loop::Naive);
    let combines = schedule.splits > 1 || main_loop(kernel) == Some(Loop::Fa1);
    let (partial_o, partial_softmax) = if naive || combines {
        // A row's partial results of each split; of the naive kernel a row of scores.
        let rows = problem.lse_shape().iter().product::<usize>();
        let rows = rows.checked_mul(schedule.splits as usize);
        let rows = rows.ok_or(Workspace::OVERFLOW)?;
        let columns = if naive {
            problem.seqlen_kv
        } else {
            problem.dim
        };
        places.push(offset_of!(ForwardParams, partial_o));
        places.push(offset_of!(ForwardParams, partial_softmax));
        (
            workspace.reserve([rows, columns, size_of::<f32>()])?,
            workspace.reserve([rows, if naive { 0 } else { 2 }, size_of::<f32>()])?,
        )
    } else {
        (0, 0)
    };
    let params = ForwardParams {
        q,
        k,
        v,
        o,
        lse: args.lse,
        partial_o,
        partial_softmax,
        // All of these fit: the grid holds all heads, and `validate` bounds the lengths and the dim.
        heads: problem.heads as u32,
        tile_heads: Divisor::new((problem.heads / schedule.packed as usize) as u32),
        group: Divisor::new(group(problem) as u32),
        order: Order::new(
            (problem.batch * problem.heads / schedule.packed as usize) as u32,
            schedule.q_tiles,
            schedule.wave_heads,
        ),
        seqlen_q: problem.seqlen_q as u32,
        seqlen_kv: problem.seqlen_kv as u32,
        dim: problem.dim as u32,
        scale: problem.scale,
        o_aligned: u32::from(o.is_aligned()),
        batch_heads: (problem.batch * problem.heads) as u32,
        splits: schedule.splits,
        split_keys: schedule.split_keys,
        causal: u32::from(problem.causal),
        ladder: chosen.ladder,
    };
    let passes: &[NaivePass] = match naive {
        true => &[NaivePass::Scores, NaivePass::Softmax, NaivePass::Output],
        false => &[NaivePass::Scores],
    };
    for &pass in passes {
        let ladder = LadderParams {
            pass: pass as u32,
            ..params.ladder
        };
        let params = ForwardParams { ladder, ..params };
        let blocks = u128::from(schedule.blocks);
        let shared_bytes = chosen.shared_bytes;
        steps.push(Step::new(
            kernel.into(),
            blocks,
            shared_bytes,
            &params,
            &places,
        )?);
    }
    if combines {
        steps.push(combine(kernel, problem, &params, &places)?);
    }
    Ok(Plan {
        kernel: kernel.name,
        splits: schedule.splits,
        steps,
        workspace_bytes: workspace.bytes,
    })
}

/// The step that combines the splits of a kernel: a warp takes up to 128 columns of a row.
fn combine(
    kernel: &Kernel,
    problem: &Problem,
    params: &ForwardParams,
    places: &[usize],
) -> Result<Step> {
    let dtype = kernel.dtype().expect("it computes attention");
    let combine = catalog::kernel(Family::Combine(Combine { dtype }));
    let rows = problem.lse_shape().iter().product::<usize>();
    let row_warps = problem.dim.div_ceil(128).next_power_of_two();
    let warps = rows as u128 * row_warps as u128;
    let blocks = warps.div_ceil(u128::from(Combine::WARPS));
    let shared_bytes = combine.shared_bytes();
    Step::new(combine.into(), blocks, shared_bytes, params, places)
}

/// The same tensor with stride 0 on axes of one element: these strides are never used, and must not make the
/// tensor look unaligned.
fn normalized(tensor: TensorRef, [batch, heads, rows, _]: [usize; 4]) -> TensorRef {
    let used = |extent: usize, stride: i64| if extent > 1 { stride } else { 0 };
    TensorRef {
        batch_stride: used(batch, tensor.batch_stride),
        head_stride: used(heads, tensor.head_stride),
        row_stride: used(rows, tensor.row_stride),
        ..tensor
    }
}

#[cfg(test)]
mod tests {
    use super::{combine, normalized};
    use crate::device::Facts;
    use crate::error::{Error, Result};
    use crate::forward::{Attention, Problem, RawForward};
    use crate::plan::Plan;
    use kernels::abi::{ForwardParams, TensorRef};
    use kernels::catalog::class::Class;
    use kernels::catalog::{Dtype, KERNELS};
    use std::mem::offset_of;

    #[test]
    fn combine_grids_have_a_limit() {
        let combine = |rows: usize| {
            let shape = [rows, 1, 1, 136];
            let problem = Problem::new(shape, shape, shape, false, None).expect("valid");
            let step = combine(&KERNELS[0], &problem, &ForwardParams::default(), &[]);
            step.map(|step| (step.entry.name, step.blocks))
        };
        assert_eq!(combine(1001), Ok(("combine_f16", 501)));
        let error = combine(1 << 33);
        assert!(matches!(error, Err(Error::Grid { .. })), "{error:?}");
    }

    /// The plan for `[2, 3, 70, 64]` tensors with these row strides and first elements.
    fn plan(inputs: [(i64, u64); 3], splits: u32) -> Result<Plan> {
        let shape = [2, 3, 70, 64];
        let problem = Problem::new(shape, shape, shape, false, None)?;
        let tensor = |(row_stride, first): (i64, u64)| TensorRef {
            address: (1 << 20) + 2 * first,
            batch_stride: 0,
            head_stride: 1 << 14,
            row_stride,
        };
        let [q, k, v] = inputs.map(tensor);
        let args = RawForward {
            q,
            k,
            v,
            // Rows of odd length, which nothing copies.
            o: TensorRef {
                batch_stride: 3 << 14,
                ..tensor((65, 0))
            },
            lse: 1 << 30,
            ..RawForward::row_major(&problem)
        };
        let facts = Facts::emulated(Class::Sm80);
        let attention = Attention::new().kernel("forward_f16_d64").splits(splits);
        attention.plan(Some(&facts), Dtype::F16.into(), &args)
    }

    #[test]
    fn only_what_is_not_aligned_is_copied() {
        const PLACES: [usize; 3] = [
            offset_of!(ForwardParams, q.address),
            offset_of!(ForwardParams, k.address),
            offset_of!(ForwardParams, v.address),
        ];
        for (inputs, copied) in [
            ([(64, 0), (64, 8), (-72, 0)], [false; 3]),
            ([(65, 0), (64, 0), (64, 0)], [true, false, false]),
            ([(64, 0), (64, 1), (64, 0)], [false, true, false]),
            ([(64, 0), (64, 0), (-68, 0)], [false, false, true]),
            ([(0, 4), (1, 0), (60, 0)], [true; 3]),
        ] {
            for splits in [1, 2] {
                let plan = plan(inputs, splits).expect("valid");
                let packs = plan.steps.iter().filter(|step| step.entry.name == "pack");
                assert_eq!(packs.count(), copied.iter().filter(|&&c| c).count());
                let mut steps = plan.steps.iter();
                let main = steps.find(|step| step.entry.name == plan.kernel);
                let main = main.expect("attention");
                let found = PLACES.map(|place| main.places.contains(&place));
                assert_eq!(found, copied, "{inputs:?}");
                assert_eq!(plan.splits, splits);
                assert_eq!(steps.count(), splits as usize - 1, "what combines");
                // A call that needs no workspace must not wait on any device.
                let needed = splits > 1 || copied.contains(&true);
                assert_eq!(plan.workspace_bytes > 0, needed);
                let o_aligned = offset_of!(ForwardParams, o_aligned);
                assert_eq!(main.params[o_aligned..][..4], [0; 4]);
            }
        }
    }

    /// Every place lies in the workspace, and no two overlap.
    #[test]
    fn workspaces_hold_what_the_steps_share() {
        let plan = plan([(65, 0), (63, 0), (61, 0)], 2).expect("valid");
        let main = &plan.steps[3];
        let address = |&place: &usize| {
            let bytes = main.params[place..][..8].try_into().expect("eight bytes");
            u64::from_ne_bytes(bytes) as usize
        };
        let mut starts: Vec<usize> = main.places.iter().map(address).collect();
        starts.push(plan.workspace_bytes);
        // One head of one batch of each input, and two splits of all rows.
        let (packed, rows) = (2 * 3 * 70 * 64, 2 * 2 * 3 * 70);
        let sizes = [packed, packed, packed, 4 * 64 * rows, 4 * 2 * rows];
        assert_eq!(starts.len(), sizes.len() + 1);
        for (pair, size) in starts.windows(2).zip(sizes) {
            assert!(
                pair[0] % 256 == 0 && pair[0] + size <= pair[1],
                "{starts:?}"
            );
        }
    }

    #[test]
    fn strides_of_single_elements_do_not_count() {
        let tensor = TensorRef {
            address: 1 << 20,
            batch_stride: 3,
            head_stride: 5,
            row_stride: 64,
        };
        assert!(normalized(tensor, [1, 1, 9, 64]).is_aligned());
        assert!(!normalized(tensor, [1, 2, 9, 64]).is_aligned());
    }
}
