//! Keys and values on the device: in one piece or in pages, all there or the last ones appended by each call, the first ones in each entry
//! or shared.

use crate::memory::poisoned;
use crate::modifiers::Modifiers;
use crate::prefix::divided;
use anyhow::{Result, ensure};
use ferroattn::{Append, Attention, Device, Element, Problem, Tensor};

/// K and V of a problem.
pub struct Cache<T> {
    pub k: Tensor<T>,
    pub v: Tensor<T>,
    /// The pages of each entry of the batch.
    table: Option<Tensor<i32, 2>>,
    prefix: Option<Shared<T>>,
    appended: Option<Appended<T>>,
}

/// Keys and values before those of each entry.
enum Shared<T> {
    Tensors(Box<[Tensor<T>; 2]>),
    /// Pages of the cache, and the keys that they hold.
    Pages(Tensor<i32, 1>, usize),
}

/// The last keys and values of each entry of the batch.
struct Appended<T> {
    k: Tensor<T>,
    v: Tensor<T>,
    /// Keys before them.
    lengths: Tensor<i32, 1>,
}

impl Modifiers {
    /// Checks that pages and appended keys fit the problem.
    ///
    /// # Errors
    /// Says what does not, and what is allowed.
    pub fn expect_cache(&self, problem: &Problem) -> Result<()> {
        if let Some(page) = self.page {
            let keys = self.own(problem).seqlen_kv;
            let without = self.prefix.map_or("", |_| " without the prefix");
            ensure!(
                page.is_power_of_two(),
                "--page is {page}; it must be a power of 2"
            );
            ensure!(
                keys.is_multiple_of(page),
                "seqlen_kv{without} is {keys}; with --page it must be a multiple of {page}"
            );
        }
        let Some(rows) = self.append else {
            return Ok(());
        };
        for keys in self.keys(problem) {
            ensure!(
                rows <= keys,
                "--append is {rows}; it must be at most the keys of an entry of the batch, which are {keys}"
            );
        }
        ensure!(
            self.packed.is_none(),
            "--append takes no --packed; --lengths says how many keys entries have"
        );
        Ok(())
    }

    /// Keys of each entry of the batch, without the prefix.
    fn keys(&self, problem: &Problem) -> Vec<usize> {
        let all = || vec![problem.seqlen_kv; problem.batch];
        let prefix = self.prefix.unwrap_or(0);
        let lengths = self.lengths.clone().unwrap_or_else(all);
        lengths.iter().map(|keys| keys - prefix).collect()
    }

    /// Shapes of K and V of a problem of own keys, as calls take them, and of the table of pages. Pages of a prefix are the last ones.
    pub fn cache_shapes(&self, problem: &Problem) -> ([[usize; 4]; 2], Option<[usize; 2]>) {
        let shapes = [problem.k_shape(), problem.v_shape()];
        let Some(page) = self.page else {
            return (shapes, None);
        };
        let [batch, most] = [problem.batch, problem.seqlen_kv / page];
        let pages = batch * most + self.shared_pages().unwrap_or(0);
        let in_pages = shapes.map(|[_, kv_heads, _, dim]| [pages, kv_heads, page, dim]);
        (in_pages, Some([batch, most]))
    }

    /// How many pages hold the prefix, if it lies in some.
    pub fn shared_pages(&self) -> Option<usize> {
        Some(self.prefix?.div_ceil(self.page?))
    }
}

