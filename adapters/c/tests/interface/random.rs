//! Random calls against the library's references.

use crate::case::{Case, Layout};
use crate::modifiers::Modifiers;
use ferroattn::{Dtype, Sequences, Window};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

pub fn layouts() -> impl Strategy<Value = Layout> {
    let order = Just([0, 1, 2]).prop_shuffle();
    (order, 0..=9_usize, any::<[bool; 3]>()).prop_map(|(order, gap, backwards)| Layout {
        order,
        gap,
        backwards,
    })
}

fn modifiers() -> impl Strategy<Value = Modifiers> {
    let side = || option::of(0..=40_usize);
    let window = (side(), side()).prop_map(|(left, right)| Window { left, right });
    let numbers = (
        option::of(-1.0..1.0_f32),
        option::of(0.5..30.0_f32),
        prop_oneof![Just(Window::NONE), window],
    );
    let flags = any::<[bool; 5]>();
    let bias = option::of((any::<[bool; 3]>(), select(&Dtype::ALL[..])));
    let mask = option::of((any::<[bool; 3]>(), any::<bool>()));
    (numbers, flags, bias, mask).prop_map(|((scale, softcap, window), flags, bias, mask)| {
        let [causal, alibi, sinks, deterministic, own_slopes] = flags;
        Modifiers {
            causal,
            window,
            scale,
            softcap,
            alibi,
            sinks,
            bias,
            mask,
            sequences: None,
            own_slopes,
            first_keys: None,
            deterministic,
        }
    })
}

/// The case with packed sequences, padded ones, or none. Where they are not packed, they may have first keys.
fn sequenced(
    case: Case,
    kind: usize,
    count: usize,
    [q, kv]: [Vec<f64>; 2],
    first: Option<Vec<f64>>,
) -> Case {
    let numbers = |parts: &[f64], rows: usize| -> Vec<i32> {
        let parts = parts.iter();
        parts.map(|part| (part * rows as f64) as i32).collect()
    };
    let offsets = |parts: &[f64], rows| {
        let mut offsets = numbers(&parts[..=count], rows);
        offsets.sort_unstable();
        offsets
    };
    let (seqlen_q, seqlen_kv, entries) = (case.seqlen_q, case.seqlen_kv, case.batch);
    let (batch, sequences) = match kind {
        0 => (entries, None),
        1 => {
            let (q, kv) = (offsets(&q, seqlen_q), offsets(&kv, seqlen_kv));
            (1, Some(Sequences::Packed { q, kv }))
        }
        _ => {
            let q = numbers(&q[..entries], seqlen_q);
            let kv = numbers(&kv[..entries], seqlen_kv);
            (entries, Some(Sequences::Padded { q, kv }))
        }
    };
    let first = first.filter(|_| kind != 1);
    Case {
        batch,
        modifiers: Modifiers {
            sequences,
            first_keys: first.map(|first| numbers(&first[..entries], seqlen_kv)),
            ..case.modifiers
        },
        ..case
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let heads = (1..=2_usize, 1..=2_usize, 1..=3_usize);
    let rows = || 1..=70_usize;
    let dims = (1..=80_usize, option::of(1..=80_usize));
    let kinds = (select(&Dtype::ALL[..]), any::<bool>(), any::<u64>());
    let layouts = [(); 8].map(|()| layouts());
    let parts = || vec(0.0..=1.0_f64, 5);
    let sequences = (
        0..3_usize,
        1..=4_usize,
        [parts(), parts()],
        option::of(parts()),
    );
    let sizes = (heads, rows(), rows(), dims);
    (sizes, kinds, modifiers(), layouts, sequences).prop_map(
        |(sizes, (dtype, d_lse, seed), modifiers, layouts, (kind, count, parts, first))| {
            let ((batch, kv_heads, group), seqlen_q, seqlen_kv, (dim, dim_v)) = sizes;
            let case = Case {
                dtype,
                batch,
                kv_heads,
                group,
                seqlen_q,
                seqlen_kv,
                dim,
                dim_v: dim_v.unwrap_or(dim),
                modifiers,
                layouts,
                d_lse,
                seed,
            };
            sequenced(case, kind, count, parts, first)
        },
    )
}

proptest! {
    // Failing cases are printed whole: no file of seeds is needed.
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn calls_agree_with_the_reference(case in cases()) {
        case.check().map_err(TestCaseError::fail)?;
    }
}
