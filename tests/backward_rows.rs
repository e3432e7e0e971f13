//! The kernels around the main one of a backward pass: statistics of the rows, and dq rounded to 16 bits.

use bytemuck::NoUninit;
use ferroattn::internals::Steps;
use ferroattn::{Device, Tensor, bf16, f16};
use kernels::abi::{BackwardParams, Divisor, ForwardParams, PrepareParams, ROW_PADDING, TensorRef};
use kernels::catalog::{self, Backward, Dtype, Family};
use kernels::layout::{fragment, sum};
use tests::{Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let shapes = [
        [2, 3, 130, 64],
        [1, 1, 1, 8],
        [1, 2, 128, 72],
        [1, 1, 33, 256],
    ];
    let each = |(i, shape): (usize, [usize; 4])| {
        let name = |step| format!("{step}_{}", shape.map(|n| n.to_string()).join("x"));
        // The first element at an odd place, or at a multiple of 16 bytes.
        let skip = if i % 2 == 0 { 1 } else { 0 };
        let prepares = move |device: &Device| prepares(device, shape, skip);
        let converts = move |device: &Device| converts(device, shape, skip);
        [
            Test::kernels(name("prepare"), prepares),
            Test::kernels(name("convert"), converts),
        ]
    };
    shapes.into_iter().enumerate().flat_map(each).collect()
}

/// Numbers that repeat after more elements than a row has.
fn number(i: usize) -> f32 {
    ((i * 37 + i / 7) % 101) as f32 / 50.0 - 1.0
}

/// A `[batch, heads, rows, dim]` tensor with gaps, as its elements' places and as kernels see it.
struct Gapped {
    elements: usize,
    place: Box<dyn Fn(usize, usize, usize) -> usize>,
    at: Box<dyn Fn(u64) -> TensorRef>,
}

/// The tensor `skip` elements into its buffer, and with rows `skip` elements longer.
fn gapped([batch, heads, rows, dim]: [usize; 4], skip: usize) -> Gapped {
    let row = dim + 8 + skip;
    Gapped {
        elements: skip + batch * heads * rows * row,
        // Rows of all heads in turns.
        place: Box::new(move |b, h, r| skip + ((b * rows + r) * heads + h) * row),
        at: Box::new(move |address| TensorRef {
            address: address + 2 * skip as u64,
            batch_stride: (rows * heads * row) as i64,
            head_stride: row as i64,
            row_stride: (heads * row) as i64,
        }),
    }
}

/// Rows that lie side by side in lse: a head's, or a half of them where two sequences were batch entries.
fn lse_rows(batch: usize, rows: usize) -> usize {
    match (batch, rows % 2) {
        (1, 0) => rows / 2,
        _ => rows,
    }
}

/// Index in lse of a row of a head, counted over all batch entries.
fn lse_index([batch, heads, rows, _]: [usize; 4], head: usize, row: usize) -> usize {
    let side_by_side = lse_rows(batch, rows);
    let (sequence, row) = (row / side_by_side, row % side_by_side);
    (sequence * heads + head) * side_by_side + row
}

fn params([batch, heads, rows, dim]: [usize; 4], columns: usize) -> BackwardParams {
    BackwardParams {
        forward: ForwardParams {
            heads: heads as u32,
            batch_heads: (batch * heads) as u32,
            seqlen_q: rows as u32,
            dim: dim as u32,
            scale: 0.375,
            ..ForwardParams::default()
        },
        padded_rows: rows.next_multiple_of(ROW_PADDING as usize) as u32,
        sum_columns: columns as u32,
        lse_rows: Divisor::new(lse_rows(batch, rows) as u32),
        ..BackwardParams::default()
    }
}

fn launch(device: &Device, kernel: Backward, warps: u32, params: &impl NoUninit) -> Outcome {
    let kernel = catalog::kernel(Family::Backward(kernel));
    let mut steps = Steps::default();
    let blocks = warps.div_ceil(Backward::WARPS);
    steps.launch(kernel.into(), blocks.into(), 0, params)?;
    // SAFETY: the parameters are the kernel's, and the buffers outlive the call.
    unsafe {
        steps
            .finish(kernel.name, 1)
            .run(device, std::ptr::null_mut())?
    };
    PASSED
}

