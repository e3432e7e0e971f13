//! `setmaxnreg`: registers that warpgroups give to each other.

use crate::tiny::{module, run_module};
use emulator::{Error, Module, Options};

/// A kernel of two warpgroups with some launch bounds, the first of which gives; what is wrong, if
/// anything.
fn fault(bounds: &str, gives: u32, takes: u32) -> Option<String> {
    let body = format!(
        "setp.ge.u32 %p0, %tid, 128; @%p0 bra $second;
        setmaxnreg.dec.sync.aligned.u32 {gives}; bra.uni $end;
        $second: setmaxnreg.inc.sync.aligned.u32 {takes}; $end:"
    );
    let text = module(&body).replace("sm_80", "sm_90a");
    let text = text.replace("input)", &format!("input) {bounds}"));
    let mut faults = (0..5).map(|seed| {
        let options = Options {
            seed,
            ..Options::default()
        };
        match run_module(&text, 256, &[0], &options) {
            Ok(_) => None,
            Err(Error::Fault(fault)) => Some(fault.rule.to_string()),
            Err(error) => panic!("{error}"),
        }
    });
    let first = faults.next().expect("some seeds");
    assert!(faults.all(|fault| fault.is_some() == first.is_some()));
    first
}

#[test]
fn what_some_give_others_take() {
    // 65536 registers for 256 threads: 256 for each. For two blocks 128.
    assert_eq!(fault(".maxntid 256\n.minnctapersm 2", 24, 232), None);
    assert_eq!(fault(".maxntid 256\n.maxnreg 168", 96, 240), None);
    assert_eq!(fault(".reqntid 384, 1, 1", 128, 208), None);
    assert_eq!(fault(".maxntid 256", 256, 256), None);
    let stuck = fault(".maxntid 256\n.minnctapersm 2", 24, 240).unwrap();
    let waits = "waits for 240 registers, and has 128; ";
    assert!(stuck.contains(waits), "{stuck}");
    assert!(stuck.starts_with("no warp can go on"), "{stuck}");
}

#[test]
fn counts_are_possible() {
    for (bounds, gives, takes, says) in [
        ("", 24, 232, "without launch bounds"),
        (
            ".maxntid 256\n.minnctapersm 2",
            136,
            232,
            "to more registers than",
        ),
        (".maxntid 256\n.minnctapersm 2", 24, 120, "inc to fewer"),
    ] {
        let found = fault(bounds, gives, takes).unwrap();
        assert!(found.contains(says), "{found}");
    }
    for count in [16, 100, 264] {
        let body = format!("setmaxnreg.dec.sync.aligned.u32 {count};");
        let text = module(&body).replace("sm_80", "sm_90a");
        let error = Module::parse(&text, "tiny.ptx").unwrap_err();
        assert!(
            error.to_string().contains("a multiple of 8 from 24"),
            "{error}"
        );
    }
}

#[test]
fn the_whole_warpgroup_takes_part() {
    let body = "setp.eq.u32 %p0, %warp, 1; @%p0 exit; setmaxnreg.dec.sync.aligned.u32 24;";
    let text = module(body).replace("sm_80", "sm_90a");
    let text = text.replace("input)", "input) .maxntid 128");
    let error = run_module(&text, 128, &[0], &Options::default()).unwrap_err();
    let says = "waits for the other warps of its warpgroup";
    assert!(error.to_string().contains(says), "{error}");
}
