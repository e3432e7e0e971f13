//! Every rule that a kernel can break with products.

use super::{BYTES, bits, launched, module};
use emulator::{Error, Module, Options};

/// Two chained products of K-major operands under the 128-byte swizzle: rows of 128 bytes at 0, 64 of
/// them, times themselves.
const CHAIN: &str = "
    mov.b64 %rd0, 4611686293305360448; // 1 << 62 | 64 << 32 | 1 << 16 | 1024 / 16
    add.s64 %rd1, %rd0, 2;
    mov.b32 %r9, 0;
    wgmma.fence.sync.aligned;
    { .reg .pred add; setp.ne.b32 add, %r9, 0;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd0, %rd0, add, 1, 1, 0, 0; }
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd1, %rd1, 1, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    /* under way */
    wgmma.wait_group.sync.aligned 0;
    /* complete */
    st.global.b32 [%out], %d0; st.global.b32 [%out+4], %d1;
    st.global.b32 [%out+8], %d2; st.global.b32 [%out+12], %d3;";

/// The report of a body: nothing, or the rule that it breaks under each schedule.
fn report(body: &str, threads: u32) -> Option<String> {
    let text = module(threads, 4, body);
    let image: Vec<u8> = (0..BYTES / 2)
        .flat_map(|i| bits(i as i32 % 5).to_le_bytes())
        .collect();
    let mut reports = (0..10).map(|seed| {
        let options = Options {
            seed,
            instruction_budget: 20_000,
            ..Options::default()
        };
        match launched(&text, threads, 4, &image, &options) {
            Ok(_) => None,
            Err(Error::Fault(fault)) => Some(fault.to_string()),
            Err(error) => panic!("{error}"),
        }
    });
    let first = reports.next().expect("some seeds");
    for other in reports {
        assert_eq!(other.is_some(), first.is_some(), "{first:?}, {other:?}");
    }
    first
}

#[track_caller]
fn clean(body: &str, threads: u32) {
    assert_eq!(report(body, threads), None, "{body}");
}

#[track_caller]
fn broken(body: &str, threads: u32, says: &str) {
    let found = report(body, threads).unwrap_or_else(|| panic!("no rule was broken: {body}"));
    assert!(found.contains(says), "{found}");
}

/// [`CHAIN`] with a part replaced.
fn changed(from: &str, to: &str) -> String {
    assert!(CHAIN.contains(from), "{from}");
    CHAIN.replace(from, to)
}

const UNDER_WAY: &str = "/* under way */";
const COMPLETE: &str = "/* complete */";
/// A warpgroup's loop of two products that stay under way while others are issued.
const OTHER: &str = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 \
                     {%d4, %d5, %d6, %d7}, %rd0, %rd0, 0, 1, 1, 0, 0; wgmma.commit_group.sync.aligned;";

/// Thread 0 alone executes a statement.
fn by_first(statement: &str) -> String {
    format!("setp.eq.b32 %p1, %tid, 0; @%p1 {statement}")
}

#[test]
fn products_that_keep_the_rules() {
    clean(CHAIN, 128);
    let other = changed(UNDER_WAY, OTHER).replace("aligned 0;", "aligned 1;");
    let end = format!("{COMPLETE} wgmma.wait_group.sync.aligned 0;");
    clean(&other.replace(COMPLETE, &end), 128);
    // Operands of the products may be written after the wait, and before them with a fence.
    let write = by_first("st.shared.b32 [smem], %tid;");
    clean(&changed(COMPLETE, &write), 128);
    clean(
        &format!("{write} fence.proxy.async; bar.sync 0; {CHAIN}"),
        128,
    );
    // Reading it does no harm.
    clean(&changed(UNDER_WAY, "ld.shared.b32 %r1, [smem];"), 128);
    // Two products may read the same registers.
    clean(&format!("{FROM_REGISTERS} {WAIT}"), 128);
    // Another warp writes after a barrier. It is not of this warpgroup, nor is any warpgroup whole.
    let body = |between: &str| {
        format!(
            "setp.ge.u32 %p1, %tid, 128; @%p1 bra $other; {} bra.uni $end;
            $other: {between} {} $end:",
            changed(COMPLETE, "bar.arrive 1, 160;"),
            "setp.eq.b32 %p1, %lane, 0; @%p1 st.shared.b32 [smem], %tid;"
        )
    };
    clean(&body("bar.sync 1, 160;"), 160);
    broken(&body(""), 160, "");
}

/// Two products whose A lies in registers.
const FROM_REGISTERS: &str = "
    mov.b64 %rd0, 4611686293305360448;
    mov.b32 %a0, 0; mov.b32 %a1, 0; mov.b32 %a2, 0; mov.b32 %a3, 0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
        {%d0, %d1, %d2, %d3}, {%a0, %a1, %a2, %a3}, %rd0, 0, 1, 1, 0;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
        {%d4, %d5, %d6, %d7}, {%a0, %a1, %a2, %a3}, %rd0, 0, 1, 1, 0;
    wgmma.commit_group.sync.aligned;";
const WAIT: &str = "wgmma.wait_group.sync.aligned 0;";

