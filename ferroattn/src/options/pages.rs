//! Pages of keys and values, which a table names.

use super::Sequences;
use crate::error::{Error, Result, expect_at_most};
use kernels::abi::MAX_SEQLEN;

/// How many keys so many pages of `keys` keys hold.
///
/// # Errors
/// If `keys` is no power of 2, or there are too many.
pub(crate) fn read_pages(keys: usize, pages: usize) -> Result<usize> {
    if !keys.is_power_of_two() {
        return Err(Error::Page(keys));
    }
    let all = keys.saturating_mul(pages);
    expect_at_most("the number of keys of an entry's pages", all, MAX_SEQLEN)?;
    Ok(all)
}

/// Checks that a prefix of so many keys ends inside the last one of its pages, of `page` keys.
///
/// # Errors
/// If it ends before or behind that, `page` is no power of 2, or there are too many pages.
pub(crate) fn expect_last_page(keys: usize, page: usize, pages: usize) -> Result<()> {
    let most = read_pages(page, pages)?;
    match keys <= most && keys.div_ceil(page) == pages {
        true => Ok(()),
        false => Err(Error::PrefixKeys { keys, page, pages }),
    }
}

/// How many keys of an entry of keys, which has `all`, are of a sequence, or before such a key: the pages behind them are not read.
pub(super) fn read_keys<T: AsRef<[i32]>>(
    all: usize,
    sequences: Option<&Sequences<T>>,
    entry: usize,
) -> usize {
    let keys = match sequences {
        None => return all,
        Some(Sequences::Padded { kv, .. } | Sequences::PackedQueries { kv, .. }) => {
            kv.as_ref()[entry]
        }
        Some(Sequences::Packed { kv, .. }) => kv.as_ref().last().copied().unwrap_or(0),
    };
    (keys.max(0) as usize).min(all)
}

/// Checks the numbers of the pages of an entry of `all` keys, of so many pages, that hold its first `keys` keys.
pub(super) fn expect_pages(
    all: usize,
    entry: usize,
    numbers: &[i32],
    keys: usize,
    pages: usize,
) -> Result<()> {
    // At most the keys of a page: a shared prefix may end inside its last one, and reads all numbers.
    let page = all / numbers.len().max(1);
    let read = numbers.iter().take(keys.div_ceil(page.max(1)));
    match read
        .enumerate()
        .find(|(_, number)| **number < 0 || **number as usize >= pages)
    {
        None => Ok(()),
        Some((index, &value)) => Err(Error::PageNumber {
            entry,
            index,
            value,
            max: pages.saturating_sub(1),
            keys,
        }),
    }
}
