//! Every class of devices, emulated, with the kernels and splits that it chooses.

use ferroattn::emulator::Options;
use ferroattn::{Attention, Class, Device, Error, RawOptions, Tensor, f16, kernel};
use proptest::prelude::*;
use tests::strategy::{cases, check_some, few_queries, of_dims};
use tests::{Case, Layout, Outcome, PASSED, Test, counting};

/// Fewer random cases than elsewhere: other tests run every kernel by name.
const CASES: u32 = 24;

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let of_class = |&class: &Class| {
        let name = |what: &str| format!("{}::{what}", class.name());
        [
            Test::emulator(name("any"), move |_| {
                check_some(&emulated(class)?, CASES, wide(cases()))
            }),
            Test::emulator(name("few_queries"), move |_| {
                check_some(&emulated(class)?, CASES, wide(few_queries(cases())))
            }),
        ]
    };
    let random = Class::ALL.iter().flat_map(of_class);
    let limit = Test::emulator("shared_memory_is_limited", |_| shared_memory_is_limited());
    let hopper = [
        Test::emulator("sm90::tensors_without_maps", |_| tensors_without_maps()),
        Test::emulator("sm90::more_tiles_than_blocks", |_| more_tiles_than_blocks()),
    ];
    random.chain([limit]).chain(hopper).collect()
}

fn emulated(class: Class) -> Result<Device, Error> {
    Device::emulator_of(class, Options::default())
}

/// Cases of the head dims where classes differ.
fn wide(cases: impl Strategy<Value = Case>) -> impl Strategy<Value = Case> {
    of_dims(cases, 5..=32)
}

/// A device neither offers nor runs a kernel whose block needs more shared memory than it has.
fn shared_memory_is_limited() -> Outcome {
    let case = Case {
        dim: 256,
        ..Case::default()
    };
    let (problem, large) = (case.problem()?, "forward_f16_d256_128x32");
    for &class in Class::ALL {
        let device = emulated(class)?;
        let offered =
            kernel::suitable(device.facts(), case.dtype, &problem, &RawOptions::default())?
                .contains(&large);
        assert_eq!(offered, class != Class::Sm86);
        let ones = Tensor::new(&device, case.q_shape(), &vec![f16::ONE; 150 * 256])?;
        let ran = Attention::new().kernel(large).forward(&ones, &ones, &ones);
        match ran {
            Ok(_) => assert!(offered),
            Err(Error::SharedMemory {
                needed, available, ..
            }) => {
                assert!(!offered);
                assert_eq!((needed, available), (128 << 10, 99 << 10));
            }
            Err(error) => return Err(error.into()),
        }
    }
    PASSED
}

/// The kernel that computes attention in the last call on a device.
fn ran(device: &Device) -> &'static str {
    let mut launched = device.counters().into_iter().map(|(name, _)| name);
    let main = launched.find(|name| *name != "pack");
    main.expect("attention")
}

/// Where TMA cannot address q, k or v, the plain kernel or the wide one takes Hopper's place.
fn tensors_without_maps() -> Outcome {
    let device = emulated(Class::Sm90)?;
    let several = Case {
        batch: 2,
        heads: 4,
        kv_heads: 2,
        seqlen_q: 150,
        ..Case::default()
    };
    let one = Case {
        batch: 1,
        heads: 1,
        kv_heads: 1,
        ..several.clone()
    };
    let large = Case {
        dim: 272,
        ..one.clone()
    };
    let plain = "forward_f16_d64";
    let hopper = "hopper_f16_d64";
    for (case, layout, expected) in [
        (&several, Layout::Bhnd, hopper),
        (&several, Layout::Bnhd, hopper),
        (&several, Layout::Padded, hopper),
        // Copies have maps.
        (&several, Layout::OddRows, hopper),
        (&several, Layout::OddReversed, hopper),
        (&several, Layout::Reversed, plain),
        // Heads and batch entries may repeat.
        (&several, Layout::Broadcast, hopper),
        (&several, Layout::OddBroadcast, hopper),
        (&several, Layout::OneRow, plain),
        // A single head has no stride.
        (&one, Layout::Broadcast, hopper),
        (&one, Layout::Reversed, plain),
        (&large, Layout::Padded, "hopper_f16_d384"),
        (&large, Layout::Reversed, "wide_f16_d384"),
    ] {
        for causal in [false, true] {
            let case = Case {
                causal,
                ..case.clone()
            };
            let (q, k, v) = (case.clone(), case.clone(), case.clone());
            for case in [
                Case { q: layout, ..q },
                Case { k: layout, ..k },
                Case { v: layout, ..v },
            ] {
                case.check(&device)?;
                let mask = match causal && !expected.starts_with("wide") {
                    true => "_causal",
                    false => "",
                };
                assert_eq!(ran(&device), format!("{expected}{mask}"), "{case}");
            }
        }
    }
    PASSED
}

/// A block of a Hopper kernel that is done takes the next tile, which a counter in the workspace tells.
fn more_tiles_than_blocks() -> Outcome {
    let device = Device::emulator_of(Class::Sm90, counting())?;
    // One tile of up to 256 rows for each of 50 heads; there are 132 multiprocessors.
    for (seed, (batch, seqlen_q)) in [(3, 70), (3, 70), (2, 70), (3, 256), (3, 70)]
        .into_iter()
        .enumerate()
    {
        for causal in [false, true] {
            // Tiles of one length need no counter.
            let differ = causal || seqlen_q < 256;
            let taken = if batch == 3 && differ { 150 } else { 0 };
            Case {
                batch,
                heads: 50,
                kv_heads: 10,
                seqlen_q,
                seqlen_kv: 70,
                dim: 32,
                causal,
                seed: seed as u64,
                ..Case::default()
            }
            .check(&device)?;
            assert!(ran(&device).starts_with("hopper_f16_d32"));
            let [(_, counters)] = &device.counters()[..] else {
                return Err("one launch".into());
            };
            assert_eq!(counters.total_of("atom").executed, taken);
        }
    }
    PASSED
}
