//! New keys and values in a cache, against copies to their places.

use crate::compare::{compare_outputs, devices, on_host, random};
use crate::pages::Pages;
use crate::plain::Plain;
use crate::varlen::alone;
use candle_core::{DType, Device, Result, Tensor};
use ferroattn_candle::{Append, Attention, flash_attn};

/// Positions of a rotary embedding.
const POSITIONS: usize = 40;
/// What a cache has before.
pub const OLD: f32 = 2.0;

/// Rows `[rows, heads, dim]` in f32 at their positions, rotated by cosines and sines of so many positions.
fn rotated(
    rows: &Tensor,
    positions: &[usize],
    [cos, sin]: [&Tensor; 2],
    interleaved: bool,
) -> Result<Tensor> {
    let ([cos, sin], pairs) = ([cos.to_vec2::<f32>()?, sin.to_vec2()?], cos.dim(1)?);
    let mut rotated = rows.to_vec3::<f32>()?;
    for (row, &position) in rotated.iter_mut().zip(positions) {
        for head in row {
            for pair in 0..pairs {
                let [x, y] = match interleaved {
                    true => [2 * pair, 2 * pair + 1],
                    false => [pair, pair + pairs],
                };
                let (cos, sin) = (cos[position][pair], sin[position][pair]);
                (head[x], head[y]) = (head[x] * cos - head[y] * sin, head[x] * sin + head[y] * cos);
            }
        }
    }
    Tensor::new(rotated, &Device::Cpu)
}

/// Where rows go.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    Entry,
    CacheEntry,
    Pages,
    Slots,
}

pub const BATCH: usize = 3;
pub const ROWS: usize = 3;
pub const LENGTHS: [usize; BATCH] = [0, 2, 5];
const ENTRIES: [u32; BATCH] = [4, 0, 2];
const SLOTS: [[i64; ROWS]; BATCH] = [[3, -1, 17], [0, 30, 5], [-9, -2, 12]];
/// Keys of a page, or of an entry.
pub const KEYS: usize = 8;

impl Place {
    /// Entries or pages of the cache, and the row of all of them for each new row, in order.
    pub fn rows(self, pages: &Pages) -> (usize, Vec<Option<usize>>) {
        let entries = match self {
            Place::Entry => BATCH,
            Place::CacheEntry | Place::Slots => 5,
            Place::Pages => pages.count,
        };
        let place = |b: usize, i: usize| match self {
            Place::Entry => Some(b * KEYS + LENGTHS[b] + i),
            Place::CacheEntry => Some(ENTRIES[b] as usize * KEYS + LENGTHS[b] + i),
            Place::Pages => Some(pages.row(b, LENGTHS[b] + i)),
            Place::Slots => usize::try_from(SLOTS[b][i]).ok(),
        };
        let rows = (0..BATCH).flat_map(|b| (0..ROWS).map(move |i| (b, i)));
        (entries, rows.map(|(b, i)| place(b, i)).collect())
    }

    pub fn append(self, pages: &Pages, device: &Device) -> Result<Append> {
        let lengths = Tensor::new(&LENGTHS.map(|length| length as u32), device)?;
        let append = Append::new().lengths(&lengths);
        Ok(match self {
            Place::Entry => append,
            Place::CacheEntry => append.cache_entries(&Tensor::new(&ENTRIES, device)?),
            Place::Pages => append.pages(&pages.tensor(true, device)?),
            Place::Slots => append.slots(&Tensor::new(&SLOTS, device)?),
        })
    }
}

/// Rows at their places in a cache of old ones, flat.
pub fn placed(rows: &Tensor, entries: usize, places: &[Option<usize>]) -> Result<Tensor> {
    let rows = rows.flatten_from(1)?.to_vec2::<f32>()?;
    let mut cache = vec![vec![OLD; rows[0].len()]; entries * KEYS];
    for (row, place) in rows.into_iter().zip(places) {
        if let Some(place) = place {
            cache[*place] = row;
        }
    }
    Tensor::new(cache, &Device::Cpu)?.flatten_all()
}

/// A rotary embedding: dims of it, whether neighbours are a pair, whether cosines are f32 beside other rows.
type Rotary = Option<(usize, bool, bool)>;

