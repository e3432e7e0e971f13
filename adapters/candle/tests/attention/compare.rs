//! Outputs and gradients of two functions of the same tensors.

use candle_core::{DType, Device, Result, Tensor, Var};

/// Every device that is there, with the types that it computes.
pub fn devices() -> Vec<(Device, &'static [DType])> {
    const ALL: &[DType] = &[DType::F32, DType::F16, DType::BF16];
    let wanted = std::env::var("FERROATTN_DEVICE").ok();
    let mut devices = Vec::new();
    if wanted.as_deref() != Some("cuda") {
        devices.push((Device::Cpu, ALL));
    }
    if wanted.as_deref() != Some("cpu") && cfg!(feature = "cuda") {
        match Device::new_cuda(0) {
            Ok(device) => devices.push((device, &ALL[1..])),
            Err(error) => assert!(wanted.is_none(), "{error}"),
        }
    }
    devices
}

/// The devices that compute with e4m3: of GPUs, Hopper's.
pub fn devices_of_e4m3() -> Vec<(Device, &'static [DType])> {
    let serves = |device: &Device| match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => {
            let gpu = ferroattn::Device::cuda(0).expect("a GPU");
            gpu.facts().map(|facts| facts.compute_capability) == Some((9, 0))
        }
        _ => true,
    };
    let devices = devices().into_iter();
    devices.filter(|(device, _)| serves(device)).collect()
}

/// The error that a result may have, for each unit of the largest number that is expected.
fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => 5e-6,
        DType::F16 => 3e-3,
        _ => 2e-2,
    }
}

/// Numbers from -1 to 1, of a seed.
pub fn random(shape: &[usize], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        // An xorshift generator.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    for _ in 0..8 {
        next();
    }
    let numbers: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu).expect("numbers of the shape")
}

/// The output and all gradients of a weighted sum of it, as f32 on the CPU.
fn results(inputs: &[Var], function: &dyn Fn(&[Tensor]) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let tensors: Vec<_> = inputs
        .iter()
        .map(|input| input.as_tensor().clone())
        .collect();
    let output = function(&tensors)?;
    let weights = random(output.dims(), 1000).to_device(output.device())?;
    let loss = (output.to_dtype(DType::F32)? * weights)?.sum_all()?;
    let gradients = loss.backward()?;
    let mut results = vec![output];
    for input in inputs {
        let gradient = gradients.get(input).expect("every input has a gradient");
        assert_eq!(
            (gradient.dims(), gradient.dtype()),
            (input.dims(), input.dtype())
        );
        results.push(gradient.clone());
    }
    results.iter().map(on_host).collect()
}

/// The largest size of a number.
fn largest(tensor: &Tensor) -> Result<f32> {
    let numbers = tensor.flatten_all()?.to_vec1::<f32>()?;
    // NaN is the largest.
    Ok(numbers
        .into_iter()
        .fold(0.0, |most, x| if x.abs() <= most { most } else { x.abs() }))
}

/// Checks that two functions have the same output and gradients: `actual` on each device in each of its types, `expected` on the CPU
/// in f32. Inputs are the numbers, rounded to the type.
pub fn compare(
    inputs: &[Tensor],
    actual: impl Fn(&[Tensor]) -> Result<Tensor>,
    expected: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<()> {
    let with_gradients = |function: &dyn Fn(&[Tensor]) -> Result<Tensor>, inputs: &[Tensor]| {
        let vars: Result<Vec<_>> = inputs.iter().map(Var::from_tensor).collect();
        results(&vars?, function)
    };
    compare_all(
        devices(),
        inputs,
        |inputs| with_gradients(&actual, inputs),
        |inputs| with_gradients(&expected, inputs),
    )
}

/// [`compare`] of outputs alone.
pub fn compare_outputs(
    inputs: &[Tensor],
    actual: impl Fn(&[Tensor]) -> Result<Tensor>,
    expected: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<()> {
    compare_outputs_on(devices(), inputs, actual, expected)
}

/// [`compare_outputs`] on some devices.
pub fn compare_outputs_on(
    devices: Vec<(Device, &'static [DType])>,
    inputs: &[Tensor],
    actual: impl Fn(&[Tensor]) -> Result<Tensor>,
    expected: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<()> {
    compare_all(
        devices,
        inputs,
        |inputs| Ok(vec![on_host(&actual(inputs)?)?]),
        |inputs| Ok(vec![on_host(&expected(inputs)?)?]),
    )
}

/// The numbers in f32 on the CPU.
pub fn on_host(tensor: &Tensor) -> Result<Tensor> {
    tensor.to_dtype(DType::F32)?.to_device(&Device::Cpu)
}

/// Checks that two functions have the same results, which are on the CPU in f32, as [`compare`] says.
fn compare_all(
    devices: Vec<(Device, &'static [DType])>,
    inputs: &[Tensor],
    actual: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    expected: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<()> {
    for (device, dtypes) in devices {
        for &dtype in dtypes {
            let rounded = inputs.iter().map(|input| input.to_dtype(dtype));
            let rounded = rounded.collect::<Result<Vec<_>>>()?;
            let on_device = rounded.iter().map(|input| input.to_device(&device));
            let actual = actual(&on_device.collect::<Result<Vec<_>>>()?)?;
            let in_f32 = rounded.iter().map(|input| input.to_dtype(DType::F32));
            let expected = expected(&in_f32.collect::<Result<Vec<_>>>()?)?;
            for (index, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
                assert_eq!(actual.dims(), expected.dims(), "result {index}");
                let error = largest(&(actual - expected)?)?;
                // Gradients that cancel out are sums over many rows of numbers as large as weights.
                let bound = tolerance(dtype) * largest(expected)?.max(0.5);
                assert!(
                    error <= bound,
                    "result {index} in {dtype:?} on {:?}: {error} over {bound}",
                    device.location()
                );
            }
        }
    }
    Ok(())
}
