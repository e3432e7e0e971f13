//! The grammar of PTX: words and punctuation, and statements made of them.

use crate::error::SyntaxError;

/// A word, number or punctuation mark, and its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub text: &'a str,
    pub line: u32,
}

/// The first characters of a comment that gives the source line of the instructions after it, as a path and
/// a number: `//@ kernels/src/tile/copy.rs:31`.
pub(crate) const PLACE: &str = "//@ ";

/// Splits a module into tokens, without comments other than places.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token<'_>>, SyntaxError> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            if rest.starts_with(PLACE) {
                let text = &rest[..length];
                tokens.push(Token { text, line });
            }
            length
        } else if rest.starts_with("/*") {
            let end = rest.find("*/");
            end.ok_or_else(|| SyntaxError::new(line, "a comment does not end"))? + 2
        } else if first.is_whitespace() {
            first.len_utf8()
        } else if let Some(quoted) = rest.strip_prefix('"') {
            let end = quoted.find('"');
            let length = end.ok_or_else(|| SyntaxError::new(line, "a string does not end"))? + 2;
            tokens.push(Token {
                text: &rest[..length],
                line,
            });
            length
        } else {
            let length = match word_length(rest) {
                0 if "{}[]()<>,;:@!|+-=".contains(first) => 1,
                0 => {
                    return Err(SyntaxError::new(
                        line,
                        format!("unexpected character {first:?}"),
                    ));
                }
                length => length,
            };
            let text = &rest[..length];
            tokens.push(Token { text, line });
            length
        };
        let (skipped, tail) = rest.split_at(length);
        line += skipped.matches('\n').count() as u32;
        rest = tail;
    }
    Ok(tokens)
}

/// Bytes of the word that `text` starts with: identifiers, opcodes, directives and numbers. A `::`
/// belongs to a word (`.L2::128B`), the `:` after a label does not.
fn word_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_word = |i: usize| {
        bytes
            .get(i)
            .is_some_and(|b| b.is_ascii_alphanumeric() || b"_$%.".contains(b))
    };
    let mut length = 0;
    loop {
        if is_word(length) {
            length += 1;
        } else if length > 0 && text[length..].starts_with("::") && is_word(length + 2) {
            length += 2;
        } else {
            return length;
        }
    }
}

