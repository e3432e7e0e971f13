//! Caches of e4m3, attended and appended to, against attention of what their numbers stand for.

use crate::append::{BATCH, KEYS, LENGTHS, OLD, Place, ROWS, placed};
use crate::compare::{compare_outputs_on, devices_of_e4m3, on_host, random};
use crate::errors::line;
use crate::fp8::{descaled, descales, e4m3, numbers, of};
use crate::pages::Pages;
use crate::plain::Plain;
use crate::varlen::{alone, offsets};
use candle_core::{DType, Device, Result, Tensor, Var};
use ferroattn_candle::{Append, Attention, flash_attn_varlen_paged_windowed};

/// A cache that is no more than k and v, with descales or without; beside options that go with it.
#[test]
fn caches() -> Result<()> {
    let inputs = [
        random(&[3, 2, 4, 32], 1),
        numbers(&[3, 70, 2, 32], 2)?,
        numbers(&[3, 70, 2, 32], 3)?,
        descales(3, 2, 4)?,
        descales(3, 2, 5)?,
        random(&[4], 6),
    ];
    for has_descales in [false, true] {
        let actual = |t: &[Tensor]| {
            let attention = Attention::new().scale(0.3).window(40, 0).softcap(2.0);
            let attention = attention.sinks(&t[5]);
            let [of_k, of_v] = [&t[3], &t[4]].map(|t| t.to_dtype(DType::F32));
            let attention = match has_descales {
                true => attention.cache_descales(&of_k?, &of_v?),
                false => attention,
            };
            attention.forward(&t[0], &e4m3(&t[1])?, &e4m3(&t[2])?)
        };
        compare_outputs_on(devices_of_e4m3(), &inputs, actual, |t| {
            let plain = Plain {
                scale: 0.3,
                left: Some(40),
                right: Some(0),
                softcap: Some(2.0),
                sinks: Some(t[5].clone()),
                ..Plain::default()
            };
            match has_descales {
                true => plain.forward(&t[0], &descaled(&t[1], &t[3])?, &descaled(&t[2], &t[4])?),
                false => plain.forward(&t[0], &t[1], &t[2]),
            }
        })?;
    }
    Ok(())
}

/// Descales are those of entries of the batch, which share entries of the cache.
#[test]
fn cache_entries() -> Result<()> {
    let inputs = [
        random(&[3, 2, 4, 32], 1),
        numbers(&[2, 70, 2, 32], 2)?,
        numbers(&[2, 70, 2, 32], 3)?,
        descales(3, 2, 4)?,
        descales(3, 2, 5)?,
    ];
    let order = |device: &Device| Tensor::new(&[1_u32, 0, 1], device);
    let actual = |t: &[Tensor]| {
        let [of_k, of_v] = [&t[3], &t[4]].map(|t| t.to_dtype(DType::F32));
        let attention = Attention::new().scale(0.3).cache_descales(&of_k?, &of_v?);
        let attention = attention.cache_entries(&order(t[0].device())?);
        attention.forward(&t[0], &e4m3(&t[1])?, &e4m3(&t[2])?)
    };
    compare_outputs_on(devices_of_e4m3(), &inputs, actual, |t| {
        let plain = Plain {
            scale: 0.3,
            ..Plain::default()
        };
        let [k, v] = [&t[1], &t[2]].map(|t| t.index_select(&order(&Device::Cpu)?, 0));
        plain.forward(&t[0], &descaled(&k?, &t[3])?, &descaled(&v?, &t[4])?)
    })
}

/// What descales of a paged cache are of.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Of {
    Nothing,
    Heads,
    Pages,
}

/// Packed queries on pages: those of sequences times descales of heads, or of the pages where their rows lie.
#[test]
fn pages() -> Result<()> {
    let lengths: [&[[usize; 2]]; 3] = [
        &[[1, 40], [1, 16], [1, 100]],
        &[[3, 40], [1, 1], [7, 100]],
        &[[20, 33], [0, 5], [2, 64]],
    ];
    for (index, lengths) in lengths.into_iter().enumerate() {
        let [queries, keys] = [0, 1].map(|part| {
            lengths
                .iter()
                .map(|lengths| lengths[part])
                .collect::<Vec<_>>()
        });
        let pages = Pages::new(16, &keys, index as u64 + 1)?;
        let rows = |lengths: &[usize]| lengths.iter().sum::<usize>();
        for of in [Of::Nothing, Of::Heads, Of::Pages] {
            let entries = if of == Of::Pages { pages.count } else { 3 };
            let inputs = [
                random(&[rows(&queries), 4, 32], 1),
                numbers(&[rows(&keys), 2, 32], 2)?,
                numbers(&[rows(&keys), 2, 32], 3)?,
                descales(entries, 2, 4)?,
                descales(entries, 2, 5)?,
            ];
            // The descale of each packed key.
            let places = keys.iter().enumerate();
            let places =
                places.flat_map(|(sequence, &keys)| (0..keys).map(move |key| (sequence, key)));
            let places = places.map(|(sequence, key)| match of {
                Of::Pages => pages.row(sequence, key) / pages.page,
                _ => sequence,
            });
            let places = Tensor::from_iter(places.map(|place| place as u32), &Device::Cpu)?;
            let actual = |t: &[Tensor]| on_pages(t, [&queries, &keys], &pages, of);
            compare_outputs_on(devices_of_e4m3(), &inputs, actual, |t| {
                let plain = Plain {
                    scale: 0.3,
                    causal: true,
                    left: Some(50),
                    ..Plain::default()
                };
                let wide = |rows: &Tensor, descales: &Tensor| match of {
                    Of::Nothing => Ok(rows.clone()),
                    _ => rows.broadcast_mul(&descales.index_select(&places, 0)?.unsqueeze(2)?),
                };
                let (k, v) = (wide(&t[1], &t[3])?, wide(&t[2], &t[4])?);
                alone(&plain, lengths, &[t[0].clone(), k, v])
            })?;
        }
    }
    Ok(())
}

