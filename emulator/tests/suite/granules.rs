//! Accesses to parts of 16 bytes of shared memory that other accesses take as a whole.

use crate::tiny::{broken, fault, run};
use emulator::{Access, Rule};

/// Lane 0 fills 16 bytes.
const FILL: &str = "setp.eq.u32 %p0, %tid, 0; setp.eq.u32 %p1, %tid, 32; mov.b32 %r0, 7;
    @%p0 st.shared.v4.b32 [%smem+16], {%r0, %r0, %r0, %r0};";

fn race(access: Access, earlier: Access, thread: &str, line: Option<u32>) -> Rule {
    let thread = thread.to_owned();
    Rule::SharedRace {
        access,
        earlier,
        thread,
        line,
    }
}

/// The line of the module that a body's first instruction with this text stands on.
fn line_of(body: &str, text: &str) -> Option<u32> {
    let module = crate::tiny::module(body);
    let line = module.lines().position(|line| line.contains(text))?;
    Some(line as u32 + 1)
}

#[test]
fn parts_are_read_as_they_were_written_together() {
    let body = format!(
        "{FILL} bar.sync 0;
        ld.shared.b32 %r1, [%smem+24]; ld.shared.b16 %h0, [%smem+20]; ld.shared.b8 %r2, [%smem+19];
        cvt.u32.u16 %r3, %h0;
        st.global.v4.b32 [%out], {{%r1, %r2, %r3, %r0}};"
    );
    for words in run(&body, 64, &[]).unwrap() {
        assert_eq!(words[..3], [7, 0, 7]);
    }
}

#[test]
fn a_part_remembers_the_writer_of_the_whole() {
    let body = format!("{FILL}\n@%p1 ld.shared.b16 %h0, [%smem+22];");
    let found = fault(&body, 64, &[]);
    let writes = line_of(&body, "st.shared.v4");
    let by_reader = race(Access::Read, Access::Write, "warp 0, lane 0", writes);
    let by_writer = race(Access::Write, Access::Read, "warp 1, lane 0", None);
    // Whoever comes later; a read of what nobody wrote is one of its own.
    let known = [by_reader, by_writer, Rule::SharedUninitialised];
    assert!(known.contains(&found.rule), "{found}");
}

#[test]
fn a_part_remembers_the_reader_of_the_whole() {
    let body = format!(
        "{FILL}\nbar.sync 0;
        mov.b16 %h1, 1;
        @%p1 ld.shared.v4.b32 {{%r1, %r2, %r3, %r4}}, [%smem+16];
        @%p0 st.shared.b16 [%smem+28], %h1;"
    );
    let found = fault(&body, 64, &[]);
    let writes = line_of(&body, "st.shared.b16");
    let known = [
        race(Access::Write, Access::Read, "warp 1, lane 0", None),
        race(Access::Read, Access::Write, "warp 0, lane 0", writes),
    ];
    assert!(known.contains(&found.rule), "{found}");
    assert_eq!(found.address, Some(1024 + 28));
}

#[test]
fn the_whole_remembers_the_writer_of_a_part() {
    // Warp 1 changes the last two bytes with no barrier before warp 0 reads all.
    let body = format!(
        "{FILL}\nbar.sync 0;
        mov.b16 %h1, 1;
        @%p1 st.shared.b16 [%smem+30], %h1;
        @%p0 ld.shared.v4.b32 {{%r1, %r2, %r3, %r4}}, [%smem+16];"
    );
    let found = fault(&body, 64, &[]);
    let writes = line_of(&body, "st.shared.b16");
    let known = [
        race(Access::Read, Access::Write, "warp 1, lane 0", writes),
        race(Access::Write, Access::Read, "warp 0, lane 0", None),
    ];
    assert!(known.contains(&found.rule), "{found}");
    assert_eq!(found.address, Some(1024 + 30));
}

#[test]
fn neighbours_in_a_granule_do_not_meet() {
    // Each of four warps has four bytes of its own.
    let body = "shl.b32 %r0, %warp, 2; add.s32 %r0, %r0, %smem;
        setp.eq.u32 %p0, %lane, 0;
        @!%p0 bra $end;
        st.shared.b32 [%r0], %warp; ld.shared.b32 %r1, [%r0];
        st.shared.b32 [%r0], %r1; ld.shared.b32 %r2, [%r0];
        st.global.b32 [%out], %r2;
        $end:";
    let words = run(body, 128, &[]).unwrap();
    for warp in 0..4 {
        assert_eq!(words[32 * warp][0], warp as u32);
    }
}

#[test]
fn a_part_that_nobody_wrote_is_found_in_the_whole() {
    let of_bytes = |bytes: &str| {
        format!(
            "mov.b32 %r0, 1; mov.b16 %h0, 1; {bytes}
            ld.shared.v4.b32 {{%r1, %r2, %r3, %r4}}, [%smem];"
        )
    };
    let all = "st.shared.v2.b32 [%smem], {%r0, %r0}; st.shared.b32 [%smem+8], %r0;
        st.shared.b16 [%smem+12], %h0; st.shared.b8 [%smem+14], 1; st.shared.b8 [%smem+15], 1;";
    run(&of_bytes(all), 1, &[]).unwrap();
    for part in [
        "st.shared.b8 [%smem+15], 1;",
        "st.shared.b32 [%smem+8], %r0;",
    ] {
        let body = of_bytes(&all.replace(part, ""));
        assert_eq!(broken(&body, 1, &[]), Rule::SharedUninitialised);
    }
}

#[test]
fn a_copy_under_way_covers_every_part() {
    let copy = "cp.async.ca.shared.global [%smem], [%in], 16; mov.b32 %r0, 1;";
    for part in [
        "ld.shared.b8 %r1, [%smem+15];",
        "st.shared.b32 [%smem+4], %r0;",
    ] {
        let rule = broken(&format!("{copy} {part}"), 1, &[0; 4]);
        assert!(matches!(rule, Rule::PendingCopy { .. }), "{part}: {rule}");
    }
    // A copy of a part leaves the others alone.
    let half = "mov.b32 %r0, 1; st.shared.v4.b32 [%smem], {%r0, %r0, %r0, %r0};
        cp.async.ca.shared.global [%smem], [%in], 8;";
    run(&format!("{half} ld.shared.b32 %r1, [%smem+8];"), 1, &[0; 4]).unwrap();
    let rule = broken(&format!("{half} ld.shared.b32 %r1, [%smem+4];"), 1, &[0; 4]);
    assert!(matches!(rule, Rule::PendingCopy { .. }), "{rule}");
}
