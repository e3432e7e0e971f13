//! Source lines of instructions: as marks in a text, or in a table beside it.
//!
//! A mark is a comment on a line of its own. `//@ kernels/src/tile/copy.rs:31` names the source line of the
//! instructions up to the next mark, `//@ -:0` that the compiler knows none. The emulator's findings name these lines;
//! the driver has no use for them, so they are kept apart: a mark is two or three small numbers.

use std::fmt::Write;

/// The start of a mark.
pub const MARK: &str = "//@ ";

/// A text without its marks, and the table of these: the number of files, a line for each file's path, then for each mark the
/// lines of text since the mark before, the file's index, and the line in the file.
///
/// ```
/// let marked = "{\n//@ copy.rs:31\nadd.s32 %r1, %r2, 1;\nret;\n//@ -:0\n}\n";
/// let (text, table) = kernels::text::lines::take(marked);
/// assert_eq!(text, "{\nadd.s32 %r1, %r2, 1;\nret;\n}\n");
/// assert_eq!(table, "2\ncopy.rs\n-\n1 0 31\n2 1 0\n");
/// assert_eq!(kernels::text::lines::put(&text, &table), marked);
/// ```
pub fn take(marked: &str) -> (String, String) {
    let mut text = String::with_capacity(marked.len());
    let mut files: Vec<&str> = Vec::new();
    let mut marks = String::new();
    let mut lines_since = 0;
    for line in marked.lines() {
        let place = line.strip_prefix(MARK);
        let Some((path, number)) = place.and_then(|place| place.rsplit_once(':')) else {
            text += line;
            text.push('\n');
            lines_since += 1;
            continue;
        };
        let known = files.iter().position(|file| *file == path);
        let file = known.unwrap_or_else(|| {
            files.push(path);
            files.len() - 1
        });
        let _ = writeln!(marks, "{lines_since} {file} {number}");
        lines_since = 0;
    }
    let files: String = files.iter().flat_map(|file| [file, "\n"]).collect();
    (text, format!("{}\n{files}{marks}", files.lines().count()))
}

/// The text with its marks, from the table that [`take`] made.
///
/// # Panics
/// If the table is another's.
pub fn put(text: &str, table: &str) -> String {
    let number = |word: &str| -> usize { word.parse().expect("a number of the table") };
    let mut rows = table.lines();
    let count = number(rows.next().unwrap_or("0"));
    let files: Vec<&str> = rows.by_ref().take(count).collect();
    let mut marked = String::with_capacity(text.len() + 8 * table.len());
    let mut rest = text.split_inclusive('\n');
    for mark in rows {
        let mut words = mark.splitn(3, ' ');
        let mut word = || words.next().expect("three numbers of a mark");
        let (lines_since, file, line) = (number(word()), number(word()), word());
        marked.extend(rest.by_ref().take(lines_since));
        let _ = writeln!(marked, "{MARK}{}:{line}", files[file]);
    }
    marked.extend(rest);
    marked
}

#[cfg(test)]
mod tests {
    use super::{put, take};
    use proptest::prelude::*;

    proptest! {
        /// Marks come back between the lines where they stood, whatever the files are called.
        #[test]
        fn a_table_puts_marks_back(
            lines in prop::collection::vec(
                prop_oneof![
                    (0..3_usize, 0..2000_u32).prop_map(|(file, line)| {
                        format!("//@ {}:{line}", ["a b/c.rs", "1", "c:d.rs"][file])
                    }),
                    prop_oneof!["ret;", "// a comment", "", "//@ no place"],
                ],
                0..20,
            )
        ) {
            let marked: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
            let (text, table) = take(&marked);
            prop_assert!(!text.contains(".rs"));
            prop_assert_eq!(put(&text, &table), marked);
        }
    }

    #[test]
    fn lines_of_another_text_still_name_their_files() {
        let (text, table) = take("//@ a.rs:1\nadd.f16x2 %r1;\n//@ b.rs:7\nret;\n");
        let changed = text.replace("f16x2", "bf16x2");
        let marked = "//@ a.rs:1\nadd.bf16x2 %r1;\n//@ b.rs:7\nret;\n";
        assert_eq!(put(&changed, &table), marked);
    }
}
