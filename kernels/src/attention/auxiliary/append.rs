//! New keys and values, copied to where a cache has them. Keys, and queries beside them, are rotated on the way (rotary
//! embedding, arXiv 2104.09864): a pair `(x, y)` of a row at position `p` becomes `(x cos - y sin, x sin + y cos)`.
//!
//! A warp takes a row. There are few of them: what counts is that one launch does it all.

use super::kept::{Kept, Rounded, Same};
use crate::abi::{AppendE4m3Params, AppendParams, DescalesRef, RowsRef, TensorRef};
use crate::attention::workload::descales::descale;
use crate::layout::element;
use crate::ptx::{global, special};
use crate::tile::Element;

/// A row of q, k or v.
pub struct Row<'a> {
    pub(super) rows: &'a RowsRef,
    batch: u32,
    head: u32,
    /// Its number in the head.
    row: u32,
}

impl<'a> Row<'a> {
    /// Row number `index` of all rows of a batch entry.
    #[inline(always)]
    fn new(rows: &'a RowsRef, batch: u32, index: u32) -> Self {
        let (row, head) = (index / rows.heads, index % rows.heads);
        Row {
            rows,
            batch,
            head,
            row,
        }
    }

    /// Address of the row.
    #[inline(always)]
    pub(super) fn from(&self) -> u64 {
        at(&self.rows.from, [self.batch, self.head, self.row])
    }

    /// Address of where it goes: to this row of an entry.
    #[inline(always)]
    pub(super) fn to(&self, [entry, row]: [u32; 2]) -> u64 {
        at(&self.rows.to, [entry, self.head, row])
    }

    /// Address of where it goes in a cache of bytes.
    #[inline(always)]
    pub(super) fn to_bytes(&self, [entry, row]: [u32; 2]) -> u64 {
        let offset = offset(&self.rows.to, [entry, self.head, row]);
        self.rows.to.address.wrapping_add_signed(offset)
    }
}

#[inline(always)]
fn at(tensor: &TensorRef, place: [u32; 3]) -> u64 {
    element::at(tensor.address, offset(tensor, place))
}

/// Elements from a tensor's first one to a row.
#[inline(always)]
fn offset(tensor: &TensorRef, [batch, head, row]: [u32; 3]) -> i64 {
    i64::from(batch) * tensor.batch_stride
        + i64::from(head) * tensor.head_stride
        + i64::from(row) * tensor.row_stride
}

/// Appends a row for each of the `W` warps of the block.
///
/// # Safety
/// Launched as [`AppendParams`] and the kernel's row of the [catalog](crate::catalog) say, with readable rows, table, lengths,
/// slots, positions, cosines and sines, and writable caches and new lengths. Rows are written by one warp each, if no
/// two have one place.
#[inline(always)]
pub unsafe fn append<E: Element, const W: u32>(params: &AppendParams) {
    // SAFETY: the caller's promise.
    unsafe { append_rows::<E, Same, W>(params, [|_: &Row, _| Same; 2]) }
}

/// [`append`] to a cache of e4m3.
///
/// # Safety
/// The conditions of [`append`]; descales are readable, if there are some.
#[inline(always)]
pub unsafe fn append_e4m3<E: Element + Copy, const W: u32>(params: &AppendE4m3Params) {
    let kept = |descales: &DescalesRef, row: &Row, entry: u32| {
        let entry = match descales.of_pages {
            0 => row.batch,
            _ => entry,
        };
        // SAFETY: the caller's promise.
        Rounded::new(unsafe { descale(descales, [entry, row.head]) })
    };
    let of = |descales| move |row: &Row, entry| kept(descales, row, entry);
    // SAFETY: the caller's promise.
    unsafe { append_rows::<E, Rounded<E>, W>(&params.append, [of(&params.k), of(&params.v)]) }
}

/// [`append`], to a cache of what `kept` says for keys and for values, of a row and an entry.
///
/// # Safety
/// The conditions of [`append`].
#[inline(always)]
unsafe fn append_rows<E: Element, K: Kept<E>, const W: u32>(
    params: &AppendParams,
    kept: [impl Fn(&Row, u32) -> K; 2],
) {
    let [q, k, v] = [&params.q, &params.k, &params.v].map(|rows| rows.heads * rows.rows);
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W) };
    let number = u64::from(special::block()) * u64::from(W) + u64::from(thread / 32);
    let rows = u64::from(q) + u64::from(k) + u64::from(v);
    let each = rows.max(1);
    let (batch, index) = ((number / each) as u32, (number % each) as u32);
    if batch >= params.batch {
        return;
    }
    // SAFETY: the caller's promise; a warp has a row of its own.
    unsafe {
        let before = before(params, batch);
        if index == 0 && special::lane() == 0 && params.new_lengths != 0 {
            let behind = before.saturating_add(params.k.rows as i32);
            global::store_u32(params.new_lengths + 4 * u64::from(batch), behind as u32);
        }
        if u64::from(index) >= rows {
            return;
        }
        if index < q {
            let row = Row::new(&params.q, batch, index);
            let position = match params.q_at_first {
                0 => position(params, before, [batch, row.row]),
                _ => position(params, before, [batch, 0]),
            };
            let to = row.to([batch, row.row]);
            rotate::<E, _>(params, Same, [row.from(), to], params.q.dim, position);
        } else if index < q + k {
            let row = Row::new(&params.k, batch, index - q);
            if let Some(place) = place(params, before, [batch, row.row]) {
                let position = position(params, before, [batch, row.row]);
                let kept = kept[0](&row, place[0]);
                if params.rotary_dim == 0 {
                    kept.copy(&row, place);
                } else {
                    let addresses = [row.from(), kept.place(&row, place)];
                    rotate::<E, _>(params, kept, addresses, params.k.dim, position);
                }
            }
        } else {
            let row = Row::new(&params.v, batch, index - q - k);
            if let Some(place) = place(params, before, [batch, row.row]) {
                kept[1](&row, place[0]).copy(&row, place);
            }
        }
    }
}

