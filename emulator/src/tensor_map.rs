//! Tensor maps: what a tensor copy (`cp.async.bulk.tensor`) needs to know of a tensor.

/// How the rows of a box are permuted in shared memory: chunks of 16 bytes by XOR of bits of their
/// address, so that a column of chunks has no bank conflicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// Rows lie as they are.
    #[default]
    None,
    /// Rows of 32 bytes: bit 4 is XORed with bit 7.
    B32,
    /// Rows of 64 bytes: bits 4 and 5 are XORed with bits 7 and 8.
    B64,
    /// Rows of 128 bytes: bits 4 to 6 are XORed with bits 7 to 9.
    B128,
}

impl Swizzle {
    /// By the number in [`TensorMap::encode`].
    const ALL: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

    /// Bytes of a row; none without a swizzle.
    fn row_bytes(self) -> Option<u32> {
        match self {
            Swizzle::None => None,
            swizzle => Some(16 << swizzle as u32),
        }
    }

    /// Where an address in shared memory goes.
    pub(crate) fn apply(self, address: u32) -> u32 {
        let chunks = 1 << self as u32;
        address ^ (address >> 7 & (chunks - 1)) << 4
    }
}

/// A tensor in global memory and the box of it that a copy moves, for the emulator. A GPU takes what
/// the driver's `cuTensorMapEncodeTiled` makes of the same facts.
///
/// Dimensions count from the innermost, whose elements are adjacent; places beyond `rank` mean
/// nothing. A copy gives zeros for the elements of a box outside the tensor, and does not store them.
///
/// ```
/// use emulator::{Memory, Swizzle, TensorMap};
///
/// let memory = Memory::new();
/// // A matrix of 1000 rows of 128 f16, loaded 64 rows by 64 columns at a time.
/// let map = TensorMap {
///     address: memory.allocate(1000 * 256),
///     element_bytes: 2,
///     rank: 2,
///     sizes: [128, 1000, 0, 0, 0],
///     strides: [256, 0, 0, 0],
///     box_sizes: [64, 64, 0, 0, 0],
///     swizzle: Swizzle::B128,
/// };
/// // The argument of the kernel.
/// let _pointer = memory.upload(&map.encode());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorMap {
    /// Address of the first element, a multiple of 16.
    pub address: u64,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub element_bytes: u32,
    /// Dimensions: 1 to 5.
    pub rank: u32,
    /// Elements in each dimension, 1 to 2^32.
    pub sizes: [u64; 5],
    /// Bytes from an element to the next one in dimensions 1, 2 and so on: multiples of 16 below 2^40.
    pub strides: [u64; 4],
    /// Elements of the box in each dimension, 1 to 256; a multiple of 16 bytes in the innermost one.
    pub box_sizes: [u32; 5],
    /// The layout of the box in shared memory. Its rows are as long as the box's in the innermost
    /// dimension.
    pub swizzle: Swizzle,
}

/// Bytes of an encoded tensor map, and its alignment.
pub(crate) const MAP_BYTES: usize = 128;
pub(crate) const MAP_ALIGNMENT: u32 = 64;

/// Bytes that a swizzle keeps together.
pub(crate) const CHUNK: usize = 16;

/// The first bytes of an encoded map.
const MAGIC: u64 = u64::from_le_bytes(*b"emu.tmap");

impl TensorMap {
    /// The 128 bytes that a kernel takes the address of, a multiple of 64. A copy that uses a map with
    /// impossible facts breaks [`Rule::InvalidTensorMap`](crate::Rule::InvalidTensorMap).
    #[must_use]
    pub fn encode(&self) -> [u8; MAP_BYTES] {
        let kind = [self.element_bytes, self.rank, self.swizzle as u32].map(u64::from);
        let head = [MAGIC, self.address, kind[0] | kind[1] << 32 | kind[2] << 40];
        let [b0, b1, b2, b3, b4] = self.box_sizes.map(u64::from);
        let boxes = [b0 | b1 << 32, b2 | b3 << 32, b4];
        let words = head.into_iter().chain(self.sizes).chain(self.strides);
        let mut bytes = [0; MAP_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words.chain(boxes)) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The map that 128 bytes encode; an error says what makes them none.
    pub(crate) fn decode(bytes: &[u8; MAP_BYTES]) -> Result<Self, &'static str> {
        let word = |i: usize| {
            let bytes = bytes[8 * i..8 * i + 8].try_into();
            u64::from_le_bytes(bytes.expect("8 bytes"))
        };
        if word(0) != MAGIC {
            return Err("the bytes at the address of the tensor map are no tensor map");
        }
        let (kind, swizzle) = (word(2), word(2) >> 40 & 0xff);
        let map = TensorMap {
            address: word(1),
            element_bytes: kind as u32,
            rank: (kind >> 32) as u32 & 0xff,
            sizes: std::array::from_fn(|i| word(3 + i)),
            strides: std::array::from_fn(|i| word(8 + i)),
            box_sizes: std::array::from_fn(|i| (word(12 + i / 2) >> (32 * (i % 2))) as u32),
            swizzle: *Swizzle::ALL
                .get(swizzle as usize)
                .ok_or("no such swizzle")?,
        };
        map.check().map(|()| map)
    }

