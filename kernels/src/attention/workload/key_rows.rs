//! Where the rows of k and v of a batch entry lie.

use super::sequence::Sequence;
use crate::abi::{ForwardParams, TensorRef};
use crate::layout::element;
use crate::layout::rows::{Rows, Strided};
use crate::ptx::{global, shuffle, special, switch};

/// The rows of k and v that a batch entry reads: of its own entry of the tensors, of another one, or of several.
///
/// Nothing else knows. Copies by threads ask for the [rows](Self::rows) of a head, copies by tensor maps for the
/// [boxes](Self::boxes) of a step.
pub trait KeyRows: Copy {
    /// The rows of a head.
    type Rows: Rows;

    /// Whether they may lie in pages, and so beside packed queries.
    const HAS_PAGES: bool = false;

    /// Where they lie if kernels that decode read them, who know entries of a cache without options.
    type Cached: KeyRows;

    /// The rows of a batch entry.
    fn new(params: &ForwardParams, sequence: Sequence) -> Self;

    /// The rows of a head of k or v from key `first` on, with `elements` elements each.
    fn rows(self, tensor: &TensorRef, head: u32, first: u32, elements: u32) -> Self::Rows;

    /// The boxes of a tensor map in which the `keys` keys of a step lie, from key `first` on.
    fn boxes(self, first: u32, keys: u32) -> Boxes;
}

/// The boxes of a tensor map in which the keys of a step lie: one or, of pages, several, of which each lane knows one.
#[derive(Clone, Copy)]
pub struct Boxes {
    /// The row of the first box, or the lane's.
    row: u32,
    /// The entry where it lies.
    entry: u32,
    /// Keys of a box.
    pub keys: u32,
}

impl Boxes {
    /// The row and the entry of box `number`, 0 to 31, of such rows.
    ///
    /// # Safety
    /// All lanes of the warp make the same call.
    #[inline(always)]
    pub unsafe fn place<R: KeyRows>(self, number: u32) -> [u32; 2] {
        let own = [self.row, self.entry];
        match R::HAS_PAGES && switch::pages() {
            // SAFETY: the caller's promise.
            true => own.map(|of| unsafe { shuffle::number_of_lane(of, number) }),
            false => own,
        }
    }
}

/// Rows a stride apart, in one entry of the tensors: the batch entry's own or, where `CACHED`, the one that the
/// [cache](crate::abi::Options::cache) names, if there is a cache.
#[derive(Clone, Copy)]
pub struct EntryRows<const CACHED: bool> {
    /// The sequence, with the entry in place of its number.
    sequence: Sequence,
}

impl<const CACHED: bool> KeyRows for EntryRows<CACHED> {
    type Rows = Strided;
    type Cached = EntryRows<true>;

    #[inline(always)]
    fn new(params: &ForwardParams, mut sequence: Sequence) -> Self {
        if CACHED {
            sequence.batch = cache_entry(params, sequence.batch);
        }
        EntryRows { sequence }
    }

    #[inline(always)]
    fn rows(self, tensor: &TensorRef, head: u32, first: u32, elements: u32) -> Strided {
        self.sequence.head_rows(tensor, head, elements).skip(first)
    }

    #[inline(always)]
    fn boxes(self, first: u32, keys: u32) -> Boxes {
        Boxes {
            row: first,
            entry: self.sequence.batch,
            keys,
        }
    }
}

/// The entry of k and v that serves a batch entry.
#[inline(always)]
fn cache_entry(params: &ForwardParams, batch: u32) -> u32 {
    let options = &params.options;
    if options.cache == 0 {
        return batch;
    }
    let address = options.cache + 4 * u64::from(batch);
    // SAFETY: a launch with a cache has a number for each batch entry.
    unsafe { load_entry(address, options.cache_entries) }
}

/// The entry of a cache of so many that the number at an address names: the nearest one that exists.
///
/// # Safety
/// The number is readable.
#[inline(always)]
unsafe fn load_entry(address: u64, entries: u32) -> u32 {
    // SAFETY: the caller's promise.
    let entry = unsafe { global::load_u32(address) } as i32;
    entry.max(0).min(entries as i32 - 1) as u32
}

/// Rows in pages, where [`Switch::Pages`](crate::abi::Switch::Pages) is on; else those of [`EntryRows`].
#[derive(Clone, Copy)]
pub struct PageRows {
    entry: EntryRows<true>,
    table: Table,
}

