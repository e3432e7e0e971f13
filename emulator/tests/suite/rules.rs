//! Every rule that `sm_80` code can break, broken by a small kernel, and what a report says.

use crate::tiny::{broken, fault, module, run, run_module, run_with};
use emulator::{Access, Argument, Error, Memory, Module, Options, Rule, launch};

/// `%r0` is the shared address of the thread's own word.
const OWN: &str = "shl.b32 %r0, %tid, 2; add.s32 %r0, %r0, %smem;";

#[test]
fn global_accesses_stay_in_their_buffer() {
    let outside = Rule::GlobalOutOfBounds { bytes: 4 };
    assert_eq!(broken("ld.global.b32 %r0, [%in+8];", 32, &[1, 2]), outside);
    assert_eq!(broken("ld.global.b32 %r0, [%in+-4];", 32, &[1, 2]), outside);
    assert_eq!(
        broken("mov.b64 %d0, 0; st.global.b32 [%d0], %tid;", 32, &[]),
        outside
    );
    let half = Rule::GlobalOutOfBounds { bytes: 8 };
    assert_eq!(broken("ld.global.b64 %d0, [%in+8];", 32, &[1, 2, 3]), half);
}

#[test]
fn global_accesses_are_aligned() {
    let rule = broken(
        "ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%in+8];",
        32,
        &[0; 8],
    );
    assert_eq!(rule, Rule::GlobalMisaligned { bytes: 16 });
}

#[test]
fn inputs_are_read_only() {
    assert_eq!(
        broken("st.global.b32 [%in], %tid;", 32, &[0]),
        Rule::GlobalReadOnly
    );
}

#[test]
fn global_memory_is_written_before_it_is_read() {
    assert_eq!(
        broken("ld.global.b32 %r0, [%out];", 32, &[]),
        Rule::GlobalUninitialised
    );
    let copy = "cp.async.cg.shared.global [%smem], [%out], 16;";
    assert_eq!(broken(copy, 1, &[]), Rule::GlobalUninitialised);
}

#[test]
fn shared_accesses_stay_in_the_block_and_are_aligned() {
    let outside = Rule::SharedOutOfBounds { bytes: 4 };
    assert_eq!(broken("st.shared.b32 [smem+1024], %tid;", 1, &[]), outside);
    assert_eq!(
        broken("mov.b32 %r0, 0; st.shared.b32 [%r0], %tid;", 1, &[]),
        outside
    );
    let misaligned = Rule::SharedMisaligned { bytes: 4 };
    assert_eq!(broken("st.shared.b32 [smem+2], %tid;", 1, &[]), misaligned);
    let matrix = "add.s32 %r0, %smem, 8; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r0];";
    assert_eq!(
        broken(matrix, 32, &[]),
        Rule::SharedMisaligned { bytes: 16 }
    );
}

#[test]
fn shared_memory_is_written_before_it_is_read() {
    assert_eq!(
        broken("ld.shared.b32 %r0, [smem];", 1, &[]),
        Rule::SharedUninitialised
    );
    let half = "st.shared.b8 [smem], 1; ld.shared.b16 %h0, [smem];";
    assert_eq!(broken(half, 1, &[]), Rule::SharedUninitialised);
}

#[test]
fn registers_are_written_before_they_are_read() {
    let of = |name: &str| Rule::UninitialisedRegister {
        name: name.to_owned(),
    };
    assert_eq!(broken("add.s32 %r0, %r1, 1;", 32, &[]), of("%r1"));
    let partly = "setp.eq.b32 %p0, %lane, 3; @%p0 mov.b32 %r1, 1; add.s32 %r0, %r1, 1;";
    assert_eq!(broken(partly, 32, &[]), of("%r1"));
    assert_eq!(broken("@%p7 bra $end; $end:", 32, &[]), of("%p7"));
}

#[test]
fn a_selection_may_leave_out_an_undefined_operand() {
    for operands in ["%lane, %r1, %p0", "%r1, %lane, %p1"] {
        let body =
            format!("setp.lt.u32 %p0, %lane, 32; not.pred %p1, %p0; selp.b32 %r0, {operands};");
        assert!(run(&body, 32, &[]).is_ok(), "{operands}");
    }
}

