//! A short fuzz run. Mutated real PTX loads or is an error; modules that load run or break a rule;
//! nothing panics.

use crate::pipeline::{run as run_pipeline, text as pipeline};
use crate::ring::text as ring;
use crate::tiny::run_module;
use ::kernels::abi::{Divisor, ForwardParams, Order, TensorRef};
use ::kernels::catalog::{self, Kernel};
use emulator::{Argument, Memory, Module, Options, launch};
use kernel_builder::Package;
use proptest::prelude::*;
use std::sync::LazyLock;

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
    catalog::named("forward_f16_d32_causal").expect("in the catalog")
}

/// A real module with a few hundred of its instructions: edits hit the interesting ones, and a case
/// takes a millisecond.
fn text() -> String {
    static TEXT: LazyLock<String> = LazyLock::new(shortened);
    TEXT.clone()
}

fn shortened() -> String {
    const ENTRY: &str = ".visible .entry ";
    let modules = kernel_builder::build(&Package::kernels());
    let modules = modules.unwrap_or_else(|error| panic!("{error}"));
    let mut modules = modules.iter();
    let module = modules.find(|module| module.name == kernel().module);
    let mut parts = module.expect("built").text.split(ENTRY);
    let head = parts.next().unwrap_or_default();
    let start = format!("{}(", kernel().name);
    let entry = parts.find(|part| part.starts_with(&start));
    let text = format!("{head}{ENTRY}{}", entry.expect("in its module"));
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

/// Launches a module's kernel on 20 queries and keys.
fn run(module: &Module) {
    let memory = Memory::new();
    let tensor = || TensorRef {
        address: memory.upload(&[60; 20 * 32 * 2]),
        row_stride: 32,
        ..TensorRef::default()
    };
    let params = ForwardParams {
        q: tensor(),
        k: tensor(),
        v: tensor(),
        o: tensor(),
        lse: memory.allocate(20 * 4),
        heads: 1,
        tile_heads: Divisor::new(1),
        group: Divisor::new(1),
        order: Order::new(1, 1, [1, 1]),
        seqlen_q: 20,
        seqlen_kv: 20,
        dim: 32,
        scale: 1.0,
        o_aligned: 1,
        batch_heads: 1,
        splits: 1,
        split_keys: 64,
        ..ForwardParams::default()
    };
    let options = Options {
        instruction_budget: 2000,
        counters: true,
        ..Options::default()
    };
    if let Ok(entry) = module.entry(kernel().name) {
        let arguments = [Argument::Bytes(bytemuck::bytes_of(&params))];
        let (threads, shared_bytes) = (
            [kernel().launch.threads, 1, 1],
            kernel().launch.shared_bytes,
        );
        let _ = launch(
            &memory,
            entry,
            [1; 3],
            threads,
            shared_bytes,
            &arguments,
            &options,
        );
    }
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
            run(&mutated);
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
    fn mutated_pipelines_do_no_harm(
        edits in prop::collection::vec((any::<prop::sample::Index>(), edit()), 1..4),
    ) {
        let mut text = pipeline();
        let start = text.find("mbarrier").unwrap_or_default();
        for (at, edit) in &edits {
            let at = start + at.index(text.len() + 1 - start);
            apply(&mut text, at, edit);
        }
        let options = Options { instruction_budget: 2000, counters: true, ..Options::default() };
        let _ = run_pipeline(&text, &options);
    }

    #[test]
    fn any_text_does_no_harm(text in "\\PC{0,200}") {
        let _ = Module::parse(&text, "any.ptx");
        let header = ".version 7.0 .target sm_80 .address_size 64 .entry e() {";
        let _ = Module::parse(&format!("{header} {text}"), "any.ptx");
    }
}
