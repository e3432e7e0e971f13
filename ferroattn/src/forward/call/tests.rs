//! What safe calls take and refuse.

use super::{Attention, RawForward, RawOptions};
use crate::device::{Class, Device, Facts};
use crate::error::Error;
use crate::forward::Problem;
use crate::tensor::{Dtype, RawTensor, Tensor};
use half::f16;

fn tensor<T: bytemuck::Pod, const R: usize>(shape: [usize; R]) -> Tensor<T, R> {
    Tensor::zeros(&Device::cpu(), shape).expect("enough memory")
}

/// `[1, 2, 3, 8]` with these strides.
fn strided(strides: [isize; 4]) -> Tensor<f16> {
    let buffer = tensor::<f16, 1>([1000]).into_buffer();
    Tensor::from_buffer(buffer, 500, [1, 2, 3, 8], strides).expect("inside the buffer")
}

fn forward_into(o: &mut Tensor<f16>, lse: &mut Tensor<f32, 3>) -> Result<(), Error> {
    let q = tensor([1, 2, 3, 8]);
    Attention::new().forward_into(&q, &q, &q, o, lse)
}

#[test]
fn a_window_without_later_keys_is_the_causal_mask() {
    let shape = [2, 3, 40, 8];
    let problem = |attention: Attention| attention.problem(shape, shape, shape);
    let causal = problem(Attention::new().causal(true));
    assert_eq!(problem(Attention::new().window(None, 0)), causal);
    assert_eq!(
        problem(Attention::new().causal(true).window(None, 9)),
        causal
    );
    assert_ne!(problem(Attention::new().window(None, 1)), causal);
    let left = problem(Attention::new().causal(true).window(5, None));
    assert_eq!(problem(Attention::new().causal(true).window(5, 0)), left);
}

#[test]
fn outputs_are_checked() {
    let lse = || tensor([1, 2, 3]);
    let refused = |mut o: Tensor<f16>, mut lse| {
        forward_into(&mut o, &mut lse)
            .expect_err("should have been refused")
            .to_string()
    };
    let shape = refused(tensor([1, 2, 4, 8]), lse());
    assert!(shape.contains("o has shape [1, 2, 4, 8]"), "{shape}");
    let shape = refused(tensor([1, 2, 3, 8]), tensor([1, 2, 4]));
    assert!(shape.contains("lse has shape [1, 2, 4]"), "{shape}");
    let stride = refused(strided([0, 24, 8, 2]), lse());
    assert!(stride.contains("o has stride 2 in dim"), "{stride}");
    for overlapping in [[0, 0, 8, 1], [0, 24, 7, 1], [0, 23, 8, 1], [0, -8, 8, 1]] {
        let overlap = refused(strided(overlapping), lse());
        assert!(overlap.contains("o has overlapping strides"), "{overlap}");
    }
    let transposed = tensor([1, 3, 2]).transpose(1, 2).expect("axes");
    let gaps = refused(tensor([1, 2, 3, 8]), transposed);
    assert!(gaps.contains("lse is not contiguous"), "{gaps}");
}

#[test]
fn outputs_may_lie_anyhow() {
    for strides in [
        [0, 24, 8, 1],
        [0, 8, 16, 1],
        [7, -40, 9, 1],
        [0, 100, -8, 1],
    ] {
        forward_into(&mut strided(strides), &mut tensor([1, 2, 3])).expect("valid strides");
    }
}

#[test]
fn inputs_and_options_are_checked() {
    let (q, k) = (tensor::<f16, 4>([1, 2, 3, 8]), tensor([1, 2, 4, 8]));
    let attention = Attention::new();
    let error = attention
        .forward(&q, &k, &q)
        .expect_err("v is shorter than k");
    assert!(
        matches!(error, Error::Shape { argument: "v", .. }),
        "{error}"
    );
    let every_other = strided([0, 48, 16, 2]);
    let error = attention
        .forward(&q, &every_other, &q)
        .expect_err("a stride of 2 in dim");
    assert!(
        matches!(
            error,
            Error::Stride {
                argument: "k",
                axis: "dim",
                stride: 2
            }
        ),
        "{error}"
    );
    let error = attention
        .scale(f32::NAN)
        .forward(&q, &q, &q)
        .expect_err("a scale of NaN");
    assert!(matches!(error, Error::Scale(_)), "{error}");
    let error = Attention::new()
        .kernel("cuda")
        .forward(&q, &q, &q)
        .expect_err("no such kernel");
    assert!(matches!(error, Error::UnknownKernel { .. }), "{error}");
}

