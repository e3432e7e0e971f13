//! Kernels of bf16, written from the text of their twins of f16: half the compiler's work, and half the bytes of a program.
//!
//! The two differ in instructions that name the type, in constants of the type, and in their names.

use std::fmt;

/// Texts of f16 kernels and what bf16 has in their place: instructions of `kernels/src/ptx`.
pub const INSTRUCTIONS: [(&str, &str); 10] = [
    // Products by mma.sync and wgmma.
    (".f32.f16.f16", ".f32.bf16.bf16"),
    ("cvt.rn.f16x2.f32", "cvt.rn.bf16x2.f32"),
    ("fma.rn.f16x2", "fma.rn.bf16x2"),
    ("max.f16x2", "max.bf16x2"),
    ("min.f16x2", "min.bf16x2"),
    // ptx/convert.rs.
    (
        "mov.b32 exponents, 0x7c007c00",
        "mov.b32 exponents, 0x7f807f80",
    ),
    (
        "mov.b32 exponent_lsbs, 0x04000400",
        "mov.b32 exponent_lsbs, 0x00800080",
    ),
    ("mov.b32 one, 0x3c00", "mov.b32 one, 0x3f80"),
    ("cvt.f32.f16 wide, half", "mov.b32 wide, {zero, half}"),
    (
        "mov.b32 pair, halves",
        "mov.b32 {low, high}, halves; cvt.f32.f16 lo, low; cvt.f32.f16 hi, high; cvt.rn.bf16x2.f32 pair, hi, lo",
    ),
];

/// The mark of instructions of f16 that kernels of both types have (`ptx/half.rs`).
const MARK: &str = "/* f16 */";

/// What lines have that may name f16 in kernels of both types: the instruction that reads it, numbers of e4m3, and the mark.
const SHARED: [&str; 3] = ["cvt.f32.f16 ", "e4m3", MARK];

/// The text of a module of bf16, from its twin's of f16. Names of kernels begin with their module's; these are `names`,
/// of f16 and of bf16.
///
/// ```
/// let text = ".visible .entry k_f16_causal(\n)\n{\ncvt.rn.f16x2.f32 %r1, %f1, %f2;\n}\n";
/// let twin = kernels::text::twin::bf16(text, ["k_f16", "k_bf16"]).unwrap();
/// assert_eq!(twin, ".visible .entry k_bf16_causal(\n)\n{\ncvt.rn.bf16x2.f32 %r1, %f1, %f2;\n}\n");
/// ```
///
/// # Errors
/// [`Missed`] where something of f16 is left, or nothing was replaced: the text is not what [`INSTRUCTIONS`] know.
pub fn bf16(text: &str, names: [&str; 2]) -> Result<String, Missed> {
    let [f16_name, bf16_name] = names;
    let missed = |what: &str| Err(Missed(bf16_name.to_owned(), what.to_owned()));
    if !text.contains(&format!(".entry {f16_name}")) {
        return missed("no kernel of its twin's name");
    }
    let of_line = |line: &str| match line.contains(MARK) {
        true => line.to_owned(),
        false => INSTRUCTIONS
            .iter()
            .fold(line.to_owned(), |line, (f16, bf16)| line.replace(f16, bf16)),
    };
    let twin: String = text.split_inclusive('\n').map(of_line).collect();
    if twin == text {
        return missed("no instruction of f16");
    }
    let twin = twin.replace(f16_name, bf16_name);
    match twin.lines().find(|line| has_f16(line)) {
        Some(line) => missed(line),
        None => Ok(twin),
    }
}

/// Whether a line names f16 that is not [`SHARED`].
fn has_f16(line: &str) -> bool {
    let mut named = line.match_indices("f16");
    let is_shared = SHARED.iter().any(|shared| line.contains(shared));
    named.any(|(place, _)| !line[..place].ends_with('b')) && !is_shared
}

/// A text that is not that of a twin: the module of bf16, and what its twin's text has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed(String, String);

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Missed(module, found) = self;
        write!(
            f,
            "{module} cannot be written from its twin of f16, which has: {found}"
        )
    }
}

impl std::error::Error for Missed {}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["k_f16_d64", "k_bf16_d64"];

    fn module(instructions: &str) -> String {
        format!(
            ".visible .entry k_f16_d64_causal(\n.param .b8 k_f16_d64_causal_param_0[8]\n)\n{{\n{instructions}\n}}\n"
        )
    }

    #[test]
    fn each_instruction_and_name_is_replaced() {
        for (f16, bf16) in INSTRUCTIONS {
            let found = self::bf16(&module(f16), NAMES).expect("a twin");
            assert_eq!(found, module(bf16).replace("k_f16", "k_bf16"));
        }
    }

    #[test]
    fn an_instruction_that_is_missed_is_named() {
        let known = "fma.rn.f16x2 %r1, %r1, %r2, %r3;";
        let bias = "cvt.f32.f16 %f1, %rs1;";
        let found = bf16(&module(&format!("{known}\n{bias}")), NAMES).expect("a twin");
        assert!(found.contains(bias));
        let marked = "fma.rn.f16x2 %r1, %r1, %r2, %r3; /* f16 */";
        let found = bf16(&module(&format!("{known}\n{marked}")), NAMES).expect("a twin");
        assert!(found.contains(marked) && found.contains("fma.rn.bf16x2"));
        for new in ["add.f16x2 %r1, %r1, %r2;", "mma.f16.f16.f16.f16 x;"] {
            let error = bf16(&module(&format!("{known}\n{new}")), NAMES).unwrap_err();
            assert!(error.to_string().contains(new), "{error}");
        }
    }

    #[test]
    fn a_text_of_no_twin_is_refused() {
        assert!(bf16(&module("ret;"), NAMES).is_err());
        let other = module("fma.rn.f16x2 x;").replace("k_f16", "other_f16");
        assert!(bf16(&other, NAMES).is_err());
    }
}
