//! Documents on the CPU and the emulator, against the library's boolean mask and ALiBi, which say the same.

use custom_score::checked::Passes;
use custom_score::{Batch, Documents};
use ferroattn::custom::{Call, Custom};
use ferroattn::emulator::Options;
use ferroattn::{
    Attention, Class, CustomKernels, Device, Dtype, Element, Error, Facts, RawBackward, RawForward,
    RawOptions, Result, Tensor, alibi_slopes, bf16, f16,
};
use kernels::abi::{ArrayRef, ForwardParams};
use std::mem::offset_of;
use std::ops::Range;

/// A call.
#[derive(Clone, Copy)]
struct Case {
    entries: &'static [&'static [u32]],
    heads: [usize; 2],
    dim: usize,
    causal: bool,
    window: [Option<usize>; 2],
    splits: u32,
}

const PLAIN: Case = Case {
    entries: &[&[1]],
    heads: [1, 1],
    dim: 64,
    causal: false,
    window: [None, None],
    splits: 1,
};

/// Ragged tiles; documents of one token, alone, first, last and between others; edges on and beside a tile's.
const CASES: &[Case] = &[
    PLAIN,
    Case {
        entries: &[&[1, 1, 70, 1, 60, 1]],
        heads: [2, 1],
        ..PLAIN
    },
    Case {
        entries: &[&[64, 64, 65], &[1, 127, 65]],
        heads: [2, 2],
        dim: 128,
        ..PLAIN
    },
    Case {
        entries: &[&[33, 100, 7]],
        causal: true,
        dim: 40,
        ..PLAIN
    },
    Case {
        entries: &[&[150, 17]],
        window: [Some(20), Some(3)],
        splits: 3,
        dim: 104,
        ..PLAIN
    },
];

impl Case {
    fn slopes(&self) -> Vec<f32> {
        alibi_slopes(self.heads[0])
    }

    fn shape(&self) -> [usize; 4] {
        let tokens = self.entries[0].iter().sum::<u32>() as usize;
        [self.entries.len(), self.heads[0], tokens, self.dim]
    }

    fn options<'a>(&self, call: Attention<'a>) -> Attention<'a> {
        let [left, right] = self.window;
        call.causal(self.causal).window(left, right)
    }

    /// Computes on a device, and checks the results by the type and by mask and ALiBi.
    fn passes<T: Element>(&self, device: &Device) -> Result<()> {
        let (shape, slopes, cpu) = (self.shape(), self.slopes(), Device::cpu());
        let batch = Batch::new(device, self.entries, &slopes)?;
        // SAFETY: the shape has as many entries and tokens.
        let call = self.options(unsafe { batch.attention() });
        let call = call.splits(self.splits);
        let passes = Passes::<T>::compute(device, &call, shape, self.heads[1], |_| ())?;

        let by_type = Batch::new(&cpu, self.entries, &slopes)?;
        let slopes = Tensor::new(&cpu, [slopes.len()], &slopes)?;
        let mask = self.mask()?;
        let by_options = Attention::new().mask(&mask).alibi(&slopes);
        // SAFETY: as above.
        for call in [unsafe { by_type.attention() }, by_options] {
            let options = self.options(call).host_options(&passes.problem)?;
            let (forward, backward) = passes.check(options);
            assert!(forward.passed(), "{:?}: {forward}", passes.problem);
            assert!(backward.passed(), "{:?}: {backward}", passes.problem);
        }
        Ok(())
    }

    /// 1 for pairs of one document.
    fn mask(&self) -> Result<Tensor<u8>> {
        let [batch, _, tokens, _] = self.shape();
        let mut bytes = Vec::new();
        for lengths in self.entries {
            let numbered = lengths.iter().enumerate();
            let documents = numbered.flat_map(|(number, &length)| vec![number; length as usize]);
            let documents: Vec<usize> = documents.collect();
            let pairs = documents
                .iter()
                .flat_map(|a| documents.iter().map(move |b| (a, b)));
            bytes.extend(pairs.map(|(a, b)| u8::from(a == b)));
        }
        Tensor::new(&Device::cpu(), [batch, 1, tokens, tokens], &bytes)
    }
}

