//! A call with a prefix, as calls without.

use super::super::{Problem, RawForward};
use crate::error::{Error, Result};
use crate::options::{RawOptions, RawPrefix, expect_last_page};
use crate::tensor::{Dtype, RawTensor};

/// The calls that a call with a prefix consists of.
#[derive(Debug)]
pub struct Divided {
    /// The queries of all entries as those of one, on the prefix. Its outputs have no place yet, nor has q, if it needs a copy. None where
    /// the other call computes all, for only the prefix has keys, or only the entries.
    pub prefix: Option<Call>,
    /// Each entry's queries on its own keys, with the outputs of the whole; without sinks, which count once, if the prefix has them.
    pub own: Call,
}

/// A problem and its tensors.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Sizes and options.
    pub problem: Problem,
    /// Tensors.
    pub args: RawForward,
}

/// The calls that a valid call on elements of this type consists of, if it has a prefix.
///
/// # Errors
/// If the prefix has elements of another type, pages of no power of 2, or does not end inside its last page, or there are too many keys or
/// queries.
pub fn divided(dtype: Dtype, p: &Problem, args: &RawForward) -> Result<Option<Divided>> {
    let Some(prefix) = args.options.prefix else {
        return Ok(None);
    };
    let (k, v, keys, table) = match prefix {
        RawPrefix::Keys { dtype: found, k, v } if found == dtype => (k, v, k.shape[2], None),
        RawPrefix::Keys { dtype: found, .. } => return Err(Error::PrefixDtype { found, dtype }),
        RawPrefix::Pages { table, keys } => {
            expect_last_page(keys, args.k.shape[2], table.shape[0])?;
            (args.k, args.v, keys, Some(table))
        }
    };
    let without_prefix = RawOptions {
        prefix: None,
        ..args.options
    };
    let own = Call {
        problem: *p,
        args: RawForward {
            options: without_prefix,
            ..*args
        },
    };
    if keys == 0 || [p.batch, p.heads, p.seqlen_q].contains(&0) {
        return Ok(Some(Divided { prefix: None, own }));
    }
    // The prefix's keys for so many entries, which read the same ones.
    let on_prefix = |problem: Problem, entries: usize| {
        let repeated = |mut tensor: RawTensor| {
            if table.is_none() {
                (tensor.shape[0], tensor.strides[0]) = (entries, 0);
            }
            tensor
        };
        // What else a call may have beside a prefix is of the whole call.
        let options = RawOptions {
            sequences: None,
            cache_entries: None,
            pages: table.map(|table| RawTensor {
                address: table.address,
                shape: [entries, table.shape[0]],
                strides: [0, 1],
            }),
            values_in_keys: v.is_first_part_of(&k),
            ..without_prefix
        };
        let call = Call {
            problem: Problem {
                seqlen_kv: keys,
                causal: false,
                ..problem
            },
            args: RawForward {
                k: repeated(k),
                v: repeated(v),
                options,
                ..*args
            },
        };
        call.problem.validate().map(|()| call)
    };
    if p.seqlen_kv == 0 {
        return Ok(Some(Divided {
            prefix: None,
            own: on_prefix(*p, p.batch)?,
        }));
    }
    let all_queries = Problem {
        batch: 1,
        seqlen_q: p.batch.saturating_mul(p.seqlen_q),
        ..*p
    };
    let mut own = own;
    own.args.options.sinks = None;
    Ok(Some(Divided {
        prefix: Some(on_prefix(all_queries, 1)?),
        own,
    }))
}

/// A tensor `[batch, heads, rows, dim]` as the rows of one entry, those of each entry behind the ones of the entry before; `None` where its
/// strides do not allow it.
pub fn as_one_entry(tensor: RawTensor) -> Option<RawTensor> {
    let [batch, heads, rows, dim] = tensor.shape;
    let [of_entry, of_head, of_row, stride] = tensor.strides;
    let of_row = match (batch, rows) {
        (1, _) => of_row,
        (_, 1) => of_entry,
        _ if of_row.checked_mul(rows as isize) == Some(of_entry) => of_row,
        _ => return None,
    };
    Some(RawTensor {
        address: tensor.address,
        shape: [1, heads, batch * rows, dim],
        strides: [0, of_head, of_row, stride],
    })
}

/// A contiguous tensor of [one entry](as_one_entry) in the form of the whole: `[batch, heads, rows, ...]`.
pub fn of_entries<const R: usize>(one: RawTensor<R>, batch: usize) -> RawTensor<R> {
    let mut whole = one;
    let rows = one.shape[2] / batch;
    (whole.shape[0], whole.shape[2]) = (batch, rows);
    whole.strides[0] = one.strides[2] * rows as isize;
    whole
}
