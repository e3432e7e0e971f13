//! Rectangles of the pairs that see each other.

use std::ops::Range;

/// Some rows and some keys.
pub(crate) type Rectangle = (Range<usize>, Range<usize>);

/// Rectangles of rows and keys: together they hold each pair of `rows` and `keys` that see each other, once, and no
/// other pair. `seen` gives the keys of a row; from row to row, both ends only rise.
///
/// Products over rectangles need no mask, which 0 * NaN would pass.
pub(super) fn rectangles(
    seen: impl Fn(usize) -> Range<usize>,
    rows: Range<usize>,
    keys: Range<usize>,
) -> Vec<Rectangle> {
    let mut found = Vec::new();
    add(&seen, rows, keys, &mut found);
    found
}

fn add(
    seen: &impl Fn(usize) -> Range<usize>,
    rows: Range<usize>,
    keys: Range<usize>,
    found: &mut Vec<Rectangle>,
) {
    if rows.is_empty() {
        return;
    }
    let [first, last] = [rows.start, rows.end - 1].map(seen);
    let keys = keys.start.max(first.start)..keys.end.min(last.end);
    if keys.is_empty() {
        return;
    }
    let seen_by_all = keys.start.max(last.start)..keys.end.min(first.end);
    let rest = if seen_by_all.is_empty() {
        [keys.clone(), keys.end..keys.end]
    } else {
        found.push((rows.clone(), seen_by_all.clone()));
        [keys.start..seen_by_all.start, seen_by_all.end..keys.end]
    };
    // A single row has no rest.
    if rows.len() > 1 {
        let middle = rows.start + rows.len() / 2;
        for keys in rest {
            add(seen, rows.start..middle, keys.clone(), found);
            add(seen, middle..rows.end, keys, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rectangles;
    use crate::forward::Problem;
    use crate::options::Window;

    #[test]
    fn rectangles_hold_each_visible_pair_once() {
        let bounds = [None, Some(0), Some(2), Some(11)];
        let windows = bounds.map(|left| bounds.map(|right| Window { left, right }));
        for (seqlen_q, seqlen_kv) in [(1, 1), (13, 13), (9, 20), (20, 9), (1, 20), (20, 1)] {
            for (causal, window) in [false, true].into_iter().flat_map(|causal| {
                windows
                    .as_flattened()
                    .iter()
                    .map(move |&window| (causal, window))
            }) {
                let [q, kv] = [seqlen_q, seqlen_kv].map(|rows| [1, 1, rows, 8]);
                let problem = Problem::new(q, kv, kv, causal, None).expect("valid");
                let problem = Problem { window, ..problem };
                let offset = seqlen_kv as isize - seqlen_q as isize;
                let sees = |i: usize, j: usize| {
                    let behind = j as isize - (i as isize + offset);
                    let within = |bound: Option<usize>, distance| {
                        bound.is_none_or(|bound| distance <= bound as isize)
                    };
                    within(window.left, -behind)
                        && within(window.right, behind)
                        && (!causal || behind <= 0)
                };
                for (first, last) in [(0, seqlen_q), (seqlen_q / 3, seqlen_q / 2), (0, 1)] {
                    for keys in [0..seqlen_kv, seqlen_kv / 3..seqlen_kv / 2, 0..1] {
                        let mut pairs = Vec::new();
                        for (rows, keys) in
                            rectangles(|row| problem.keys(row), first..last, keys.clone())
                        {
                            pairs.extend(rows.flat_map(|i| keys.clone().map(move |j| (i, j))));
                        }
                        pairs.sort_unstable();
                        let all = (first..last).flat_map(|i| keys.clone().map(move |j| (i, j)));
                        let expected: Vec<_> = all.filter(|&(i, j)| sees(i, j)).collect();
                        assert_eq!(pairs, expected, "{problem:?}, {first}..{last}, {keys:?}");
                    }
                }
            }
        }
    }
}
