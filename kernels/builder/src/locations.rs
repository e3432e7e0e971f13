//! Source lines in the PTX, which the emulator's findings and faults name.
//!
//! With [`FLAGS`], the compiler writes before an instruction where it comes from, and the calls that
//! were inlined around it:
//!
//! ```text
//! .loc 1 20 5    // kernels/src/ptx/ldmatrix.rs:20:5 @[ kernels/src/tile/shared.rs:66:9 @[ ... ] ]
//! ```
//!
//! The PTX keeps the innermost place outside `ptx/`, whose functions are single instructions, as a
//! [mark](kernels::text::lines): `//@ kernels/src/tile/shared.rs:66`. Not as `.loc`, on which ptxas 13.5 was seen to crash.
//! The rest of the text is what the compiler writes without these flags, without its comments and with single spaces.
//!
//! Results of the compiler are kept while only comments change. So they hold numbers among the lines
//! that are code, which [`Lines::place`] turns into line numbers of today.

use kernels::text::lines::MARK;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Flags that make the compiler write locations.
pub const FLAGS: &[&str] = &["-Cdebuginfo=line-directives-only", "-Zverbose-asm"];

/// The number of the form in which [`Lines::keep`] writes texts, which are cached.
pub const FORM: u32 = 3;

/// The place of instructions that come from no file that is here.
const NO_PLACE: (&str, usize) = ("-", 0);

/// Whether a line of Rust is code: neither empty nor a comment.
pub fn is_code(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with("//")
}

/// The lines of source files that are code, ascending, by the file's path.
#[derive(Default)]
pub struct Lines(BTreeMap<String, Vec<u32>>);

impl Lines {
    /// Adds a file.
    pub fn add(&mut self, path: String, text: &str) {
        let lines = (1..).zip(text.lines());
        let code = lines.filter(|(_, line)| is_code(line));
        self.0
            .insert(path, code.map(|(number, _)| number).collect());
    }

    /// The compiler's text with one place for each run of instructions: a file, and a number among
    /// its lines that are code.
    pub fn keep(&self, text: &str) -> String {
        let mut kept = String::with_capacity(text.len() / 2);
        let mut last = None;
        for line in text.lines() {
            let (code, comment) = line.split_once("//").unwrap_or((line, ""));
            let (code, comment) = (code.trim(), comment.trim());
            if code.starts_with(".loc") {
                let place = places(comment).find_map(|(path, line)| self.index(path, line));
                if last.replace(place) != Some(place) {
                    let (path, index) = place.unwrap_or(NO_PLACE);
                    let _ = writeln!(kept, "{MARK}{path}:{index}");
                }
            } else if !code.is_empty() && !is_debug(code) && !is_comment(code) {
                let words = code.split_whitespace();
                let code: String = words.flat_map(|word| [word, " "]).collect();
                kept += &short(code.trim_end());
                kept.push('\n');
            }
        }
        kept
    }

    /// The text that [`Lines::keep`] made, with line numbers.
    pub fn place(&self, kept: &str) -> String {
        let mut placed = String::with_capacity(kept.len());
        for line in kept.lines() {
            let place = line.strip_prefix(MARK).and_then(|place| {
                let (path, index) = place.split_once(':')?;
                let index = index.parse::<usize>().ok()?.checked_sub(1)?;
                Some((path, self.0.get(path)?.get(index)?))
            });
            let _ = match place {
                Some((path, line)) => writeln!(placed, "{MARK}{path}:{line}"),
                None => writeln!(placed, "{line}"),
            };
        }
        placed
    }

    /// A file's path and the number of a line among its code, from 1; none for files that are not
    /// here, and for single instructions.
    fn index<'a>(&self, path: &'a str, line: u32) -> Option<(&'a str, usize)> {
        let lines = self.0.get(path).filter(|_| !path.contains("/ptx/"))?;
        let index = lines.binary_search(&line).ok()?;
        Some((path, index + 1))
    }
}

/// Whether a line is no more than a comment, as `asm!` writes it that names an operand and has no instruction.
fn is_comment(code: &str) -> bool {
    code.starts_with("/*") && code.find("*/") == Some(code.len() - 2)
}