#[test]
fn copies_are_not_touched_before_they_are_waited_for() {
    let pending = |body: &str| match broken(body, 1, &[1, 2, 3, 4]) {
        Rule::PendingCopy { .. } => {}
        other => panic!("{body}: {other}"),
    };
    let copy = "cp.async.cg.shared.global [%smem], [%in], 16;";
    pending(&format!("{copy} ld.shared.b32 %r0, [smem+12];"));
    pending(&format!("{copy} st.shared.b32 [smem+12], %tid;"));
    pending(&format!("{copy} {copy}"));
    // Without the commit the wait is for no group.
    pending(&format!(
        "{copy} cp.async.wait_group 0; ld.shared.b32 %r0, [smem];"
    ));
    // Waits for all but one group.
    pending(&format!(
        "{copy} cp.async.commit_group; cp.async.wait_group 1; ld.shared.b32 %r0, [smem];"
    ));
}

#[test]
fn a_thread_waits_for_itself_alone() {
    let body = "setp.eq.b32 %p0, %tid, 0;
        @%p0 cp.async.cg.shared.global [%smem], [%in], 16;
        cp.async.commit_group;
        cp.async.wait_group 0;
        ld.shared.b32 %r0, [smem];";
    let rule = broken(body, 32, &[1, 2, 3, 4]);
    assert!(
        matches!(
            rule,
            Rule::SharedRace {
                access: Access::Read,
                ..
            }
        ),
        "{rule}"
    );
    let fixed = body.replace("ld.shared", "bar.sync 0; ld.shared");
    assert!(run(&fixed, 32, &[1, 2, 3, 4]).is_ok());
    // The barrier does not help if it comes before the wait.
    let swapped = body.replace("cp.async.wait_group 0", "bar.sync 0; cp.async.wait_group 0");
    let rule = broken(&swapped, 64, &[1, 2, 3, 4]);
    let caught = matches!(rule, Rule::SharedRace { .. } | Rule::PendingCopy { .. });
    assert!(caught, "{rule}");
}

/// Checks that two accesses race, and that `barrier` between them prevents it. Under some schedules a
/// reader comes before there is anything to read.
#[track_caller]
fn race(first: &str, second: &str, barrier: &str, threads: u32) {
    let body = |between: &str| format!("{OWN} {first} {between} {second}");
    let rule = broken(&body(""), threads, &[]);
    let caught = matches!(rule, Rule::SharedRace { .. } | Rule::SharedUninitialised);
    assert!(caught, "{rule}");
    let fixed = run(&body(barrier), threads, &[]);
    assert!(fixed.is_ok(), "{}", fixed.unwrap_err());
}

#[test]
fn accesses_of_two_threads_need_a_barrier_between() {
    let store = "st.shared.b32 [%r0], %tid;";
    // The other thread is in another lane, or in another warp.
    let read = |mask| format!("xor.b32 %r1, %r0, {mask}; ld.shared.b32 %r2, [%r1];");
    race(store, &read(4), "bar.warp.sync 0xffffffff;", 32);
    race(store, &read(4), "bar.sync 0;", 64);
    race(store, &read(128), "bar.sync 0;", 64);
    let write = |mask| format!("xor.b32 %r1, %r0, {mask}; st.shared.b32 [%r1], %tid;");
    race(store, &write(4), "bar.warp.sync 0xffffffff;", 32);
    race(store, &write(128), "bar.sync 0;", 64);
    // A read before a write.
    let initialised = format!("{store} bar.sync 0; {}", read(128));
    race(&initialised, store, "bar.sync 0;", 64);
    // Two lanes' reads before a write by one of them.
    let shared = "and.b32 %r5, %lane, 30; shl.b32 %r5, %r5, 2; add.s32 %r5, %r5, %smem;";
    let both = format!("{store} bar.warp.sync -1; {shared} ld.shared.b32 %r6, [%r5];");
    let one = "and.b32 %r7, %lane, 1; setp.eq.b32 %p0, %r7, 1; @%p0 st.shared.b32 [%r5], %tid;";
    race(&both, one, "bar.warp.sync 0xffffffff;", 32);
    // A whole warp's read before a write.
    let matrix = format!(
        "{store} bar.warp.sync -1; and.b32 %r3, %lane, 7; shl.b32 %r3, %r3, 4;
         add.s32 %r3, %r3, %smem; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r4}}, [%r3];"
    );
    race(&matrix, store, "bar.warp.sync 0xffffffff;", 32);
}

