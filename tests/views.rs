//! Views of one allocation as inputs and outputs, and copies of views.

use ferroattn::{
    Attention, Device, Dtype, Error, RawForward, RawOptions, Tensor, TensorView, bf16, f16,
};
use tests::{Outcome, PASSED, Test};

pub const BATCH: usize = 2;
pub const HEADS: usize = 3;
pub const ROWS: usize = 70;
pub const DIM: usize = 64;

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    vec![
        Test::new("packed_qkv", packed_qkv),
        Test::new("part_of_a_cache", part_of_a_cache),
        Test::new("output_between_other_rows", output_between_other_rows),
        Test::new("raw_addresses_of_tensors", raw_addresses_of_tensors),
        Test::new("copies_of_views", copies_of_views),
        Test::new("copies_of_rows", copies_of_rows),
    ]
}

/// Numbers from -2 to 2 without order, `len` of them.
fn numbers(len: usize) -> impl Iterator<Item = f32> {
    (0..len).map(|i| (i * 7919 % 4099) as f32 / 1024.0 - 2.0)
}

/// A projection's output, `[batch, rows, 3, heads, dim]`.
fn packed(device: &Device) -> Result<Tensor<f16, 5>, Error> {
    let shape = [BATCH, ROWS, 3, HEADS, DIM];
    let data: Vec<_> = numbers(shape.iter().product()).map(f16::from_f32).collect();
    Tensor::new(device, shape, &data)
}

/// q, k or v of a packed `[batch, rows, 3, heads, dim]`, as `[batch, heads, rows, dim]`.
pub fn part(packed: &Tensor<f16, 5>, part: usize) -> Result<TensorView<'_, f16>, Error> {
    packed.view().select(2, part)?.transpose(1, 2)
}

/// The result of views is bit for bit the result of copies without gaps.
fn packed_qkv(device: &Device) -> Outcome {
    let packed = packed(device)?;
    let (q, k, v) = (part(&packed, 0)?, part(&packed, 1)?, part(&packed, 2)?);
    let attention = Attention::new().causal(true);
    let (o, lse) = attention.forward(&q, &k, &v)?;
    let (q, k, v) = (q.try_clone()?, k.try_clone()?, v.try_clone()?);
    assert!(q.is_contiguous() && q.len() == o.len());
    let (expected_o, expected_lse) = attention.forward(&q, &k, &v)?;
    assert_eq!(o.to_vec()?, expected_o.to_vec()?);
    assert_eq!(lse.to_vec()?, expected_lse.to_vec()?);
    assert_ne!(k.to_vec()?, v.to_vec()?);
    PASSED
}

/// The first keys of a longer cache, one head of which serves all.
fn part_of_a_cache(device: &Device) -> Outcome {
    let shape = [BATCH, 1, 200, DIM];
    let data: Vec<_> = numbers(shape.iter().product())
        .map(bf16::from_f32)
        .collect();
    let cache = Tensor::new(device, shape, &data)?;
    let q = cache
        .view()
        .narrow(2, 190, 1)?
        .broadcast([BATCH, HEADS, 1, DIM])?;
    let keys = cache.view().narrow(2, 0, 131)?;
    let (o, _) = Attention::new().forward(&q, &keys, &keys)?;
    let keys = keys.try_clone()?;
    let (expected, _) = Attention::new().forward(&q.try_clone()?, &keys, &keys)?;
    assert_eq!(o.to_vec()?, expected.to_vec()?);
    PASSED
}

/// A call writes its part of a buffer and nothing else.
fn output_between_other_rows(device: &Device) -> Outcome {
    let packed = packed(device)?;
    let (q, k, v) = (part(&packed, 0)?, part(&packed, 1)?, part(&packed, 2)?);
    let (expected, _) = Attention::new().forward(&q, &k, &v)?;

    let poison = f16::from_bits(0x7e55);
    let shape = [BATCH, ROWS + 9, HEADS, DIM];
    let mut all = Tensor::new(device, shape, &vec![poison; shape.iter().product()])?;
    let mut lse = Tensor::zeros(device, [BATCH, HEADS, ROWS])?;
    let mut o = all.view_mut().narrow(1, 4, ROWS)?.transpose(1, 2)?;
    Attention::new().forward_into(&q, &k, &v, &mut o, &mut lse)?;
    assert_eq!(o.to_vec()?, expected.to_vec()?);
    for (first, rows) in [(0, 4), (4 + ROWS, 5)] {
        let beside = all.view().narrow(1, first, rows)?.to_vec()?;
        assert!(beside.iter().all(|o| o.to_bits() == poison.to_bits()));
    }
    PASSED
}

