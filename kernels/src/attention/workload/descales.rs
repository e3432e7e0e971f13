//! What the numbers of a cache of e4m3 are multiplied by.

use super::key_rows::Table;
use crate::abi::{DescalesRef, ForwardParams};
use crate::ptx::{global, switch};

/// Address of the descale of a head, of an entry of the batch or of a page; 0 if all are 1.
#[inline(always)]
fn address(of: &DescalesRef, [entry, head]: [u32; 2]) -> u64 {
    let offset = i64::from(entry) * of.batch_stride + i64::from(head) * of.head_stride;
    match of.address {
        0 => 0,
        address => address.wrapping_add_signed(4 * offset),
    }
}

/// The descale of a head, of an entry of the batch or of a page.
///
/// # Safety
/// It is readable, if there is one.
#[inline(always)]
pub unsafe fn descale(of: &DescalesRef, place: [u32; 2]) -> f32 {
    match address(of, place) {
        0 => 1.0,
        // SAFETY: the caller's promise.
        address => unsafe { global::load_f32(address) },
    }
}

/// The descales of the keys, or of the values, that a block takes.
#[derive(Clone, Copy)]
pub struct Descales {
    /// Address of the head's first one; 0 if all are 1.
    address: u64,
    /// Bytes to the next page's; 0 where pages have none.
    page_bytes: i64,
    table: Table,
    /// The first key of the split.
    first: u32,
}

impl Descales {
    /// Those of a batch entry's head, for the keys from `first` on.
    #[inline(always)]
    pub fn new(
        params: &ForwardParams,
        descales: &DescalesRef,
        [batch, head]: [u32; 2],
        first: u32,
    ) -> Self {
        let of_pages = descales.of_pages != 0;
        let entry = if of_pages { 0 } else { batch };
        Descales {
            address: address(descales, [entry, head]),
            page_bytes: if of_pages {
                4 * descales.batch_stride
            } else {
                0
            },
            table: match switch::pages() {
                true => Table::new(params, batch),
                false => Table::default(),
            },
            first,
        }
    }

    /// Whether pages have their own.
    #[inline(always)]
    pub fn of_pages(self) -> bool {
        switch::pages() && self.page_bytes != 0
    }

    /// The head's, where pages have none.
    #[inline(always)]
    pub fn of_head(self) -> f32 {
        if self.address == 0 || self.of_pages() {
            return 1.0;
        }
        // SAFETY: a launch with descales has one for each batch entry and head.
        unsafe { global::load_f32(self.address) }
    }

    /// Those of the pages of `NT` slices of 16 keys from key `first` on, which counts from the first one of the split.
    #[inline(always)]
    pub fn of_slices<const NT: usize>(self, first: u32) -> [f32; NT] {
        let mut addresses = [0; NT];
        for nt in 0..NT {
            let page = self.table.page(self.first + first + 16 * nt as u32);
            let bytes = i64::from(page) * self.page_bytes;
            addresses[nt] = self.address.wrapping_add_signed(bytes);
        }
        let mut descales = [0.0; NT];
        for nt in 0..NT {
            // SAFETY: a launch with descales of pages has one for each page and head.
            descales[nt] = unsafe { global::load_f32(addresses[nt]) };
        }
        descales
    }
}
