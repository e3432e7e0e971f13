//! The statements of a kernel's body.

/// A statement, or a comment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statement<'a> {
    /// From its first character to its `;`, `:` or `}`.
    pub text: &'a str,
    pub kind: Kind<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind<'a> {
    /// A comment, or a place in the source.
    Comment,
    Label(&'a str),
    /// A jump to a label, where the predicate, if there is one, has this value.
    Branch(Option<(&'a str, bool)>, &'a str),
    /// The end of the kernel.
    Return,
    /// A declaration.
    Directive,
    /// Any other instruction: whether it has a predicate, its name and its operands.
    Instruction(bool, &'a str, &'a str),
    /// Statements in braces, without these.
    Block(&'a str),
}

/// The statements of a text, in order.
pub fn statements(text: &str) -> impl Iterator<Item = Statement<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        if rest.is_empty() {
            return None;
        }
        let (text, after) = rest.split_at(end(rest));
        rest = after;
        let kind = kind(text);
        Some(Statement { text, kind })
    })
}

/// The length of the first statement.
pub fn end(text: &str) -> usize {
    if let Some(end) = comment_end(text) {
        return end;
    }
    let (mut depth, mut next) = (0, 0);
    while let Some(&byte) = text.as_bytes().get(next) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b'/' => next += comment_end(&text[next..]).map_or(0, |end| end - 1),
            _ => {}
        }
        next += 1;
        let ends = match byte {
            b'}' => depth == 0 && text.starts_with('{'),
            b';' => depth == 0,
            b':' => text[..next - 1].chars().all(is_of_word),
            _ => false,
        };
        if ends {
            break;
        }
    }
    next
}

/// The length of a comment, or of a place in the source, if the text begins with one.
fn comment_end(text: &str) -> Option<usize> {
    let end = if text.starts_with("/*") {
        text.find("*/").map(|start| start + "*/".len())
    } else if text.starts_with("//") || text.starts_with(".loc") {
        text.find('\n')
    } else {
        return None;
    };
    Some(end.unwrap_or(text.len()))
}

fn kind(text: &str) -> Kind<'_> {
    if comment_end(text).is_some() {
        return Kind::Comment;
    } else if let Some(block) = text.strip_prefix('{') {
        return Kind::Block(block.strip_suffix('}').unwrap_or(block));
    } else if let Some(label) = text.strip_suffix(':') {
        return Kind::Label(label);
    } else if text.starts_with('.') {
        return Kind::Directive;
    }
    let text = text.trim_end_matches(';').trim_end();
    let first_word = |text| str::split_once(text, char::is_whitespace).unwrap_or((text, ""));
    let (predicate, instruction) = match text.strip_prefix('@') {
        Some(text) => first_word(text),
        None => ("", text),
    };
    let (opcode, operands) = first_word(instruction.trim_start());
    let operands = operands.trim_start();
    match (opcode, predicate) {
        ("bra" | "bra.uni", "") => Kind::Branch(None, operands),
        ("bra" | "bra.uni", _) => {
            let negated = predicate.strip_prefix('!');
            let condition = (negated.unwrap_or(predicate), negated.is_none());
            Kind::Branch(Some(condition), operands)
        }
        ("ret" | "exit", "") => Kind::Return,
        _ => Kind::Instruction(!predicate.is_empty(), opcode, operands),
    }
}

/// The operands of an instruction.
pub fn operands(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let operands = text.split(move |c| {
        depth += i32::from("{[(".contains(c)) - i32::from("}])".contains(c));
        c == ',' && depth == 0
    });
    operands.map(str::trim)
}

/// The names in a text: of registers, labels and instructions.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c| !is_of_word(c));
    words.filter(|word| !word.is_empty())
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')
}
