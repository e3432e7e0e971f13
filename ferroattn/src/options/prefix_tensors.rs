//! A prefix as tensors, and the numbers of its pages.

use super::prefix::PREFIX_PAGES;
use super::validate::expect_own;
use super::{Borrowed, PREFIX, RawOptions, RawPrefix};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::forward::Problem;
use crate::tensor::Dtype;

/// A borrowed prefix.
#[derive(Clone, Debug)]
pub(crate) enum BorrowedPrefix<'a> {
    Keys {
        dtype: Dtype,
        k: Borrowed<'a, 4>,
        v: Borrowed<'a, 4>,
    },
    Pages {
        table: Borrowed<'a, 1>,
        keys: usize,
    },
}

impl BorrowedPrefix<'_> {
    /// The devices of its tensors, by name.
    pub fn devices(&self) -> impl Iterator<Item = (&'static str, &Device)> {
        let (first, second) = match self {
            BorrowedPrefix::Keys { k, v, .. } => ((PREFIX, k.device()), Some((PREFIX, v.device()))),
            BorrowedPrefix::Pages { table, .. } => ((PREFIX_PAGES, table.device()), None),
        };
        [first].into_iter().chain(second)
    }

    pub fn raw(&self) -> RawPrefix {
        match self {
            BorrowedPrefix::Keys { dtype, k, v } => RawPrefix::Keys {
                dtype: *dtype,
                k: k.raw(),
                v: v.raw(),
            },
            BorrowedPrefix::Pages { table, keys } => RawPrefix::Pages {
                table: table.raw(),
                keys: *keys,
            },
        }
    }
}

impl RawOptions {
    /// Checks the numbers of a prefix's pages, of so many, and that each query of a causal call sees all of the prefix; in the memory of any
    /// device, whose lengths are checked.
    ///
    /// # Safety
    /// The conditions of [`Attention::forward_raw`](crate::Attention::forward_raw); nothing writes the numbers now.
    pub(crate) unsafe fn expect_prefix(
        &self,
        p: &Problem,
        pages: usize,
        device: &Device,
    ) -> Result<()> {
        let Some(prefix) = self.prefix else {
            return Ok(());
        };
        if let RawPrefix::Pages { table, .. } = prefix {
            // SAFETY: the caller's word.
            let numbers = unsafe { table.load::<i32>(device)? };
            let is_wrong = |number: i32| usize::try_from(number).map_or(true, |n| n >= pages);
            let mut numbers = numbers.into_iter().enumerate();
            if let Some((index, value)) = numbers.find(|(_, number)| is_wrong(*number)) {
                return Err(Error::Entry {
                    argument: PREFIX_PAGES,
                    index,
                    value,
                    min: 0,
                    max: pages.saturating_sub(1),
                });
            }
        }
        let Some(sequences) = self.sequences.filter(|_| p.causal) else {
            return Ok(());
        };
        let all_queries = || vec![p.seqlen_q as i32; p.batch];
        let sequences = sequences.try_map(|numbers| match numbers.address {
            0 => Ok(all_queries()),
            // SAFETY: as above.
            _ => unsafe { numbers.load::<i32>(device) },
        })?;
        let lengths = sequences.lengths().into_iter().enumerate();
        for (entry, lengths) in lengths {
            expect_own(p, entry, lengths)?;
        }
        Ok(())
    }
}
