//! Products of warpgroups: all layouts against plain arithmetic, and every rule that a kernel can break
//! with them.

mod rules;
mod values;

use crate::tiny::module_for;
use emulator::{Argument, Counters, Error, Memory, Module, Options, launch};
use half::f16;

/// Bytes of shared memory that [`module`] fills.
pub const BYTES: usize = 100 << 10;

/// A kernel of `threads` threads around a body. Its threads copy the input to shared memory at `smem`;
/// `%out` is the address of the thread's `words` words of output, `%d0` to `%d127` are accumulators.
pub fn module(threads: u32, words: usize, body: &str) -> String {
    let body = format!(
        ".reg .pred %p<8>;
        .reg .b32 %r<32>, %a<8>, %d<128>;
        .reg .b64 %rd<8>;
        shl.b32 %r0, %tid, 4;
        $fill:
        cvt.u64.u32 %rd0, %r0;
        add.s64 %rd0, %rd0, %in;
        ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%rd0];
        add.s32 %r5, %r0, %smem;
        st.shared.v4.b32 [%r5], {{%r1, %r2, %r3, %r4}};
        add.s32 %r0, %r0, {};
        setp.lt.u32 %p0, %r0, {BYTES};
        @%p0 bra $fill;
        fence.proxy.async.shared::cta;
        bar.sync 0;
        {body}",
        16 * threads
    );
    module_for("sm_90a", words, &body)
}

/// Runs a module over an image of shared memory; the words of all threads, and what it counted.
pub fn launched(
    text: &str,
    threads: u32,
    words: usize,
    image: &[u8],
    options: &Options,
) -> Result<(Vec<u32>, Counters), Error> {
    let module = Module::parse(text, "tiny.ptx")?;
    let memory = Memory::new();
    let mut image = image.to_vec();
    image.resize(BYTES, 0);
    let mut found = vec![u32::MAX; threads as usize * words];
    let out = memory.allocate(4 * found.len());
    let arguments = [Argument::U64(out), Argument::U64(memory.upload(&image))];
    let (grid, block) = ([1, 1, 1], [threads, 1, 1]);
    let kernel = module.entry("tiny")?;
    let bytes = BYTES as u32;
    let counters = launch(&memory, kernel, grid, block, bytes, &arguments, options)?;
    memory
        .read(out, bytemuck::cast_slice_mut(&mut found))
        .unwrap();
    Ok((found, counters))
}

/// The bits of a small whole number of f16, so that sums are exact.
fn bits(number: i32) -> u16 {
    f16::from_f32(number as f32).to_bits()
}

/// `{%prefix0, %prefix1, ...}`
pub fn vector(prefix: &str, count: usize) -> String {
    let names: Vec<_> = (0..count).map(|i| format!("%{prefix}{i}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// Statements that store the accumulators.
pub fn stores(registers: usize) -> String {
    let store = |i| format!("st.global.b32 [%out+{}], %d{i};", 4 * i);
    (0..registers).map(store).collect()
}