#[test]
fn tensors_of_options_are_checked() {
    let q = tensor::<f16, 4>([2, 3, 5, 8]);
    let refused = |attention: Attention| {
        let error = attention.forward(&q, &q, &q).expect_err("refused");
        let message = error.to_string();
        assert!(!message.contains('\n'), "{message}");
        message
    };
    for softcap in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let message = refused(Attention::new().softcap(softcap));
        assert!(message.starts_with("softcap is "), "{message}");
    }
    let message = refused(Attention::new().alibi(&tensor([2])));
    let allowed = "it must be [heads] or [batch, heads], with the sizes of [2, 3]";
    assert_eq!(message, format!("alibi has shape [2]; {allowed}"));
    let message = refused(Attention::new().alibi(&tensor([1, 2])));
    assert_eq!(message, format!("alibi has shape [1, 2]; {allowed}"));
    let message = refused(Attention::new().alibi(&tensor([3, 3])));
    assert_eq!(message, format!("alibi has shape [3, 3]; {allowed}"));
    let pairs =
        "[batch or 1, heads or 1, seqlen_q or 1, seqlen_kv], with the sizes of [2, 3, 5, 5]";
    for shape in [
        [2, 3, 5, 4],
        [2, 3, 5, 1],
        [1, 2, 1, 5],
        [3, 1, 1, 5],
        [1, 1, 2, 5],
    ] {
        let message = refused(Attention::new().bias(&tensor::<f16, 4>(shape)));
        assert_eq!(
            message,
            format!("bias has shape {shape:?}; it must be {pairs}")
        );
        let message = refused(Attention::new().mask(&tensor::<u8, 4>(shape)));
        assert_eq!(
            message,
            format!("mask has shape {shape:?}; it must be {pairs}")
        );
    }
    let message = refused(Attention::new().mask(&tensor::<u32, 4>([1, 1, 1, 5])));
    assert!(
        message.contains("ceil(seqlen_kv / 32)], with the sizes of [2, 3, 5, 1]"),
        "{message}"
    );
    let columns = tensor::<f32, 4>([1, 1, 5, 5])
        .transpose(2, 3)
        .expect("axes");
    let message = refused(Attention::new().bias(&columns));
    assert!(
        message.starts_with("bias has stride 5 in seqlen_kv"),
        "{message}"
    );
    let words = tensor::<u32, 4>([1, 1, 2, 5])
        .transpose(2, 3)
        .expect("axes");
    let (call, k) = (Attention::new().mask(&words), tensor([2, 3, 40, 8]));
    let error = call.forward(&q, &k, &k).expect_err("refused").to_string();
    let reason = "mask has stride 5 in ceil(seqlen_kv / 32)";
    assert!(error.starts_with(reason), "{error}");
    let message = refused(Attention::new().sinks(&tensor([2])));
    assert!(
        message.starts_with("sinks has shape [2]; it must be [3]"),
        "{message}"
    );
}

