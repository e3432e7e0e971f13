//! Sums of FP8 products with the bits that Hopper's tensor cores keep: an option of a launch.

use crate::wgmma::{BYTES, launched, module, stores, vector};
use emulator::Options;
use half::f16;

/// A sum of ones times ones of a kind, in another one, over so many products after each other.
fn sum_of_ones([sums, kind]: [&str; 2], steps: usize, truncated_fp8_sums: bool) -> f32 {
    let (depth, ones, major) = match kind {
        "f16" => (16, 0x3c00_u16, ", 0, 0"),
        _ => (32, 0x3838, ""),
    };
    let product = format!(
        "wgmma.mma_async.sync.aligned.m64n8k{depth}.{sums}.{kind}.{kind} {}, %rd0, %rd0, 1, 1, 1{major};",
        vector("d", if sums == "f16" { 2 } else { 4 })
    );
    let body = format!(
        "mov.b32 %d0, 0; mov.b32 %d1, 0; mov.b32 %d2, 0; mov.b32 %d3, 0;
        mov.b64 %rd0, 4611686293305360448; // 1 << 62 | 64 << 32 | 1 << 16 | 1024 / 16
        mov.b32 %r9, 0;
        wgmma.fence.sync.aligned;
        $step:
        {product}
        wgmma.commit_group.sync.aligned;
        wgmma.wait_group.sync.aligned 0;
        add.s32 %r9, %r9, 1; setp.lt.u32 %p1, %r9, {steps}; @%p1 bra $step;
        {}",
        stores(4)
    );
    let image = ones.to_le_bytes().repeat(BYTES / 2);
    let options = Options {
        truncated_fp8_sums,
        ..Options::default()
    };
    let (found, _) = launched(&module(128, 4, &body), 128, 4, &image, &options).unwrap();
    match sums {
        "f16" => f16::from_bits(found[0] as u16).to_f32(),
        _ => f32::from_bits(found[0]),
    }
}

#[test]
fn long_sums_of_fp8_shrink_where_they_are_truncated() {
    // 2^14 times 1 and a half, in steps of 32.
    let steps = 3 << 8;
    for sums in ["f32", "f16"] {
        let kinds = [sums, "e4m3"];
        assert_eq!(sum_of_ones(kinds, steps, false), 24576.0);
        // From 2^14 on the last bit of 14 is 2, and ones are lost.
        assert_eq!(sum_of_ones(kinds, steps, true), 16384.0);
        assert_eq!(sum_of_ones(kinds, 100, true), 3200.0);
    }
}

#[test]
fn sums_of_16_bits_are_not_truncated() {
    assert_eq!(sum_of_ones(["f32", "f16"], 3 << 9, true), 24576.0);
}
