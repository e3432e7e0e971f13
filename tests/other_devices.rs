//! Every tensor of every safe call, in turn on another device than the others: a typed error names it, and nothing is
//! written.

use ferroattn::custom::{Call, Custom, Pair};
use ferroattn::emulator::Options;
use ferroattn::{
    Attention, BackwardInputs, Class, CustomKernels, Device, Error, Gemm, Gradients, GradientsMut,
    Result, Tensor, f16, merge, merge_backward, merge_backward_into, merge_into,
};
use tests::{Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    vec![
        Test::new("forward", forward),
        Test::new("backward", backward),
        Test::new("backward_all", backward_all),
        Test::new("options", options),
        Test::new("matrices", matrices),
        Test::new("merges", merges),
        Test::new("gradients_of_merges", gradients_of_merges),
        Test::new("copies", copies),
        Test::new("streams", streams),
        Test::new("checks", checks),
        Test::new("messages", messages),
    ]
}

/// The number that outputs hold before a call, and after a refused one.
const UNWRITTEN: f32 = 5.5;

const SHAPE: [usize; 4] = [1, 2, 5, 16];
const ROWS: [usize; 3] = [1, 2, 5];

/// A device, and another: all tensors are on the first, but those of one name.
#[derive(Clone, Copy)]
struct Places<'a> {
    here: &'a Device,
    there: &'a Device,
    stray: &'a str,
}

impl Places<'_> {
    fn of(&self, name: &str) -> &Device {
        match name == self.stray {
            true => self.there,
            false => self.here,
        }
    }

    /// A tensor in f16, filled as outputs are.
    fn half<const R: usize>(&self, name: &str, shape: [usize; R]) -> Result<Tensor<f16, R>> {
        let data = vec![f16::from_f32(UNWRITTEN); shape.iter().product()];
        Tensor::new(self.of(name), shape, &data)
    }

    /// A tensor in f32, filled as outputs are.
    fn single<const R: usize>(&self, name: &str, shape: [usize; R]) -> Result<Tensor<f32, R>> {
        let data = vec![UNWRITTEN; shape.iter().product()];
        Tensor::new(self.of(name), shape, &data)
    }

    /// Expects a call to be refused for the stray tensor, by `argument` in messages.
    fn expect<T>(&self, argument: &str, result: Result<T>) {
        match result.map(|_| ()) {
            Err(Error::DeviceMismatch {
                argument: found, ..
            }) if found == argument => (),
            other => panic!(
                "{} on {:?}, others on {:?}: {other:?}",
                self.stray, self.there, self.here
            ),
        }
    }
}

/// Runs a call with each of these tensors elsewhere, on each other kind of device.
fn each(here: &Device, strays: &[&str], call: impl Fn(Places) -> Result<()>) -> Outcome {
    for there in elsewhere(here)? {
        for stray in strays {
            call(Places {
                here,
                there: &there,
                stray,
            })?;
        }
    }
    PASSED
}

/// The CPU and an emulated GPU, unless they are the device; a device is no other emulated one.
fn elsewhere(here: &Device) -> Result<Vec<Device>> {
    let emulator = match Device::emulator_of(Class::Sm80, Options::default()) {
        Err(Error::NotCompiled) => None,
        device => Some(device?),
    };
    let cpu = Some(Device::cpu()).filter(|cpu| cpu != here);
    Ok(cpu.into_iter().chain(emulator).collect())
}

fn unwritten_half<const R: usize>(tensor: &Tensor<f16, R>) {
    let elements = tensor.to_vec().expect("memory");
    assert!(elements.iter().all(|x| x.to_f32() == UNWRITTEN));
}

fn unwritten<const R: usize>(tensor: &Tensor<f32, R>) {
    let elements = tensor.to_vec().expect("memory");
    assert!(elements.iter().all(|&x| x == UNWRITTEN));
}

