//! Packed rows on Hopper: heads that share keys share query tiles, and consumers copy Q themselves.

use crate::maxima::walks;
use crate::special_values;
use ferroattn::emulator::Options;
use ferroattn::{Class, Device, Dtype, Error};
use ndarray::s;
use proptest::prelude::*;
use tests::strategy::{cases, check_some, few_queries, of_dims};
use tests::{Case, Layout, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let tests = [
        (
            "groups",
            (|device| groups(device, [128, 72, 104])) as fn(&Device) -> Outcome,
        ),
        ("groups_of_two_sides", |device| groups(device, [64, 8, 40])),
        ("few_queries", |device| {
            let few = of_dims(few_queries(cases()), 1..=32);
            check_some(device, 48, few.prop_map(packed))
        }),
        ("walks_of_two_sides", |device| {
            walks(
                device,
                16,
                of_dims(few_queries(cases()), 1..=8).prop_map(packed),
            )
        }),
        ("walks", |device| {
            walks(
                device,
                16,
                of_dims(few_queries(cases()), 9..=16).prop_map(packed),
            )
        }),
        ("infinities_behind_the_mask", infinities_behind_the_mask),
        ("every_layout_of_q", every_layout_of_q),
        ("tensors_without_maps", tensors_without_maps),
    ];
    let tests = tests.map(|(name, run)| Test::emulator(name, move |_| run(&hopper()?)));
    let special = special_values::all()
        .into_iter()
        .map(|(name, special)| Test::emulator(name, move |_| special(&hopper()?, &variants)));
    tests.into_iter().chain(special).collect()
}

fn hopper() -> Result<Device, Error> {
    Device::emulator_of(Class::Sm90, Options::default())
}

/// The case with the kernel for its dtype and head dim.
fn packed(case: Case) -> Case {
    let dim = match case.dim {
        ..=64 => 64,
        65..=128 => 128,
        _ => 256,
    };
    Case {
        kernel: Some(format!("hopper_packed_{}_d{dim}", case.dtype.name())),
        ..case
    }
}

/// Both dtypes, causal or not, a head dim that is padded, several splits.
fn variants(case: &Case) -> Vec<Case> {
    let variants = case.with_each([
        (Dtype::F16, false, 128, 1),
        (Dtype::Bf16, true, 128, 1),
        (Dtype::F16, true, 104, 3),
        (Dtype::F16, false, 64, 1),
        (Dtype::Bf16, true, 64, 3),
    ]);
    variants.map(packed).to_vec()
}

/// Groups of every kind: of one head, of a number that does not divide a warpgroup's rows, of more heads than a tile has
/// rows. Queries outnumber keys, or share a tile, or fill several.
fn groups(device: &Device, dims: [usize; 3]) -> Outcome {
    for (i, (group, seqlen_q, seqlen_kv)) in [
        (1, 200, 333),
        (2, 64, 90),
        (3, 45, 15),
        (5, 16, 700),
        (6, 43, 161),
        (7, 19, 160),
        (8, 16, 81),
        (12, 11, 1),
        (64, 2, 79),
        (130, 1, 240),
    ]
    .into_iter()
    .enumerate()
    {
        for (causal, splits) in [(false, 1), (true, 1), (true, 3)] {
            packed(Case {
                dtype: [Dtype::F16, Dtype::Bf16][i % 2],
                batch: 2,
                heads: 2 * group,
                kv_heads: 2,
                seqlen_q,
                seqlen_kv,
                dim: dims[i % 3],
                causal,
                scale: (i % 4 == 1).then_some(-0.2),
                splits,
                ..Case::default()
            })
            .check(device)?;
        }
    }
    PASSED
}

/// An infinity or a NaN in V reaches the rows of the queries that see it, of all heads of the group alone.
fn infinities_behind_the_mask(device: &Device) -> Outcome {
    for (group, seqlen_q, splits, dim) in [
        (3, 50, 1, 128),
        (5, 30, 2, 128),
        (7, 9, 1, 128),
        (3, 50, 1, 64),
        (5, 30, 2, 64),
    ] {
        let case = packed(Case {
            heads: 2 * group,
            kv_heads: 2,
            seqlen_q,
            seqlen_kv: 170,
            dim,
            causal: true,
            splits,
            ..Case::default()
        });
        for value in [f32::INFINITY, f32::NAN] {
            for key in [169, 168, 161] {
                let mut inputs = case.inputs();
                inputs.v.slice_mut(s![0, 1, key, 5]).fill(value);
                let result = case.run(device, &inputs)?;
                for ((_, head, query, column), o) in result.o.indexed_iter() {
                    let sees = query + case.seqlen_kv >= key + seqlen_q;
                    let reached = sees && head >= group && column == 5;
                    assert_eq!(
                        !o.is_finite(),
                        reached,
                        "{case}, key {key}: {head}, {query}"
                    );
                }
            }
        }
    }
    PASSED
}

/// Without a map of q, any strides will do.
fn every_layout_of_q(device: &Device) -> Outcome {
    for &q in Layout::OUTPUTS.iter().chain(Layout::BROADCASTS) {
        packed(Case {
            batch: 2,
            heads: 6,
            kv_heads: 2,
            seqlen_q: 30,
            dim: 72,
            q,
            ..Case::default()
        })
        .check(device)?;
    }
    PASSED
}

/// Where TMA cannot address k or v, the packed kernel of `mma.sync` takes Hopper's place.
fn tensors_without_maps(device: &Device) -> Outcome {
    let case = Case {
        batch: 2,
        heads: 8,
        kv_heads: 2,
        seqlen_q: 20,
        dim: 128,
        ..Case::default()
    };
    let ran = |case: Case| -> Result<_, libtest_mimic::Failed> {
        case.check(device)?;
        let mut launched = device.counters().into_iter().map(|(name, _)| name);
        Ok(launched.find(|name| *name != "pack").expect("attention"))
    };
    for layout in [
        Layout::Bnhd,
        Layout::OddRows,
        Layout::Reversed,
        Layout::OneRow,
    ] {
        let with_map = matches!(layout, Layout::Bnhd | Layout::OddRows);
        let expected = match with_map {
            true => "hopper_packed_f16_d128",
            false => "packed_f16_d128",
        };
        let of = |q, k, v| Case {
            q,
            k,
            v,
            ..case.clone()
        };
        let plain = Layout::Bhnd;
        assert_eq!(ran(of(layout, plain, plain))?, "hopper_packed_f16_d128");
        assert_eq!(ran(of(plain, layout, plain))?, expected);
        assert_eq!(ran(of(plain, plain, layout))?, expected);
    }
    PASSED
}
