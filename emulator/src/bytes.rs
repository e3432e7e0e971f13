//! Bytes that know whether they were ever written, in words of 8. Atomic, because two blocks of a wrong kernel may write
//! one word at the same time.

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

const WORD: usize = 8;

/// The bytes of a buffer.
#[derive(Debug)]
pub(crate) struct Bytes {
    words: Box<[AtomicU64]>,
    /// By word: which of its bytes were written.
    written: Box<[AtomicU8]>,
    /// By word: the launch that wrote it last.
    writers: Box<[AtomicU32]>,
    len: usize,
}

/// So many default values, if there is memory.
fn defaults<T: Default>(count: usize) -> Option<Box<[T]>> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).ok()?;
    values.resize_with(count, T::default);
    Some(values.into_boxed_slice())
}

impl Bytes {
    /// Bytes of which none is written; `None` if the host has no memory for them.
    pub fn try_new(len: usize) -> Option<Self> {
        let words = len.div_ceil(WORD);
        Some(Bytes {
            words: defaults(words)?,
            written: defaults(words)?,
            writers: defaults(words)?,
            len,
        })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Reads from an offset on.
    ///
    /// # Errors
    /// The offset of the first byte that was never written.
    #[inline]
    pub fn read(&self, start: usize, to: &mut [u8]) -> Result<(), usize> {
        if start.is_multiple_of(WORD) && to.len().is_multiple_of(WORD) {
            return self.read_words(start, to);
        }
        if let Some(unwritten) = self.unwritten(start, to.len()) {
            return Err(unwritten);
        }
        let end = start + to.len();
        let mut rest = to;
        for (index, part) in words(start, end) {
            let word = self.words[index].load(Relaxed).to_le_bytes();
            let (now, later) = rest.split_at_mut(part.len());
            copy(now, &word[part]);
            rest = later;
        }
        Ok(())
    }

    /// [`read`](Self::read) of whole words, which most accesses are: one pass, without parts of words.
    #[inline]
    fn read_words(&self, start: usize, to: &mut [u8]) -> Result<(), usize> {
        let words = start / WORD..(start + to.len()) / WORD;
        let places = self.words[words.clone()].iter().zip(&self.written[words]);
        let (to, _) = to.as_chunks_mut::<WORD>();
        for (word, (to, (from, written))) in to.iter_mut().zip(places).enumerate() {
            let missing = !written.load(Acquire);
            if missing != 0 {
                return Err(start + WORD * word + missing.trailing_zeros() as usize);
            }
            *to = from.load(Relaxed).to_le_bytes();
        }
        Ok(())
    }

    /// The offset of the first of some bytes that was never written.
    #[inline]
    pub fn unwritten(&self, start: usize, len: usize) -> Option<usize> {
        words(start, start + len).find_map(|(index, part)| {
            let missing = !self.written[index].load(Acquire) & mask_of(&part);
            (missing != 0).then(|| index * WORD + missing.trailing_zeros() as usize)
        })
    }

    /// Reads from an offset on, with `missing` for bytes that were never written.
    pub fn read_or(&self, start: usize, to: &mut [u8], missing: u8) {
        let mut rest = to;
        for (index, part) in words(start, start + rest.len()) {
            let (now, later) = rest.split_at_mut(part.len());
            rest = later;
            let written = self.written[index].load(Acquire);
            copy(
                now,
                &self.words[index].load(Relaxed).to_le_bytes()[part.clone()],
            );
            if written & mask_of(&part) != mask_of(&part) {
                for (bit, byte) in part.zip(now) {
                    if written >> bit & 1 == 0 {
                        *byte = missing;
                    }
                }
            }
        }
    }

    /// The last launch that wrote some bytes, or a part of their words.
    pub fn last_writer(&self, start: usize, len: usize) -> u32 {
        let writers = words(start, start + len).map(|(index, _)| self.writers[index].load(Relaxed));
        writers.max().unwrap_or(0)
    }

    /// Writes from an offset on, in a launch, or in 0, which is none.
    #[inline]
    pub fn write(&self, start: usize, from: &[u8], launch: u32) {
        let mut rest = from;
        for (index, part) in words(start, start + from.len()) {
            let (now, later) = rest.split_at(part.len());
            rest = later;
            self.writers[index].store(launch, Relaxed);
            let (word, written) = (&self.words[index], &self.written[index]);
            if let Ok(bytes) = now.try_into() {
                word.store(u64::from_le_bytes(bytes), Relaxed);
                written.store(u8::MAX, Release);
                continue;
            }
            let with = |word: u64| {
                let mut bytes = word.to_le_bytes();
                copy(&mut bytes[part.clone()], now);
                u64::from_le_bytes(bytes)
            };
            // Another block may change other bytes of the word meanwhile.
            let replaced = word.fetch_update(Relaxed, Relaxed, |word| Some(with(word)));
            replaced.expect("there is a word");
            let mask = mask_of(&part);
            if written.load(Relaxed) & mask != mask {
                written.fetch_or(mask, Release);
            }
        }
    }
}

/// Copies bytes, few of them without a call.
#[inline(always)]
pub(crate) fn copy(to: &mut [u8], from: &[u8]) {
    match to.len() {
        16 => to[..16].copy_from_slice(&from[..16]),
        8 => to[..8].copy_from_slice(&from[..8]),
        4 => to[..4].copy_from_slice(&from[..4]),
        _ => to.copy_from_slice(from),
    }
}

/// The words that some bytes lie in, each with the bytes of it that are among them.
#[inline(always)]
fn words(start: usize, end: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let words = start / WORD..end.div_ceil(WORD);
    let words = if start < end { words } else { 0..0 };
    words.map(move |index| {
        let first = index * WORD;
        (
            index,
            start.max(first) - first..end.min(first + WORD) - first,
        )
    })
}

/// The bits of some bytes of a word.
#[inline(always)]
fn mask_of(part: &Range<usize>) -> u8 {
    u8::MAX >> (WORD - part.len()) << part.start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_comes_back_and_nothing_else_is_written() {
        for start in 0..20 {
            for len in 1..=20 - start {
                let bytes = Bytes::try_new(20).expect("memory");
                let data: Vec<u8> = (1..=len as u8).collect();
                bytes.write(start, &data, 0);
                let mut all = [0; 20];
                bytes.read_or(0, &mut all, 0xff);
                for (offset, byte) in all.into_iter().enumerate() {
                    let inside = (start..start + len).contains(&offset);
                    let expected = if inside { data[offset - start] } else { 0xff };
                    assert_eq!(byte, expected, "{start} {len}: {offset}");
                }
                let mut part = vec![0; len];
                assert_eq!(bytes.read(start, &mut part), Ok(()));
                assert_eq!(part, data);
                if start > 0 {
                    assert_eq!(bytes.read(0, &mut vec![0; start + len]), Err(0));
                }
                if start + len < 20 {
                    let rest = &mut all[start..];
                    assert_eq!(bytes.read(start, rest), Err(start + len));
                }
            }
        }
    }

    #[test]
    fn a_write_leaves_the_rest_of_its_word() {
        let bytes = Bytes::try_new(8).expect("memory");
        bytes.write(0, &[1, 2, 3, 4, 5, 6, 7, 8], 0);
        bytes.write(3, &[9, 9], 0);
        let mut all = [0; 8];
        bytes.read(0, &mut all).unwrap();
        assert_eq!(all, [1, 2, 3, 9, 9, 6, 7, 8]);
    }
}
