//! Tensors, checks and counters of the host.

use super::panics;
use ferroattn::emulator::{Finding, FindingKind, Tally};
use ferroattn::{
    Attention, Device, Element, GemmProblem, Problem, Tensor, TensorView, backward, check, f16,
    gemm, random,
};

/// Random numbers of tensors without elements.
#[test]
fn random_tensors_may_be_empty() {
    let shapes = [
        [0, 1, 1, 1],
        [1, 0, 1, 1],
        [1, 1, 0, 1],
        [1, 1, 1, 0],
        [0; 4],
    ];
    for shape in shapes {
        assert!(random::bias::<f16>(shape, 0).is_empty());
        assert!(random::mask(shape, 0).is_empty(), "{shape:?}");
    }
    let [a, b] = random::matrices::<f32>(&GemmProblem { m: 0, n: 3, k: 0 }, 0);
    assert!(a.is_empty() && b.is_empty());
    assert!(ferroattn::alibi_slopes(0).is_empty());
}

/// Samples end, of few rows and of as many as there are.
#[test]
fn samples_of_any_size() {
    let shape = [1, 2, 1, 8];
    let problem = Problem::new(shape, shape, shape, false, None).expect("valid");
    for count in [0, 1, 2, 3, usize::MAX] {
        for extent in [0, 1, 2, 63, 64, 65, 1 << 31] {
            if count <= extent || extent < 100 {
                assert!(
                    gemm::check::sample(extent, count.min(100), 0)
                        .iter()
                        .all(|&row| row < extent)
                );
            }
        }
        assert!(
            check::sample_rows(&problem, count, 0)
                .iter()
                .all(|&row| row < 2)
        );
        assert!(
            backward::check::sample_keys(&problem, count, 0)
                .iter()
                .all(|&key| key < 2)
        );
    }
}

/// The checks with tensors that are too short, rows that are not there, and options of a smaller problem.
#[test]
fn checks_of_other_sizes_panic() {
    let [small, large] = [[1, 1, 2, 8], [2, 2, 70, 8]]
        .map(|shape| Problem::new(shape, shape, shape, false, None).expect("valid"));
    let data = [0.5_f32; 2240];
    let (alibi, sinks) = (
        Tensor::new(&Device::cpu(), [1], &[0.5]),
        Tensor::new(&Device::cpu(), [1], &[0.5]),
    );
    let bias = Tensor::new(&Device::cpu(), [1, 1, 2, 2], &[0.5; 4]).expect("memory");
    let mask = Tensor::new(&Device::cpu(), [1, 1, 2, 2], &[1_u8; 4]).expect("memory");
    let lengths = Tensor::new(&Device::cpu(), [1], &[2]).expect("memory");
    let (alibi, sinks) = (alibi.expect("memory"), sinks.expect("memory"));
    let calls = [
        Attention::new().alibi(&alibi),
        Attention::new().sinks(&sinks),
        Attention::new().bias(&bias),
        Attention::new().mask(&mask),
        Attention::new().padded(&lengths, &lengths),
    ];
    let no_options = Attention::new();
    let of = |problem, call: &Attention, len: usize, rows: &[usize]| {
        let options = call
            .host_options(&small)
            .expect("tensors of the small problem");
        let (data, lse) = (&data[..len], &data[..280]);
        let forward = check::Forward {
            problem,
            options,
            q: data,
            k: data,
            v: data,
            o: data,
            lse,
            acc: ferroattn::Accumulation::Single,
        };
        let backward = backward::check::Backward {
            problem,
            options,
            q: data,
            k: data,
            v: data,
            d_o: data,
            d_lse: None,
            dq: data,
            dk: data,
            dv: data,
            d_sinks: None,
            d_bias: None,
        };
        [
            panics(|| check::check(&forward, rows)),
            panics(|| backward::check::check(&backward, rows, rows)),
        ]
    };
    for call in &calls {
        assert_eq!(of(&small, call, 16, &[0, 1]), [false; 2]);
        assert_eq!(of(&large, call, 2240, &[279]), [true; 2], "{call:?}");
    }
    assert_eq!(of(&large, &no_options, 2240, &[0, 279]), [false; 2]);
    assert_eq!(of(&large, &no_options, 2239, &[279]), [true; 2]);
    assert_eq!(of(&large, &no_options, 2240, &[280]), [true; 2]);
    assert_eq!(of(&large, &no_options, 2240, &[usize::MAX]), [true; 2]);
    assert_eq!(of(&large, &no_options, 2240, &[]), [true; 2]);
    let product = gemm::check::Product {
        problem: GemmProblem { m: 3, n: 3, k: 3 },
        accumulation: ferroattn::Accumulation::Single,
        a: &data[..9],
        b: &data[..9],
        c: &data[..8],
    };
    assert!(panics(|| gemm::check::check(&product, &[2], &[2])));
    assert!(panics(|| gemm::check::check(&product, &[3], &[0])));
}

#[test]
fn slices_of_two_lengths_panic() {
    let mut wide = [0.0_f32; 3];
    let mut narrow = [f16::ZERO; 2];
    assert!(panics(|| f16::to_f32_slice(&[f16::ONE; 2], &mut wide)));
    assert!(panics(|| f32::to_f32_slice(&[1.0; 4], &mut wide)));
    assert!(panics(|| f16::from_f32_slice(&[1.0; 3], &mut narrow)));
    assert!(panics(|| f32::from_f32_slice(&[1.0; 2], &mut wide)));
}

/// Elements without bytes, of which there may be as many as numbers.
#[test]
fn elements_without_bytes() {
    let buffer = Device::cpu().upload(&[(); usize::MAX]).expect("no memory");
    let whole = TensorView::from_buffer(&buffer, 0, [0], [1]).expect("empty");
    assert_eq!(whole.to_vec().expect("no elements").len(), 0);
    assert!(TensorView::from_buffer(&buffer, usize::MAX, [1], [1]).is_err());
    let some = Tensor::<(), 2>::zeros(&Device::cpu(), [3, 1 << 40]).expect("no memory");
    assert_eq!(
        some.narrow(1, 5, 7)
            .expect("inside")
            .to_vec()
            .expect("no memory")
            .len(),
        21
    );
}

/// Counters of a launch that a program made.
#[test]
fn counters_of_any_numbers() {
    let tally = Tally {
        ideal_wavefronts: 9,
        ideal_sectors: u64::MAX,
        ..Tally::default()
    };
    assert_eq!((tally.bank_conflicts(), tally.extra_sectors()), (0, 0));
    for bytes in [0, 129, u32::MAX] {
        assert!(panics(|| Tally::default().count_shared(
            u32::MAX,
            &[u64::MAX; 32],
            bytes
        )));
    }
    let finding = Finding {
        kind: FindingKind::BankConflict,
        opcode: String::new(),
        lines: vec![],
        sources: vec![],
        actual: 0,
        ideal: 1,
    };
    assert_eq!(finding.extra(), 0);
}

/// An entry without as many rows, and elements that are not the shape's, panic as documented; nothing to share is no fault.
#[test]
fn prefixes_of_other_shapes() {
    let fails = |elements: usize, shape, rows| {
        panics(|| random::share_prefix(&mut vec![0_u8; elements], shape, rows))
    };
    assert!(fails(11, [2, 1, 3, 2], 1));
    assert!(fails(12, [2, 2, 3, 2], 1));
    assert!(fails(12, [2, 1, 3, 2], 4));
    for shape in [[0, 1, 3, 2], [2, 0, 3, 2], [2, 1, 0, 2], [2, 1, 3, 0]] {
        assert!(!fails(0, shape, 0), "{shape:?}");
    }
}