fn raw_addresses_of_tensors(device: &Device) -> Outcome {
    let packed = packed(device)?;
    let (q, k, v) = (part(&packed, 0)?, part(&packed, 1)?, part(&packed, 2)?);
    let (expected, expected_lse) = Attention::new().forward(&q, &k, &v)?;
    let mut o = Tensor::<f16>::zeros(device, q.shape())?;
    let mut lse = Tensor::<f32, 3>::zeros(device, [BATCH, HEADS, ROWS])?;
    let raw = RawForward {
        q: q.as_raw(),
        k: k.as_raw(),
        v: v.as_raw(),
        o: o.as_raw_mut(),
        lse: lse.as_raw_mut(),
        options: RawOptions::default(),
    };
    // SAFETY: all tensors live on, hold elements of these types on this device, and overlap in no
    // element; the null stream is the one that their data was copied on.
    unsafe { Attention::new().forward_raw(device, Dtype::F16, &raw, std::ptr::null_mut())? };
    assert_eq!(o.to_vec()?, expected.to_vec()?);
    assert_eq!(lse.to_vec()?, expected_lse.to_vec()?);
    PASSED
}

/// A part with gaps, its axes in another order.
fn inside(tensor: &Tensor<f32, 3>) -> Result<TensorView<'_, f32, 3>, Error> {
    let part = tensor.view().narrow(0, 1, 2)?.narrow(2, 3, 5)?;
    part.permute([2, 0, 1])
}

/// Copies to, from and on the device, of whole tensors and of views with gaps.
fn copies_of_views(device: &Device) -> Outcome {
    let data: Vec<f32> = numbers(4 * 6 * 10).collect();
    let here = Tensor::new(&Device::cpu(), [4, 6, 10], &data)?;
    let there = here.to_device(device)?;
    assert_eq!(there.device(), *device);
    assert_eq!(there.to_vec()?, data);
    assert_eq!(there.try_clone()?.to_vec()?, data);
    assert_eq!(there.to_device(&Device::cpu())?.to_vec()?, data);

    let expected = inside(&here)?.to_vec()?;
    assert_eq!(expected[..3], [data[63], data[73], data[83]]);
    assert_eq!(inside(&there)?.to_vec()?, expected);
    assert_eq!(inside(&there)?.try_clone()?.to_vec()?, expected);
    let whole_rows = there.view().narrow(0, 1, 2)?;
    assert!(whole_rows.is_contiguous());
    assert_eq!(whole_rows.try_clone()?.to_vec()?, data[60..180]);

    let mut target = Tensor::zeros(device, [4, 6, 10])?;
    target.view_mut().narrow(0, 2, 2)?.copy_from(&whole_rows)?;
    let zeros = [0.0; 120];
    assert_eq!(target.to_vec()?, [&zeros, &data[60..180]].concat());
    target
        .view_mut()
        .permute([2, 0, 1])?
        .copy_from(&there.view().permute([2, 0, 1])?)?;
    assert_eq!(target.to_vec()?, data);
    PASSED
}

/// Copies between views whose rows lie apart: a token of a cache, its head dims before its rows, and elements with no neighbours.
fn copies_of_rows(device: &Device) -> Outcome {
    let data: Vec<f32> = numbers(2 * 3 * 70 * 8).collect();
    let here = Tensor::new(&Device::cpu(), [2, 3, 70, 8], &data)?;
    let there = here.to_device(device)?;
    let numbers: Vec<f32> = data.iter().map(|x| -x).collect();
    let from_host = Tensor::new(&Device::cpu(), [2, 3, 70, 8], &numbers)?;
    let source = from_host.to_device(device)?;
    for (axes, axis, first, len) in [
        ([0, 1, 2, 3], 2, 69, 1),
        ([0, 1, 2, 3], 2, 3, 4),
        ([0, 1, 2, 3], 3, 2, 5),
        ([0, 2, 1, 3], 1, 10, 20),
        ([0, 3, 2, 1], 1, 1, 3),
        ([3, 2, 1, 0], 0, 0, 8),
    ] {
        // The views' axes are in another order in the tensor that is read.
        let mut expected = here.try_clone()?;
        let mut found = there.try_clone()?;
        let other = source.view().permute(axes)?.try_clone()?;
        let other_host = from_host.view().permute(axes)?.try_clone()?;
        let part = other.view().narrow(axis, first, len)?;
        let part_host = other_host.view().narrow(axis, first, len)?;
        let to = found.view_mut().permute(axes)?;
        to.narrow(axis, first, len)?.copy_from(&part)?;
        let to = expected.view_mut().permute(axes)?;
        to.narrow(axis, first, len)?.copy_from(&part_host)?;
        assert_eq!(
            found.to_vec()?,
            expected.to_vec()?,
            "{axes:?} {axis} {first} {len}"
        );
    }
    PASSED
}
