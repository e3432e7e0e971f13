//! Matrix products: every kernel, every size, every layout.

use crate::emulated::SCHEDULES;
use ferroattn::device::Emulator;
use ferroattn::emulator::Options;
use ferroattn::{Accumulation, Class, Device, Dtype, Facts, Gemm, GemmProblem, Tensor, f16};
use kernels::catalog::{KERNELS, Kernel};
use libtest_mimic::Completion;
use proptest::prelude::*;
use proptest::sample::select;
use tests::strategy::check_each;
use tests::{GemmCase, Outcome, PASSED, Rows, Test, counting};

/// The work of a test on a device.
type Run = fn(&Device) -> Outcome;

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let kernels = || KERNELS.iter().filter(|kernel| kernel.gemm().is_some());
    let all_sizes =
        kernels().map(|kernel| Test::new(kernel.name, move |device| sizes(device, kernel)));
    let counters = kernels().map(|kernel| {
        Test::emulator(format!("counters::{}", kernel.name), move |_| {
            moves_no_more_than_needed(kernel)
        })
    });
    let persistent = kernels().filter(|kernel| kernel.takes_maps());
    let schedules = persistent.map(|kernel| {
        Test::emulator(format!("schedules::{}", kernel.name), move |_| {
            every_schedule_is_clean(kernel)
        })
    });
    let others: [(_, Run); _] = [
        ("random", random),
        ("lengths_of_one", lengths_of_one),
        ("no_columns", no_columns),
        ("nothing_to_do", nothing_to_do),
        ("long_sums", long_sums),
        ("infinities_and_nan", infinities_and_nan),
        ("huge_values", huge_values),
        ("positive_values", positive_values),
        ("equal_bits", equal_bits),
        ("options", options),
    ];
    let others = others.map(|(name, run)| Test::new(name, move |device| run(&with_all(device)?)));
    let in_f32 = Test::cpu("random_in_f32", random_in_f32);
    let far = [
        ("far_rows_of_a", [Rows::Far, Rows::Packed, Rows::Packed]),
        (
            "odd_far_rows_of_b",
            [Rows::Packed, Rows::OddFar, Rows::Packed],
        ),
        ("far_rows_of_c", [Rows::Packed, Rows::Packed, Rows::Far]),
    ];
    let far = far.map(|(name, [a, b, c])| {
        Test::cuda(name, move |device| {
            let case = GemmCase {
                a,
                b,
                c,
                ..GemmCase::default()
            };
            far_rows(device, &case)
        })
    });
    let others = others.into_iter().chain([in_f32]);
    let of_kernels = all_sizes.chain(counters).chain(schedules);
    of_kernels.chain(others).chain(far).collect()
}

/// The device, or the emulated one that runs every kernel.
fn with_all(device: &Device) -> ferroattn::Result<Device> {
    match device.is_emulator() {
        true => Device::emulator_of(Class::Sm90, Options::default()),
        false => Ok(device.clone()),
    }
}

/// The case with a kernel of the catalog.
fn by(kernel: &'static Kernel, case: GemmCase) -> GemmCase {
    let gemm = kernel.gemm().expect("it multiplies matrices");
    GemmCase {
        dtype: gemm.dtype.into(),
        accumulation: gemm.accumulation.into(),
        kernel: Some(kernel.name),
        ..case
    }
}