/// Statistics of ordinary rows, of one that sees no key, and of padding; with and without a gradient of lse.
fn prepares(device: &Device, shape: [usize; 4], skip: usize) -> Outcome {
    let [batch, heads, rows, dim] = shape;
    let o_places = gapped(shape, skip);
    let d_o_places = gapped(shape, 0);
    let fill = |places: &Gapped, salt: usize| -> Vec<f16> {
        let numbers = (0..places.elements).map(|i| f16::from_f32(number(i + salt)));
        numbers.collect()
    };
    let (o, d_o) = (fill(&o_places, 0), fill(&d_o_places, 29));
    let count = batch * heads * rows;
    let mut lse: Vec<f32> = (0..count).map(|i| 10.0 * number(i)).collect();
    lse[count - 1] = f32::NEG_INFINITY;
    let d_lse: Vec<f32> = (0..count).map(|i| number(i + 3)).collect();
    let buffer = |data: &[f16]| Tensor::new(device, [1, 1, 1, data.len()], data);
    let (on_o, on_d_o) = (buffer(&o)?, buffer(&d_o)?);
    let numbers = |data: &[f32]| Tensor::new(device, [1, 1, 1, data.len()], data);
    let (on_lse, on_d_lse) = (numbers(&lse)?, numbers(&d_lse)?);
    for has_d_lse in [true, false] {
        let mut params = params(shape, 32);
        let padded = params.padded_rows as usize;
        let mut found = numbers(&vec![f32::NAN; batch * heads * 2 * padded])?;
        params.forward.o = (o_places.at)(on_o.address());
        params.forward.o_aligned = u32::from(params.forward.o.is_aligned());
        params.forward.lse = on_lse.address();
        params.d_o = (d_o_places.at)(on_d_o.address());
        params.d_lse = if has_d_lse { on_d_lse.address() } else { 0 };
        params.rows = found.address_mut();
        let warps = params.forward.batch_heads * params.padded_rows / 8;
        // More than the threads write at a time.
        let zeros = 4 * 32 * warps as usize + 12;
        let mut written = numbers(&vec![f32::NAN; zeros + 4])?;
        let params = PrepareParams {
            backward: params,
            zeros: written.address_mut(),
            zero_bytes: 4 * zeros as u64,
        };
        launch(device, Backward::Prepare(Dtype::F16), warps, &params)?;
        let written = written.to_vec()?;
        let (within, beyond) = written.split_at(zeros);
        assert!(within.iter().all(|&number| number.to_bits() == 0));
        assert!(beyond.iter().all(|number| number.is_nan()));
        let found = found.to_vec()?;
        for head in 0..batch * heads {
            let [lse2, delta] = [0, 1].map(|i| &found[(2 * head + i) * padded..][..padded]);
            for row in 0..padded {
                let index = lse_index(shape, head, row);
                if row >= rows || lse[index] == f32::NEG_INFINITY {
                    assert_eq!((lse2[row], delta[row]), (f32::INFINITY, 0.0), "row {row}");
                    continue;
                }
                let start = |places: &Gapped| (places.place)(head / heads, head % heads, row);
                let (o, d_o) = (&o[start(&o_places)..], &d_o[start(&d_o_places)..]);
                let products = o.iter().zip(d_o).take(dim);
                let sum: f64 = products.map(|(a, b)| a.to_f64() * b.to_f64()).sum();
                let expected = sum - if has_d_lse { d_lse[index].into() } else { 0.0 };
                let error = (f64::from(delta[row]) - expected).abs();
                assert!(
                    error < 1e-4,
                    "delta of row {row}: {} for {expected}",
                    delta[row]
                );
                let expected = lse[index] * std::f32::consts::LOG2_E;
                assert!(
                    (lse2[row] - expected).abs() <= 1e-6 * expected.abs(),
                    "row {row}"
                );
            }
        }
    }
    PASSED
}

/// Elements of dq, and nothing around them.
fn converts(device: &Device, shape: [usize; 4], skip: usize) -> Outcome {
    let [batch, heads, rows, dim] = shape;
    let columns = dim.next_multiple_of(32) + 32;
    let mut params = params(shape, columns);
    let padded = params.padded_rows as usize;
    let sums: Vec<f32> = (0..batch * heads * padded * columns).map(number).collect();
    let on_sums = Tensor::new(device, [1, 1, 1, sums.len()], &sums)?;
    let places = gapped(shape, skip);
    let poison = bf16::from_f32(-77.0);
    let mut dq = Tensor::new(
        device,
        [1, 1, 1, places.elements],
        &vec![poison; places.elements],
    )?;
    // One row sees no key.
    let mut lse = vec![0.0_f32; batch * heads * rows];
    lse[lse_index(shape, 0, rows / 2)] = f32::NEG_INFINITY;
    let on_lse = Tensor::new(device, [1, 1, 1, lse.len()], &lse)?;
    params.forward.lse = on_lse.address();
    params.dq_sum = on_sums.address();
    params.dq = (places.at)(dq.address_mut());
    params.dq_aligned = u32::from(params.dq.is_aligned());
    let warps = params.forward.batch_heads * params.padded_rows / 16 * params.sum_columns / 32;
    launch(device, Backward::Convert(Dtype::Bf16), warps, &params)?;
    let mut expected = vec![poison; places.elements];
    for tile in 0..batch * heads * padded / 16 {
        let (head, first) = (tile * 16 / padded, tile * 16 % padded);
        for column16 in 0..columns / 16 {
            let number = sum::tile(tile as u64, column16 as u32, columns as u32) as usize;
            for (lane, i) in (0..32).flat_map(|lane| (0..8).map(move |i| (lane, i))) {
                let (down, right) = fragment::accumulator(lane, i);
                let (row, column) = (first + down as usize, 16 * column16 + right as usize);
                if row < rows && column < dim {
                    let place = (places.place)(head / heads, head % heads, row) + column;
                    let sum = sums[256 * number + sum::place(lane, i) as usize];
                    let sees_none = head == 0 && row == rows / 2;
                    expected[place] = bf16::from_f32(if sees_none { 0.0 } else { 0.375 * sum });
                }
            }
        }
    }
    for (i, (found, expected)) in dq.to_vec()?.into_iter().zip(expected).enumerate() {
        assert_eq!(found, expected, "element {i}");
    }
    PASSED
}
