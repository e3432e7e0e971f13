//! Keys that all entries share, and tables of pages in the CSR form.

use crate::compare::{compare_outputs, devices, random};
use crate::errors::line;
use crate::pages::Pages;
use crate::plain::Plain;
use crate::varlen::offsets;
use candle_core::{DType, Device, Result, Tensor, Var};
use ferroattn_candle::{Attention, csr_pages};
use std::fmt::Debug;

/// Keys of each entry's own, of which tensors have 40.
const OWN: [usize; 3] = [7, 2, 40];

/// Queries, own keys and values, and those of a prefix of so many keys.
fn inputs(rows: usize, prefix: usize) -> [Tensor; 5] {
    [
        random(&[3, rows, 4, 16], 1),
        random(&[3, 40, 2, 16], 2),
        random(&[3, 40, 2, 24], 3),
        random(&[1, prefix, 2, 16], 4),
        random(&[1, prefix, 2, 24], 5),
    ]
}

/// Attention of each entry to the keys of the prefix and its own behind them.
fn expected(t: &[Tensor]) -> Result<Tensor> {
    let plain = Plain {
        scale: 0.25,
        right: Some(0),
        ..Plain::default()
    };
    let joined = |prefix: &Tensor, own: &Tensor, entry: usize| {
        let own = own.narrow(0, entry, 1)?.narrow(1, 0, OWN[entry])?;
        Tensor::cat(&[prefix, &own], 1)
    };
    let entries = (0..OWN.len()).map(|entry| {
        let (k, v) = (joined(&t[3], &t[1], entry)?, joined(&t[4], &t[2], entry)?);
        plain.forward(&t[0].narrow(0, entry, 1)?, &k, &v)
    });
    Tensor::cat(&entries.collect::<Result<Vec<_>>>()?, 0)
}

/// Own rows of all entries, one after another, and those of a prefix behind them.
fn packed(own: &Tensor, prefix: Option<&Tensor>) -> Result<Tensor> {
    let entries = OWN.iter().enumerate();
    let own = entries.map(|(entry, &keys)| own.get(entry)?.narrow(0, 0, keys));
    let rows = own.chain(prefix.map(|prefix| prefix.get(0)));
    Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
}

fn lengths(device: &Device, rows: usize) -> Result<[Tensor; 2]> {
    let own = OWN.map(|keys| keys as u32);
    Ok([
        Tensor::new(&[rows as u32; 3], device)?,
        Tensor::new(&own, device)?,
    ])
}

#[test]
fn prefix() -> Result<()> {
    for (rows, prefix) in [(1, 1), (3, 70), (1, 150)] {
        compare_outputs(
            &inputs(rows, prefix),
            |t| {
                let [queries, own] = lengths(t[0].device(), rows)?;
                let attention = Attention::new().causal(true).padded(&queries, &own);
                attention.prefix(&t[3], &t[4]).forward(&t[0], &t[1], &t[2])
            },
            expected,
        )?;
    }
    Ok(())
}

#[test]
fn prefix_of_packed_sequences() -> Result<()> {
    compare_outputs(
        &inputs(2, 30),
        |t| {
            let device = t[0].device();
            let of_q = Tensor::new(offsets([2; 3].into_iter()), device)?;
            let of_k = Tensor::new(offsets(OWN.into_iter()), device)?;
            let attention = Attention::new().causal(true).packed(&of_q, &of_k);
            let attention = attention.prefix(&t[3].squeeze(0)?, &t[4].squeeze(0)?);
            let o = attention.forward(
                &t[0].flatten(0, 1)?,
                &packed(&t[1], None)?,
                &packed(&t[2], None)?,
            )?;
            o.reshape((3, 2, 4, 24))
        },
        expected,
    )
}

/// A last page of any number of keys, with NaN behind them.
#[test]
fn prefix_pages() -> Result<()> {
    for (prefix, page, is_signed) in [
        (1, 16, true),
        (32, 16, false),
        (70, 16, true),
        (9, 1, false),
    ] {
        let keys = [OWN[0], OWN[1], OWN[2], prefix];
        let pages = Pages::new(page, &keys, 9)?;
        compare_outputs(
            &inputs(1, prefix),
            |t| {
                let device = t[0].device();
                let [queries, own] = lengths(device, 1)?;
                let k = pages.filled(&packed(&t[1], Some(&t[3]))?, &keys)?;
                let v = pages.filled(&packed(&t[2], Some(&t[4]))?, &keys)?;
                let table = pages.tensor(is_signed, device)?;
                let shared = table.narrow(0, 3, 1)?.squeeze(0)?;
                let shared = shared.narrow(0, 0, prefix.div_ceil(page))?;
                let attention = Attention::new().causal(true).padded(&queries, &own);
                attention
                    .pages(&table.narrow(0, 0, 3)?)
                    .prefix_pages(&shared, prefix)
                    .forward(&t[0], &k, &v)
            },
            expected,
        )?;
    }
    Ok(())
}