/// Emulated GPUs of each tile, if there was a compiler for the kernels.
fn emulators() -> Vec<Device> {
    let emulator = |class| Device::emulator_of(class, Options::default());
    let devices = [Class::Sm86, Class::Sm90].map(emulator);
    devices
        .into_iter()
        .filter(|device| *device != Err(Error::NotCompiled))
        .map(Result::unwrap)
        .collect()
}

#[test]
fn the_cpu_computes_documents() {
    for case in CASES {
        case.passes::<f32>(&Device::cpu()).unwrap();
        case.passes::<bf16>(&Device::cpu()).unwrap();
    }
}

#[test]
fn kernels_compute_documents() {
    for device in emulators() {
        for case in CASES {
            case.passes::<f16>(&device).unwrap();
        }
        CASES[1].passes::<bf16>(&device).unwrap();
        CASES[2].passes::<bf16>(&device).unwrap();
    }
}

/// Penalties near the largest f32 leave each token to itself, in both passes.
#[test]
fn penalties_at_the_edge_of_f32() {
    for device in emulators().into_iter().chain([Device::cpu()]) {
        let (entries, shape): (&[&[u32]], _) = (&[&[33, 100, 7]], [1, 1, 140, 64]);
        let batch = Batch::new(&device, entries, &[1e36]).unwrap();
        // SAFETY: the shape has as many entries and tokens.
        let call = unsafe { batch.attention() };
        let of = |factor: usize| -> Vec<f16> {
            let numbers = (0..140 * 64).map(|i| (i * factor % 101) as f32 / 50.0 - 1.0);
            numbers.map(f16::from_f32).collect()
        };
        let tensor = |data: &[f16]| Tensor::new(&device, shape, data).unwrap();
        let [q, k] = [37, 41].map(|factor| tensor(&of(factor)));
        let (values, gradient) = (of(43), of(47));
        let (v, d_o) = (tensor(&values), tensor(&gradient));
        let (o, lse) = call.forward(&q, &k, &v).unwrap();
        assert_eq!(o.to_vec().unwrap(), values);
        let (dq, _, dv) = call.backward(&q, &k, &v, &o, &lse, &d_o).unwrap();
        assert_eq!(dv.to_vec().unwrap(), gradient);
        let dq = dq.to_vec().unwrap();
        assert!(dq.iter().all(|dq| dq.to_f32().abs() < 1e-3));
    }
}

/// A kernel serves head dims up to its own, and a device's class decides its tile.
#[test]
fn plans_name_the_kernels() {
    let batch = Batch::new(&Device::cpu(), &[&[5]], &[0.5]).unwrap();
    // SAFETY: shapes have one entry of 5 tokens.
    let call = unsafe { batch.attention() };
    for (class, dim, forward, backward) in [
        (
            Class::Sm80,
            40,
            "optional_f16_d64",
            "backward_optional_f16_d64",
        ),
        (
            Class::Sm86,
            72,
            "optional_f16_d128",
            "backward_optional_f16_d128_64x32",
        ),
        (
            Class::Sm90,
            128,
            "hopper_optional_f16_d128",
            "backward_hopper_stored_optional_f16_d128",
        ),
    ] {
        let shape = [1, 1, 5, dim];
        let problem = call.problem(shape, shape, shape).unwrap();
        let facts = Facts::emulated(class);
        let forward_args = RawForward::row_major(&problem);
        let backward_args = RawBackward::row_major(&problem);
        let plans = [
            call.plan(Some(&facts), Dtype::F16, &forward_args),
            call.backward_plan(Some(&facts), Dtype::F16, &backward_args),
        ];
        for (plan, expected) in plans.into_iter().zip([forward, backward]) {
            match plan {
                Err(Error::NotCompiled) => return,
                plan => assert_eq!(plan.unwrap().kernel, format!("documents_{expected}")),
            }
        }
    }
}