/// Whole, ragged and single tiles; whole and partial steps of k, and fewer steps than stages; rows that move
/// in 16-byte pieces and others.
fn sizes(device: &Device, kernel: &'static Kernel) -> Outcome {
    let device = &with_all(device)?;
    let gemm = by(kernel, GemmCase::default()).options(device);
    let dtype = kernel.dtype().expect("it has one").into();
    if !device.is_cpu() && !gemm.suitable(device.facts(), dtype)?.contains(&kernel.name) {
        return Ok(Completion::ignored_with("not for this GPU"));
    }
    let tile = kernel.gemm().expect("it multiplies matrices").tile;
    let (rows, columns) = (tile.rows as usize, tile.columns as usize);
    for (m, n, k, [a, b, c]) in [
        (rows, columns, 256, [Rows::Packed; 3]),
        (
            rows + 1,
            columns - 1,
            40,
            [Rows::Packed, Rows::Aligned, Rows::Odd],
        ),
        (
            rows - 1,
            columns + 8,
            8,
            [Rows::Reversed, Rows::Packed, Rows::Aligned],
        ),
        (
            17,
            2 * columns + 9,
            101,
            [Rows::Aligned, Rows::Packed, Rows::Aligned],
        ),
        (
            2 * rows + 40,
            33,
            203,
            [Rows::Odd, Rows::Shifted, Rows::OddReversed],
        ),
    ] {
        let case = by(
            kernel,
            GemmCase {
                problem: GemmProblem { m, n, k },
                a,
                b,
                c,
                ..GemmCase::default()
            },
        );
        case.check(device)?;
    }
    PASSED
}

/// No bank conflicts in shared memory, and only whole sectors of A, B and C.
fn moves_no_more_than_needed(kernel: &'static Kernel) -> Outcome {
    let device = Device::emulator_of(Class::Sm90, counting())?;
    let case = GemmCase {
        problem: GemmProblem {
            m: 300,
            n: 272,
            k: 256,
        },
        ..GemmCase::default()
    };
    by(kernel, case).check(&device)?;
    let (_, counters) = device.counters().pop().expect("a kernel ran");
    if let Some(line) = counters.bank_conflicts().next() {
        return Err(format!("{}: bank conflicts: {line:?}", kernel.name).into());
    }
    let whole = |opcode: &str| opcode.starts_with("cp.async") || opcode.contains(".v4");
    if let Some(line) = counters.uncoalesced().find(|line| whole(&line.opcode)) {
        return Err(format!("{}: sectors in part: {line:?}", kernel.name).into());
    }
    // Two tiles down at most of 256 rows, three across of 128 columns: nothing is multiplied twice.
    let tile = kernel.gemm().expect("it multiplies matrices").tile;
    let (rows, columns) = (u64::from(tile.rows), u64::from(tile.columns));
    let tiles = 300_u64.div_ceil(rows) * 272_u64.div_ceil(columns);
    let flops = 2 * tiles * rows * columns * 256;
    let found = counters.total().flops;
    // Warps of a simple kernel that lie past the last row or column do not multiply.
    assert!(found == flops || (tile.stages == 0 && found < flops));
    PASSED
}

/// Blocks with several tiles, of more steps than stages. Every schedule finds the same bits.
fn every_schedule_is_clean(kernel: &'static Kernel) -> Outcome {
    let mut facts = Facts::emulated(Class::Sm90);
    facts.multiprocessors = 2;
    let problem = GemmProblem {
        m: 150,
        n: 300,
        k: 600,
    };
    let case = by(
        kernel,
        GemmCase {
            problem,
            ..GemmCase::default()
        },
    );
    let [a, b] = case.inputs();
    let mut first = None;
    for seed in 0..SCHEDULES {
        let options = Options {
            seed,
            ..Options::default()
        };
        let device = Device::with_driver(Emulator::new(facts, options))?;
        let c = case.run(&device, &a, &b)?;
        if first.get_or_insert_with(|| c.clone()) != &c {
            return Err(format!("{case:?}: other bits under schedule {seed}").into());
        }
    }
    PASSED
}

/// Any sizes and layouts.
fn random(device: &Device) -> Outcome {
    check_each(96, cases(), |case| {
        let suitable = families(device, &case);
        let kernel = case.kernel.filter(|kernel| suitable.contains(kernel));
        GemmCase { kernel, ..case }.check(device)
    })
}

/// The families of kernels for a case's types.
fn families(device: &Device, case: &GemmCase) -> Vec<&'static str> {
    let gemm = Gemm::new().accumulation(case.accumulation);
    gemm.families(device.facts(), case.dtype).expect("kernels")
}