impl KeyRows for PageRows {
    const HAS_PAGES: bool = true;
    type Rows = Paged;
    type Cached = Self;

    #[inline(always)]
    fn new(params: &ForwardParams, sequence: Sequence) -> Self {
        let mut rows = PageRows {
            entry: EntryRows { sequence },
            table: Table::default(),
        };
        if switch::pages() {
            rows.table = Table::new(params, sequence.batch);
            rows.entry.sequence.batch = 0;
        } else {
            rows.entry = EntryRows::new(params, sequence);
        }
        rows
    }

    #[inline(always)]
    fn rows(self, tensor: &TensorRef, head: u32, first: u32, elements: u32) -> Paged {
        let mut rows = Paged {
            rows: self.entry.rows(tensor, head, 0, elements),
            first,
            page_bytes: element::bytes(tensor.batch_stride),
            table: self.table,
        };
        if !switch::pages() {
            rows.rows = rows.rows.skip(first);
        }
        rows
    }

    #[inline(always)]
    fn boxes(self, first: u32, keys: u32) -> Boxes {
        let mut boxes = self.entry.boxes(first, keys);
        if switch::pages() {
            boxes.keys = self.table.box_keys;
            // A page's number takes a trip to the cache, for all boxes at once.
            let own = first + special::lane() * boxes.keys % keys;
            (boxes.row, boxes.entry) = (self.table.slot(own), self.table.page(own));
        }
        boxes
    }
}

/// The numbers of a batch entry's pages.
#[derive(Clone, Copy, Default)]
pub struct Table {
    /// Address of the first one.
    address: u64,
    /// The last one that is readable.
    last: u32,
    /// Pages that there are.
    pages: u32,
    keys_log2: u32,
    box_keys: u32,
}

impl Table {
    /// The pages of a batch entry.
    #[inline(always)]
    pub fn new(params: &ForwardParams, batch: u32) -> Self {
        let (options, pages) = (&params.options, &params.options.pages);
        let first = i64::from(batch) * pages.batch_stride;
        Table {
            address: options.cache.wrapping_add_signed(4 * first),
            last: pages.count - 1,
            pages: options.cache_entries,
            keys_log2: pages.keys_log2,
            box_keys: pages.box_keys,
        }
    }

    /// The page of a key, which may not exist.
    #[inline(always)]
    pub fn page(self, key: u32) -> u32 {
        let index = (key >> self.keys_log2).min(self.last);
        // SAFETY: a launch with pages has numbers up to the last one.
        unsafe { load_entry(self.address + 4 * u64::from(index), self.pages) }
    }

    /// The place of a key in its page.
    #[inline(always)]
    fn slot(self, key: u32) -> u32 {
        key & ((1 << self.keys_log2) - 1)
    }
}

/// Rows of a head in pages, where the switch is on; else a stride apart.
#[derive(Clone, Copy)]
pub struct Paged {
    /// The rows of page 0.
    rows: Strided,
    /// Rows skipped.
    first: u32,
    /// Bytes from a page to the next one.
    page_bytes: i64,
    table: Table,
}

impl Rows for Paged {
    #[inline(always)]
    fn elements(&self) -> u32 {
        self.rows.elements()
    }

    #[inline(always)]
    fn at(&self, row: u32) -> u64 {
        self.rows.at(row)
    }

    #[inline(always)]
    fn below(&self, above: u64, down: u32, row: u32) -> u64 {
        self.rows.below(above, down, row)
    }

    #[inline(always)]
    fn page(&self, row: u32) -> u32 {
        match switch::pages() {
            true => self.table.page(self.first.wrapping_add(row)),
            false => 0,
        }
    }

    #[inline(always)]
    fn in_page(&self, address: u64, page: u32, row: u32) -> u64 {
        if !switch::pages() {
            return address;
        }
        let page = self
            .rows
            .address
            .wrapping_add_signed(i64::from(page) * self.page_bytes);
        let slot = self.table.slot(self.first.wrapping_add(row));
        page.wrapping_add_signed(i64::from(slot) * self.rows.row_bytes)
    }

    #[inline(always)]
    fn skip(self, rows: u32) -> Self {
        let mut skipped = self;
        skipped.first += rows;
        if !switch::pages() {
            skipped.rows = self.rows.skip(rows);
        }
        skipped
    }

    #[inline(always)]
    fn skip_bytes(self, bytes: u64) -> Self {
        let rows = self.rows.skip_bytes(bytes);
        Paged { rows, ..self }
    }
}
