//! Emulated instructions per second.

use divan::{Bencher, counter::ItemsCount};
use emulator::{Memory, Module, Options, launch};

fn main() {
    divan::main();
}

/// A loop of `body`, 64 times unrolled, over 4 warps of each of 4 blocks.
fn looped(bencher: Bencher, body: &str) {
    const TRIPS: usize = 100;
    const UNROLLED: usize = 64;
    const WARPS: usize = 4 * 4;
    let text = format!(
        "
        .version 7.0
        .target sm_80
        .address_size 64
        .visible .entry looped() {{
            .reg .pred %p;
            .reg .b32 %n, %r<10>;
            mov.u32 %n, 0;
            mov.b32 %r0, 0f00000000; mov.b32 %r1, 0f00000000;
            mov.b32 %r2, 0f00000000; mov.b32 %r3, 0f00000000;
            mov.b32 %r4, 1006648320; mov.b32 %r5, 1006648320;
        $top:
            {}
            add.s32 %n, %n, 1;
            setp.lt.s32 %p, %n, {TRIPS};
            @%p bra $top;
            ret;
        }}",
        body.repeat(UNROLLED)
    );
    let module = Module::parse(&text, "looped.ptx").unwrap();
    let kernel = module.entry("looped").unwrap();
    let memory = Memory::new();
    bencher
        .counter(ItemsCount::new(TRIPS * UNROLLED * WARPS))
        .bench(|| {
            launch(
                &memory,
                kernel,
                [4, 1, 1],
                [128, 1, 1],
                0,
                &[],
                &Options::default(),
            )
        });
}

/// Items are mma instructions.
#[divan::bench]
fn mma(bencher: Bencher) {
    looped(
        bencher,
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r0, %r1, %r2, %r3}, \
         {%r4, %r5, %r4, %r5}, {%r4, %r5}, {%r0, %r1, %r2, %r3};",
    );
}

/// Items are warp-instructions.
#[divan::bench]
fn fma(bencher: Bencher) {
    looped(bencher, "fma.rn.f32 %r0, %r1, %r2, %r0;");
}