fn random_in_f32(device: &Device) -> Outcome {
    let in_f32 = |case| GemmCase {
        dtype: Dtype::F32,
        accumulation: Accumulation::Single,
        ..case
    };
    check_each(96, cases().prop_map(in_f32), |case| case.check(device))
}

fn cases() -> impl Strategy<Value = GemmCase> {
    let kinds = select(
        &[
            (Dtype::F16, Accumulation::Single),
            (Dtype::Bf16, Accumulation::Single),
            (Dtype::F16, Accumulation::Half),
        ][..],
    );
    // Half of the sizes are at most 1 from the edge of a tile.
    let size = || {
        let edges = (1..=18_usize, 0..=2_usize).prop_map(|(tiles, beside)| 16 * tiles + beside - 1);
        prop_oneof![1..=300_usize, edges]
    };
    let inputs = || prop_oneof![8 => select(Rows::OUTPUTS), 1 => Just(Rows::One)];
    let kernels = prop_oneof![
        2 => Just(None),
        3 => select(&ferroattn::gemm::FAMILIES[..]).prop_map(Some),
    ];
    let layouts = (inputs(), inputs(), select(Rows::OUTPUTS));
    let sizes = (size(), size(), prop_oneof![0..=300_usize, size()]);
    (kinds, sizes, kernels, layouts, any::<u64>()).prop_map(
        |((dtype, accumulation), (m, n, k), kernel, (a, b, c), seed)| GemmCase {
            dtype,
            accumulation,
            problem: GemmProblem { m, n, k },
            kernel,
            a,
            b,
            c,
            seed,
        },
    )
}

/// All families of kernels, in every type.
fn variants(device: &Device, case: &GemmCase) -> Vec<GemmCase> {
    let kinds = [
        (Dtype::F16, Accumulation::Single),
        (Dtype::Bf16, Accumulation::Single),
        (Dtype::F16, Accumulation::Half),
    ];
    let variants = kinds.into_iter().flat_map(|(dtype, accumulation)| {
        let case = GemmCase {
            dtype,
            accumulation,
            ..case.clone()
        };
        let names = families(device, &case).into_iter();
        names.map(move |name| GemmCase {
            kernel: Some(name),
            ..case.clone()
        })
    });
    variants.collect()
}

fn lengths_of_one(device: &Device) -> Outcome {
    for (m, n, k) in [(1, 1, 1), (1, 70, 9), (70, 1, 9), (40, 50, 1), (1, 1, 300)] {
        for rows in [Rows::Packed, Rows::Odd, Rows::Shifted] {
            let (a, b, c) = (rows, rows, rows);
            let case = GemmCase {
                problem: GemmProblem { m, n, k },
                a,
                b,
                c,
                ..GemmCase::default()
            };
            for case in variants(device, &case) {
                case.check(device)?;
            }
        }
    }
    PASSED
}

/// The default sizes, but `k` columns of A and B.
fn of_depth(k: usize) -> GemmCase {
    let mut case = GemmCase::default();
    case.problem.k = k;
    case
}

/// k = 0: an empty sum is zero.
fn no_columns(device: &Device) -> Outcome {
    for case in variants(device, &of_depth(0)) {
        case.check(device)?;
    }
    let a = Tensor::<f16, 2>::zeros(device, [5, 0])?;
    let c = Gemm::new().forward(&a, &a)?;
    assert_eq!(c.to_vec()?, [f16::ZERO; 25]);
    PASSED
}

fn nothing_to_do(device: &Device) -> Outcome {
    let zeros = |rows, columns| Tensor::<f16, 2>::zeros(device, [rows, columns]);
    for (m, n) in [(0, 5), (5, 0), (0, 0)] {
        let c = Gemm::new().forward(&zeros(m, 8)?, &zeros(n, 8)?)?;
        assert_eq!((c.shape(), c.to_vec()?.len()), ([m, n], 0));
    }
    PASSED
}

