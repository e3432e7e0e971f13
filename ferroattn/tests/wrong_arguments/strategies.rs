//! Numbers at the ends of ranges, and ordinary ones.

use ferroattn::device::SharedMemory;
use ferroattn::{
    Class, Dtype, Facts, Problem, RawBias, RawMask, RawOptions, RawTensor, Sequences, Window,
};
use proptest::prelude::*;
use proptest::sample::select;

/// Sizes at the ends of ranges, and ordinary ones.
pub fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        20 => 1..300_usize,
        1 => select(vec![0, 8, 1024, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 40, 1 << 62, 1 << 63, usize::MAX]),
    ]
}

pub fn dim() -> impl Strategy<Value = usize> {
    prop_oneof![40 => (1..33_usize).prop_map(|n| 8 * n), 1 => size()]
}

pub fn number() -> impl Strategy<Value = u32> {
    prop_oneof![20 => 1..300_u32, 1 => select(vec![0, 1 << 20, 1 << 31, u32::MAX])]
}

pub fn stride() -> impl Strategy<Value = isize> {
    prop_oneof![
        4 => -3000..3000_isize,
        1 => select(vec![0, 1, 1 << 39, 1 << 40, 1 << 61, isize::MAX / 2, isize::MAX, isize::MIN]),
    ]
}

pub fn any_float() -> impl Strategy<Value = f32> {
    let ends = vec![
        0.0,
        1e-38,
        1e30,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NAN,
    ];
    prop_oneof![20 => 0.1..9.0_f32, 1 => select(ends)]
}

pub fn window() -> impl Strategy<Value = Window> {
    (proptest::option::of(size()), proptest::option::of(size()))
        .prop_map(|(left, right)| Window { left, right })
}

/// Facts that no device has, beside ordinary ones.
pub fn facts() -> impl Strategy<Value = Facts> {
    let class = select(Class::ALL.to_vec());
    let numbers = [(); 4].map(|()| number());
    let changed = (
        proptest::array::uniform5(proptest::bool::weighted(0.05)),
        numbers,
        any::<(i32, i32)>(),
    );
    (class, changed, any::<bool>()).prop_map(
        |(class, (changed, numbers, capability), has_pools)| {
            let usual = Facts::emulated(class);
            let or = |which: usize, usual: u32| {
                if changed[which] {
                    numbers[which]
                } else {
                    usual
                }
            };
            let mut facts = usual;
            facts.multiprocessors = or(0, usual.multiprocessors);
            facts.l2_bytes = or(1, usual.l2_bytes);
            facts.shared = SharedMemory {
                block: or(2, usual.shared.block),
                multiprocessor: or(3, usual.shared.multiprocessor),
            };
            if changed[4] {
                facts.compute_capability = capability;
            }
            facts.has_pools = has_pools;
            facts
        },
    )
}

/// A problem, to change.
pub fn any_problem() -> Problem {
    let shape = [1, 1, 1, 8];
    Problem::new(shape, shape, shape, false, None).expect("valid")
}

/// Problems whose fields are not checked.
pub fn problem() -> impl Strategy<Value = Problem> {
    let sizes = (1..3_usize, 1..3_usize, size(), size(), 0..12_usize, size());
    (
        sizes,
        dim(),
        dim(),
        any::<bool>(),
        window(),
        any_float(),
        proptest::option::of(any_float()),
    )
        .prop_map(|(sizes, dim, dim_v, causal, window, scale, softcap)| {
            let (batch, kv_heads, seqlen_q, seqlen_kv, which, other) = sizes;
            let mut problem = any_problem();
            (problem.batch, problem.heads, problem.kv_heads) = (batch, 2 * kv_heads, kv_heads);
            (problem.seqlen_q, problem.seqlen_kv) = (seqlen_q, seqlen_kv);
            (problem.dim, problem.dim_v) = (dim, dim_v);
            (problem.causal, problem.window) = (causal, window);
            (problem.scale, problem.softcap) = (scale, softcap);
            match which {
                0 => problem.batch = other,
                1 => problem.heads = other,
                2 => problem.kv_heads = other,
                _ => (),
            }
            problem
        })
}

pub fn dtype() -> impl Strategy<Value = Dtype> {
    select(vec![Dtype::F16, Dtype::Bf16, Dtype::F32])
}

/// A tensor gets another stride or extent of an axis, or another address.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    None,
    Stride(usize, isize),
    Extent(usize, usize),
    Address(u64),
}

impl Change {
    pub fn any() -> impl Strategy<Value = Self> {
        let address = select(vec![1, 2, 16, 1 << 40, u64::MAX - 1, u64::MAX]);
        prop_oneof![
            40 => Just(Change::None),
            1 => (0..4_usize, stride()).prop_map(|(axis, stride)| Change::Stride(axis, stride)),
            1 => (0..4_usize, size()).prop_map(|(axis, extent)| Change::Extent(axis, extent)),
            1 => address.prop_map(Change::Address),
        ]
    }

    pub fn of<const R: usize>(self, mut tensor: RawTensor<R>) -> RawTensor<R> {
        match self {
            Change::None => (),
            Change::Stride(axis, stride) => tensor.strides[axis % R] = stride,
            Change::Extent(axis, extent) => tensor.shape[axis % R] = extent,
            Change::Address(address) => tensor.address = address,
        }
        tensor
    }
}

/// Tensors of options, each there or not, of the right shapes before a change.
pub fn options(p: &Problem, there: [bool; 4], bits: bool, changes: [Change; 4]) -> RawOptions {
    let pairs = [p.batch, p.heads, p.seqlen_q, p.seqlen_kv];
    let words = [
        p.batch,
        p.heads,
        p.seqlen_q,
        p.seqlen_kv.div_ceil(if bits { 32 } else { 1 }),
    ];
    let repeated = |shape| RawTensor {
        address: 16,
        shape,
        strides: [0, 0, 0, 1],
    };
    let lengths = changes[3].of(RawTensor::row_major([p.batch]));
    let mut options = RawOptions::default();
    options.alibi = there[0].then(|| changes[0].of(RawTensor::row_major([p.batch, p.heads])));
    options.sinks = there[0].then(|| changes[0].of(RawTensor::row_major([p.heads])));
    options.bias = there[1].then(|| RawBias {
        dtype: Dtype::F16,
        tensor: changes[1].of(repeated(pairs)),
    });
    options.mask = there[2].then(|| RawMask {
        bits,
        tensor: changes[2].of(repeated(words)),
    });
    options.sequences = there[3].then_some(Sequences::Padded {
        q: lengths,
        kv: lengths,
    });
    options.check_lengths = bits;
    options
}