impl<T: Element> Cache<T> {
    /// Row-major K and V on the device, in pages if the call has some, the last page first. Keys that calls append are NaN before.
    pub fn new(
        device: &Device,
        modifiers: &Modifiers,
        problem: &Problem,
        [k, v]: [&[T]; 2],
    ) -> ferroattn::Result<Self> {
        let mut k = Tensor::new(device, problem.k_shape(), k)?;
        let mut v = Tensor::new(device, problem.v_shape(), v)?;
        let mut shared = None;
        if let Some(keys) = modifiers.prefix {
            let ([shared_k, own_k], [shared_v, own_v]) = (divided(&k, keys)?, divided(&v, keys)?);
            (k, v) = (own_k, own_v);
            shared = Some(Box::new([shared_k, shared_v]));
        }
        let appended = match modifiers.append {
            None => None,
            Some(rows) => {
                let keys = modifiers.keys(problem);
                let before: Vec<_> = keys.iter().map(|keys| keys - rows).collect();
                let lengths: Vec<i32> = before.iter().map(|&keys| keys as i32).collect();
                Some(Appended {
                    k: taken(&mut k, &before, rows)?,
                    v: taken(&mut v, &before, rows)?,
                    lengths: Tensor::new(device, [lengths.len()], &lengths)?,
                })
            }
        };
        let ([k_shape, v_shape], table) = modifiers.cache_shapes(&modifiers.own(problem));
        let Some(of_table @ [batch, most]) = table else {
            return Ok(Cache {
                k,
                v,
                table: None,
                prefix: shared.map(Shared::Tensors),
                appended,
            });
        };
        let [shared_k, shared_v] = match shared.as_deref() {
            Some([k, v]) => [Some(k), Some(v)],
            None => [None, None],
        };
        (k, v) = (
            in_pages(&k, shared_k, k_shape)?,
            in_pages(&v, shared_v, v_shape)?,
        );
        let own = (batch * most) as i32;
        let pages: Vec<i32> = (0..own).rev().collect();
        let behind: Vec<i32> = (own..k_shape[0] as i32).collect();
        let prefix = modifiers.prefix.map(|keys| {
            let behind = Tensor::new(device, [behind.len()], &behind)?;
            Ok::<_, ferroattn::Error>(Shared::Pages(behind, keys))
        });
        Ok(Cache {
            k,
            v,
            table: Some(Tensor::new(device, of_table, &pages)?),
            prefix: prefix.transpose()?,
            appended,
        })
    }

    /// The call with the pages and the prefix.
    pub fn given_to<'a>(&'a self, call: &Attention<'a>) -> Attention<'a> {
        let call = match &self.table {
            Some(table) => call.pages(table),
            None => call.clone(),
        };
        match &self.prefix {
            Some(Shared::Tensors(tensors)) => call.prefix(&tensors[0], &tensors[1]),
            Some(Shared::Pages(table, keys)) => call.prefix_pages(table, *keys),
            None => call,
        }
    }

    /// Appends the keys and values that calls append.
    pub fn append(&mut self) -> ferroattn::Result<()> {
        let Some(Appended { k, v, lengths }) = &self.appended else {
            return Ok(());
        };
        let append = Append::new().lengths(lengths);
        let append = match &self.table {
            Some(table) => append.pages(table),
            None => append,
        };
        append.run(k, v, &mut self.k, &mut self.v)
    }
}

/// So many rows of each entry of the batch, from these on; NaN takes their place.
fn taken<T: Element>(
    all: &mut Tensor<T>,
    first: &[usize],
    rows: usize,
) -> ferroattn::Result<Tensor<T>> {
    let [batch, heads, _, dim] = all.shape();
    let mut taken = Tensor::zeros(&all.device(), [batch, heads, rows, dim])?;
    let nan = poisoned(&all.device(), [1, heads, rows, dim], T::from_f32(f32::NAN))?;
    for (entry, &first) in first.iter().enumerate() {
        let mut from = all.view_mut().narrow(0, entry, 1)?.narrow(2, first, rows)?;
        taken.view_mut().narrow(0, entry, 1)?.copy_from(&from)?;
        from.copy_from(&nan)?;
    }
    Ok(taken)
}

/// `[batch, heads, keys, dim]` as pages of this shape, the last one first, and a prefix in pages behind them. Nothing reads the rest of its
/// last page.
fn in_pages<T: Element>(
    all: &Tensor<T>,
    prefix: Option<&Tensor<T>>,
    shape: [usize; 4],
) -> ferroattn::Result<Tensor<T>> {
    let page = shape[2];
    let [batch, _, keys, _] = all.shape();
    let most = keys / page;
    let mut in_pages = poisoned(&all.device(), shape, T::from_f32(f32::NAN))?;
    let mut copy = |from: &Tensor<T>, entry: usize, place: usize, number: usize| {
        let rows = page.min(from.shape()[2] - place * page);
        let from = from.view().narrow(0, entry, 1)?;
        let mut page_at = in_pages.view_mut().narrow(0, number, 1)?;
        page_at = page_at.narrow(2, 0, rows)?;
        page_at.copy_from(&from.narrow(2, place * page, rows)?)
    };
    let own = batch * most;
    for (entry, place) in (0..batch).flat_map(|entry| (0..most).map(move |place| (entry, place))) {
        copy(all, entry, place, own - 1 - (entry * most + place))?;
    }
    if let Some(prefix) = prefix {
        for place in 0..shape[0] - own {
            copy(prefix, 0, place, own + place)?;
        }
    }
    Ok(in_pages)
}
