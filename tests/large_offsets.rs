//! Tensors that span more than 2^31 elements: offsets must be 64-bit.

use ferroattn::Device;
use libtest_mimic::Completion;
use tests::{BackwardCase, Case, Layout, Outcome, Test};

/// A little more than 2^31 elements of 2 bytes.
const BYTES: u64 = 5 << 30;

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let case = Case {
        heads: 2,
        kv_heads: 2,
        ..Case::default()
    };
    let cases = [
        (
            "heads_of_q",
            Case {
                q: Layout::FarHeads,
                ..case.clone()
            },
        ),
        (
            "rows_of_q",
            Case {
                q: Layout::FarRows,
                heads: 1,
                kv_heads: 1,
                ..case.clone()
            },
        ),
        (
            "rows_of_k",
            Case {
                k: Layout::FarRows,
                kv_heads: 1,
                ..case.clone()
            },
        ),
        (
            "odd_rows_of_k",
            Case {
                k: Layout::OddFarRows,
                kv_heads: 1,
                ..case.clone()
            },
        ),
        (
            "heads_of_v",
            Case {
                v: Layout::FarHeads,
                ..case.clone()
            },
        ),
        (
            "rows_of_o",
            Case {
                o: Layout::FarRows,
                heads: 1,
                kv_heads: 1,
                ..case
            },
        ),
    ];
    let tests = cases.map(|(name, case)| {
        Test::cuda(name, move |device| when_free(device, || case.check(device)))
    });
    let mut tests = Vec::from(tests);
    let near = BackwardCase::default();
    let far = Layout::FarRows;
    for (name, case) in [
        (
            "rows_of_d_o",
            BackwardCase {
                d_o: far,
                ..near.clone()
            },
        ),
        (
            "rows_of_dq",
            BackwardCase {
                dq: far,
                ..near.clone()
            },
        ),
        (
            "rows_of_dk",
            BackwardCase {
                dk: far,
                ..near.clone()
            },
        ),
        ("rows_of_dv", BackwardCase { dv: far, ..near }),
    ] {
        let test = move |device: &Device| when_free(device, || case.check(device));
        tests.push(Test::backward(name, test).on_gpus());
    }
    tests
}

/// Runs a case if there is memory for it.
fn when_free(device: &Device, check: impl FnOnce() -> Outcome) -> Outcome {
    // The host keeps the memory as it was before the run, and as it is after.
    for (device, needed) in [(device, BYTES), (&Device::cpu(), 2 * BYTES)] {
        let free = host::free_memory(device)?;
        if free < needed {
            let place = device.name();
            let reason = format!("needs {needed} bytes of free memory; {place} has {free}");
            return Ok(Completion::ignored_with(reason));
        }
    }
    check()
}