    /// The limits of `cuTensorMapEncodeTiled`.
    fn check(&self) -> Result<(), &'static str> {
        let require = |holds: bool, what| if holds { Ok(()) } else { Err(what) };
        require(
            (1..=5).contains(&self.rank),
            "a tensor map has 1 to 5 dimensions",
        )?;
        let rank = self.rank as usize;
        require(
            matches!(self.element_bytes, 1 | 2 | 4 | 8),
            "an element of a tensor map has 1, 2, 4 or 8 bytes",
        )?;
        require(
            self.address.is_multiple_of(16),
            "the tensor of a tensor map lies at a multiple of 16",
        )?;
        let sizes = &self.sizes[..rank];
        require(
            sizes.iter().all(|size| (1..=1 << 32).contains(size)),
            "a size of a tensor map is 1 to 2^32",
        )?;
        let strides = &self.strides[..rank - 1];
        require(
            strides.iter().all(|s| s.is_multiple_of(16) && *s < 1 << 40),
            "a stride of a tensor map is a multiple of 16 below 2^40",
        )?;
        let boxes = &self.box_sizes[..rank];
        require(
            boxes.iter().all(|size| (1..=256).contains(size)),
            "a size of the box of a tensor map is 1 to 256",
        )?;
        let row = self.row_bytes();
        let bytes = boxes.iter().map(|size| u64::from(*size)).product::<u64>();
        let bytes = bytes * u64::from(self.element_bytes);
        require(
            bytes < 1 << 20,
            "the box of a tensor map has less than 2^20 bytes",
        )?;
        require(
            row.is_multiple_of(16),
            "a row of the box of a tensor map is a multiple of 16 bytes",
        )?;
        require(
            self.swizzle.row_bytes().is_none_or(|bytes| bytes == row),
            "a row of the box of a tensor map is as long as its swizzle's",
        )
    }

    /// Bytes of a row of the box.
    pub(crate) fn row_bytes(&self) -> u32 {
        self.box_sizes[0] * self.element_bytes
    }

    /// Bytes of the box.
    pub(crate) fn box_bytes(&self) -> u32 {
        let rows: u32 = self.box_sizes[1..self.rank as usize].iter().product();
        rows * self.row_bytes()
    }

    /// The chunks of the box, when it lies at an address in shared memory, as their offsets before
    /// and after the swizzle.
    pub(crate) fn swizzled_chunks(&self, base: u32) -> impl Iterator<Item = (usize, usize)> {
        let swizzle = self.swizzle;
        let offsets = (0..self.box_bytes()).step_by(CHUNK);
        offsets.map(move |offset| {
            let swizzled = swizzle.apply(base + offset) - base;
            (offset as usize, swizzled as usize)
        })
    }

    /// The rows of the box at some coordinates, each as where it begins in the box, and the part of it
    /// that lies in the tensor: its offset in the row, address and bytes.
    pub(crate) fn rows(&self, coordinates: [i32; 5]) -> impl Iterator<Item = (u32, Option<Part>)> {
        let map = *self;
        let rank = map.rank as usize;
        (0..map.box_bytes() / map.row_bytes()).map(move |row| {
            let (mut rest, mut address, mut is_inside) = (row, map.address, true);
            for (dimension, first) in coordinates.iter().enumerate().take(rank).skip(1) {
                let size = map.box_sizes[dimension];
                let index = i64::from(*first) + i64::from(rest % size);
                rest /= size;
                is_inside &= (0..map.sizes[dimension] as i64).contains(&index);
                let offset = map.strides[dimension - 1].cast_signed().wrapping_mul(index);
                address = address.wrapping_add_signed(offset);
            }
            let first = i64::from(coordinates[0]);
            let end = (first + i64::from(map.box_sizes[0])).min(map.sizes[0] as i64);
            let begin = first.max(0);
            let element = i64::from(map.element_bytes);
            let part = (is_inside && begin < end).then(|| Part {
                offset: ((begin - first) * element) as u32,
                address: address.wrapping_add_signed(begin * element),
                bytes: ((end - begin) * element) as u32,
            });
            (row * map.row_bytes(), part)
        })
    }
}

/// The part of a row of a box that lies in the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Where it begins in the row, in bytes.
    pub offset: u32,
    pub address: u64,
    pub bytes: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: TensorMap = TensorMap {
        address: 1 << 40,
        element_bytes: 2,
        rank: 3,
        sizes: [40, 3, 2, 0, 0],
        strides: [96, 1024, 0, 0],
        box_sizes: [16, 2, 2, 0, 0],
        swizzle: Swizzle::B32,
    };

    #[test]
    fn maps_come_back() {
        assert_eq!(TensorMap::decode(&MAP.encode()), Ok(MAP));
        assert!(TensorMap::decode(&[0; 128]).is_err());
    }

    #[test]
    fn rows_end_at_the_tensor() {
        let part = |offset, address: u64, bytes| {
            Some(Part {
                offset,
                address: MAP.address + address,
                bytes,
            })
        };
        let rows: Vec<_> = MAP.rows([32, 2, -1, 0, 0]).collect();
        let expected = [(0, None), (32, None), (64, part(0, 256, 16)), (96, None)];
        assert_eq!(rows, expected);
        let rows: Vec<_> = MAP.rows([-4, 0, 1, 0, 0]).collect();
        let expected = [
            (0, part(8, 1024, 24)),
            (32, part(8, 1120, 24)),
            (64, None),
            (96, None),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn swizzles_permute_the_chunks_of_a_row() {
        let rows = [
            (Swizzle::None, 128, [0, 16, 32]),
            (Swizzle::B32, 128, [16, 0, 48]),
            (Swizzle::B64, 256, [32, 48, 0]),
            (Swizzle::B128, 896, [112, 96, 80]),
        ];
        for (swizzle, base, chunks) in rows {
            for (i, chunk) in chunks.into_iter().enumerate() {
                assert_eq!(
                    swizzle.apply(base + 16 * i as u32),
                    base + chunk,
                    "{swizzle:?}"
                );
            }
        }
    }
}