#[test]
fn a_warp_barrier_of_some_lanes_orders_these() {
    let lower = "setp.ge.u32 %p0, %lane, 16; @%p0 bra $end; st.shared.b32 [%r0], %tid;";
    let read = "xor.b32 %r1, %r0, 4; ld.shared.b32 %r2, [%r1]; $end:";
    race(lower, read, "bar.warp.sync 0x0000ffff;", 32);
    let all = "st.shared.b32 [%r0], %tid; setp.ge.u32 %p0, %lane, 16; @%p0 bra $end;";
    let body = format!("{OWN} {all} bar.warp.sync 0x0000ffff; {read}");
    assert!(run(&body, 32, &[]).is_ok());
    let other_half = body.replace("%r0, 4;", "%r0, 64;");
    let rule = broken(&other_half, 32, &[]);
    assert!(matches!(rule, Rule::SharedRace { .. }), "{rule}");
}

#[test]
fn a_warp_barrier_orders_no_other_warp() {
    let body = format!(
        "{OWN} st.shared.b32 [%r0], %tid; bar.warp.sync 0xffffffff;
         xor.b32 %r1, %r0, 128; ld.shared.b32 %r2, [%r1];"
    );
    let rule = broken(&body, 64, &[]);
    let caught = matches!(rule, Rule::SharedRace { .. } | Rule::SharedUninitialised);
    assert!(caught, "{rule}");
}

#[test]
fn collectives_need_their_lanes() {
    let under_branch = |collective: &str| {
        let body = format!(
            "mov.b32 %r1, 0; mov.b32 %r2, 0; setp.lt.u32 %p0, %lane, 16; @%p0 bra $skip; {collective} $skip:"
        );
        broken(&body, 32, &[])
    };
    let missing = Rule::MissingLanes {
        needed: u32::MAX,
        reached: 0xffff_0000,
    };
    for collective in [
        "bar.sync 0;",
        "bar.warp.sync 0xffffffff;",
        "shfl.sync.bfly.b32 %r0, %lane, 1, 0x1f, 0xffffffff;",
        "redux.sync.or.b32 %r0, %lane, 0xffffffff;",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%smem];",
        "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r1, %r2}, {%r1, %r2}, {%r1}, {%r1, %r2};",
    ] {
        assert_eq!(under_branch(collective), missing, "{collective}");
    }
    let predicated = "setp.ne.b32 %p0, %lane, 3; @%p0 bar.sync 0;";
    let missing = Rule::MissingLanes {
        needed: u32::MAX,
        reached: !8,
    };
    assert_eq!(broken(predicated, 32, &[]), missing);
}

#[test]
fn member_masks_name_the_lanes_that_come() {
    let narrow = "shfl.sync.bfly.b32 %r0, %lane, 1, 0x1f, 0x0000ffff;";
    assert_eq!(
        broken(narrow, 32, &[]),
        Rule::NotAMember { members: 0xffff }
    );
    let varying = "shfl.sync.bfly.b32 %r0, %lane, 1, 0x1f, %lane;";
    let rule = broken(varying, 32, &[]);
    assert_eq!(
        rule,
        Rule::NotUniform {
            what: "the member mask"
        }
    );
    // Half a warp among itself is fine, but it must not ask the other half.
    let half = |partner| {
        format!(
            "setp.lt.u32 %p0, %lane, 16;
             @%p0 shfl.sync.bfly.b32 %r0, %lane, {partner}, 0x1f, 0x0000ffff;"
        )
    };
    assert!(run(&half(8), 32, &[]).is_ok());
    assert_eq!(
        broken(&half(16), 32, &[]),
        Rule::NotAMember { members: 0xffff }
    );
}