/// Values that are the first part of keys in memory have a kernel on Hopper; values that only look so have another.
#[test]
fn latent_attention_is_known_by_its_memory() {
    let (k, v) = ([2, 1, 100, 576], [2, 1, 100, 512]);
    let problem = Problem::new([2, 16, 4, 576], k, v, true, None).expect("valid");
    let mut args = RawForward::row_major(&problem);
    args.k.address = 1 << 20;
    args.v = RawTensor { shape: v, ..args.k };
    let planned = |attention: Attention, class, args: &RawForward| {
        let facts = Facts::emulated(class);
        let plan = attention.plan(Some(&facts), Dtype::F16, args);
        plan.map(|plan| plan.kernel)
    };
    let named =
        |attention, args: &RawForward| planned(attention, Class::Sm90, args).expect("a kernel");
    let on_hopper = |args: &RawForward| named(Attention::new(), args);
    let (latent, wide) = ("latent_f16_d576", "wide_optional_f16_d512");
    assert_eq!(on_hopper(&args), latent);
    assert_eq!(named(Attention::new().kernel(latent), &args), latent);
    // What a caller says of it counts for nothing.
    let mut said = args;
    said.options.values_in_keys = true;
    said.v.address += 2;
    assert_eq!(on_hopper(&said), wide);
    let refused = planned(Attention::new().kernel(latent), Class::Sm90, &said);
    let refused = refused.expect_err("values elsewhere");
    assert!(
        matches!(refused, Error::UnsuitableKernel { .. }),
        "{refused}"
    );
    let mut elsewhere = args;
    elsewhere.v.strides[2] += 8;
    assert_eq!(on_hopper(&elsewhere), wide);
    let mut with_sinks = args;
    with_sinks.options.sinks = Some(RawTensor::row_major([16]));
    assert_eq!(on_hopper(&with_sinks), wide);
    assert_eq!(named(Attention::new().softcap(9.0), &args), wide);
    assert_eq!(named(Attention::new().window(9, None), &args), latent);
    for (page, expected) in [(4, wide), (8, latent), (64, latent)] {
        let mut paged = args;
        for tensor in [&mut paged.k, &mut paged.v] {
            (tensor.shape[0], tensor.shape[2]) = (40, page);
        }
        paged.options.pages = Some(RawTensor::row_major([2, 7]));
        assert_eq!(on_hopper(&paged), expected, "{page}");
    }
    let older = planned(Attention::new(), Class::Sm80, &args).expect("a kernel");
    assert!(older.starts_with("wide_optional"), "{older}");
}

#[test]
fn raw_addresses_are_used_in_place() {
    // One packed [rows, (q, k, v), dim] buffer of 5 rows, and o with its rows reversed.
    let mut packed = vec![f16::ZERO; 5 * 3 * 8];
    for (row, packed) in packed.chunks_mut(24).enumerate() {
        packed[16..].fill(f16::from_f32(row as f32));
    }
    let (mut o, mut lse) = ([f16::NAN; 40], [f32::NAN; 5]);
    let origin = packed.as_ptr().expose_provenance();
    let shape = [1, 1, 5, 8];
    let input = |first: usize| RawTensor {
        address: (origin + first * size_of::<f16>()) as u64,
        shape,
        strides: [0, 0, 24, 1],
    };
    let args = RawForward {
        q: input(0),
        k: input(8),
        v: input(16),
        o: RawTensor {
            address: (&raw mut o[32]).expose_provenance() as u64,
            shape,
            strides: [0, 0, -8, 1],
        },
        lse: RawTensor {
            address: lse.as_mut_ptr().expose_provenance() as u64,
            ..RawTensor::row_major([1, 1, 5])
        },
        options: RawOptions::default(),
    };
    let attention = Attention::new().causal(true);
    let call = |args: &RawForward| {
        // SAFETY: the addresses belong to arrays that live on; o and lse are by themselves.
        unsafe { attention.forward_raw(&Device::cpu(), Dtype::F16, args, std::ptr::null_mut()) }
    };
    call(&args).expect("valid arguments");
    // All visible keys weigh the same: row i is the mean of 0..=i.
    for row in 0..5 {
        let mean = f16::from_f32(row as f32 / 2.0);
        assert_eq!(o[32 - 8 * row..][..8], [mean; 8], "row {row}");
        assert!(
            (lse[row] - (row as f32 + 1.0).ln()).abs() < 1e-6,
            "row {row}"
        );
    }

    let far = RawTensor {
        strides: [0, 0, isize::MAX / 2, 1],
        ..args.q
    };
    let error = call(&RawForward { k: far, ..args }).expect_err("an overflow");
    assert_eq!(error, Error::Overflow("k"));
    let overlapping = RawTensor {
        strides: [0, 0, 7, 1],
        ..args.o
    };
    let overlapping = RawForward {
        o: overlapping,
        ..args
    };
    let error = call(&overlapping).expect_err("an overlap");
    assert!(
        matches!(error, Error::Overlap { argument: "o", .. }),
        "{error}"
    );
}