/// Values of a document stay in it, even if they are no numbers.
#[test]
fn documents_do_not_see_each_other() {
    let case = CASES[1];
    for device in emulators().into_iter().chain([Device::cpu()]) {
        let batch = Batch::new(&device, case.entries, &case.slopes()).unwrap();
        let run = |spoil: &dyn Fn(&mut [Vec<f16>; 3])| {
            // SAFETY: the shape has as many entries and tokens.
            let call = unsafe { batch.attention() };
            Passes::<f16>::compute(&device, &call, case.shape(), case.heads[1], spoil).unwrap()
        };
        let spoil = |inputs: &mut [Vec<f16>; 3]| {
            // The third document, of 70 tokens.
            for input in &mut inputs[1..] {
                input[3 * case.dim..60 * case.dim].fill(f16::NAN);
            }
        };
        let (right, spoilt) = (run(&|_| ()), run(&spoil));
        let tokens = case.shape()[2];
        for row in (0..2 * tokens).filter(|row| !(2..72).contains(&(row % tokens))) {
            let row = row * case.dim..(row + 1) * case.dim;
            assert_eq!(right.o[row.clone()], spoilt.o[row.clone()], "o of {row:?}");
            let [dq, of_spoilt] = [&right, &spoilt].map(|passes| &passes.gradients[0]);
            assert_eq!(dq[row.clone()], of_spoilt[row.clone()], "dq of {row:?}");
        }
        assert!(spoilt.o[2 * case.dim].is_nan());
    }
}

/// Kernels would wait for ever: the CPU says why.
#[test]
fn masks_that_disagree_are_refused() {
    /// Query `i` sees keys from `i` on. Its queries are right for 0 alone.
    #[derive(Clone, Copy)]
    struct Ahead;

    // SAFETY: there are no kernels, and calls on the CPU are checked.
    unsafe impl Custom for Ahead {
        const ARRAYS: usize = 1;
        type Head<'a> = u32;

        fn new(call: &Call, _head: u32) -> u32 {
            call.array(0).at(0)
        }

        fn keys(_wrong: u32, query: u32) -> Range<u32> {
            query..u32::MAX
        }

        fn queries(wrong: u32, key: u32) -> Range<u32> {
            match wrong {
                9 => 0..5 - key,
                wrong => 0..key + 1 + wrong,
            }
        }
    }

    // SAFETY: there are no kernels.
    static AHEAD: CustomKernels = unsafe { CustomKernels::new::<Ahead>("Ahead", None) };
    let cpu = Device::cpu();
    let q = Tensor::<f16>::zeros(&cpu, [1, 2, 5, 64]).unwrap();
    for (wrong, message) in [
        (0, None),
        (1, Some("custom's keys of query 1 must be 0..5")),
        (9, Some("custom's queries of key 1 begin or end before")),
    ] {
        let wrong = Tensor::new(&cpu, [1], &[wrong]).unwrap();
        let call = Attention::new().custom(&AHEAD, [(&wrong).into()]);
        let found = call.forward(&q, &q, &q).map(|_| ());
        match message {
            None => found.unwrap(),
            Some(message) => {
                let found = found.expect_err("refused").to_string();
                assert!(found.contains(message), "{found}");
            }
        }
    }
}

