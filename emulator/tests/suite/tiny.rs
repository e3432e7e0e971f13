//! Hand-written kernels: a few instructions between a header and `ret`.

use emulator::{Argument, Error, Fault, Memory, Module, Options, Rule, launch};

/// Words that a thread may write.
pub const WORDS: usize = 8;

/// A module with one kernel around a body. `%out` is the address of the thread's [`WORDS`] words of
/// output, `%in` of a read-only buffer; `%tid`, `%lane` and `%warp` are the thread's; `smem` is
/// shared memory.
pub fn module(body: &str) -> String {
    module_with_registers("sm_80", body)
}

/// [`module`] for a target.
pub fn module_with_registers(target: &str, body: &str) -> String {
    let registers = ".reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .b64 %d<16>;";
    module_for(target, WORDS, &format!("{registers}\n{body}"))
}

/// [`module`] for a target and with `words` words of a thread. The body declares other registers.
pub fn module_for(target: &str, words: usize, body: &str) -> String {
    format!(
        "
        .version 8.0
        .target {target}
        .address_size 64
        .extern .shared .align 1024 .b8 smem[];
        .visible .entry tiny(.param .u64 out, .param .u64 input)
        {{
            .reg .b32 %tid, %lane, %warp, %smem;
            .reg .b64 %out, %in;
            ld.param.u64 %out, [out];
            ld.param.u64 %in, [input];
            mov.u32 %tid, %tid.x;
            and.b32 %lane, %tid, 31;
            shr.u32 %warp, %tid, 5;
            mad.wide.u32 %out, %tid, {}, %out;
            mov.u32 %smem, smem;
            {body}
            ret;
        }}",
        4 * words
    )
}

/// A schedule, for kernels of few instructions.
pub fn schedule(seed: u64) -> Options {
    Options {
        seed,
        instruction_budget: 10_000,
        ..Options::default()
    }
}

/// Runs a kernel body with `threads` threads and 1024 bytes of shared memory; returns the words
/// each thread stored to `[%out]`. Words it did not store are all ones.
pub fn run(body: &str, threads: u32, input: &[u32]) -> Result<Vec<[u32; WORDS]>, Error> {
    run_with(body, threads, input, &Options::default())
}

pub fn run_with(
    body: &str,
    threads: u32,
    input: &[u32],
    options: &Options,
) -> Result<Vec<[u32; WORDS]>, Error> {
    run_module(&module(body), threads, input, options)
}

/// Runs a module made of [`module`]'s text.
pub fn run_module(
    text: &str,
    threads: u32,
    input: &[u32],
    options: &Options,
) -> Result<Vec<[u32; WORDS]>, Error> {
    let module = Module::parse(text, "tiny.ptx")?;
    let memory = Memory::new();
    let mut words = vec![[u32::MAX; WORDS]; threads as usize];
    let out = memory.allocate(size_of_val(&words[..]));
    let input = memory.upload(bytemuck::cast_slice(input));
    let arguments = [Argument::U64(out), Argument::U64(input)];
    let kernel = module.entry("tiny")?;
    launch(
        &memory,
        kernel,
        [1, 1, 1],
        [threads, 1, 1],
        1024,
        &arguments,
        options,
    )?;
    memory
        .read(out, bytemuck::cast_slice_mut(&mut words))
        .unwrap();
    Ok(words)
}

/// Runs one warp, which must break no rule.
#[track_caller]
pub fn warp(body: &str, input: &[u32]) -> Vec<[u32; WORDS]> {
    run(body, 32, input).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs one warp of a Hopper, which must break no rule.
#[track_caller]
pub fn hopper_warp(body: &str, input: &[u32]) -> Vec<[u32; WORDS]> {
    let text = module_with_registers("sm_90a", body);
    run_module(&text, 32, input, &Options::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a kernel that must break a rule under each of several schedules; the report of the first.
#[track_caller]
pub fn fault(body: &str, threads: u32, input: &[u32]) -> Fault {
    let mut faults = (0..10).map(
        |seed| match run_with(body, threads, input, &schedule(seed)) {
            Err(Error::Fault(fault)) => *fault,
            other => panic!("seed {seed}: no rule was broken: {other:?}"),
        },
    );
    let first = faults.next().expect("some seeds");
    faults.for_each(drop);
    first
}

/// The rule that a kernel breaks.
#[track_caller]
pub fn broken(body: &str, threads: u32, input: &[u32]) -> Rule {
    fault(body, threads, input).rule
}