fn at(place: Place, rotary: Rotary, is_packed: bool) -> Result<()> {
    let pages = Pages::new(KEYS, &LENGTHS.map(|length| length + ROWS), 3)?;
    let (entries, places) = place.rows(&pages);
    let pairs = rotary.map_or(1, |(dim, ..)| dim / 2);
    let inputs = [
        random(&[BATCH * ROWS, 2, 24], 1),
        random(&[BATCH * ROWS, 2, 40], 2),
        random(&[BATCH * ROWS, 4, 24], 3),
        random(&[POSITIONS, pairs], 4),
        random(&[POSITIONS, pairs], 5),
    ];
    let positions: Vec<_> = (LENGTHS.iter())
        .flat_map(|length| *length..length + ROWS)
        .collect();
    let (_, interleaved, is_wide) = rotary.unwrap_or_default();
    let actual = |t: &[Tensor]| {
        let (device, dtype) = (t[0].device(), t[0].dtype());
        let mut append = place.append(&pages, device)?.interleaved(interleaved);
        if rotary.is_some() {
            let of = if is_wide { DType::F32 } else { dtype };
            append = append.rotary(&t[3].to_dtype(of)?, &t[4].to_dtype(of)?);
        }
        let batched = |t: &Tensor| t.reshape((BATCH, ROWS, t.dim(1)?, t.dim(2)?));
        let [mut k, mut v, mut q] = [batched(&t[0])?, batched(&t[1])?, batched(&t[2])?];
        if is_packed {
            // A batch of one entry: only slots and positions say where its rows go.
            let numbers = positions.iter().map(|&position| position as u32);
            let positions = Tensor::from_iter(numbers, device)?;
            let zero = Tensor::zeros(1, DType::U32, device)?;
            let slots = Tensor::new(SLOTS.concat(), device)?;
            append = append.lengths(&zero).slots(&slots).positions(&positions);
            [k, v, q] = [t[0].clone(), t[1].clone(), t[2].clone()];
        }
        let old = |dim| Tensor::full(OLD, (entries, KEYS, 2, dim), device)?.to_dtype(dtype);
        let (k_cache, v_cache) = (old(24)?, old(40)?);
        let (q, lengths) = append.run_with(&k, &v, &k_cache, &v_cache, &q)?;
        let expected = LENGTHS.map(|length| (length + ROWS) as u32);
        match is_packed {
            true => assert_eq!(lengths.to_vec1::<u32>()?, [9]),
            false => assert_eq!(lengths.to_vec1::<u32>()?, expected),
        }
        let flat = [k_cache, v_cache, q].map(|t| t.flatten_all());
        let [k_cache, v_cache, q] = flat;
        Tensor::cat(&[k_cache?, v_cache?, q?], 0)
    };
    compare_outputs(&inputs, actual, |t| {
        let (mut k, mut q) = (t[0].clone(), t[2].clone());
        if rotary.is_some() {
            k = rotated(&k, &positions, [&t[3], &t[4]], interleaved)?;
            q = rotated(&q, &positions, [&t[3], &t[4]], interleaved)?;
        }
        let k_cache = placed(&k, entries, &places)?;
        let v_cache = placed(&t[1], entries, &places)?;
        Tensor::cat(&[k_cache, v_cache, q.flatten_all()?], 0)
    })
}

#[test]
fn every_place() -> Result<()> {
    for place in [Place::Entry, Place::CacheEntry, Place::Pages, Place::Slots] {
        at(place, None, false)?;
    }
    Ok(())
}

#[test]
fn rotary_embeddings() -> Result<()> {
    for is_wide in [false, true] {
        at(Place::Entry, Some((24, false, is_wide)), false)?;
        at(Place::Pages, Some((24, true, is_wide)), false)?;
        at(Place::Slots, Some((10, false, is_wide)), false)?;
        at(Place::CacheEntry, Some((2, true, is_wide)), false)?;
    }
    Ok(())
}

#[test]
fn rows_of_no_batch() -> Result<()> {
    at(Place::Slots, None, true)?;
    at(Place::Slots, Some((24, false, false)), true)
}

