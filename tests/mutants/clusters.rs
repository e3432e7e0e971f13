//! Kernels that decode, whose blocks combine splits in clusters.

use super::change::remove;
use super::{
    Mutant, Run,
    Which::{All, Last},
    pages,
};
use ferroattn::Dtype;
use kernels::abi::{Switch, Switches};
use tests::Case;

/// No other fault is in it.
const DECODE: &str = "decode_f16_d32";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "blocks that combine before others are done",
        kernel: DECODE,
        pattern: "barrier.cluster.wait",
        which: All,
        change: remove,
    },
    Mutant {
        what: "all blocks of a cluster combine the same rows",
        kernel: DECODE,
        pattern: "%cluster_ctarank",
        which: Last,
        change: |l| l.replace("%cluster_ctarank", "0"),
    },
    Mutant {
        what: "rows that as many blocks skip as there are",
        kernel: DECODE,
        pattern: "%cluster_nctarank",
        which: Last,
        change: |l| l.replace("%cluster_nctarank", "16"),
    },
    Mutant {
        what: "a cluster's blocks on tiles of others",
        kernel: DECODE,
        pattern: "%nclusterid.x",
        which: All,
        change: |l| l.replace("%nclusterid.x", "1"),
    },
];

/// The runs that show these faults, and the switch of clusters; none for other kernels.
pub fn runs(kernel: &str) -> Option<(Vec<Run>, Switches)> {
    let case = |splits, heads, seqlen_q| Case {
        dtype: Dtype::F16,
        batch: 2,
        heads,
        kv_heads: 2,
        seqlen_q,
        seqlen_kv: 700,
        dim: 32,
        splits,
        kernel: Some(DECODE.to_owned()),
        ..Case::default()
    };
    // Of the last, a block has more rows than warps, and a tile is not the only one.
    let cases = [case(3, 4, 1), case(2, 16, 9)];
    let runs = (kernel == DECODE).then(|| pages::of_cases(cases))?;
    Some((runs, Switches::NONE.with(Switch::Cluster, true)))
}
