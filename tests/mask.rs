//! Trip counts of the masks against a brute-force mask.

use kernels::abi::Divisor;
use kernels::abi::{ForwardParams, MAX_SEQLEN};
use kernels::attention::mask::{Causal, Full, Mask, Packed};
use proptest::prelude::*;

/// Whether `row` sees `key`, from the definition.
fn sees<M: Mask>(row: u32, key: u32, seqlen_q: u32, seqlen_kv: u32) -> bool {
    let last = i64::from(row) + i64::from(seqlen_kv) - i64::from(seqlen_q);
    !M::CAUSAL || i64::from(key) <= last
}

fn params(seqlen_q: u32, seqlen_kv: u32) -> ForwardParams {
    ForwardParams {
        seqlen_q,
        seqlen_kv,
        group: Divisor::new(1),
        ..ForwardParams::default()
    }
}

/// The mask of all keys.
fn mask<M: Mask>(seqlen_q: u32, seqlen_kv: u32) -> M {
    M::new(&params(seqlen_q, seqlen_kv), 0, seqlen_kv)
}

fn trip_counts_cover_the_mask<M: Mask>(
    [seqlen_q, seqlen_kv, q_rows, keys]: [u32; 4],
) -> Result<(), TestCaseError> {
    let mask: M = mask(seqlen_q, seqlen_kv);
    let visible = |row: u32, keys: std::ops::Range<u32>| {
        let keys = keys.start..keys.end.min(seqlen_kv);
        keys.filter(|&key| sees::<M>(row, key, seqlen_q, seqlen_kv))
            .count()
    };
    for row in 0..seqlen_q {
        let seen = visible(row, 0..seqlen_kv);
        prop_assert_eq!(mask.limit(row as i32) as usize, seen);
        prop_assert_eq!(visible(row, 0..seen as u32), seen, "not a prefix");
    }
    for first in (0..seqlen_q).step_by(q_rows as usize) {
        // A ragged tile still has all its rows.
        let last = first + q_rows - 1;
        let rows = first..seqlen_q.min(last + 1);
        let trips = mask.trip_count(last as i32, keys);
        let unmasked = mask.unmasked_trip_count(first as i32, keys);
        prop_assert!(unmasked <= trips);
        prop_assert!(trips <= seqlen_kv.div_ceil(keys));
        for row in rows {
            prop_assert_eq!(
                visible(row, trips * keys..seqlen_kv),
                0,
                "visible, not loaded"
            );
            let whole = visible(row, 0..unmasked * keys);
            prop_assert_eq!(
                whole,
                (unmasked * keys) as usize,
                "masked, not seen as such"
            );
        }
    }
    Ok(())
}

/// Lengths and tiles: `[seqlen_q, seqlen_kv, q_rows, keys]`.
fn sizes() -> impl Strategy<Value = [u32; 4]> {
    let tile = || (1..=8_u32).prop_map(|n| 16 * n);
    (1..=300_u32, 1..=300_u32, tile(), tile()).prop_map(Into::into)
}

/// A row sees of all splits together what it sees of the whole, and of each split the first keys.
fn splits_make_up_the_mask<M: Mask>(p: &ForwardParams, rows: u32, split: u32) {
    let whole = M::new(p, 0, p.seqlen_kv);
    for row in 0..rows as i32 {
        let mut seen = 0;
        for first in (0..p.seqlen_kv).step_by(split as usize) {
            let keys = split.min(p.seqlen_kv - first);
            let limit = M::new(p, first, keys).limit(row);
            assert_eq!(
                limit,
                (whole.limit(row) - first as i32).clamp(0, keys as i32)
            );
            seen += limit;
        }
        assert_eq!(seen, whole.limit(row));
    }
}

proptest! {
    #[test]
    fn splits(sizes in sizes(), group in 1..=5_u32, causal in 0..=1_u32) {
        let [seqlen_q, seqlen_kv, _, split] = sizes;
        let p = ForwardParams { group: Divisor::new(group), causal, ..params(seqlen_q, seqlen_kv) };
        splits_make_up_the_mask::<Full>(&p, seqlen_q, split);
        splits_make_up_the_mask::<Causal>(&p, seqlen_q, split);
        splits_make_up_the_mask::<Packed>(&p, seqlen_q * group, split);
    }

    /// Every head of the group sees what its query sees.
    #[test]
    fn packed(sizes in sizes(), group in 1..=5_u32, is_causal: bool) {
        let [seqlen_q, seqlen_kv, ..] = sizes;
        let causal = u32::from(is_causal);
        let p = ForwardParams { group: Divisor::new(group), causal, ..params(seqlen_q, seqlen_kv) };
        let packed = Packed::new(&p, 0, seqlen_kv);
        for row in 0..(seqlen_q * group) as i32 {
            let query = row / group as i32;
            let expected = if is_causal {
                mask::<Causal>(seqlen_q, seqlen_kv).limit(query)
            } else {
                mask::<Full>(seqlen_q, seqlen_kv).limit(query)
            };
            prop_assert_eq!(packed.limit(row), expected);
        }
    }

    #[test]
    fn full(sizes in sizes()) {
        trip_counts_cover_the_mask::<Full>(sizes)?;
    }

    #[test]
    fn causal(sizes in sizes()) {
        trip_counts_cover_the_mask::<Causal>(sizes)?;
    }

    #[test]
    fn causal_blocks_are_no_more_than_needed(sizes in sizes()) {
        let [seqlen_q, seqlen_kv, q_rows, keys] = sizes;
        let mask: Causal = mask(seqlen_q, seqlen_kv);
        for first in (0..seqlen_q).step_by(q_rows as usize) {
            let last = seqlen_q.min(first + q_rows) - 1;
            let trips = mask.trip_count(last as i32, keys);
            let unmasked = mask.unmasked_trip_count(first as i32, keys);
            prop_assert!(trips == 0 || sees::<Causal>(last, (trips - 1) * keys, seqlen_q, seqlen_kv));
            let next = unmasked * keys..(unmasked + 1) * keys;
            let whole = |key| key < seqlen_kv && sees::<Causal>(first, key, seqlen_q, seqlen_kv);
            prop_assert!(!next.into_iter().all(whole), "masked for nothing");
        }
    }
}

#[test]
fn the_longest_sequences_do_not_overflow() {
    let longest = MAX_SEQLEN;
    for (seqlen_q, seqlen_kv) in [(longest, longest), (longest, 1), (1, longest)] {
        let mask: Causal = mask(seqlen_q, seqlen_kv);
        let last_tile = (longest.next_multiple_of(1024) - 1) as i32;
        assert_eq!(mask.limit(seqlen_q as i32 - 1), seqlen_kv as i32);
        assert_eq!(mask.limit(last_tile), seqlen_kv as i32);
        let first_sees = (i64::from(seqlen_kv) - i64::from(seqlen_q) + 1).max(0);
        assert_eq!(i64::from(mask.limit(0)), first_sees);
    }

    // The last split of the longest sequence, with no mask and with one.
    let first = longest / 64 * 64;
    for causal in [0, 1] {
        let p = ForwardParams {
            causal,
            ..params(longest, longest)
        };
        let packed = Packed::new(&p, first, longest - first);
        assert_eq!(packed.limit(longest as i32 - 1), (longest - first) as i32);
        let all = (longest - first) as i32;
        assert_eq!(packed.limit(0), if causal == 0 { all } else { 0 });
    }
}
