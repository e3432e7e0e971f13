//! Caches of pages in any order, with NaN in all that is of no sequence.

use crate::compare::{on_host, random};
use candle_core::{DType, Device, Result, Tensor};

/// Which pages sequences have, of so many keys each.
#[derive(Clone)]
pub struct Pages {
    pub page: usize,
    /// Pages in all; some are of no sequence.
    pub count: usize,
    /// A row for each sequence. Behind its last page, numbers that no page has.
    pub table: Vec<Vec<u32>>,
}

/// What a table has where nothing looks.
const NO_PAGE: u32 = 4_000_000_007;

impl Pages {
    /// Pages for sequences of so many keys at most, in an order of a seed.
    pub fn new(page: usize, keys: &[usize], seed: u64) -> Result<Self> {
        let pages = keys.iter().map(|keys| keys.div_ceil(page));
        let most = pages.clone().max().unwrap_or_default() + 2;
        let count = pages.clone().sum::<usize>() + 3;
        let mut order: Vec<u32> = (0..count as u32).collect();
        let drawn = random(&[count], seed).to_vec1::<f32>()?;
        order.sort_by(|&a, &b| drawn[a as usize].total_cmp(&drawn[b as usize]));
        let mut order = order.into_iter();
        let table = pages.map(|pages| {
            let mut row: Vec<_> = order.by_ref().take(pages).collect();
            row.resize(most, NO_PAGE);
            row
        });
        let table = table.collect();
        Ok(Pages { page, count, table })
    }

    /// The table as a tensor of u32, or of i32 with numbers below 0.
    pub fn tensor(&self, is_signed: bool, device: &Device) -> Result<Tensor> {
        match is_signed {
            false => Tensor::new(self.table.clone(), device),
            true => {
                let signed = |row: &Vec<u32>| row.iter().map(|&page| page as i32).collect();
                let table: Vec<Vec<i32>> = self.table.iter().map(signed).collect();
                Tensor::new(table, device)
            }
        }
    }

    /// The row of all pages where a key of a sequence lies.
    pub fn row(&self, sequence: usize, key: usize) -> usize {
        self.table[sequence][key / self.page] as usize * self.page + key % self.page
    }

    /// Packed keys `[total, heads, dim]` in their pages, `[count, page, heads, dim]` of their type and device. All else is NaN.
    pub fn filled(&self, packed: &Tensor, keys: &[usize]) -> Result<Tensor> {
        let (_, heads, dim) = packed.dims3()?;
        let rows = on_host(packed)?.reshape(((), heads * dim))?;
        let mut rows = rows.to_vec2::<f32>()?.into_iter();
        let mut pages = vec![vec![f32::NAN; heads * dim]; self.count * self.page];
        for (sequence, &keys) in keys.iter().enumerate() {
            for key in 0..keys {
                pages[self.row(sequence, key)] = rows.next().expect("a packed row");
            }
        }
        let pages = Tensor::new(pages, &Device::Cpu)?;
        let pages = pages.reshape((self.count, self.page, heads, dim))?;
        pages.to_dtype(packed.dtype())?.to_device(packed.device())
    }

    /// Pages of NaN.
    pub fn empty(&self, [heads, dim]: [usize; 2], dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::full(f32::NAN, (self.count, self.page, heads, dim), device)?.to_dtype(dtype)
    }
}
