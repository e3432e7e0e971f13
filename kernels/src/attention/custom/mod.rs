//! Scores and masks of other crates. A type that implements [`Custom`] becomes a part of the kernels with
//! [options](crate::abi::Options), and combines with each of them.
//!
//! The type is written once. The kernels are compiled with it, and the host computes by it, too.
//!
//! | module | what it holds | compiled for |
//! |---|---|---|
//! | `call` | what a type reads: lengths and arrays | both |
//! | `mask` | the kernels' mask | PTX |
//! | `score` | the kernels' scores | PTX |

mod call;
#[cfg(target_arch = "nvptx64")]
mod mask;
#[cfg(target_arch = "nvptx64")]
mod score;

pub use call::{Array, Call, Word};
#[cfg(target_arch = "nvptx64")]
pub use {mask::CustomMask, score::CustomScore};

use core::ops::Range;

/// A score, a mask, or both.
///
/// ```
/// use kernels::attention::custom::{Call, Custom, Pair};
///
/// /// A penalty for each step of distance, of each head.
/// #[derive(Clone, Copy)]
/// struct Penalty;
///
/// // SAFETY: the mask is the trait's own.
/// unsafe impl Custom for Penalty {
///     const ARRAYS: usize = 1;
///     type Head<'a> = f32;
///
///     fn new(call: &Call, head: u32) -> f32 {
///         call.array(0).at(head)
///     }
///
///     fn score(penalty: f32, score: f32, pair: Pair) -> f32 {
///         score - penalty * pair.distance.abs()
///     }
/// }
/// ```
///
/// Arrays end with their call, so none can be kept:
///
/// ```compile_fail
/// use kernels::attention::custom::{Array, Call, Custom};
///
/// #[derive(Clone, Copy)]
/// struct Keeper;
///
/// // SAFETY: the mask is the trait's own.
/// unsafe impl Custom for Keeper {
///     const ARRAYS: usize = 1;
///     type Head<'a> = Array<'static, f32>;
///
///     fn new(call: &Call, _head: u32) -> Array<'static, f32> {
///         call.array(0)
///     }
/// }
/// ```
///
/// # Safety
/// In each call that safe code can make with the type's kernels, for the queries and keys of each batch entry:
/// - [`keys`](Self::keys) and [`queries`](Self::queries) always give the same for the same arrays and number.
/// - From one query to the next no end of its keys falls, and from one key to the next no end of its queries.
/// - A key's queries are those, and no others, whose keys have it.
/// - Both ends of the keys of a query that sees none are the first key whose queries end behind it.
///
/// Calls on the CPU check all of these; kernels wait for ever where one does not hold. If arrays decide the mask, safe code
/// must not reach the type's kernels with arrays or lengths that break them.
pub unsafe trait Custom: Copy + 'static {
    /// How many arrays a call passes: at most [`ARRAYS`](crate::abi::ARRAYS).
    const ARRAYS: usize;

    /// The state of a query head of a batch entry: numbers, and arrays of the call.
    type Head<'a>: Copy;

    /// Reads the state of a query head of a batch entry. All heads have the same mask: for it, `head` is 0.
    fn new<'a>(call: &Call<'a>, head: u32) -> Self::Head<'a>;

    /// The keys that a query sees. A later query has neither an earlier first key nor an earlier last key.
    #[inline(always)]
    fn keys(_head: Self::Head<'_>, _query: u32) -> Range<u32> {
        0..u32::MAX
    }

    /// The queries that see a key: those, and no others, whose [`keys`](Self::keys) have it.
    #[inline(always)]
    fn queries(_head: Self::Head<'_>, _key: u32) -> Range<u32> {
        0..u32::MAX
    }

    /// The score of a pair, from `scale * (q . k)` behind softcap and ALiBi. The pair may lie behind the last query or
    /// the last key: its score is not used.
    #[inline(always)]
    fn score(_head: Self::Head<'_>, score: f32, _pair: Pair) -> f32 {
        score
    }

    /// The derivative of the new score by the one that [`score`](Self::score) gets: 1 if it adds a bias.
    #[inline(always)]
    fn derivative(_head: Self::Head<'_>, _score: f32, _pair: Pair) -> f32 {
        1.0
    }
}

/// A query and a key of a batch entry. Both count from its first row, whatever its sequences are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The query.
    pub query: u32,
    /// The key.
    pub key: u32,
    /// How far the key lies before the query, aligned bottom-right: `query + seqlen_kv - seqlen_q - key`. Kernels have it at the
    /// cost of one addition; a number made of `query` and `key` costs more.
    pub distance: f32,
}

/// The entry points of a crate of kernels made with its [`Custom`](crate::attention::custom::Custom) types, which are in
/// scope. On the host it is nothing.
#[macro_export]
macro_rules! entries {
    () => {
        #[cfg(target_arch = "nvptx64")]
        mod entries {
            use super::*;
            use $crate::abi::{BackwardParams, ForwardParams, Sm90BackwardParams, Sm90Params};
            use $crate::attention::custom::{CustomMask, CustomScore};
            use $crate::attention::forward::Unwatched;
            use $crate::attention::workload::heads::HeadOrGroup;
            use $crate::tile::{Bf16, F16};
            use $crate::{attention, entry};

            include!(env!("KERNEL_ENTRIES"));
        }
    };
}