/// A line with short names of labels, which are known in their kernel alone, and of registers: without their `%`, which other names
/// begin with, too, and without spaces in their vectors.
fn short(line: &str) -> String {
    let label = |part: &str| {
        let number = part.split_once('_').map_or(part, |(_, number)| number);
        format!("$L{number}")
    };
    let vector = |part: &str| {
        let (vector, rest) = part.split_at(part.find('}').unwrap_or_default());
        format!("{{%{}{rest}", vector.replace(", ", ","))
    };
    let register = |part: &str| match is_register(part) {
        true => part.to_owned(),
        false => format!("%{part}"),
    };
    let line = replace(&replace(line, "$L__BB", label), "{%", vector);
    replace(&line, "%", register)
}

/// A line with others in place of a mark and what follows each, up to the next.
fn replace(line: &str, mark: &str, other: impl Fn(&str) -> String) -> String {
    let mut parts = line.split(mark);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, part| line + &other(part))
}

/// Whether a name that follows `%` is a register's: letters and a number, or the numbers' end in a declaration.
fn is_register(name: &str) -> bool {
    let number = name.trim_start_matches(|c: char| c.is_ascii_lowercase());
    number.len() < name.len() && number.starts_with(|c: char| c.is_ascii_digit() || c == '<')
}

/// The paths and lines of a location's comment, the innermost first.
fn places(comment: &str) -> impl Iterator<Item = (&str, u32)> {
    comment.split(" @[ ").filter_map(|place| {
        let mut parts = place.trim_end_matches([' ', ']']).rsplitn(3, ':');
        let (_column, line, path) = (parts.next()?, parts.next()?, parts.next()?);
        Some((path, line.parse().ok()?))
    })
}

/// Whether the compiler writes a line only with [`FLAGS`].
fn is_debug(code: &str) -> bool {
    [".file", ".section", "$L__tmp", "$L__func"]
        .iter()
        .any(|start| code.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPILED: &str = "\
.visible .entry e(
\t// @e
)
{
$L__func_begin0:
\t.loc\t1 3 0                          // kernels/src/entry.rs:2:0

// %bb.0:
$L__tmp0:
\t.loc\t2 8 5                   // kernels/src/ptx/shared.rs:1:5 @[ kernels/src/tile.rs:3:9 @[ kernels/src/entry.rs:2:1 ] ]
\t// begin inline asm
\tld.shared.v2.b32 {%r1, %r3}, [%r2];
\t// end inline asm
\t/* %r3 */
$L__BB12_34:
\t.loc\t3 9 9                   // src/cmp.rs:9:9 @[ kernels/src/tile.rs:3:2 @[ kernels/src/entry.rs:2:1 ] ]
\tadd.s32 \t%r1, %r1, 1;           // here
\t@%p1 bra \t$L__BB12_34;
\t.loc\t3 9 9                   // src/cmp.rs:9:9
\tret;
$L__func_end0:
                                        // -- End function
}
\t.section\t.debug_macinfo\t{\t}
\t.file\t1 \"/any/kernels/src/entry.rs\"
";

    fn lines(tile: &str) -> Lines {
        let mut lines = Lines::default();
        lines.add("kernels/src/entry.rs".to_owned(), "a\nb");
        lines.add("kernels/src/ptx/shared.rs".to_owned(), "a");
        lines.add("kernels/src/tile.rs".to_owned(), tile);
        lines
    }

    /// The innermost place outside `ptx/`, wherever comments move it; labels and vectors are [short](super::short).
    #[test]
    fn a_place_stands_before_its_instructions() {
        let kept = lines("//\na\nb\n").keep(COMPILED);
        for (tile, line) in [("//\na\nb\n", 3), ("a\n\n// two\n// three\nb", 5)] {
            let expected = format!(
                "\
.visible .entry e(
)
{{
//@ kernels/src/entry.rs:2
//@ kernels/src/tile.rs:{line}
ld.shared.v2.b32 {{r1,r3}}, [r2];
$L34:
add.s32 r1, r1, 1;
@p1 bra $L34;
//@ -:0
ret;
}}
"
            );
            assert_eq!(lines(tile).place(&kept), expected);
        }
    }
}
