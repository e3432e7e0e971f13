//! Texts of modules that are compressed together.

use super::Place;
use crate::recent::Recent;
use kernels::text::{lines, twin};
use lzma_rust2::LzmaReader;
use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::sync::Arc;

/// Unpacked groups that the process keeps, some 2 MB each.
const KEPT_GROUPS: usize = 16;

/// The text of a module.
pub fn text(place: &Place) -> Option<String> {
    let mut parts = Parts::of(place);
    parts.skip(place.index);
    Some(place.named(parts.next()))
}

/// The text of a module, with [marks](lines) that name the source lines of its instructions. Its group is unpacked once for
/// the many kernels that emulated devices load.
pub fn marked(place: &Place) -> Option<String> {
    static KEPT: Recent<usize, Arc<[String]>> = Recent::new(KEPT_GROUPS);
    let (names, compressed) = place.group;
    let Ok(parts) = KEPT.get(compressed.as_ptr().addr(), || {
        let mut parts = Parts::of(place);
        let all = (0..2 * names.len()).map(|_| parts.next()).collect();
        Ok::<_, Infallible>(all)
    });
    let [text, lines] = [place.index, place.index + names.len()].map(|part| &parts[part]);
    Some(lines::put(&place.named(text.clone()), lines))
}

impl Place {
    /// The module's text, from that of the module in its place.
    fn named(&self, text: String) -> String {
        match self.twin_of {
            None => text,
            Some(twin) => twin::bf16(&text, [twin, self.name])
                .expect("the build wrote the same from the same text"),
        }
    }
}

const UNPACKED: &str = "the build compressed as many parts";

/// Parts of a group, one after another.
struct Parts(BufReader<LzmaReader<&'static [u8]>>);

impl Parts {
    fn of(place: &Place) -> Self {
        let reader = LzmaReader::new_mem_limit(place.group.1, u32::MAX, None);
        Parts(BufReader::new(
            reader.expect("the build compressed a group"),
        ))
    }

    fn skip(&mut self, count: usize) {
        for _ in 0..count {
            self.0.skip_until(0).expect(UNPACKED);
        }
    }

    fn next(&mut self) -> String {
        let mut part = Vec::new();
        self.0.read_until(0, &mut part).expect(UNPACKED);
        assert_eq!(part.pop(), Some(0), "{UNPACKED}");
        String::from_utf8(part).expect("the build compressed texts")
    }
}
