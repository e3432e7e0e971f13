//! Gradients that follow from the definition alone. The reference must give them, too.

use ferroattn::{Device, Dtype};
use ndarray::{Axis, s};
use tests::{BackwardCase, Case, Outcome, PASSED, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::backward("one_key_takes_all", one_key_takes_all),
        Test::backward("equal_scores_share_d_o", equal_scores_share_d_o),
        Test::backward("heads_of_a_group_add_up", heads_of_a_group_add_up),
        Test::backward("batches_are_independent", batches_are_independent),
        Test::backward("runs_give_the_same_bits", runs_give_the_same_bits),
        Test::backward("d_lse_alone", d_lse_alone),
        Test::backward("scale_of_zero", scale_of_zero),
    ]
}

/// With one key, o is its value whatever the score: dq and dk are 0, and dv is the sum of d_o.
fn one_key_takes_all(device: &Device) -> Outcome {
    for seqlen_q in [1, 100] {
        let case = BackwardCase::from(Case {
            heads: 3,
            seqlen_q,
            seqlen_kv: 1,
            ..Case::default()
        });
        let mut inputs = case.inputs();
        // Whole numbers: all sums are exact.
        inputs.d_o.mapv_inplace(f32::round);
        inputs.forward.v.mapv_inplace(f32::round);
        let found = case.run(device, &inputs)?;
        let dv = inputs.d_o.sum_axis(Axis(2)).sum_axis(Axis(1));
        assert_eq!(found.dv.slice(s![.., 0, 0, ..]), dv);
        let near_zero = |x: &f32| x.abs() < 1e-3;
        assert!(found.dq.iter().chain(&found.dk).all(near_zero));
    }
    PASSED
}

/// Equal scores: each key's dv is the sum of d_o over the rows that see it, divided by the keys that each sees.
fn equal_scores_share_d_o(device: &Device) -> Outcome {
    for (seqlen_q, seqlen_kv) in [(150, 150), (70, 200), (200, 70), (1, 129)] {
        for causal in [false, true] {
            let case = BackwardCase::from(Case {
                seqlen_q,
                seqlen_kv,
                causal,
                ..Case::default()
            });
            let mut inputs = case.inputs();
            inputs.forward.q.fill(0.0);
            inputs.d_o.fill(1.0);
            let found = case.run(device, &inputs)?;
            for j in 0..seqlen_kv {
                let seen = |i: usize| match causal {
                    true => (i + 1 + seqlen_kv).saturating_sub(seqlen_q),
                    false => seqlen_kv,
                };
                let rows = (0..seqlen_q).map(seen).filter(|&seen| seen > j);
                let expected: f32 = rows.map(|seen| 1.0 / seen as f32).sum();
                let dv = found.dv[[0, 0, j, 5]];
                let close = (dv - expected).abs() <= 2e-3 * expected;
                assert!(close, "{case} key {j}: {dv}, not {expected}");
            }
        }
    }
    PASSED
}

/// dk and dv of a head that three query heads share are the sums of what each gives alone.
fn heads_of_a_group_add_up(device: &Device) -> Outcome {
    let case = BackwardCase::from(Case {
        heads: 6,
        kv_heads: 2,
        causal: true,
        ..Case::default()
    });
    let inputs = case.inputs();
    let shared = case.run(device, &inputs)?;
    let alone = BackwardCase::from(Case {
        kv_heads: 6,
        ..case.forward.clone()
    });
    let mut repeated = case.inputs();
    for tensor in [&mut repeated.forward.k, &mut repeated.forward.v] {
        *tensor = tensor.select(Axis(1), &[0, 0, 0, 1, 1, 1]);
    }
    let alone = alone.run(device, &repeated)?;
    assert_eq!(shared.dq, alone.dq);
    for (shared, alone) in [(&shared.dk, &alone.dk), (&shared.dv, &alone.dv)] {
        for kv_head in [0, 1] {
            let group = alone.slice(s![.., 3 * kv_head..3 * kv_head + 3, .., ..]);
            let difference = &group.sum_axis(Axis(1)) - &shared.index_axis(Axis(1), kv_head);
            assert!(difference.iter().all(|x| x.abs() < 2e-2), "head {kv_head}");
        }
    }
    PASSED
}

fn batches_are_independent(device: &Device) -> Outcome {
    let case = BackwardCase::from(Case {
        batch: 3,
        causal: true,
        ..Case::default()
    });
    let mut inputs = case.inputs();
    let before = case.run(device, &inputs)?;
    inputs.forward.q.slice_mut(s![1, .., .., ..]).fill(1.0);
    inputs.forward.k.slice_mut(s![1, .., .., ..]).fill(2.0);
    inputs.d_o.slice_mut(s![1, .., .., ..]).fill(3.0);
    let after = case.run(device, &inputs)?;
    for (before, after) in [
        (&before.dq, &after.dq),
        (&before.dk, &after.dk),
        (&before.dv, &after.dv),
    ] {
        let of = |batch| {
            (
                before.index_axis(Axis(0), batch),
                after.index_axis(Axis(0), batch),
            )
        };
        for batch in [0, 2] {
            assert_eq!(of(batch).0, of(batch).1);
        }
        assert_ne!(of(1).0, of(1).1);
    }
    PASSED
}

/// Deterministic by default, bit for bit.
fn runs_give_the_same_bits(device: &Device) -> Outcome {
    for causal in [false, true] {
        let case = BackwardCase::from(Case {
            heads: 2,
            seqlen_q: 300,
            seqlen_kv: 333,
            causal,
            ..Case::default()
        });
        let inputs = case.inputs();
        let first = case.run(device, &inputs)?;
        for _ in 0..3 {
            let (again, _) = case.run_with(device, &inputs, |_| ())?;
            assert_eq!(first, again);
        }
    }
    PASSED
}

/// With d_o = 0 the loss is a sum of lse, whose gradient is P: dv is 0, and dq is a mean of keys.
fn d_lse_alone(device: &Device) -> Outcome {
    let case = BackwardCase {
        d_lse: true,
        forward: Case {
            seqlen_kv: 70,
            scale: Some(0.5),
            ..Case::default()
        },
        ..BackwardCase::default()
    };
    let mut inputs = case.inputs();
    inputs.forward.q.fill(0.0);
    inputs.d_o.fill(0.0);
    inputs.d_lse.fill(1.0);
    let found = case.run(device, &inputs)?;
    assert!(found.dv.iter().all(|&dv| dv == 0.0));
    let mean = inputs.forward.k.mean_axis(Axis(2)).expect("keys");
    for dq in found
        .dq
        .index_axis(Axis(0), 0)
        .index_axis(Axis(0), 0)
        .rows()
    {
        let expected = mean.slice(s![0, 0, ..]);
        assert!(
            dq.iter()
                .zip(expected)
                .all(|(dq, k)| (dq - 0.5 * k).abs() < 1e-3)
        );
    }
    PASSED
}

/// Scores that do not depend on q and k have no gradient there.
fn scale_of_zero(device: &Device) -> Outcome {
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let case = BackwardCase::from(Case {
            dtype,
            scale: Some(0.0),
            causal: true,
            ..Case::default()
        });
        let found = case.run(device, &case.inputs())?;
        assert!(found.dq.iter().chain(&found.dk).all(|&x| x == 0.0));
    }
    PASSED
}