/// Without lengths, rows are the first; all queries may have the first one's position.
#[test]
fn queries_at_first() -> Result<()> {
    let inputs = [
        random(&[2, 3, 4, 8], 1),
        random(&[POSITIONS, 4], 2),
        random(&[POSITIONS, 4], 3),
    ];
    let actual = |t: &[Tensor]| {
        let cache = || Tensor::zeros((2, 1, 4, 8), t[0].dtype(), t[0].device());
        let token = t[0].narrow(1, 0, 1)?;
        let append = Append::new().rotary(&t[1], &t[2]).q_at_first(true);
        let (q, lengths) = append.run_with(&token, &token, &cache()?, &cache()?, &t[0])?;
        assert_eq!(lengths.to_vec1::<u32>()?, [1, 1]);
        Ok(q)
    };
    compare_outputs(&inputs, actual, |t| {
        let q = t[0].flatten_to(1)?;
        rotated(&q, &[0; 6], [&t[1], &t[2]], false)?.reshape((2, 3, 4, 8))
    })
}

/// Appends and attends in steps, as an engine does.
fn in_steps(
    t: &[Tensor],
    before: &[usize; 3],
    steps: &[usize],
    pages: Option<&Pages>,
) -> Result<Tensor> {
    let (device, dtype) = (t[0].device(), t[0].dtype());
    let total: usize = steps.iter().sum();
    let cache = || match pages {
        Some(pages) => pages.empty([2, 16], dtype, device),
        None => Tensor::full(f32::NAN, (3, 32, 2, 16), device)?.to_dtype(dtype),
    };
    let (k_cache, v_cache) = (cache()?, cache()?);
    let table = pages.map(|pages| pages.tensor(false, device)).transpose()?;
    let append = Append::new().rotary(&t[3], &t[4]);
    // What each sequence has before, and its new rows.
    let (mut new, mut at) = ([Vec::new(), Vec::new()], 0);
    for (sequence, &keys) in before.iter().enumerate() {
        if keys > 0 {
            let [k, v] = [&t[1], &t[2]].map(|t| t.narrow(0, at, keys));
            let append = match &table {
                Some(table) => append.clone().pages(&table.narrow(0, sequence, 1)?),
                None => {
                    let entry = Tensor::new(&[sequence as u32], device)?;
                    append.clone().cache_entries(&entry)
                }
            };
            append.run(&k?, &v?, &k_cache, &v_cache)?;
        }
        for (new, rows) in new.iter_mut().zip([&t[1], &t[2]]) {
            new.push(rows.narrow(0, at + keys, total)?);
        }
        at += keys + total;
    }
    let [k, v] = [Tensor::stack(&new[0], 0)?, Tensor::stack(&new[1], 0)?];
    let q = t[0].reshape((3, total, 4, 16))?;
    let (mut append, mut attention) = (append, Attention::new().scale(0.3).causal(true));
    if let Some(table) = &table {
        append = append.pages(table);
        attention = attention.pages(table);
    }
    let mut lengths = Tensor::new(&before.map(|keys| keys as u32), device)?;
    let (mut outputs, mut at) = (Vec::new(), 0);
    for &rows in steps {
        let [q, k, v] = [&q, &k, &v].map(|t| t.narrow(1, at, rows));
        at += rows;
        let append = append.clone().lengths(&lengths);
        let (q, all) = append.run_with(&k?, &v?, &k_cache, &v_cache, &q?)?;
        let queries = Tensor::full(rows as u32, 3, device)?;
        let attention = attention.clone().padded(&queries, &all);
        outputs.push(attention.forward(&q, &k_cache, &v_cache)?);
        lengths = all;
    }
    Tensor::cat(&outputs, 1)?.flatten_to(1)
}

