//! An attention call in the report.

use crate::report::{Call, Checked};
use attention::Problem;
use attention::check::Report;
use serde::Serialize;
use std::fmt;

/// An attention call: what was computed, and how it was divided.
#[derive(Serialize)]
pub struct ForwardCall {
    /// Splits of the keys.
    pub splits: u32,
    /// Element type of q, k, v and o.
    pub dtype: &'static str,
    /// Sizes and options.
    #[serde(flatten)]
    pub problem: Problem,
}

impl fmt::Display for ForwardCall {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Problem {
            batch,
            heads,
            kv_heads,
            seqlen_q,
            seqlen_kv,
            dim,
            causal,
            ..
        } = self.problem;
        let dtype = self.dtype;
        let causal = if causal { ", causal" } else { "" };
        write!(
            f,
            "batch {batch}, heads {heads}, kv_heads {kv_heads}, seqlen {seqlen_q}, \
             seqlen_kv {seqlen_kv}, dim {dim}, {dtype}{causal}"
        )
    }
}

impl Call for ForwardCall {
    const COLUMNS: &[&str] = &["splits"];

    fn cells(&self) -> Vec<String> {
        vec![self.splits.to_string()]
    }

    fn flops(&self) -> f64 {
        self.problem.flops()
    }
}

impl From<Report> for Checked {
    fn from(report: Report) -> Self {
        Checked {
            rows: report.rows,
            worst: report.o,
            passed: report.passed(),
        }
    }
}