/// Keys that a batch entry has before.
///
/// # Safety
/// The lengths are readable, if there are any.
#[inline(always)]
unsafe fn before(params: &AppendParams, batch: u32) -> i32 {
    match params.lengths {
        0 => 0,
        // SAFETY: the caller's promise.
        lengths => unsafe { load_i32(lengths + 4 * u64::from(batch)) }.max(0),
    }
}

/// The position of a row of a batch entry.
///
/// # Safety
/// The positions are readable, if there are any.
#[inline(always)]
unsafe fn position(params: &AppendParams, before: i32, [batch, row]: [u32; 2]) -> u32 {
    let position = match params.positions {
        0 => before.saturating_add(row as i32),
        positions => {
            let place = i64::from(batch) * params.positions_stride + i64::from(row);
            // SAFETY: the caller's promise.
            unsafe { load_i32(positions.wrapping_add_signed(4 * place)) }
        }
    };
    position.max(0).min(params.rotated_positions as i32 - 1) as u32
}

/// The entry or page, and the key of it, where a new key of a batch entry goes, if the cache has it.
///
/// # Safety
/// The slots and the table are readable, if there are any.
#[inline(always)]
unsafe fn place(params: &AppendParams, before: i32, [batch, row]: [u32; 2]) -> Option<[u32; 2]> {
    let (entry, key) = match params.slots {
        0 => {
            let key = u64::from(before as u32) + u64::from(row);
            let page = key >> params.pages.keys_log2;
            // SAFETY: the caller's promise.
            let entry = unsafe { entry(params, batch, page) };
            (entry, key - (page << params.pages.keys_log2))
        }
        slots => {
            let place = i64::from(batch) * params.slots_stride + i64::from(row);
            // SAFETY: the caller's promise.
            let [low, high] = unsafe { global::load_u32x2(slots.wrapping_add_signed(8 * place)) };
            let slot = u64::from(high) << 32 | u64::from(low);
            // Those of negative slots are too large.
            (
                (slot / u64::from(params.keys)) as i64,
                slot % u64::from(params.keys),
            )
        }
    };
    let exists = (entry as u64) < u64::from(params.entries) && key < u64::from(params.keys);
    exists.then_some([entry as u32, key as u32])
}

/// The entry of the cache that has page number `page` of a batch entry; -1 if there is no such page.
///
/// # Safety
/// The table is readable, if there is one.
#[inline(always)]
unsafe fn entry(params: &AppendParams, batch: u32, page: u64) -> i64 {
    let pages = &params.pages;
    if params.table == 0 {
        return if page == 0 { i64::from(batch) } else { -1 };
    }
    if page >= u64::from(pages.count) {
        return -1;
    }
    let index = i64::from(batch) * pages.batch_stride + page as i64;
    // SAFETY: the caller's promise.
    unsafe { load_i32(params.table.wrapping_add_signed(4 * index)).into() }
}

/// # Safety
/// The number is readable.
#[inline(always)]
unsafe fn load_i32(address: u64) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { global::load_u32(address) as i32 }
}

/// Copies a row of `dim` elements, whose first ones it rotates.
///
/// # Safety
/// The conditions of [`Kept::copy`]; cosines and sines of the position are readable. The row may be its own place.
#[inline(always)]
unsafe fn rotate<E: Element, K: Kept<E>>(
    params: &AppendParams,
    kept: K,
    [from, to]: [u64; 2],
    dim: u32,
    position: u32,
) {
    let half = params.rotary_dim / 2;
    let (beside, step) = match params.interleaved {
        0 => (half, 1),
        _ => (1, 2),
    };
    let position = i64::from(position);
    let [cos, sin] = [
        (params.cos, params.cos_stride),
        (params.sin, params.sin_stride),
    ]
    .map(|(address, stride)| (address, position * stride));
    let mut pair = special::lane();
    while pair < half {
        let places = [step * pair, step * pair + beside];
        // SAFETY: the caller's promise; a lane has a pair of its own.
        unsafe {
            let [cos, sin] = [cos, sin].map(|(address, first)| {
                let place = first + i64::from(pair);
                match params.wide {
                    0 => E::widen(global::load_u16(element::at(address, place))),
                    _ => global::load_f32(address.wrapping_add_signed(4 * place)),
                }
            });
            let [x, y] = places.map(|place| E::widen(global::load_u16(element::at(from, place))));
            kept.store(to, places, [x * cos - y * sin, x * sin + y * cos]);
        }
        pair += 32;
    }
    if from != to {
        // SAFETY: the caller's promise.
        unsafe { kept.copy_elements(from, to, [params.rotary_dim, dim]) };
    }
}
