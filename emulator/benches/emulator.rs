//! Emulated instructions per second.

use divan::{Bencher, counter::ItemsCount};
use emulator::{Memory, Module, Options, launch};

fn main() {
    divan::main();
}

/// A loop of `body`, 64 times unrolled, over 4 warps of each of 4 blocks, with 16 KB of shared memory.
fn looped(bencher: Bencher, setup: &str, body: &str) {
    const TRIPS: usize = 100;
    const UNROLLED: usize = 64;
    const WARPS: usize = 4 * 4;
    let text = format!(
        "
        .version 8.0
        .target sm_90a
        .address_size 64
        .extern .shared .align 1024 .b8 smem[];
        .visible .entry looped() {{
            .reg .pred %p;
            .reg .b32 %n, %r<10>, %d<64>;
            .reg .b64 %descriptor;
            mov.u32 %n, 0;
            mov.b32 %r0, 0f00000000; mov.b32 %r1, 0f00000000;
            mov.b32 %r2, 0f00000000; mov.b32 %r3, 0f00000000;
            mov.b32 %r4, 1006648320; mov.b32 %r5, 1006648320;
            {setup}
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
                16 << 10,
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
        "",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r0, %r1, %r2, %r3}, \
         {%r4, %r5, %r4, %r5}, {%r4, %r5}, {%r0, %r1, %r2, %r3};",
    );
}

/// Items are warp-instructions.
#[divan::bench]
fn fma(bencher: Bencher) {
    looped(bencher, "", "fma.rn.f32 %r0, %r1, %r2, %r0;");
}

/// Items are four to a wgmma of 131,072 products, one for each warp.
#[divan::bench]
fn wgmma(bencher: Bencher) {
    let accumulators: Vec<_> = (0..64).map(|i| format!("%d{i}")).collect();
    let product = format!(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {{{}}}, %descriptor, %descriptor, 0, \
         1, 1, 0, 0;",
        accumulators.join(", ")
    );
    looped(
        bencher,
        "mov.u32 %r6, %tid.x; shl.b32 %r6, %r6, 4; mov.u32 %r7, smem; add.s32 %r7, %r7, %r6;
        mov.b32 %r8, 0;
        $fill: st.shared.v4.b32 [%r7], {%r4, %r4, %r4, %r4};
        add.s32 %r7, %r7, 2048; add.s32 %r8, %r8, 1; setp.lt.u32 %p, %r8, 8; @%p bra $fill;
        fence.proxy.async; bar.sync 0; wgmma.fence.sync.aligned;
        mov.b64 %descriptor, 0x4000004000000040;",
        &format!("{product} wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"),
    );
}
