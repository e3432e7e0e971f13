//! Keys and values that all entries of a batch share.

use crate::call::{heads_first, one_entry};
use crate::memory::{Addresses, Locked, Memory};
use crate::tensors::{dtype, in_rows};
use candle_core::{Result, Tensor};
use ferroattn::{Problem, RawPrefix, RawTensor};

/// A prefix, as its owner shaped it.
#[derive(Clone, Debug)]
pub(crate) enum Prefix {
    /// Keys and values, `[1, keys, kv_heads, dim]`, or without the first axis beside packed sequences.
    Keys([Tensor; 2]),
    /// Numbers of pages, `[pages]`, with so many keys in all.
    Pages { table: Tensor, keys: usize },
}

impl Prefix {
    /// Its tensors by name.
    pub fn named(&self) -> Vec<(&'static str, &Tensor)> {
        match self {
            Prefix::Keys([k, v]) => vec![("prefix_k", k), ("prefix_v", v)],
            Prefix::Pages { table, .. } => vec![("prefix_pages", table)],
        }
    }

    /// The shape that the tensor of a name must have; of pages, which may be any number, their own if they are a row.
    pub fn shape(&self, name: &str, p: &Problem, is_packed: bool) -> Vec<usize> {
        match self {
            Prefix::Keys([k, _]) => {
                let first = usize::from(!is_packed);
                let keys = k.dims().get(first).copied().unwrap_or_default();
                let dim = if name == "prefix_v" { p.dim_v } else { p.dim };
                [1, keys, p.kv_heads, dim][1 - first..].to_vec()
            }
            Prefix::Pages { table, .. } => vec![table.elem_count()],
        }
    }

    /// The prefix with stride 1 in the last axes of its tensors.
    pub fn in_rows(&self) -> Result<Self> {
        Ok(match self {
            Prefix::Keys([k, v]) => Prefix::Keys([in_rows(k)?, in_rows(v)?]),
            Prefix::Pages { table, keys } => Prefix::Pages {
                table: in_rows(table)?,
                keys: *keys,
            },
        })
    }

    /// Its tensors, which nobody writes meanwhile.
    pub fn lock(&self) -> LockedPrefix<'_> {
        let named = self.named().into_iter();
        LockedPrefix {
            tensors: named.map(|(_, tensor)| Locked::new(tensor)).collect(),
            prefix: self,
        }
    }
}

/// A prefix in its device's memory.
pub(crate) struct LockedPrefix<'a> {
    tensors: Vec<Locked<'a>>,
    prefix: &'a Prefix,
}

impl LockedPrefix<'_> {
    /// The prefix by address.
    pub fn raw<'a, M: Memory>(
        &'a self,
        addresses: &mut Addresses<'a, M>,
        is_packed: bool,
    ) -> Result<RawPrefix> {
        let mut rows = |of: &'a Locked<'_>| -> Result<RawTensor> {
            match is_packed {
                true => addresses.read(&of.placed()?).map(one_entry),
                false => addresses.read(&of.placed()?).map(heads_first),
            }
        };
        match (self.prefix, &self.tensors[..]) {
            (Prefix::Keys([tensor, _]), [k, v]) => Ok(RawPrefix::Keys {
                dtype: dtype(tensor.dtype())?,
                k: rows(k)?,
                v: rows(v)?,
            }),
            (Prefix::Pages { keys, .. }, [table]) => Ok(RawPrefix::Pages {
                table: addresses.read(&table.placed()?)?,
                keys: *keys,
            }),
            _ => candle_core::bail!("a prefix has keys and values, or pages"),
        }
    }
}
