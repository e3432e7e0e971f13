//! Every kernel of the table: its own head dim and the smallest one it serves, aligned and not.

use kernels::table::{HEAD_DIMS, KERNELS, Kernel, select};
use tests::{Case, Layout, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    KERNELS
        .iter()
        .map(|kernel| {
            Test::new(kernel.name, move |device| {
                for case in cases(kernel) {
                    let selected = select(case.dtype, case.dim as u32, case.causal);
                    assert_eq!(selected.map(|kernel| kernel.name), Some(kernel.name));
                    case.check(device)?;
                }
                PASSED
            })
        })
        .collect()
}

fn cases(kernel: &Kernel) -> impl Iterator<Item = Case> {
    let below = HEAD_DIMS.iter().rev().find(|&&dim| dim < kernel.head_dim);
    let dims = [below.unwrap_or(&0) + 8, kernel.head_dim];
    let layouts = [Layout::Bnhd, Layout::OddRows];
    dims.into_iter().flat_map(move |dim| {
        layouts.map(|layout| Case {
            dtype: kernel.dtype,
            batch: 2,
            heads: 4,
            kv_heads: 2,
            // Whole tiles and a ragged one, of queries and of keys.
            seqlen_q: 2 * kernel.tile.q_rows as usize + 37,
            seqlen_kv: 5 * kernel.tile.keys as usize + 21,
            dim: dim as usize,
            causal: kernel.causal,
            q: layout,
            k: layout,
            v: layout,
            o: layout,
            ..Case::default()
        })
    })
}