/// Attention of packed queries to pages of e4m3.
fn on_pages(t: &[Tensor], lengths: [&Vec<usize>; 2], pages: &Pages, of: Of) -> Result<Tensor> {
    let device = t[0].device();
    let seqlens = lengths.map(|lengths| Tensor::new(offsets(lengths.iter().copied()), device));
    let [sq, sk] = seqlens;
    let (sq, sk) = (sq?, sk?);
    let [max_q, max_k] = lengths.map(|lengths| lengths.iter().copied().max().unwrap_or_default());
    let table = pages.tensor(false, device)?;
    let (k, v) = (
        pages.filled(&t[1], lengths[1])?,
        pages.filled(&t[2], lengths[1])?,
    );
    let (k, v) = (e4m3(&k)?, e4m3(&v)?);
    let attention = Attention::new().scale(0.3).causal(true).window(50, None);
    let [of_k, of_v] = [&t[3], &t[4]].map(|t| t.to_dtype(DType::F32));
    let attention = match of {
        Of::Nothing => {
            let (left, right) = (Some(50), Some(0));
            return flash_attn_varlen_paged_windowed(
                &t[0], &k, &v, &sq, &sk, &table, None, max_q, max_k, 0.3, left, right, pages.page,
                None,
            );
        }
        Of::Heads => attention.cache_descales(&of_k?, &of_v?),
        Of::Pages => attention.page_descales(&of_k?, &of_v?),
    };
    attention.forward_varlen_paged(&t[0], &k, &v, &sq, &sk, &table, max_q, max_k, pages.page)
}

/// Rows become numbers at their places; all others stay.
fn appended(place: Place, of_pages: bool) -> Result<()> {
    let pages = Pages::new(KEYS, &LENGTHS.map(|length| length + ROWS), 3)?;
    let (entries, places) = place.rows(&pages);
    let inputs = [
        numbers(&[BATCH * ROWS, 2, 32], 1)?,
        numbers(&[BATCH * ROWS, 2, 48], 2)?,
    ];
    // Powers of 2, of which no number loses a digit.
    let count = if of_pages { entries } else { BATCH };
    let powers = (0..2 * count).map(|index| 2_f32.powi((index * index % 7) as i32 - 3));
    let descales = Tensor::from_iter(powers, &Device::Cpu)?.reshape((count, 2))?;
    let halves = (&descales * 0.5)?;
    let of_row = places
        .iter()
        .enumerate()
        .map(|(row, place)| match of_pages {
            true => (place.unwrap_or_default() / KEYS) as u32,
            false => (row / ROWS) as u32,
        });
    let of_row = Tensor::from_iter(of_row, &Device::Cpu)?;
    let actual = |t: &[Tensor]| {
        let device = t[0].device();
        let rows = |numbers: &Tensor, descales: &Tensor| {
            let descales = descales.index_select(&of_row, 0)?.unsqueeze(2)?;
            let rows = on_host(numbers)?.broadcast_mul(&descales)?;
            let rows = rows.reshape((BATCH, ROWS, 2, numbers.dim(2)?))?;
            rows.to_dtype(numbers.dtype())?.to_device(device)
        };
        let (k, v) = (rows(&t[0], &descales)?, rows(&t[1], &halves)?);
        let old = |dim| e4m3(&Tensor::full(OLD, (entries, KEYS, 2, dim), device)?);
        let (k_cache, v_cache) = (old(32)?, old(48)?);
        let (of_k, of_v) = (descales.to_device(device)?, halves.to_device(device)?);
        let append = place.append(&pages, device)?;
        let append = match of_pages {
            true => append.page_descales(&of_k, &of_v),
            false => append.descales(&of_k, &of_v),
        };
        append.run(&k, &v, &k_cache, &v_cache)?;
        let [k_cache, v_cache] = [k_cache, v_cache].map(|cache| {
            let cache = cache.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
            cache.flatten_all()
        });
        Tensor::cat(&[k_cache?, v_cache?], 0)
    };
    compare_outputs_on(devices_of_e4m3(), &inputs, actual, |t| {
        let [k, v] = [&t[0], &t[1]].map(|t| placed(t, entries, &places));
        Tensor::cat(&[k?, v?], 0)
    })
}

