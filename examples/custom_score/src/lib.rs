//! Documents, packed one after another: each query sees the keys of its own document, and a slope times their distance is
//! taken off the scores.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

use core::ops::Range;
use kernels::attention::custom::{Array, Call, Custom, Pair};

/// The documents of a batch entry, as a query head sees them: queries and keys are the same tokens.
#[derive(Clone, Copy)]
pub struct Documents {
    /// The first token of each token's document.
    firsts: Array<u32>,
    /// The token after the last one of each token's document.
    ends: Array<u32>,
    /// What a step of distance takes off a score.
    slope: f32,
}

impl Custom for Documents {
    /// `[batch, tokens]`, `[batch, tokens]` and `[heads]`.
    const ARRAYS: usize = 3;

    #[inline(always)]
    fn new(call: &Call, head: u32) -> Self {
        Documents {
            firsts: call.array(0).part(call.batch, call.keys),
            ends: call.array(1).part(call.batch, call.keys),
            slope: call.array(2).at(head),
        }
    }

    #[inline(always)]
    fn keys(self, query: u32) -> Range<u32> {
        self.firsts.at(query)..self.ends.at(query)
    }

    #[inline(always)]
    fn queries(self, key: u32) -> Range<u32> {
        self.keys(key)
    }

    #[inline(always)]
    fn score(self, score: f32, pair: Pair) -> f32 {
        score - self.slope * pair.distance.abs()
    }
}

// The GPU's side: the entry points.
kernels::entries!();

// The host's side.
#[cfg(not(target_arch = "nvptx64"))]
mod batch;
#[cfg(not(target_arch = "nvptx64"))]
pub mod checked;
#[cfg(not(target_arch = "nvptx64"))]
pub use batch::{Batch, DOCUMENTS};