#[test]
fn barriers_wait_for_everyone() {
    let rule = broken("setp.eq.b32 %p0, %warp, 1; @%p0 exit; bar.sync 0;", 96, &[]);
    let missing = "warp 1 has exited".to_owned();
    assert_eq!(
        rule,
        Rule::BarrierNotReached {
            barrier: 0,
            missing
        }
    );
    let rule = broken("bar.sync %warp;", 64, &[]);
    assert!(matches!(rule, Rule::BarrierNotReached { .. }), "{rule}");
    for misuse in [
        "bar.sync 16;",
        "bar.sync 0, 33;",
        "bar.sync 0, 0;",
        "bar.sync 0, 96;",
    ] {
        let rule = broken(misuse, 64, &[]);
        assert!(
            matches!(rule, Rule::BarrierMisused { .. }),
            "{misuse}: {rule}"
        );
    }
    let twice = "setp.eq.b32 %p0, %warp, 0; @%p0 bra $a; bar.sync 0; bra.uni $e; $a: bar.arrive 0, 64; bar.arrive 0, 64; $e:";
    assert!(run(twice, 64, &[]).is_err());
}

#[test]
fn kernels_end() {
    assert_eq!(
        broken("$top: bra.uni $top;", 32, &[]),
        Rule::Budget { budget: 10_000 }
    );
    assert_eq!(broken("trap;", 32, &[]), Rule::Trap);
    let empty = ".version 7.0 .target sm_80 .address_size 64 .entry e() {}";
    let module = Module::parse(empty, "empty.ptx").unwrap();
    let (memory, one) = (Memory::new(), [1, 1, 1]);
    let entry = module.entry("e").unwrap();
    match launch(&memory, entry, one, one, 0, &[], &Options::default()) {
        Err(Error::Fault(fault)) => assert_eq!(fault.rule, Rule::NoReturn),
        other => panic!("{other:?}"),
    }
    let rule = broken(
        "setp.eq.b32 %p0, %lane, 0; @%p0 bra.uni $end; $end:",
        32,
        &[],
    );
    assert_eq!(rule, Rule::DivergentUniformBranch);
    let rule = broken(
        "bra.uni $end; $after: ret; $end: setp.eq.b32 %p0, %lane, 0; @%p0 bra $after; @%p0",
        32,
        &[],
    );
    assert_eq!(rule, Rule::NoReturn);
}

#[test]
fn a_report_says_where_and_why() {
    let body = "
        setp.eq.b32 %p0, %tid, 37;
        @%p0 ld.global.b32 %r0, [%in+64];";
    let fault = fault(body, 64, &[0; 4]);
    assert_eq!(
        (fault.warp, fault.lane, fault.block),
        (1, Some(5), [0, 0, 0])
    );
    let text = fault.to_string();
    let line = crate::tiny::module(body)
        .lines()
        .position(|l| l.contains("@%p0 ld.global"))
        .unwrap()
        + 1;
    for part in [
        "tiny: global access of 4 bytes outside every buffer".to_owned(),
        format!("at tiny.ptx:{line}: @%p0 ld.global.b32 %r0, [%in+64];"),
        format!(
            "block (0, 0, 0), warp 1, lane 5, address {:#x}",
            fault.address.unwrap()
        ),
    ] {
        assert!(text.contains(&part), "{text}");
    }
}