#[test]
fn steps_are_one_prefill() -> Result<()> {
    let (before, steps) = ([0, 1, 9], [5, 1, 1, 4, 1, 1, 2]);
    let total: usize = steps.iter().sum();
    let lengths = before.map(|keys| [total, keys + total]);
    let keys: Vec<_> = lengths.iter().map(|lengths| lengths[1]).collect();
    let rows = keys.iter().sum();
    let inputs = [
        random(&[3 * total, 4, 16], 1),
        random(&[rows, 2, 16], 2),
        random(&[rows, 2, 16], 3),
        random(&[POSITIONS, 8], 4),
        random(&[POSITIONS, 8], 5),
    ];
    let plain = Plain {
        scale: 0.3,
        causal: true,
        ..Plain::default()
    };
    for page in [None, Some(1), Some(4), Some(16)] {
        let pages = page.map(|page| Pages::new(page, &keys, 11)).transpose()?;
        let actual = |t: &[Tensor]| in_steps(t, &before, &steps, pages.as_ref());
        compare_outputs(&inputs, actual, |t| {
            let of_q: Vec<_> = (lengths.iter()).flat_map(|[q, k]| k - q..*k).collect();
            let of_k: Vec<_> = (lengths.iter()).flat_map(|[_, k]| 0..*k).collect();
            let rotary = [&t[3], &t[4]];
            let q = rotated(&t[0], &of_q, rotary, false)?;
            let k = rotated(&t[1], &of_k, rotary, false)?;
            alone(&plain, &lengths, &[q, k, t[2].clone()])
        })?;
    }
    Ok(())
}

/// Keys and values of a cache in one tensor, side by side along any axis, and rows of any strides.
#[test]
fn caches_in_one_tensor() -> Result<()> {
    for (device, dtypes) in devices() {
        let dtype = dtypes[0];
        let on_device = |t: Tensor| t.to_dtype(dtype)?.to_device(&device);
        let (k, v) = (
            on_device(random(&[2, 3, 2, 8], 1))?,
            on_device(random(&[2, 3, 2, 8], 2))?,
        );
        // Rows whose last axis has another stride.
        let k = k.transpose(1, 3)?.contiguous()?.transpose(1, 3)?;
        let old = |shape: &[usize]| Tensor::full(OLD, shape, &device)?.to_dtype(dtype);
        let separate = [old(&[2, 5, 2, 8])?, old(&[2, 5, 2, 8])?];
        Append::new().run(&k, &v, &separate[0], &separate[1])?;
        for axis in 0..5 {
            // An axis of two before each axis, or rows of twice the length.
            let mut shape = vec![2, 5, 2, 8];
            match axis {
                4 => shape[3] = 16,
                _ => shape.insert(axis, 2),
            }
            let both = old(&shape)?;
            let [k_cache, v_cache] = [0, 1].map(|part| match axis {
                4 => both.narrow(3, 8 * part, 8),
                _ => both.narrow(axis, part, 1)?.squeeze(axis),
            });
            let caches = [k_cache?, v_cache?];
            Append::new().run(&k, &v, &caches[0], &caches[1])?;
            for (cache, separate) in caches.iter().zip(&separate) {
                let numbers = |t: &Tensor| on_host(t)?.flatten_all()?.to_vec1::<f32>();
                assert_eq!(numbers(cache)?, numbers(separate)?, "axis {axis}");
            }
        }
    }
    Ok(())
}

/// A call of no new rows gives the lengths that are there.
#[test]
fn no_rows() -> Result<()> {
    for (device, dtypes) in devices() {
        let cache = Tensor::zeros((2, 4, 2, 8), dtypes[0], &device)?;
        let v_cache = cache.copy()?;
        let none = Tensor::zeros((2, 1, 2, 8), dtypes[0], &device)?.narrow(1, 0, 0)?;
        let lengths = Tensor::new(&[3_i32, 0], &device)?;
        let append = Append::new().lengths(&lengths);
        let lengths = append.run(&none, &none, &cache, &v_cache)?;
        assert_eq!(lengths.to_vec1::<i32>()?, [3, 0]);
    }
    Ok(())
}

/// Threads that append and threads that attend take the locks of caches in one order.
#[test]
fn threads() -> Result<()> {
    for (device, dtypes) in devices() {
        let zeros = || Tensor::zeros((1, 8, 2, 8), dtypes[0], &device);
        let (k_cache, v_cache, q) = (zeros()?, zeros()?, zeros()?);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        Append::new().run(&q, &q, &k_cache, &v_cache).expect("room");
                    }
                });
                scope.spawn(|| {
                    for _ in 0..200 {
                        flash_attn(&q, &k_cache, &v_cache, 1.0, true).expect("an output");
                    }
                });
            }
        });
    }
    Ok(())
}
