//! Texts of modules that are compressed together.

use super::Place;
use kernels::text::{lines, twin};
use lzma_rust2::LzmaReader;
use std::io::{BufRead, BufReader};

/// The text of a module.
pub fn text(place: &Place) -> Option<String> {
    Some(place.unpack().0)
}

/// The text of a module, with [marks](lines) that name the source lines of its instructions.
pub fn marked(place: &Place) -> Option<String> {
    let (text, mut parts) = place.unpack();
    Some(lines::put(&text, &parts.lines()))
}

impl Place {
    /// The text, and what is left of the group.
    fn unpack(&self) -> (String, Parts) {
        let (names, compressed) = self.group;
        let reader = LzmaReader::new_mem_limit(compressed, u32::MAX, None);
        let mut parts = Parts {
            reader: BufReader::new(reader.expect("the build compressed a group")),
            to_lines: names.len() - 1,
        };
        let text = parts.nth(self.index);
        let text = match self.twin_of {
            None => text,
            Some(twin) => twin::bf16(&text, [twin, self.name])
                .expect("the build wrote the same from the same text"),
        };
        (text, parts)
    }
}

/// Parts of a group, one after another.
struct Parts {
    reader: BufReader<LzmaReader<&'static [u8]>>,
    /// Parts from a module's text to its source lines.
    to_lines: usize,
}

impl Parts {
    /// Skips parts and gives the next one.
    fn nth(&mut self, skipped: usize) -> String {
        let unpacked = "the build compressed as many parts";
        for _ in 0..skipped {
            self.reader.skip_until(0).expect(unpacked);
        }
        let mut part = Vec::new();
        self.reader.read_until(0, &mut part).expect(unpacked);
        assert_eq!(part.pop(), Some(0), "{unpacked}");
        String::from_utf8(part).expect("the build compressed texts")
    }

    /// The source lines of the module whose text was the last part.
    fn lines(&mut self) -> String {
        self.nth(self.to_lines)
    }
}