/// An array without elements is zeros, and nothing is read at its address, 0.
#[test]
fn kernels_read_no_array_without_elements() {
    let device = match Device::emulator_of(Class::Sm86, Options::default()) {
        Err(Error::NotCompiled) => return,
        device => device.unwrap(),
    };
    let batch = Batch::new(&device, &[&[3, 2]], &[0.5]).unwrap();
    // SAFETY: the shape has one entry of 5 tokens.
    let call = unsafe { batch.attention() };
    let q = Tensor::new(&device, [1, 1, 5, 64], &[f16::ONE; 320]).unwrap();
    let [with, without] = [true, false].map(|has_slopes| {
        let mut o = Tensor::<f16>::zeros(&device, q.shape()).unwrap();
        let mut lse = Tensor::<f32, 3>::zeros(&device, [1, 1, 5]).unwrap();
        let args = RawForward {
            q: q.as_raw(),
            k: q.as_raw(),
            v: q.as_raw(),
            o: o.as_raw_mut(),
            lse: lse.as_raw_mut(),
            options: RawOptions::default(),
        };
        let mut plan = call.plan(device.facts(), Dtype::F16, &args).unwrap();
        let slopes = offset_of!(ForwardParams, options.custom) + 2 * size_of::<ArrayRef>();
        for step in plan.steps.iter_mut().filter(|_| !has_slopes) {
            step.params[slopes..][..size_of::<ArrayRef>()].fill(0);
        }
        // SAFETY: the tensors live on, and an array without elements is one that kernels take.
        unsafe { plan.run(&device, std::ptr::null_mut()) }.unwrap();
        lse.to_vec().unwrap()
    });
    assert_ne!(with, without, "slopes count");
    let zeros = Batch::new(&device, &[&[3, 2]], &[0.0]).unwrap();
    // SAFETY: as above.
    let (_, lse) = unsafe { zeros.attention() }.forward(&q, &q, &q).unwrap();
    assert_eq!(without, lse.to_vec().unwrap());
}

/// The type without kernels.
// SAFETY: there are none.
static WITHOUT: CustomKernels = unsafe { CustomKernels::new::<Documents>("Documents", None) };

#[test]
#[should_panic = "entries differ"]
fn entries_have_as_many_tokens() {
    // These 9 tokens are as many as those of three entries of 3 tokens.
    let _ = Batch::new(&Device::cpu(), &[&[3], &[5], &[1]], &[0.5]);
}

#[test]
fn bad_calls_are_refused() {
    let cpu = Device::cpu();
    let q = Tensor::<f16>::zeros(&cpu, [1, 2, 5, 64]).unwrap();
    let array = Tensor::new(&cpu, [5], &[0_u32; 5]).unwrap();
    let refused = |call: Attention, q: &Tensor<f16>| {
        let error = call.forward(q, q, q).map(|_| ()).expect_err("refused");
        error.to_string()
    };
    let few = Attention::new().custom(&WITHOUT, [(&array).into(), (&array).into()]);
    assert_eq!(refused(few, &q), "custom has 2 arrays; it must have 3");
    let empty = Tensor::<f32, 1>::zeros(&cpu, [0]).unwrap();
    let arrays = [(&array).into(), (&array).into(), (&empty).into()];
    let empty = Attention::new().custom(&WITHOUT, arrays);
    assert_eq!(
        refused(empty, &q),
        "an array of custom is empty; it must have an element"
    );
    for device in emulators() {
        let batch = Batch::new(&device, &[&[5]], &[0.5, 0.25]).unwrap();
        let wide = Tensor::<f16>::zeros(&device, [1, 2, 5, 136]).unwrap();
        // SAFETY: shapes have one entry of 5 tokens.
        let call = || unsafe { batch.attention() };
        let message = refused(call(), &wide);
        assert_eq!(message, "kernel of Documents is not for f16 of dim 136");
        let named = call().kernel("optional_f16_d64");
        let narrow = Tensor::<f16>::zeros(&device, [1, 2, 5, 64]).unwrap();
        assert_eq!(
            refused(named, &narrow),
            "kernel optional_f16_d64 computes no custom"
        );
        let elsewhere = Batch::new(&cpu, &[&[5]], &[0.5, 0.25]).unwrap();
        // SAFETY: as above.
        let message = refused(unsafe { elsewhere.attention() }, &narrow);
        assert!(message.starts_with("custom is on CPU"), "{message}");
        let arrays = [(&array).into(), (&array).into(), (&array).into()];
        let facts = device.facts();
        let call = Attention::new().custom(&WITHOUT, arrays);
        let problem = call
            .problem([1, 2, 5, 64], [1, 2, 5, 64], [1, 2, 5, 64])
            .unwrap();
        let args = RawForward::row_major(&problem);
        let plan = call.plan(facts, Dtype::F16, &args);
        assert_eq!(plan.map(|_| ()), Err(Error::NotCompiled));
    }
}