#[test]
fn a_report_names_the_source_line() {
    let body = ".loc 2 3 1
        mov.b32 %r0, 0;
        .loc 1 7 5, function_name $name+4, inlined_at 2 3 9
        ld.global.b32 %r0, [%in+64];";
    let files = ".section .debug_str { $name: .b8 111, 0 }
        .file 1 \"tile/copy.rs\"
        .file 2 \"entry.rs\", 1700000000, 512";
    let text = module(body) + files;
    let comment = "//@ entry.rs:3
        mov.b32 %r0, 0;
        //@ tile/copy.rs:7
        ld.global.b32 %r0, [%in+64];";
    for text in [text, module(comment)] {
        match run_module(&text, 32, &[0; 4], &Options::default()) {
            Err(Error::Fault(fault)) => {
                let source = fault.source.clone().expect("a place stands before it");
                assert_eq!((&*source.file, source.line), ("tile/copy.rs", 7));
                assert!(fault.to_string().contains("\n  from tile/copy.rs:7\n"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn bad_modules_do_not_load() {
    let error = |text: &str| Module::parse(text, "m.ptx").unwrap_err().to_string();
    let body = |body: &str| error(&crate::tiny::module(body));
    assert!(error("hello").starts_with("m.ptx:1: "));
    assert!(error("\u{7f}ELF\u{0}").starts_with("m.ptx:1: "));
    assert!(body("frob.s32 %r0, %r1;").contains("`frob.s32`: unknown instruction"));
    assert!(body("add.s32 %r0, %d0, %r1;").contains("expected a register of 32 bits"));
    assert!(body("add.s32 %r0, %r1;").contains("expected 3 operands, found 2"));
    assert!(body("add.s32 %r0, %r1, %nope;").contains("%nope is not declared"));
    assert!(body("bra $nowhere;").contains("label $nowhere is not defined"));
    assert!(body("$a: $a:").contains("defined twice"));
    assert!(body("ld.param.u64 %d0, [out+8];").contains("outside the parameter"));
    assert!(body("ld.param.u64 %r0, [out];").contains("expected a register of 64 bits"));
    assert!(body("ld.param.f32 %d0, [out];").contains("expected a register of 32 bits"));
    assert!(body(".reg .b32 %x<4000000000>;").contains("registers"));
    assert!(body("mov.u32 %r0, %smid;").contains("special register"));
    assert!(
        error(".version 7.0 .target sm_80 .address_size 64 .extern .func f;")
            .contains("not supported")
    );
}

#[test]
fn bad_launches_are_errors() {
    let module = Module::parse(&crate::tiny::module(""), "tiny.ptx").unwrap();
    let missing = module.entry("huge").unwrap_err().to_string();
    assert_eq!(missing, "tiny.ptx has no entry \"huge\"; it has tiny");
    let memory = Memory::new();
    let kernel = module.entry("tiny").unwrap();
    let address = Argument::U64(memory.allocate(4));
    let with = |arguments: &[Argument], grid, block, shared| {
        launch(
            &memory,
            kernel,
            grid,
            block,
            shared,
            arguments,
            &Options::default(),
        )
        .unwrap_err()
    };
    let one = [1, 1, 1];
    assert!(matches!(
        with(&[address], one, one, 0),
        Error::ArgumentCount {
            expected: 2,
            found: 1,
            ..
        }
    ));
    let narrow = with(&[address, Argument::U32(1)], one, one, 0);
    assert_eq!(
        narrow.to_string(),
        "tiny: parameter input takes a scalar of 8 bytes, not a scalar of 4 bytes"
    );
    let bytes = with(&[address, Argument::Bytes(&[0; 8])], one, one, 0);
    assert!(matches!(bytes, Error::ArgumentType { .. }));
    let good = [address, address];
    for (grid, block, shared) in [
        ([0, 1, 1], one, 0),
        ([1, 65536, 1], one, 0),
        (one, [1025, 1, 1], 0),
        (one, [0, 1, 1], 0),
        (one, [u32::MAX, u32::MAX, 1], 0),
        (one, one, 1 << 20),
    ] {
        assert!(matches!(
            with(&good, grid, block, shared),
            Error::LaunchSize { .. }
        ));
    }
    let options = Options {
        instruction_budget: 0,
        ..Options::default()
    };
    assert!(matches!(
        run_with("", 1, &[], &options),
        Err(Error::LaunchSize { .. })
    ));
}

#[test]
fn a_block_has_the_devices_shared_memory() {
    // The body has 1024 bytes.
    let with = |max_shared_bytes| {
        let options = Options {
            max_shared_bytes,
            ..Options::default()
        };
        run_with("", 1, &[], &options)
    };
    assert!(with(1024).is_ok());
    assert!(matches!(with(1023), Err(Error::LaunchSize { .. })));
}