#[test]
fn registers_of_products_are_left_alone() {
    let fence = "wgmma.fence.sync.aligned;";
    broken(&changed(fence, ""), 128, "needs a wgmma.fence");
    for access in ["mov.b32 %d0, 0;", "mov.b32 %d0, 0; mov.b32 %r1, %d0;"] {
        let body = changed(fence, &format!("{fence} {access}"));
        broken(&body, 128, "wgmma on register %d0");
        clean(&changed(fence, &format!("{access} {fence}")), 128);
    }
    let pending = "of a wgmma (line ";
    for access in [
        "st.global.b32 [%out], %d0;",
        "mov.b32 %d1, 0;",
        // Another shape, and the same with other registers.
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%d0, %d1, %d2, %d3, %d4, %d5, %d6, %d7},
            %rd0, %rd0, 0, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%d1, %d0, %d2, %d3},
            %rd0, %rd0, 0, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%d4, %d5, %d6, %d7},
            {%d0, %d1, %d2, %d3}, %rd0, 0, 1, 1, 0;",
    ] {
        broken(&changed(UNDER_WAY, access), 128, pending);
    }
    broken(&changed(WAIT, ""), 128, pending);
    broken(
        &changed(WAIT, "wgmma.wait_group.sync.aligned 1;"),
        128,
        pending,
    );
    broken(
        &changed("wgmma.commit_group.sync.aligned;", ""),
        128,
        pending,
    );
    for access in ["mov.b32 %a1, 0;", "mov.b32 %r1, %a1;"] {
        let body = format!("{FROM_REGISTERS} {access} {WAIT}");
        broken(&body, 128, "access to register %a1");
        let body = FROM_REGISTERS.replace(fence, &format!("{fence} {access}"));
        broken(&body, 128, "wgmma on register %a1");
    }
    broken(
        FROM_REGISTERS,
        128,
        "the warp ends with no wgmma.wait_group",
    );
    let body = changed("%rd0, %rd0, add", "%rd0, %rd0, 1");
    broken(&body, 128, "read of register %d0");
}

#[test]
fn operands_of_products_are_visible_and_stay() {
    let write = by_first("st.shared.b32 [smem], %tid;");
    broken(&changed(UNDER_WAY, &write), 128, "a wgmma (line 3");
    broken(
        &format!("{write} bar.sync 0; {CHAIN}"),
        128,
        "no fence.proxy.async",
    );
    broken(
        &format!("fence.proxy.async; {write} bar.sync 0; {CHAIN}"),
        128,
        "no fence.proxy.async",
    );
    broken(
        &format!("{write} fence.proxy.async; {CHAIN}"),
        128,
        "races with the write",
    );
    let copy = by_first("cp.async.cg.shared.global [smem], [%in], 16;");
    broken(&changed(UNDER_WAY, &copy), 128, "a wgmma (line 3");
    broken(&format!("{copy} bar.sync 0; {CHAIN}"), 128, "a cp.async");
    for (add, says) in [
        ((1_u64 << 14) - 128, "outside the block's shared memory"),
        (5, "amid a row of its swizzle"),
        (1 << 15, "reserved bits"),
        (1 << 49, "base offset"),
    ] {
        let body = changed(
            "mov.b32 %r9, 0;",
            &format!("add.s64 %rd1, %rd1, {add}; mov.b32 %r9, 0;"),
        );
        broken(&body, 128, says);
    }
}

#[test]
fn warpgroups_execute_products_together() {
    for register in ["%rd1", "%rd0"] {
        let each = format!(
            "cvt.u64.u32 %rd2, %warp; add.s64 {register}, {register}, %rd2; mov.b32 %r9, 0;"
        );
        broken(
            &changed("mov.b32 %r9, 0;", &each),
            128,
            "a matrix descriptor differs",
        );
    }
    broken(
        &changed("mov.b32 %r9, 0;", "mov.b32 %r9, %tid;"),
        128,
        "scale-d differs",
    );
    let skip = |lanes: &str| format!("{lanes} @%p1 bra $end; {CHAIN} $end:");
    broken(
        &skip("setp.ge.u32 %p1, %lane, 16;"),
        128,
        "collective instruction",
    );
    let says = "warp 0 waits for the other warps of its warpgroup (line ";
    broken(&skip("setp.eq.b32 %p1, %warp, 3;"), 128, says);
    broken(CHAIN, 96, "before the fourth warp");
    // One warp waits at a barrier, the others in the product.
    let body = format!("setp.ne.b32 %p1, %warp, 3; @%p1 bra $others; bar.sync 1; $others: {CHAIN}");
    broken(
        &body,
        128,
        "warp 3 waits at barrier 1, which has 32 of 128 threads",
    );
}

#[test]
fn what_is_no_product_does_not_load() {
    let product = "{%d0, %d1, %d2, %d3}, %rd1, %rd1, 1, 1, 1, 0, 0;";
    for (from, to, says) in [
        (
            "m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd1",
            "m64n12k16.f32.f16.f16 {%d0}, %rd1",
            "multiple of 8",
        ),
        (
            "m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd1",
            "m64n16k16.f32.f16.f16 {%d0}, %rd1",
            "expected 8",
        ),
        (
            product,
            "{%d0, %d1, %d2, %d3}, %rd1, %rd1, 1, 1, 1, 0;",
            "transpositions",
        ),
        (
            product,
            "{%d0, %d1, %d2, %d3}, %rd1, %rd1, 1, 2, 1, 0, 0;",
            "a scale is",
        ),
        (
            "m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd1",
            "m64n8k32.f32.e4m3.e4m3 {%d0, %d1, %d2, %d3}, %rd1",
            "transpositions",
        ),
        (
            "m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd1",
            "m64n8k16.f16.f16.f16 {%d0, %d1, %d2, %d3}, %rd1",
            "expected 2",
        ),
        (
            "m64n8k16.f32.f16.f16 {%d0",
            "m64n8k16.f32.e4m3.e4m3 {%d0",
            "unknown",
        ),
        (
            "f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd1",
            "f32.f16.bf16 {%d0, %d1, %d2, %d3}, %rd1",
            "unknown",
        ),
    ] {
        let error = Module::parse(&module(128, 4, &changed(from, to)), "tiny.ptx").unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}