/// Many more steps than there are stages.
fn long_sums(device: &Device) -> Outcome {
    for case in variants(
        device,
        &GemmCase {
            problem: GemmProblem {
                m: 20,
                n: 30,
                k: 5000,
            },
            ..GemmCase::default()
        },
    ) {
        case.check(device)?;
    }
    PASSED
}

/// One element of A or B spoils one row or column of C, and nothing else.
fn infinities_and_nan(device: &Device) -> Outcome {
    for case in variants(device, &of_depth(101)) {
        for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let [mut a, mut b] = case.inputs();
            a[[149, 100]] = special;
            b[[64, 3]] = special;
            case.run(device, &a, &b)?;
            // Zero times infinity is NaN.
            b[[7, 100]] = 0.0;
            case.run(device, &a, &b)?;
        }
    }
    PASSED
}

/// Sums at the end of the range and beyond, and sums with parts beyond it: f16 ends at 65504, bf16 where f32
/// does.
fn huge_values(device: &Device) -> Outcome {
    for case in variants(device, &GemmCase::default()) {
        let scale = match case.dtype {
            Dtype::F16 => 1000.0,
            Dtype::Bf16 | Dtype::F32 => 1e19,
            other => unreachable!("no case is {}", other.name()),
        };
        let [a, b] = case.inputs().map(|values| values * scale);
        case.run(device, &a, &b)?;
        let [a, b] = case.inputs().map(|values| values * scale * 20.0);
        case.run(device, &a, &b)?;
    }
    PASSED
}

/// All products have one sign: the errors of the sums do not cancel.
fn positive_values(device: &Device) -> Outcome {
    for case in variants(device, &of_depth(1000)) {
        let [a, b] = case.inputs().map(|values| values.mapv(f32::abs));
        case.run(device, &a, &b)?;
    }
    PASSED
}

/// Equal inputs give equal bits, on any number of threads.
fn equal_bits(device: &Device) -> Outcome {
    let numbers: Vec<_> = (0..300 * 72)
        .map(|i| f16::from_f32((i * 37 % 101) as f32 / 10.0 - 5.0))
        .collect();
    let a = Tensor::new(device, [300, 72], &numbers)?;
    let product = || Gemm::new().forward(&a, &a)?.to_vec();
    let first = product()?;
    for _ in 0..3 {
        let bits = |c: &[f16]| c.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&product()?), bits(&first));
    }
    PASSED
}

/// Wrong options are refused; the message says what works.
fn options(device: &Device) -> Outcome {
    let one = Tensor::new(device, [1, 1], &[f16::ONE])?;
    let refused = |gemm: Gemm| {
        let result = gemm.forward(&one, &one);
        result.expect_err("should have been refused").to_string()
    };
    if device.is_cpu() {
        return PASSED;
    }
    let stages = refused(Gemm::new().stages(7));
    assert!(stages.contains("comes with stages 3, 4, 5"), "{stages}");
    let simple = refused(Gemm::new().kernel("gemm-simple").stages(3));
    assert!(simple.contains("has no stages"), "{simple}");
    let sums = refused(Gemm::new().kernel("gemm_simple_f16_f16"));
    assert!(
        sums.contains("is not for f16 with accumulation in f32"),
        "{sums}"
    );
    let cpu = refused(Gemm::new().kernel("cpu"));
    assert!(cpu.contains("runs on the CPU only"), "{cpu}");
    let attention = refused(Gemm::new().kernel("forward_f16_d64"));
    assert!(attention.contains("there is no kernel"), "{attention}");
    PASSED
}

fn far_rows(device: &Device, case: &GemmCase) -> Outcome {
    /// A little more than 2^31 elements of 2 bytes.
    const BYTES: u64 = 5 << 30;
    // The host keeps the memory as it was before the run, and as it is after.
    for (device, needed) in [(device, BYTES), (&Device::cpu(), 2 * BYTES)] {
        let free = host::free_memory(device)?;
        if free < needed {
            let place = device.name();
            let reason = format!("needs {needed} bytes of free memory; {place} has {free}");
            return Ok(Completion::ignored_with(reason));
        }
    }
    case.check(device)
}
