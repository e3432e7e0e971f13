//! A short fuzz run. Mutated real PTX loads or is an error; modules that load run or break a rule;
//! nothing panics.

use crate::attention::{Modules, Problem, Run, named, ptx};
use crate::mutants::ring::text as ring;
use crate::tiny::run_module;
use ::kernels::catalog::Kernel;
use emulator::{Module, Options};
use proptest::prelude::*;

/// A change to a text.
#[derive(Clone, Debug)]
enum Edit {
    /// Removes some characters.
    Cut(usize),
    /// Inserts a text.
    Insert(String),
    /// Inserts a later part of the text.
    Copy(prop::sample::Index, usize),
    /// Ends the text.
    Truncate,
}

fn edit() -> impl Strategy<Value = Edit> {
    let words = prop::sample::select(vec![
        "-",
        "0",
        "4294967295",
        "99999999999999999999",
        "{",
        "}",
        "[",
        "]",
        "<",
        "@",
        "@!",
        ",",
        ";",
        ":",
        "|",
        ".reg .b32 %x<9>;",
        ".reg",
        "%r1",
        "%rd1",
        "%p1",
        "%tid.x",
        "smem",
        "_",
        "bra",
        "ret;",
        "ld.global.b32",
        "mov.b64",
        "cvt.u8.u64",
        "bar.sync",
        ".v4",
        ".align",
        "0f",
        "0x",
        "//",
        "/*",
        "é",
        "\0",
    ]);
    prop_oneof![
        4 => (1_usize..30).prop_map(Edit::Cut),
        4 => words.prop_map(|word| Edit::Insert(word.to_owned())),
        1 => ".{1,4}".prop_map(Edit::Insert),
        4 => (any::<prop::sample::Index>(), 1_usize..40).prop_map(|(from, n)| Edit::Copy(from, n)),
        1 => Just(Edit::Truncate),
    ]
}

fn apply(text: &mut String, at: usize, edit: &Edit) {
    let boundary = |text: &str, at: usize| text.ceil_char_boundary(at.min(text.len()));
    let at = boundary(text, at);
    match edit {
        Edit::Cut(n) => drop(text.drain(at..boundary(text, at + n))),
        Edit::Insert(word) => text.insert_str(at, word),
        Edit::Copy(from, n) => {
            let from = boundary(text, from.index(text.len() + 1));
            let part = text[from..boundary(text, from + n)].to_owned();
            text.insert_str(at, &part);
        }
        Edit::Truncate => text.truncate(at),
    }
}

fn kernel() -> &'static Kernel {
    named("forward_f16_d32_causal")
}

/// A real module with a few hundred of its instructions: edits hit the interesting ones, and a case
/// takes a millisecond.
fn text() -> String {
    let text = ptx(kernel());
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains("//")).collect();
    let body = lines
        .iter()
        .position(|line| line.contains("%tid.x"))
        .expect("a body");
    let kept = |i: usize| i < body + 80 || i.is_multiple_of(10) || lines[i].starts_with(['$', '}']);
    let kept: Vec<&str> = (0..lines.len())
        .filter(|i| kept(*i))
        .map(|i| lines[i])
        .collect();
    kept.join("\n")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn mutated_modules_do_no_harm(
        edits in prop::collection::vec((any::<prop::sample::Index>(), edit()), 1..4),
    ) {
        let mut text = text();
        for (at, edit) in &edits {
            let at = at.index(text.len() + 1);
            apply(&mut text, at, edit);
        }
        if let Ok(mutated) = Module::parse(&text, "mutated.ptx") {
            let modules = Modules { kernel: mutated, ..Modules::of(kernel()) };
            let run = Run::new(kernel(), &Problem::square(20, 32));
            let options = Options { instruction_budget: 2000, counters: true, ..Options::default() };
            let _ = run.launch(&modules, &options);
        }
    }

    #[test]
    fn mutated_rings_do_no_harm(
        edits in prop::collection::vec((any::<prop::sample::Index>(), edit()), 1..4),
    ) {
        let mut text = ring();
        let start = text.find("mbarrier").unwrap_or_default();
        for (at, edit) in &edits {
            let at = start + at.index(text.len() + 1 - start);
            apply(&mut text, at, edit);
        }
        let options = Options { instruction_budget: 2000, counters: true, ..Options::default() };
        let _ = run_module(&text, 64, &[0; 512], &options);
    }

    #[test]
    fn any_text_does_no_harm(text in "\\PC{0,200}") {
        let _ = Module::parse(&text, "any.ptx");
        let header = ".version 7.0 .target sm_80 .address_size 64 .entry e() {";
        let _ = Module::parse(&format!("{header} {text}"), "any.ptx");
    }
}
