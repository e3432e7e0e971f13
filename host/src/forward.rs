//! An attention call in the report.

use crate::report::{Call, Checked};
use attention::check::Report;
use attention::{Dtype, Problem};
use serde::Serialize;
use std::fmt;

/// An attention call: its sizes, and in how many splits it was computed.
#[derive(Serialize)]
pub struct ForwardCall {
    splits: u32,
    dtype: &'static str,
    batch: usize,
    heads: usize,
    kv_heads: usize,
    seqlen_q: usize,
    seqlen_kv: usize,
    dim: usize,
    causal: bool,
    #[serde(skip)]
    flops: f64,
}

impl ForwardCall {
    pub fn new(problem: &Problem, dtype: Dtype, splits: u32) -> Self {
        ForwardCall {
            splits,
            dtype: dtype.name(),
            batch: problem.batch,
            heads: problem.heads,
            kv_heads: problem.kv_heads,
            seqlen_q: problem.seqlen_q,
            seqlen_kv: problem.seqlen_kv,
            dim: problem.dim,
            causal: problem.causal,
            flops: problem.flops(),
        }
    }
}

impl fmt::Display for ForwardCall {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let ForwardCall {
            dtype,
            batch,
            heads,
            kv_heads,
            seqlen_q,
            seqlen_kv,
            dim,
            ..
        } = self;
        let causal = if self.causal { ", causal" } else { "" };
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
        self.flops
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