fn forward(device: &Device) -> Outcome {
    each(device, &["k", "v", "o", "lse"], |places| {
        let [q, k, v] = ["q", "k", "v"].map(|name| places.half(name, SHAPE));
        let (q, k, v) = (q?, k?, v?);
        let (mut o, mut lse) = (places.half("o", SHAPE)?, places.single("lse", ROWS)?);
        let attention = Attention::new();
        let done = attention.forward_into(&q, &k, &v, &mut o, &mut lse);
        places.expect(places.stray, done);
        unwritten_half(&o);
        unwritten(&lse);
        if ["k", "v"].contains(&places.stray) {
            places.expect(places.stray, attention.forward(&q, &k, &v));
        }
        Ok(())
    })
}

/// Streams and events of other devices.
fn streams(device: &Device) -> Outcome {
    let stray = |result: Result<()>, name: &str| match result {
        Err(Error::DeviceMismatch { argument, .. }) => assert_eq!(argument, name),
        other => panic!("{name}: {other:?}"),
    };
    for there in elsewhere(device)? {
        let (here, stream) = (device.stream()?, there.stream()?);
        let q = Tensor::<f16>::zeros(device, SHAPE)?;
        let attention = Attention::new().on(&stream);
        stray(attention.forward(&q, &q, &q).map(drop), "stream");
        let (o, lse) = Attention::new().on(&here).forward(&q, &q, &q)?;
        let gradients = attention.backward(&q, &q, &q, &o, &lse, &q);
        stray(gradients.map(drop), "stream");
        stray(here.wait_for(&there.event()?), "event");
        here.wait_for(&here.event()?)?;
    }
    PASSED
}

fn backward(device: &Device) -> Outcome {
    let inputs = ["k", "v", "o", "lse", "d_o"];
    let strays = [&inputs[..], &["d_lse", "dq", "dk", "dv"]].concat();
    each(device, &strays, |places| {
        let [q, k, v, o, d_o] =
            ["q", "k", "v", "o", "d_o"].map(|name| places.half(name, SHAPE).expect("memory"));
        let lse = places.single("lse", ROWS)?;
        let d_lse = places.single("d_lse", ROWS)?;
        let [mut dq, mut dk, mut dv] =
            ["dq", "dk", "dv"].map(|name| places.half(name, SHAPE).expect("memory"));
        let attention = Attention::new();
        let read = BackwardInputs::new(&q, &k, &v, &o, &lse, &d_o).d_lse(&d_lse);
        let done = attention.backward_into(&read, GradientsMut::new(&mut dq, &mut dk, &mut dv));
        places.expect(places.stray, done);
        [dq, dk, dv].iter().for_each(unwritten_half);
        if inputs.contains(&places.stray) {
            let done = attention.backward(&q, &k, &v, &o, &lse, &d_o);
            places.expect(places.stray, done);
        }
        Ok(())
    })
}

fn backward_all(device: &Device) -> Outcome {
    let inputs = ["k", "v", "o", "lse", "d_o", "d_lse", "sinks", "bias"];
    let strays = [&inputs[..], &["dq", "dk", "dv", "d_sinks", "d_bias"]].concat();
    each(device, &strays, |places| {
        let [q, k, v, o, d_o] =
            ["q", "k", "v", "o", "d_o"].map(|name| places.half(name, SHAPE).expect("memory"));
        let lse = places.single("lse", ROWS)?;
        let d_lse = places.single("d_lse", ROWS)?;
        let (sinks, bias) = (
            places.single("sinks", [2])?,
            places.single("bias", [1, 2, 5, 5])?,
        );
        let [dq, dk, dv] = ["dq", "dk", "dv"].map(|name| places.half(name, SHAPE));
        let mut gradients = Gradients::new(dq?, dk?, dv?);
        gradients.d_sinks = Some(places.single("d_sinks", [2])?);
        gradients.d_bias = Some(places.single("d_bias", [1, 2, 5, 5])?);
        let attention = Attention::new().sinks(&sinks).bias(&bias);
        let read = BackwardInputs::new(&q, &k, &v, &o, &lse, &d_o).d_lse(&d_lse);
        let done = attention.backward_into(&read, gradients.view_mut());
        places.expect(places.stray, done);
        let Gradients {
            dq,
            dk,
            dv,
            d_sinks,
            d_bias,
            ..
        } = &gradients;
        [dq, dk, dv].into_iter().for_each(unwritten_half);
        d_sinks.iter().for_each(unwritten);
        d_bias.iter().for_each(unwritten);
        if inputs.contains(&places.stray) {
            places.expect(places.stray, attention.backward_all(&read));
        }
        Ok(())
    })
}

