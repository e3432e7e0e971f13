//! The mask of a [`Custom`] type.

use super::{Call, Custom};
use crate::abi::ForwardParams;
use crate::attention::options::mask::{Mask, Span};
use crate::attention::options::ranges::Ranges;
use crate::attention::workload::sequence::{Sequence, Split};
use core::ops::Range;

/// Pairs that the options, and a type, let see each other.
#[derive(Clone, Copy)]
pub struct CustomMask<C: Custom> {
    options: Ranges,
    custom: C::Head<'static>,
    sequence: Sequence,
    split: Split,
}

impl<C: Custom> Mask for CustomMask<C> {
    const UNIFORM: bool = false;
    const HAS_HEADS: bool = true;
    type Keys = <Ranges as Mask>::Keys;
    type Queries = <Ranges as Mask>::Queries;

    #[inline(always)]
    fn new(params: &ForwardParams, sequence: Sequence, split: Split) -> Self {
        CustomMask {
            options: Ranges::new(params, sequence, split),
            custom: C::new(&call(params, sequence), 0),
            sequence,
            split,
        }
    }

    #[inline(always)]
    fn of_head(self, params: &ForwardParams, head: u32) -> Self {
        CustomMask {
            options: self.options.of_head(params, head),
            ..self
        }
    }

    /// Rows after the last query, at a tile's ragged end, see what the last one sees.
    #[inline(always)]
    fn keys(self, query: i32) -> Self::Keys {
        let keys = C::keys(self.custom, (query as u32).min(self.sequence.queries - 1));
        let keys = span(keys, self.split.first, self.split.keys);
        self.options.keys(query).within(keys)
    }

    #[inline(always)]
    fn queries(self, key: i32) -> Self::Queries {
        let key_of_all = self.split.first + key as u32;
        let queries = C::queries(self.custom, key_of_all.min(self.sequence.keys - 1));
        self.options
            .queries(key)
            .within(span(queries, 0, self.sequence.queries))
    }
}

/// The numbers of a range that lie in `first..first + count`, counted from there.
#[inline(always)]
fn span(range: Range<u32>, first: u32, count: u32) -> Span {
    let [start, end] =
        [range.start, range.end].map(|bound| bound.saturating_sub(first).min(count) as i32);
    Span { start, end }
}

/// The call as a type reads it in a kernel, as long as that runs.
#[inline(always)]
pub(super) fn call(params: &ForwardParams, sequence: Sequence) -> Call<'static> {
    let lengths = [sequence.queries, sequence.keys];
    // SAFETY: the arrays of a launch are readable until it ends, and nothing writes them.
    unsafe { Call::new(sequence.batch, lengths, params.options.custom) }
}
