//! Trip counts of the masks against a brute-force mask.

use kernels::mask::{Causal, Full, Mask};
use kernels::params::MAX_SEQLEN;
use proptest::prelude::*;

/// Whether `row` sees `key`, from the definition.
fn sees<M: Mask>(row: u32, key: u32, seqlen_q: u32, seqlen_kv: u32) -> bool {
    let last = i64::from(row) + i64::from(seqlen_kv) - i64::from(seqlen_q);
    !M::CAUSAL || i64::from(key) <= last
}

fn trip_counts_cover_the_mask<M: Mask>(
    [seqlen_q, seqlen_kv, q_rows, keys]: [u32; 4],
) -> Result<(), TestCaseError> {
    let mask = M::new(seqlen_q, seqlen_kv);
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

proptest! {
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
        let mask = Causal::new(seqlen_q, seqlen_kv);
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
        let mask = Causal::new(seqlen_q, seqlen_kv);
        let last_tile = (longest.next_multiple_of(1024) - 1) as i32;
        assert_eq!(mask.limit(seqlen_q as i32 - 1), seqlen_kv as i32);
        assert_eq!(mask.limit(last_tile), seqlen_kv as i32);
        let first_sees = (i64::from(seqlen_kv) - i64::from(seqlen_q) + 1).max(0);
        assert_eq!(i64::from(mask.limit(0)), first_sees);
    }
}