/// A score that reads two arrays.
#[derive(Clone, Copy)]
struct Shift;

// SAFETY: the mask is the trait's own.
unsafe impl Custom for Shift {
    const ARRAYS: usize = 2;
    type Head<'a> = f32;

    fn new(call: &Call, _head: u32) -> f32 {
        call.array::<f32>(0).at(0) + call.array::<f32>(1).at(0)
    }

    fn score(shift: f32, score: f32, _pair: Pair) -> f32 {
        score + shift
    }
}

// SAFETY: there are no kernels.
static SHIFT: CustomKernels = unsafe { CustomKernels::new::<Shift>("Shift", None) };

/// Each option by itself, in all calls that take q, k and v.
fn options(device: &Device) -> Outcome {
    let strays = [
        "alibi",
        "sinks",
        "bias",
        "mask",
        "offsets_q",
        "offsets_kv",
        "lengths_q",
        "lengths_kv",
        "first of custom",
        "second of custom",
    ];
    each(device, &strays, |places| {
        let numbers = |name| {
            let all = if name == "offsets_q" || name == "offsets_kv" {
                vec![0, 5]
            } else {
                vec![5]
            };
            Tensor::<i32, 1>::new(places.of(name), [all.len()], &all)
        };
        let (alibi, sinks) = (places.single("alibi", [2])?, places.single("sinks", [2])?);
        let bias = places.single("bias", [1, 1, 1, 5])?;
        let mask = Tensor::new(places.of("mask"), [1, 1, 1, 5], &[1_u8; 5])?;
        let offsets = [numbers("offsets_q")?, numbers("offsets_kv")?];
        let lengths = [numbers("lengths_q")?, numbers("lengths_kv")?];
        let arrays = ["first of custom", "second of custom"]
            .map(|name| places.single(name, [1]).expect("memory"));
        let call = Attention::new();
        let (call, argument) = match places.stray {
            "alibi" => (call.alibi(&alibi), "alibi"),
            "sinks" => (call.sinks(&sinks), "sinks"),
            "bias" => (call.bias(&bias), "bias"),
            "mask" => (call.mask(&mask), "mask"),
            name if name.starts_with("offsets") => (call.packed(&offsets[0], &offsets[1]), name),
            name if name.starts_with("lengths") => (call.padded(&lengths[0], &lengths[1]), name),
            _ => {
                let [first, second] = &arrays;
                (call.custom(&SHIFT, [first.into(), second.into()]), "custom")
            }
        };
        let q = places.half("q", SHAPE)?;
        let (mut o, mut lse) = (places.half("o", SHAPE)?, places.single("lse", ROWS)?);
        places.expect(argument, call.forward(&q, &q, &q));
        let done = call.forward_into(&q, &q, &q, &mut o, &mut lse);
        places.expect(argument, done);
        unwritten_half(&o);
        unwritten(&lse);
        let [mut dq, mut dk, mut dv] = [(); 3].map(|()| places.half("dq", SHAPE).expect("memory"));
        places.expect(argument, call.backward(&q, &q, &q, &o, &lse, &q));
        let read = BackwardInputs::new(&q, &q, &q, &o, &lse, &q);
        let done = call.backward_into(&read, GradientsMut::new(&mut dq, &mut dk, &mut dv));
        places.expect(argument, done);
        [dq, dk, dv].iter().for_each(unwritten_half);
        places.expect(argument, call.backward_all(&read));
        Ok(())
    })
}

fn matrices(device: &Device) -> Outcome {
    each(device, &["b", "c"], |places| {
        let (a, b) = (places.half("a", [3, 8])?, places.half("b", [4, 8])?);
        let mut c = places.half("c", [3, 4])?;
        let done = Gemm::new().forward_into(&a, &b, &mut c);
        places.expect(places.stray, done);
        unwritten_half(&c);
        if places.stray == "b" {
            places.expect("b", Gemm::new().forward(&a, &b));
        }
        Ok(())
    })
}

