//! Results that follow from the definition of attention alone. The reference implementation must give
//! them, too.

use ferroattn::{Device, Dtype};
use ndarray::{Axis, s};
use tests::{Case, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "equal_scores_count_the_visible_keys",
            equal_scores_count_the_visible_keys,
        ),
        Test::new("query_heads_share_in_order", query_heads_share_in_order),
        Test::new("batches_are_independent", batches_are_independent),
        Test::new(
            "one_large_score_selects_its_value",
            one_large_score_selects_its_value,
        ),
    ]
}

/// Equal scores: lse is the logarithm of the number of visible keys, o the mean of their values.
fn equal_scores_count_the_visible_keys(device: &Device) -> Outcome {
    for (seqlen_q, seqlen_kv) in [(150, 150), (70, 200), (200, 70), (1, 129), (129, 1)] {
        for causal in [false, true] {
            let case = Case {
                seqlen_q,
                seqlen_kv,
                causal,
                ..Case::default()
            };
            let mut inputs = case.inputs();
            inputs.q.fill(0.0);
            for (j, mut value) in inputs.v.axis_iter_mut(Axis(2)).enumerate() {
                value.fill(j as f32);
            }
            let result = case.run(device, &inputs)?;
            for i in 0..seqlen_q {
                let is_visible = |&j: &usize| !causal || j + seqlen_q <= i + seqlen_kv;
                let visible: Vec<f32> = (0..seqlen_kv)
                    .filter(is_visible)
                    .map(|j| j as f32)
                    .collect();
                let count = visible.len() as f32;
                let lse = result.lse[[0, 0, i]];
                assert!(
                    lse == count.ln() || (lse - count.ln()).abs() < 1e-5,
                    "{case} row {i}: {lse}"
                );
                let mean = visible.iter().sum::<f32>() / count.max(1.0);
                let o = result.o[[0, 0, i, 0]];
                assert!(
                    (o - mean).abs() <= mean / 1024.0,
                    "{case} row {i}: {o}, not {mean}"
                );
            }
        }
    }
    PASSED
}

/// Query heads 0, 1 and 2 use key/value head 0, the next three head 1.
fn query_heads_share_in_order(device: &Device) -> Outcome {
    let case = Case {
        heads: 6,
        kv_heads: 2,
        ..Case::default()
    };
    let mut inputs = case.inputs();
    for (kv_head, mut value) in inputs.v.axis_iter_mut(Axis(1)).enumerate() {
        value.fill(kv_head as f32 + 1.0);
    }
    let result = case.run(device, &inputs)?;
    for (head, expected) in [1.0, 1.0, 1.0, 2.0, 2.0, 2.0].into_iter().enumerate() {
        let o = result.o.index_axis(Axis(1), head);
        assert!(
            o.iter().all(|&o: &f32| (o - expected).abs() < 2e-3),
            "head {head}"
        );
    }
    PASSED
}

fn batches_are_independent(device: &Device) -> Outcome {
    let case = Case {
        batch: 3,
        causal: true,
        ..Case::default()
    };
    let mut inputs = case.inputs();
    let before = case.run(device, &inputs)?;
    inputs.q.slice_mut(s![1, .., .., ..]).fill(1.0);
    inputs.k.slice_mut(s![1, .., .., ..]).fill(2.0);
    inputs.v.slice_mut(s![1, .., .., ..]).fill(3.0);
    let after = case.run(device, &inputs)?;
    for batch in [0, 2] {
        assert_eq!(
            before.o.index_axis(Axis(0), batch),
            after.o.index_axis(Axis(0), batch)
        );
        assert_eq!(
            before.lse.index_axis(Axis(0), batch),
            after.lse.index_axis(Axis(0), batch)
        );
    }
    assert_ne!(
        before.o.index_axis(Axis(0), 1),
        after.o.index_axis(Axis(0), 1)
    );
    PASSED
}

/// A score 400 above all others takes all the weight in `f32`: o is that key's value, bit for bit, wherever
/// the key lies.
fn one_large_score_selects_its_value(device: &Device) -> Outcome {
    for dtype in [Dtype::F16, Dtype::Bf16] {
        for key in [0, 1, 31, 32, 63, 64, 127, 128, 149] {
            let case = Case {
                dtype,
                scale: Some(1.0),
                ..Case::default()
            };
            let mut inputs = case.inputs();
            inputs.q.fill(0.0);
            inputs.q.slice_mut(s![.., .., .., 7]).fill(10.0);
            inputs.k.slice_mut(s![.., .., .., 7]).fill(0.0);
            inputs.k[[0, 0, key, 7]] = 40.0;
            // Exact in both dtypes, different for each key and element.
            inputs
                .v
                .indexed_iter_mut()
                .for_each(|((.., j, d), v)| *v = ((3 * j + d) % 256) as f32);
            let result = case.run(device, &inputs)?;
            for row in result
                .o
                .index_axis(Axis(0), 0)
                .index_axis(Axis(0), 0)
                .rows()
            {
                assert_eq!(row, inputs.v.slice(s![0, 0, key, ..]), "{case} key {key}");
            }
        }
    }
    PASSED
}
