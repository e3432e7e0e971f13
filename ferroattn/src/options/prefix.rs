//! Keys and values before those of each entry of the batch, which all entries share.

use super::{Borrowed, PAGES, RawOptions, Window};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::forward::Problem;
use crate::tensor::{Dtype, RawTensor, expect_shape};

/// The name of a prefix.
pub(crate) const PREFIX: &str = "prefix";

/// The name of a prefix in pages.
const PREFIX_PAGES: &str = "prefix_pages";

/// A shared [prefix](crate::Attention::prefix) by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RawPrefix {
    /// Tensors of their own.
    Keys {
        /// Type of the elements: that of q, k and v.
        dtype: Dtype,
        /// Keys, `[1, kv_heads, keys, dim]`, with stride 1 in dim.
        k: RawTensor,
        /// Values, `[1, kv_heads, keys, dim_v]`, with stride 1 in dim.
        v: RawTensor,
    },
    /// [Pages](crate::Attention::prefix_pages) of k and v.
    Pages {
        /// Their numbers, `i32[n]`, with stride 1.
        table: RawTensor<1>,
        /// Keys of all of them, of which the last page has 1 or more.
        keys: usize,
    },
}

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
    /// Checks the prefix's tensors, and that it goes with the other options.
    pub(super) fn validate_prefix(&self, p: &Problem) -> Result<()> {
        let Some(prefix) = self.prefix else {
            return Ok(());
        };
        // These count keys from an entry's last one, or name each of its own.
        for (option, is_on) in [
            ("window", p.window != Window::NONE),
            ("alibi", self.alibi.is_some()),
            ("bias", self.bias.is_some()),
            ("mask", self.mask.is_some()),
            ("first_keys", self.first_keys.is_some()),
            ("custom", self.custom.is_some()),
        ] {
            if is_on {
                return Err(Error::Excluded(PREFIX, option));
            }
        }
        match prefix {
            RawPrefix::Keys { k, v, .. } => {
                let keys = k.shape[2];
                expect_shape("the prefix's k", &[1, p.kv_heads, keys, p.dim], &k.shape)?;
                expect_shape("the prefix's v", &[1, p.kv_heads, keys, p.dim_v], &v.shape)?;
                k.expect_rows("the prefix's k", "dim")?;
                v.expect_rows("the prefix's v", "dim")?;
            }
            RawPrefix::Pages { table, .. } => {
                if self.pages.is_none() {
                    return Err(Error::Needs(PREFIX_PAGES, PAGES));
                }
                table.expect_rows(PREFIX_PAGES, "its axis")?;
            }
        }
        match self.sequences {
            None => expect_own(p, 0, [p.seqlen_q, p.seqlen_kv]),
            Some(_) => Ok(()),
        }
    }

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
        // SAFETY: as above.
        let sequences = sequences.try_map(|numbers| unsafe { numbers.load::<i32>(device) })?;
        let lengths = sequences.lengths().into_iter().enumerate();
        for (entry, lengths) in lengths {
            expect_own(p, entry, lengths)?;
        }
        Ok(())
    }
}

/// Checks that the first query of an entry sees all keys before the entry's own.
fn expect_own(p: &Problem, entry: usize, [queries, keys]: [usize; 2]) -> Result<()> {
    match p.causal && keys.saturating_add(1) < queries {
        false => Ok(()),
        true => Err(Error::OwnKeys {
            entry,
            queries,
            keys,
        }),
    }
}