#[test]
fn appends() -> Result<()> {
    for place in [Place::Entry, Place::CacheEntry, Place::Pages, Place::Slots] {
        appended(place, false)?;
    }
    for place in [Place::Pages, Place::Slots] {
        appended(place, true)?;
    }
    Ok(())
}

/// Keys are rotated before they are rounded, to the nearest number; queries beside them keep their type.
#[test]
fn appends_rotated() -> Result<()> {
    for (device, dtypes) in devices_of_e4m3() {
        let dtype = dtypes[0];
        let on_device = |t: Tensor| t.to_dtype(dtype)?.to_device(&device);
        let (k, q) = (
            on_device(random(&[2, 3, 2, 32], 1))?,
            on_device(random(&[2, 3, 4, 32], 2))?,
        );
        let [cos, sin] = [3, 4].map(|seed| random(&[8, 16], seed).to_device(&device));
        let append = Append::new().rotary(&cos?, &sin?);
        let cache = || Tensor::zeros((2, 5, 2, 32), dtype, &device);
        let (k_wide, v_wide) = (cache()?, cache()?);
        let (q_wide, _) = append.run_with(&k, &k, &k_wide, &v_wide, &q)?;
        let (k_cache, v_cache) = (e4m3(&k_wide.zeros_like()?)?, e4m3(&v_wide.zeros_like()?)?);
        let (rotated, lengths) = append.run_with(&k, &k, &k_cache, &v_cache, &q)?;
        assert_eq!(lengths.to_vec1::<u32>()?, [3, 3]);
        let flat = |t: &Tensor| on_host(t)?.flatten_all()?.to_vec1::<f32>();
        assert_eq!(flat(&rotated)?, flat(&q_wide)?);
        for (cache, wide) in [(k_cache, k_wide), (v_cache, v_wide)] {
            let cache = flat(&cache.to_device(&Device::Cpu)?.to_dtype(DType::F32)?)?;
            for (number, wide) in cache.into_iter().zip(flat(&wide)?) {
                // Half a step of three bits, or of the smallest numbers.
                let step = wide.abs().max(2_f32.powi(-6)) / 16.0;
                assert!((number - wide).abs() <= 1.01 * step, "{number} for {wide}");
            }
        }
    }
    Ok(())
}

#[test]
fn wrong_caches() -> Result<()> {
    let (q, x) = (
        of(DType::F16, &[1, 4, 2, 16]),
        of(DType::F8E4M3, &[1, 4, 2, 16]),
    );
    let ones = of(DType::F32, &[1, 2]);
    let plain = Attention::new();
    assert_eq!(
        line(plain.forward(&q, &x, &q)),
        "v is of F16; it must be of F8E4M3"
    );
    assert_eq!(
        line(plain.forward(&q, &q, &x)),
        "v is of F8E4M3; it must be of q's type, F16"
    );
    let short = x.narrow(3, 0, 8)?;
    assert_eq!(
        line(plain.forward(&q.narrow(3, 0, 8)?, &short, &short)),
        "rows of k are e4m3; they must be multiples of 16 numbers, and start at multiples of 16 bytes"
    );
    let of_pages = plain.clone().page_descales(&ones, &ones);
    assert_eq!(
        line(of_pages.forward(&q, &x, &x)),
        "descales of pages needs pages"
    );
    let paged = of_pages.pages(&of(DType::U32, &[1, 1]));
    assert_eq!(
        line(paged.forward(&q, &x, &x)),
        "pages of 4 keys have descales of their own; those must have 16 keys or more"
    );
    let learned = Var::from_tensor(&ones)?;
    assert_eq!(
        line(
            plain
                .clone()
                .cache_descales(&ones, &learned)
                .forward(&q, &x, &x)
        ),
        "v_descale has no gradient; pass v_descale.detach()"
    );
    let o = plain.forward(Var::from_tensor(&q)?.as_tensor(), &x, &x)?;
    assert_eq!(
        line(o.sum_all()?.backward().map(|_| o)),
        "there are no gradients of a call with e4m3_cache"
    );
    let append = Append::new();
    assert_eq!(
        line(append.run(&q, &q, &x, &q.copy()?)),
        "v_cache is of F16; it must be of F8E4M3"
    );
    assert_eq!(
        line(
            append
                .clone()
                .descales(&ones, &ones)
                .run(&q, &q, &q.copy()?, &q.copy()?)
        ),
        "descales need caches of F8E4M3"
    );
    let append = append.descales(&of(DType::F32, &[2, 2]), &of(DType::F32, &[1, 2]));
    assert_eq!(
        line(append.run(&q, &q, &x, &x.copy()?)),
        "k_descales has shape [2, 2]; it must be [1, 2] to match the other tensors"
    );
    let append = append.descales(&of(DType::F32, &[1, 1]), &ones);
    assert_eq!(
        line(append.run(&q, &q, &x, &x.copy()?)),
        "k_descale has shape [1, 1]; it must be [batch or pages, 2]"
    );
    Ok(())
}