/// An operand of an instruction, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operand<'a> {
    /// A register, variable, label or `_`.
    Name(&'a str),
    /// `p|q`: two destinations.
    Pair(&'a str, &'a str),
    /// Integers sign-extended, floats as their bits.
    Immediate(u64),
    /// `{a, b}`.
    Vector(Vec<Operand<'a>>),
    /// `[name+offset]`.
    Address(&'a str, i64),
    /// `[name+offset, {a, b}]`: a tensor map and coordinates.
    Tensor(&'a str, i64, Vec<Operand<'a>>),
}

/// An instruction as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Statement<'a> {
    pub line: u32,
    /// The predicate of `@p`, and whether it is `@!p`.
    pub guard: Option<(&'a str, bool)>,
    pub opcode: &'a str,
    pub operands: Vec<Operand<'a>>,
}

/// A position in a module's tokens.
pub(crate) struct Cursor<'a> {
    tokens: Vec<Token<'a>>,
    next: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(text: &'a str) -> Result<Self, SyntaxError> {
        Ok(Cursor {
            tokens: tokens(text)?,
            next: 0,
        })
    }

    pub fn at_end(&self) -> bool {
        self.next == self.tokens.len()
    }

    /// The line of the next token, or of the last.
    pub fn line(&self) -> u32 {
        let token = self.tokens.get(self.next).or(self.tokens.last());
        token.map_or(1, |token| token.line)
    }

    /// The text `ahead` tokens from here, empty past the end.
    pub fn peek(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.next + ahead).map_or("", |t| t.text)
    }

    pub fn error(&self, message: impl Into<String>) -> SyntaxError {
        SyntaxError::new(self.line(), message)
    }

    pub fn take(&mut self) -> Result<&'a str, SyntaxError> {
        if self.at_end() {
            return Err(self.error("the text ends in the middle of a statement"));
        }
        self.next += 1;
        Ok(self.tokens[self.next - 1].text)
    }

    /// Takes the next token if it is `text`.
    pub fn accept(&mut self, text: &str) -> bool {
        let accepted = self.peek(0) == text;
        self.next += usize::from(accepted);
        accepted
    }

    pub fn expect(&mut self, text: &str) -> Result<(), SyntaxError> {
        if self.accept(text) {
            return Ok(());
        }
        Err(self.error(format!("expected {text:?}, found {:?}", self.peek(0))))
    }

    /// Takes a name.
    pub fn word(&mut self) -> Result<&'a str, SyntaxError> {
        if word_length(self.peek(0)) == 0 || self.peek(0).starts_with(|c: char| c.is_ascii_digit())
        {
            return Err(self.error(format!("expected a name, found {:?}", self.peek(0))));
        }
        self.take()
    }

    /// Takes an unsigned integer that fits 32 bits.
    pub fn count(&mut self) -> Result<u32, SyntaxError> {
        let error = self.error(format!("expected a number, found {:?}", self.peek(0)));
        self.take()?.parse().map_err(|_| error)
    }

    /// Takes an instruction with its guard and final semicolon.
    pub fn statement(&mut self) -> Result<Statement<'a>, SyntaxError> {
        let line = self.line();
        let mut guard = None;
        if self.accept("@") {
            let negated = self.accept("!");
            guard = Some((self.word()?, negated));
        }
        let opcode = self.word()?;
        let mut operands = Vec::new();
        while !self.accept(";") {
            if !operands.is_empty() {
                self.expect(",")?;
            }
            operands.push(self.operand()?);
        }
        Ok(Statement {
            line,
            guard,
            opcode,
            operands,
        })
    }

    fn operand(&mut self) -> Result<Operand<'a>, SyntaxError> {
        if self.accept("{") {
            return Ok(Operand::Vector(self.vector()?));
        }
        if self.accept("[") {
            let base = self.word()?;
            let mut offset = 0;
            if !matches!(self.peek(0), "]" | ",") {
                let minus = !self.accept("+") || self.peek(0) == "-";
                if minus {
                    self.expect("-")?;
                }
                offset = self.number()? as i64;
                if minus {
                    offset = offset.wrapping_neg();
                }
            }
            let mut operand = Operand::Address(base, offset);
            if self.accept(",") {
                self.expect("{")?;
                operand = Operand::Tensor(base, offset, self.vector()?);
            }
            self.expect("]")?;
            return Ok(operand);
        }
        self.scalar()
    }

    /// The elements of a vector, after its `{`, and its `}`.
    fn vector(&mut self) -> Result<Vec<Operand<'a>>, SyntaxError> {
        let mut elements = vec![self.scalar()?];
        while !self.accept("}") {
            self.expect(",")?;
            elements.push(self.scalar()?);
        }
        Ok(elements)
    }

    /// An operand without brackets or braces.
    fn scalar(&mut self) -> Result<Operand<'a>, SyntaxError> {
        if self.accept("-") {
            return Ok(Operand::Immediate(self.number()?.wrapping_neg()));
        }
        if self.peek(0).starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(Operand::Immediate(self.number()?));
        }
        let name = self.word()?;
        if self.accept("|") {
            return Ok(Operand::Pair(name, self.word()?));
        }
        Ok(Operand::Name(name))
    }

    /// A number literal: decimal, hexadecimal, or the bits of a float (`0f`, `0d`).
    fn number(&mut self) -> Result<u64, SyntaxError> {
        let error = self.error(format!("expected a number, found {:?}", self.peek(0)));
        let text = self.take()?;
        let text = text.strip_suffix('U').unwrap_or(text);
        let hexadecimal = ["0x", "0X", "0f", "0F", "0d", "0D"]
            .iter()
            .find_map(|prefix| text.strip_prefix(prefix));
        match hexadecimal {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        }
        .map_err(|_| error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_with_everything() {
        let text = "/* a\n */ @!%p1 shfl.sync.idx.b32 %r1|%p2, {%a, _}, [%rd3+-4], -0x10, \
                    0f3F800000, [%rd1, {%r1, 2}]; // b";
        let statement = Cursor::new(text).unwrap().statement().unwrap();
        assert_eq!(statement.line, 2);
        assert_eq!(statement.guard, Some(("%p1", true)));
        assert_eq!(statement.opcode, "shfl.sync.idx.b32");
        let vector = Operand::Vector(vec![Operand::Name("%a"), Operand::Name("_")]);
        let coordinates = vec![Operand::Name("%r1"), Operand::Immediate(2)];
        assert_eq!(
            statement.operands,
            [
                Operand::Pair("%r1", "%p2"),
                vector,
                Operand::Address("%rd3", -4),
                Operand::Immediate(-16_i64 as u64),
                Operand::Immediate(0x3F80_0000),
                Operand::Tensor("%rd1", 0, coordinates),
            ]
        );
    }

    #[test]
    fn words_hold_double_colons_and_labels_end_at_one() {
        let words: Vec<_> = tokens("a.L2::128B $L_1: x").unwrap();
        let words: Vec<_> = words.iter().map(|t| t.text).collect();
        assert_eq!(words, ["a.L2::128B", "$L_1", ":", "x"]);
    }

    #[test]
    fn what_is_not_ptx_is_an_error() {
        for text in ["\u{7f}ELF", "/* open", "é"] {
            assert!(tokens(text).is_err(), "{text}");
        }
        for text in [
            "add.s32 %r1 %r2;",
            "add.s32 {;",
            "@ add;",
            "bra [",
            "mov %r1, 0xzz;",
            "",
        ] {
            assert!(Cursor::new(text).unwrap().statement().is_err(), "{text}");
        }
    }
}
