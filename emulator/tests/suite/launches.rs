//! Launches that begin early: what a kernel may touch before it waits for those before.

use crate::tiny::{module_with_registers, schedule};
use emulator::{Argument, Error, Memory, Module, Rule, launch};

/// Waits at its start, as a kernel without such a wait does.
const WRITES: &str = "mov.b32 %r0, 7; st.global.b32 [%out], %r0;";
/// Reads before it waits.
const READS_EARLY: &str =
    "ld.global.b32 %r0, [%in]; griddepcontrol.wait; st.global.b32 [%out], %r0;";
const READS_LATE: &str =
    "griddepcontrol.wait; ld.global.b32 %r0, [%in]; st.global.b32 [%out], %r0;";

/// Runs kernels one after another, each with `%in` and `%out` of three words that the host wrote: 1, 2 and 3. What they are then, or the rule
/// that is broken.
fn run(kernels: &[(&str, [u64; 2])], threads: u32) -> Result<[u32; 3], Rule> {
    let memory = Memory::new();
    // A thread's `%out` is behind those of the threads before.
    let words = memory.allocate(64 << 8);
    // Words of 8 bytes have a writer each.
    for (place, word) in [1u32, 2, 3].into_iter().enumerate() {
        let written = memory.write(words + 16 * place as u64, &word.to_le_bytes());
        written.expect("words of this memory");
    }
    for &(body, places) in kernels {
        let text = module_with_registers("sm_90", body);
        let module = Module::parse(&text, "launches.ptx").expect("PTX");
        let kernel = module.entry("tiny").expect("the kernel");
        let [input, out] = places.map(|place| Argument::U64(words + 16 * place));
        let one = [1; 3];
        let done = launch(
            &memory,
            kernel,
            one,
            [threads, 1, 1],
            1024,
            &[out, input],
            &schedule(0),
        );
        match done {
            Ok(_) => {}
            Err(Error::Fault(fault)) => return Err(fault.rule),
            Err(error) => panic!("{error}"),
        }
    }
    Ok([0, 1, 2].map(|place| {
        let mut word = [0; 4];
        let read = memory.read(words + 16 * place, &mut word);
        read.expect("words of this memory");
        u32::from_le_bytes(word)
    }))
}

#[test]
fn the_host_wrote_before() {
    assert_eq!(run(&[(READS_EARLY, [0, 1])], 1), Ok([1, 1, 3]));
    let both = [(READS_EARLY, [0, 1]), (READS_EARLY, [2, 0])];
    assert_eq!(run(&both, 1), Ok([3, 1, 3]));
}

#[test]
fn what_the_launch_before_writes_is_read_after_a_wait() {
    let write = (WRITES, [0, 1]);
    assert_eq!(
        run(&[write, (READS_EARLY, [1, 2])], 1),
        Err(Rule::EarlyAccess)
    );
    assert_eq!(run(&[write, (READS_LATE, [1, 2])], 1), Ok([1, 7, 7]));
    // Between them, a launch that waits at its start: what it waited for has ended.
    let settled = [write, (WRITES, [0, 0]), (READS_EARLY, [1, 2])];
    assert_eq!(run(&settled, 1), Ok([7, 7, 7]));
    // Between them, one that waits later: all three may run at once.
    let early = [write, (READS_EARLY, [0, 0]), (READS_EARLY, [1, 2])];
    assert_eq!(run(&early, 1), Err(Rule::EarlyAccess));
    assert_eq!(
        run(&[(READS_EARLY, [0, 1]), (READS_EARLY, [1, 2])], 1),
        Err(Rule::EarlyAccess)
    );
}

#[test]
fn nothing_is_written_before_a_wait() {
    let body = "st.global.b32 [%out], %tid; griddepcontrol.wait;";
    assert_eq!(run(&[(body, [0, 1])], 1), Err(Rule::EarlyAccess));
    let body = "mov.b32 %r0, 1; red.global.add.u32 [%out], %r0; griddepcontrol.wait;";
    assert_eq!(run(&[(body, [0, 1])], 1), Err(Rule::EarlyAccess));
}

#[test]
fn no_block_ends_without_a_wait() {
    let body = "setp.ne.u32 %p0, %tid, %tid; @%p0 griddepcontrol.wait;";
    assert_eq!(run(&[(body, [0, 1])], 1), Err(Rule::NeverWaited));
}

#[test]
fn a_warp_waits_for_its_block() {
    let body =
        "setp.ne.u32 %p0, %warp, 0; @%p0 bra $other; griddepcontrol.wait; $other: bar.sync 0;
        ld.global.b32 %r0, [%in]; setp.eq.u32 %p0, %tid, 0; @%p0 st.global.b32 [%out], %r0;";
    assert_eq!(run(&[(WRITES, [0, 1]), (body, [1, 2])], 64), Ok([1, 7, 7]));
}
