//! Documents, packed one after another: each query sees the keys of its own document, and a slope times their distance is
//! taken off the scores.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

use core::ops::Range;
use kernels::attention::custom::{Array, Call, Custom, Pair};

/// Documents, whose kernels have this name.
#[derive(Clone, Copy)]
pub struct Documents;

/// The documents of a batch entry, as a query head sees them: queries and keys are the same tokens.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// The first token of each token's document.
    firsts: Array<'a, u32>,
    /// The token after the last one of each token's document.
    ends: Array<'a, u32>,
    /// The amount that a step of distance takes off a score.
    slope: f32,
}

// SAFETY: documents follow one another, and each token is a query and a key of one of them. Its bounds are what `Batch`
// makes, which alone has the kernels, for calls of as many entries and tokens.
unsafe impl Custom for Documents {
    /// `[batch, tokens]`, `[batch, tokens]` and `[heads]`.
    const ARRAYS: usize = 3;

    type Head<'a> = Head<'a>;

    #[inline(always)]
    fn new<'a>(call: &Call<'a>, head: u32) -> Head<'a> {
        Head {
            firsts: call.array(0).part(call.batch, call.keys),
            ends: call.array(1).part(call.batch, call.keys),
            slope: call.array(2).at(head),
        }
    }

    #[inline(always)]
    fn keys(head: Head, query: u32) -> Range<u32> {
        head.firsts.at(query)..head.ends.at(query)
    }

    #[inline(always)]
    fn queries(head: Head, key: u32) -> Range<u32> {
        Self::keys(head, key)
    }

    #[inline(always)]
    fn score(head: Head, score: f32, pair: Pair) -> f32 {
        score - head.slope * pair.distance.abs()
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
pub use batch::Batch;