#[test]
fn csr() -> Result<()> {
    for (device, _) in devices() {
        for (page, is_signed) in [(1, false), (8, true), (32, false)] {
            let keys = [70, 1, 0, 33, 2 * page];
            let pages = Pages::new(page, &keys, 3)?;
            let counts = keys.map(|keys| keys.div_ceil(page));
            let most = counts.into_iter().max().expect("an entry") + 2;
            let mut indices = Vec::new();
            for (row, count) in pages.table.iter().zip(counts) {
                indices.extend_from_slice(&row[..count]);
            }
            let last = keys.map(|keys| {
                if keys == 0 {
                    77
                } else {
                    (keys as u32 - 1) % page as u32 + 1
                }
            });
            let array = |numbers: &[u32]| match is_signed {
                false => Tensor::new(numbers, &device),
                true => {
                    let signed: Vec<i32> = numbers.iter().map(|&n| n as i32).collect();
                    Tensor::new(signed, &device)
                }
            };
            let indptr = array(&offsets(counts.into_iter()))?;
            let (table, found) = csr_pages(&indptr, &array(&indices)?, &array(&last)?, page, most)?;
            assert_eq!(table.dtype(), indptr.dtype());
            let numbers = |tensor: Tensor| -> Result<Vec<i64>> {
                let tensor = tensor.flatten_all()?;
                Ok(match is_signed {
                    false => tensor
                        .to_vec1::<u32>()?
                        .into_iter()
                        .map(i64::from)
                        .collect(),
                    true => tensor
                        .to_vec1::<i32>()?
                        .into_iter()
                        .map(i64::from)
                        .collect(),
                })
            };
            assert_eq!(numbers(found)?, keys.map(|keys| keys as i64));
            let rows = numbers(table)?;
            for ((row, expected), count) in rows.chunks(most).zip(&pages.table).zip(counts) {
                let expected: Vec<_> = expected[..count].iter().map(|&n| i64::from(n)).collect();
                assert_eq!(row[..count], expected);
            }
        }
    }
    Ok(())
}

/// Checks the line of a refusal.
#[track_caller]
fn refused<T: Debug>(result: Result<T>, reason: &str) {
    let line = line(result);
    assert!(line.contains(reason), "{line}, not {reason}");
}

#[test]
fn wrong_prefixes() -> Result<()> {
    let [q, k, _, shared, _] = inputs(1, 9);
    let with = |attention: Attention| attention.forward(&q, &k, &k);
    let shared_with =
        |prefix_k: &Tensor, prefix_v: &Tensor| with(Attention::new().prefix(prefix_k, prefix_v));
    refused(
        shared_with(&k, &k),
        "prefix_k has shape [3, 40, 2, 16]; it must be [1, 40, 2, 16]",
    );
    refused(
        shared_with(&shared, &shared.narrow(1, 0, 8)?),
        "prefix_v has shape [1, 8, 2, 16]; it must be [1, 9, 2, 16]",
    );
    refused(
        shared_with(&shared.squeeze(0)?, &shared),
        "prefix_k has shape [9, 2, 16]",
    );
    refused(
        shared_with(&shared, &shared.to_dtype(DType::F16)?),
        "prefix_v is of F16; it must be of F32",
    );
    refused(
        shared_with(Var::from_tensor(&shared)?.as_tensor(), &shared),
        "prefix_k has no gradient; pass prefix_k.detach()",
    );
    let windowed = Attention::new().window(3, None);
    refused(
        with(windowed.prefix(&shared, &shared)),
        "prefix cannot be combined with window",
    );
    let (device, cache) = (&Device::Cpu, random(&[4, 8, 2, 16], 6));
    let table = Tensor::new(&[[0_u32], [1], [0]], device)?;
    let pages = Tensor::new(&[2_u32, 3], device)?;
    let paged = |pages: &Tensor, keys: usize| {
        let attention = Attention::new().pages(&table).prefix_pages(pages, keys);
        attention.forward(&q, &cache, &cache)
    };
    paged(&pages, 9)?;
    refused(
        paged(&pages, 8),
        "the prefix has 8 keys; with 2 pages of 8 keys it must have from 9 to 16",
    );
    refused(
        paged(&Tensor::new(&[2_u32, 4], device)?, 16),
        "prefix_pages[1] is 4; it must be from 0 to 3",
    );
    refused(paged(&table, 20), "prefix_pages has shape [3, 1]");
    refused(
        paged(&pages.to_dtype(DType::F32)?, 9),
        "prefix_pages is of F32",
    );
    refused(
        with(Attention::new().prefix_pages(&pages, 9)),
        "prefix_pages needs pages",
    );

    let q = Var::from_tensor(&q)?;
    let attention = Attention::new().prefix(&shared, &shared);
    let o = attention.forward(&q, &k, &k)?;
    refused(
        o.sum_all()?.backward().map(drop),
        "there are no gradients of a call with prefix",
    );
    Ok(())
}

#[test]
fn wrong_csr_arrays() -> Result<()> {
    let array = |numbers: &[u32]| Tensor::new(numbers, &Device::Cpu);
    let (indptr, indices, last) = (array(&[0, 1, 3])?, array(&[1, 2, 0])?, array(&[3, 8])?);
    csr_pages(&indptr, &indices, &last, 8, 2)?;
    let floats = indices.to_dtype(DType::F32)?;
    refused(
        csr_pages(&indptr, &floats, &last, 8, 2),
        "indices is of F32; it must be of one of [I32, U32]",
    );
    refused(
        csr_pages(&indptr.unsqueeze(0)?, &indices, &last, 8, 2),
        "indptr has shape [1, 3]; it must have one axis",
    );
    refused(
        csr_pages(&array(&[])?, &indices, &last, 8, 2),
        "indptr is empty",
    );
    refused(
        csr_pages(&indptr, &indices, &last, 6, 2),
        "a page has 6 keys; it must have a power of 2",
    );
    refused(
        csr_pages(&indptr, &indices, &array(&[3])?, 8, 2),
        "last_page has shape [1]",
    );
    refused(
        csr_pages(&indptr, &indices, &array(&[9, 8])?, 8, 2),
        "last_page[0] is 9; it must be from 1 to 8",
    );
    refused(
        csr_pages(&indptr, &indices, &last, 8, 1),
        "entry 1 has 2 pages; the table has room for 1",
    );
    refused(
        csr_pages(&indptr, &indices, &last, 8, usize::MAX),
        "has no room for",
    );
    Ok(())
}
