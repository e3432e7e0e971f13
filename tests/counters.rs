//! Memory traffic of the kernels, counted by the emulator.

use ferroattn::emulator::Counters;
use ferroattn::{Device, Tensor, f16};
use kernels::catalog::{Auxiliary, Family, KERNELS, Kernel};
use tests::{Case, Layout, Outcome, PASSED, Test, counting};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    // All inputs are aligned: none is copied.
    let of_kernels = KERNELS
        .iter()
        .filter(|kernel| {
            matches!(
                kernel.family,
                Family::Forward(_) | Family::Auxiliary(Auxiliary::Combine(_))
            )
        })
        .map(|kernel| Test::emulator(kernel.name, move |_| moves_no_more_than_needed(kernel)));
    let swizzle = Test::emulator("work_is_counted", |_| work_is_counted());
    of_kernels.chain([swizzle]).collect()
}

/// The counters of a kernel in a case.
fn counters(kernel: &Kernel, case: &Case) -> Result<Counters, libtest_mimic::Failed> {
    let device = Device::emulator_of(kernel.class().into(), counting())?;
    case.check(&device)?;
    let mut launches = device.counters().into_iter();
    let (_, counters) = launches
        .find(|(name, _)| *name == kernel.name)
        .expect("the kernel ran");
    Ok(counters)
}

/// No bank conflicts in shared memory, and only whole sectors of q, k, v and o, at the kernel's own head dim,
/// in both layouts.
fn moves_no_more_than_needed(kernel: &Kernel) -> Outcome {
    let forward = kernel.forward();
    let combines = forward.is_none();
    for layout in [Layout::Bhnd, Layout::Bnhd] {
        let case = Case {
            dtype: kernel.dtype().expect("it has one").into(),
            heads: 2,
            kv_heads: 1,
            // A combine kernel serves every head dim.
            dim: forward.map_or(256, |forward| forward.dim as usize),
            causal: forward.is_some_and(|forward| !forward.kind.mask.serves(false)),
            kernel: (!combines).then(|| kernel.name.to_owned()),
            splits: if combines { 2 } else { 1 },
            q: layout,
            k: layout,
            v: layout,
            o: layout,
            ..Case::default()
        }
        .as_served();
        let counters = counters(kernel, &case)?;
        let products = ["mma", "wgmma.mma_async"].map(|opcode| counters.total_of(opcode).executed);
        assert_eq!(products != [0, 0], !combines);
        // Beside e4m3 columns of q and o change their order, once a tile.
        let reads_e4m3 = forward.is_some_and(|forward| forward.reads_e4m3());
        let moves = |opcode: &str| {
            reads_e4m3
                && ["ld", "st"]
                    .iter()
                    .any(|name| opcode == format!("{name}.shared.b32"))
        };
        let mut conflicts = counters.bank_conflicts();
        if let Some(line) = conflicts.find(|line| !moves(&line.opcode)) {
            return Err(format!("{case}: bank conflicts: {line:?}").into());
        }
        let rows = counters
            .uncoalesced()
            .find(|line| line.opcode.starts_with("cp.async") || is_whole_sectors(&line.opcode));
        if let Some(line) = rows {
            return Err(format!("{case}: sectors in part: {line:?}").into());
        }
    }
    PASSED
}

/// Whether neighbouring threads access neighbouring bytes: 16 each, or 8 in a combine kernel's o.
fn is_whole_sectors(opcode: &str) -> bool {
    opcode.contains(".v4") || opcode.starts_with("st.global.v2")
}

/// Counters of a launch that is small enough to count by hand: one query tile, two blocks of keys.
fn work_is_counted() -> Outcome {
    let device = Device::emulator(counting())?;
    let tensor = |rows: usize| Tensor::new(&device, [1, 1, rows, 64], &vec![f16::ONE; rows * 64]);
    ferroattn::Attention::new().forward(&tensor(128)?, &tensor(128)?, &tensor(128)?)?;
    let launches = device.counters();
    let [(_, counters)] = &launches[..] else {
        return Err("one launch is enough".into());
    };
    // Two products of 128 x 128 x 64; a multiply-add is two operations.
    assert_eq!(counters.total().flops, 2 * 2 * 128 * 128 * 64);
    assert_eq!(counters.mma(), counters.total().flops / (2 * 16 * 8 * 16));
    // q, k and v are read once, o and lse written once.
    assert_eq!(counters.total().bytes_read, 3 * 128 * 64 * 2);
    assert_eq!(counters.total().bytes_written, 128 * 64 * 2 + 128 * 4);
    // Four warps: one barrier before the first block and one in each block.
    assert_eq!(counters.barriers(), 4 * 3);
    PASSED
}