fn merges(device: &Device) -> Outcome {
    let inputs = ["lse1", "o2", "lse2"];
    each(device, &[&inputs[..], &["o", "lse"]].concat(), |places| {
        let (o1, lse1) = (places.half("o1", SHAPE)?, places.single("lse1", ROWS)?);
        let (o2, lse2) = (places.half("o2", SHAPE)?, places.single("lse2", ROWS)?);
        let (mut o, mut lse) = (places.half("o", SHAPE)?, places.single("lse", ROWS)?);
        let (first, second) = ((&o1, &lse1), (&o2, &lse2));
        places.expect(places.stray, merge_into(first, second, (&mut o, &mut lse)));
        unwritten_half(&o);
        unwritten(&lse);
        if inputs.contains(&places.stray) {
            places.expect(places.stray, merge(first, second));
        }
        Ok(())
    })
}

fn gradients_of_merges(device: &Device) -> Outcome {
    let inputs = ["lse1", "o2", "lse2", "d_o", "d_lse"];
    let gradients = ["d_o1", "d_lse1", "d_o2", "d_lse2"];
    each(device, &[&inputs[..], &gradients[..]].concat(), |places| {
        let (o1, lse1) = (places.half("o1", SHAPE)?, places.single("lse1", ROWS)?);
        let (o2, lse2) = (places.half("o2", SHAPE)?, places.single("lse2", ROWS)?);
        let (d_o, d_lse) = (places.half("d_o", SHAPE)?, places.single("d_lse", ROWS)?);
        let (mut d_o1, mut d_lse1) = (places.half("d_o1", SHAPE)?, places.single("d_lse1", ROWS)?);
        let (mut d_o2, mut d_lse2) = (places.half("d_o2", SHAPE)?, places.single("d_lse2", ROWS)?);
        let (first, second) = ((&o1, &lse1), (&o2, &lse2));
        let (d_first, d_second) = ((&mut d_o1, &mut d_lse1), (&mut d_o2, &mut d_lse2));
        let d_lse = Some(d_lse.view());
        let done = merge_backward_into(first, second, &d_o, d_lse, d_first, d_second);
        places.expect(places.stray, done);
        [d_o1, d_o2].iter().for_each(unwritten_half);
        [d_lse1, d_lse2].iter().for_each(unwritten);
        if inputs.contains(&places.stray) {
            places.expect(places.stray, merge_backward(first, second, &d_o, d_lse));
        }
        Ok(())
    })
}

/// Copies without gaps and with them.
fn copies(device: &Device) -> Outcome {
    each(device, &["source"], |places| {
        let source = Tensor::new(places.of("source"), [3, 3], &[1.0_f32; 9])?;
        let mut to = places.single("to", [3, 3])?;
        places.expect("source", to.copy_from(&source));
        let transposed = source.view().transpose(0, 1)?;
        places.expect("source", to.copy_from(&transposed));
        unwritten(&to);
        Ok(())
    })
}

/// The host's checks read tensors of the CPU alone.
fn checks(device: &Device) -> Outcome {
    if device.is_cpu() {
        return PASSED;
    }
    let sinks = Tensor::new(device, [2], &[0.5_f32; 2])?;
    let problem = Attention::new().problem(SHAPE, SHAPE, SHAPE)?;
    let done = Attention::new().sinks(&sinks).host_options(&problem);
    let refused = matches!(
        done,
        Err(Error::DeviceMismatch {
            argument: "sinks",
            ..
        })
    );
    assert!(refused, "{done:?}");
    PASSED
}

/// Two devices of one name are told apart.
fn messages(device: &Device) -> Outcome {
    for there in elsewhere(device)? {
        let (here, stray) = (device, Tensor::<f16>::zeros(&there, SHAPE)?);
        let q = Tensor::<f16>::zeros(here, SHAPE)?;
        let done = Attention::new().forward(&q, &stray, &q);
        let message = done.map(|_| ()).expect_err("refused").to_string();
        let (here, there) = (here.name(), there.name());
        let expected = match here == there {
            true => format!("k is on another {there} than the others; it must be on the same one"),
            false => format!("k is on {there}; it must be on the device of the others, {here}"),
        };
        assert_eq!(message, expected);
    }
    PASSED
}
