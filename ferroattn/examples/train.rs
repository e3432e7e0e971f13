//! Trains a small language model with the library's gradients of attention, and beside it the same model with
//! gradients by the definition in f64.
//!
//! ```sh
//! cargo run -p ferroattn --release --example train
//! ```
//!
//! The model reads characters: the text is the library's own source. Two layers of causal attention and of a
//! perceptron, with residuals and RMS norms between them, predict each next character. All layers but attention are
//! written out here, on the CPU in f32. Attention is f16, on the GPU if there is one. Both models start alike and see
//! the same batches, so their loss curves lie on each other; the program fails if they part.

use ferroattn::{Attention, Device, Tensor, TensorView, f16};
use ndarray::{Array1, Array2, Axis, concatenate, s};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use std::error::Error;

const TEXT: &str = concat!(
    include_str!("../src/lib.rs"),
    include_str!("../src/attention/mod.rs"),
    include_str!("../src/attention/tensors.rs"),
    include_str!("../src/tensor/mod.rs"),
    include_str!("../src/tensor/view.rs"),
);
/// Characters: bytes of ASCII.
const VOCABULARY: usize = 128;
/// Sequences of a batch, and characters of a sequence.
const BATCH: usize = 8;
const SEQLEN: usize = 128;
const LAYERS: usize = 2;
const HEADS: usize = 2;
const DIM: usize = 32;
/// Elements of a token's state.
const WIDTH: usize = HEADS * DIM;
const STEPS: usize = 300;
/// The largest difference between the two losses of a step, in nats a character.
const TOLERANCE: f32 = 0.02;

type Matrix = Array2<f32>;

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cuda(0).unwrap_or_else(|_| Device::cpu());
    println!(
        "attention in f16 on {}, and by its definition in f64",
        device.name()
    );
    println!("{:>5} {:>9} {:>9}", "step", "library", "f64");
    let largest = train(device, STEPS, |step, [library, definition]| {
        if step % 20 == 0 {
            println!("{step:5} {library:9.4} {definition:9.4}");
        }
    })?;
    println!("largest difference of a step {largest:.4} nats");
    if largest > TOLERANCE {
        return Err(format!("the curves part by more than {TOLERANCE}").into());
    }
    Ok(())
}

/// Trains both models. Calls `each` with the losses of each step, and returns their largest difference.
fn train(
    device: Device,
    steps: usize,
    mut each: impl FnMut(usize, [f32; 2]),
) -> Result<f32, Box<dyn Error>> {
    let mut library = Model::new(Box::new(OnDevice { device }));
    let mut definition = Model::new(Box::new(Definition));
    let mut rng = StdRng::seed_from_u64(1);
    let mut largest = 0.0_f32;
    for step in 0..=steps {
        let batch = Batch::draw(&mut rng);
        let losses = [library.step(&batch)?, definition.step(&batch)?];
        largest = largest.max((losses[0] - losses[1]).abs());
        each(step, losses);
    }
    Ok(largest)
}

/// Characters, and the character after each.
struct Batch {
    inputs: Vec<usize>,
    targets: Vec<usize>,
}

impl Batch {
    fn draw(rng: &mut StdRng) -> Self {
        let text = TEXT.as_bytes();
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..BATCH {
            let start = rng.random_range(0..text.len() - SEQLEN);
            let window = text[start..=start + SEQLEN].iter();
            let window: Vec<_> = window.map(|&byte| usize::from(byte.min(127))).collect();
            inputs.extend(&window[..SEQLEN]);
            targets.extend(&window[1..]);
        }
        Batch { inputs, targets }
    }
}

/// A matrix of weights, its gradient, and what Adam remembers of earlier ones.
struct Weights {
    value: Matrix,
    gradient: Matrix,
    mean: Matrix,
    square: Matrix,
}

impl Weights {
    fn new(rows: usize, columns: usize, rng: &mut StdRng) -> Self {
        let deviation = (rows as f32).sqrt().recip();
        let zeros = Matrix::zeros((rows, columns));
        let value = zeros.mapv(|_| deviation * rng.sample::<f32, _>(StandardNormal));
        Weights {
            value,
            gradient: zeros.clone(),
            mean: zeros.clone(),
            square: zeros,
        }
    }

    /// `x W`.
    fn forward(&self, x: &Matrix) -> Matrix {
        x.dot(&self.value)
    }

    /// The gradient of x; adds the gradient of W.
    fn backward(&mut self, x: &Matrix, d_y: &Matrix) -> Matrix {
        self.gradient += &x.t().dot(d_y);
        d_y.dot(&self.value.t())
    }

    /// Adam (Kingma and Ba 2014), without the correction of its first steps.
    fn update(&mut self) {
        const RATE: f32 = 2e-3;
        self.mean
            .zip_mut_with(&self.gradient, |m, g| *m += 0.1 * (g - *m));
        self.square
            .zip_mut_with(&self.gradient, |v, g| *v += 0.01 * (g * g - *v));
        let steps = &self.mean / &self.square.mapv(|v| v.sqrt() + 1e-4);
        self.value.scaled_add(-RATE, &steps);
        self.gradient.fill(0.0);
    }
}

struct Layer {
    qkv: Weights,
    o: Weights,
    up: Weights,
    down: Weights,
}

struct Model {
    characters: Weights,
    places: Weights,
    layers: Vec<Layer>,
    logits: Weights,
    attention: Box<dyn Attend>,
}

impl Model {
    fn new(attention: Box<dyn Attend>) -> Self {
        let rng = &mut StdRng::seed_from_u64(0);
        Model {
            characters: Weights::new(VOCABULARY, WIDTH, rng),
            places: Weights::new(SEQLEN, WIDTH, rng),
            layers: (0..LAYERS)
                .map(|_| Layer {
                    qkv: Weights::new(WIDTH, 3 * WIDTH, rng),
                    o: Weights::new(WIDTH, WIDTH, rng),
                    up: Weights::new(WIDTH, 4 * WIDTH, rng),
                    down: Weights::new(4 * WIDTH, WIDTH, rng),
                })
                .collect(),
            logits: Weights::new(WIDTH, VOCABULARY, rng),
            attention,
        }
    }

    /// Learns from a batch. Returns its mean loss before, in nats a character.
    fn step(&mut self, batch: &Batch) -> Result<f32, Box<dyn Error>> {
        let Model {
            characters,
            places,
            layers,
            logits,
            attention,
        } = self;
        let mut x = Matrix::from_shape_fn((BATCH * SEQLEN, WIDTH), |(row, i)| {
            characters.value[[batch.inputs[row], i]] + places.value[[row % SEQLEN, i]]
        });
        let mut saved = Vec::new();
        for layer in layers.iter() {
            let a = norm(&x);
            let qkv = layer.qkv.forward(&a);
            let attended = attention.forward(&qkv)?;
            let middle = &x + &layer.o.forward(&attended.o);
            let b = norm(&middle);
            let hidden = layer.up.forward(&b);
            let active = hidden.mapv(|h| h.max(0.0));
            let next = &middle + &layer.down.forward(&active);
            saved.push((
                std::mem::replace(&mut x, next),
                a,
                qkv,
                attended,
                middle,
                b,
                active,
            ));
        }
        let last = norm(&x);
        let (loss, d_logits) = cross_entropy(&logits.forward(&last), &batch.targets);

        let mut d_x = norm_backward(&x, &logits.backward(&last, &d_logits));
        for (layer, saved) in layers.iter_mut().zip(saved).rev() {
            let (x, a, qkv, attended, middle, b, active) = saved;
            let mut d_hidden = layer.down.backward(&active, &d_x);
            d_hidden.zip_mut_with(&active, |d, &h| *d *= f32::from(h > 0.0));
            d_x += &norm_backward(&middle, &layer.up.backward(&b, &d_hidden));
            let d_o = layer.o.backward(&attended.o, &d_x);
            let d_qkv = attention.backward(&qkv, &attended, &d_o)?;
            d_x += &norm_backward(&x, &layer.qkv.backward(&a, &d_qkv));
        }
        for (row, d) in d_x.rows().into_iter().enumerate() {
            let mut character = characters.gradient.row_mut(batch.inputs[row]);
            character += &d;
            let mut place = places.gradient.row_mut(row % SEQLEN);
            place += &d;
        }
        let of_layers = layers.iter_mut().flat_map(|layer| {
            let Layer { qkv, o, up, down } = layer;
            [qkv, o, up, down]
        });
        for weights in of_layers.chain([characters, places, logits]) {
            weights.update();
        }
        Ok(loss)
    }
}

/// Rows divided by their root mean square.
fn norm(x: &Matrix) -> Matrix {
    x / &roots(x).insert_axis(Axis(1))
}

fn norm_backward(x: &Matrix, d_y: &Matrix) -> Matrix {
    let roots = roots(x).insert_axis(Axis(1));
    let y = x / &roots;
    let along = (&y * d_y)
        .mean_axis(Axis(1))
        .expect("columns")
        .insert_axis(Axis(1));
    (d_y - &(&y * &along)) / &roots
}

fn roots(x: &Matrix) -> Array1<f32> {
    x.map_axis(Axis(1), |row| {
        (row.dot(&row) / row.len() as f32 + 1e-5).sqrt()
    })
}

/// The mean loss, and the gradient of the sum: f16 holds numbers of its size.
fn cross_entropy(logits: &Matrix, targets: &[usize]) -> (f32, Matrix) {
    let mut d_logits = logits.clone();
    let mut loss = 0.0;
    for (mut row, &target) in d_logits.rows_mut().into_iter().zip(targets) {
        let max = row.fold(f32::NEG_INFINITY, |max, &x| max.max(x));
        row.mapv_inplace(|x| (x - max).exp());
        row /= row.sum();
        loss -= row[target].ln();
        row[target] -= 1.0;
    }
    (loss / targets.len() as f32, d_logits)
}

/// Causal attention of the packed q, k and v of all sequences: rows of `[3, heads, dim]`.
trait Attend {
    fn forward(&self, qkv: &Matrix) -> Result<Attended, Box<dyn Error>>;

    /// The gradient of `qkv`.
    fn backward(&self, qkv: &Matrix, of: &Attended, d_o: &Matrix)
    -> Result<Matrix, Box<dyn Error>>;
}

/// A result, rows of `[heads, dim]`, and its lse, `[batch, heads, rows]`.
struct Attended {
    o: Matrix,
    lse: Vec<f32>,
}

/// The library, on a device, in f16.
struct OnDevice {
    device: Device,
}

impl OnDevice {
    /// Rows of `parts` times `[heads, dim]` as `[batch, rows, parts, heads, dim]`.
    fn upload(&self, rows: &Matrix, parts: usize) -> ferroattn::Result<Tensor<f16, 5>> {
        let half: Vec<_> = rows.iter().map(|&x| f16::from_f32(x)).collect();
        Tensor::new(&self.device, [BATCH, SEQLEN, parts, HEADS, DIM], &half)
    }
}

/// A part of a packed tensor as `[batch, heads, rows, dim]`, without a copy.
fn part(packed: &Tensor<f16, 5>, part: usize) -> ferroattn::Result<TensorView<'_, f16>> {
    packed.view().select(2, part)?.transpose(1, 2)
}

/// `[batch, heads, rows, dim]` as rows of `[heads, dim]`.
fn rows(tensor: &Tensor<f16>) -> Result<Matrix, Box<dyn Error>> {
    let rows = tensor.view().transpose(1, 2)?.to_vec()?;
    let rows = rows.into_iter().map(f32::from).collect();
    Ok(Matrix::from_shape_vec((BATCH * SEQLEN, WIDTH), rows)?)
}

impl Attend for OnDevice {
    fn forward(&self, qkv: &Matrix) -> Result<Attended, Box<dyn Error>> {
        let qkv = self.upload(qkv, 3)?;
        let (q, k, v) = (part(&qkv, 0)?, part(&qkv, 1)?, part(&qkv, 2)?);
        let (o, lse) = Attention::new().causal(true).forward(&q, &k, &v)?;
        Ok(Attended {
            o: rows(&o)?,
            lse: lse.to_vec()?,
        })
    }

    fn backward(
        &self,
        qkv: &Matrix,
        of: &Attended,
        d_o: &Matrix,
    ) -> Result<Matrix, Box<dyn Error>> {
        let [qkv, o, d_o] =
            [(qkv, 3), (&of.o, 1), (d_o, 1)].map(|(rows, parts)| self.upload(rows, parts));
        let (qkv, o, d_o) = (qkv?, o?, d_o?);
        let lse = Tensor::new(&self.device, [BATCH, HEADS, SEQLEN], &of.lse)?;
        let (q, k, v) = (part(&qkv, 0)?, part(&qkv, 1)?, part(&qkv, 2)?);
        let attention = Attention::new().causal(true);
        let (dq, dk, dv) = attention.backward(&q, &k, &v, &part(&o, 0)?, &lse, &part(&d_o, 0)?)?;
        let [dq, dk, dv] = [rows(&dq)?, rows(&dk)?, rows(&dv)?];
        Ok(concatenate![Axis(1), dq, dk, dv])
    }
}

/// The definition in f64.
struct Definition;

/// The rows and columns of one head of a sequence, in one of the parts.
fn head(rows: &Matrix, sequence: usize, part: usize, head: usize) -> Array2<f64> {
    let (row, column) = (sequence * SEQLEN, part * WIDTH + head * DIM);
    rows.slice(s![row..row + SEQLEN, column..column + DIM])
        .mapv(f64::from)
}

/// P of one head.
fn probabilities(q: &Array2<f64>, k: &Array2<f64>) -> Array2<f64> {
    let mut p = q.dot(&k.t()) / (DIM as f64).sqrt();
    for (i, mut row) in p.rows_mut().into_iter().enumerate() {
        row.slice_mut(s![i + 1..]).fill(f64::NEG_INFINITY);
        let max = row.fold(f64::NEG_INFINITY, |max, &x| max.max(x));
        row.mapv_inplace(|x| (x - max).exp());
        row /= row.sum();
    }
    p
}

/// Rows of `parts` times `[heads, dim]`, from what `of_head` gives for each head: its parts side by side.
fn by_head(parts: usize, of_head: impl Fn(usize, usize) -> Array2<f64>) -> Matrix {
    let mut rows = Matrix::zeros((BATCH * SEQLEN, parts * WIDTH));
    for sequence in 0..BATCH {
        for head in 0..HEADS {
            let found = of_head(sequence, head).mapv(|x| x as f32);
            for part in 0..parts {
                let (row, column) = (sequence * SEQLEN, part * WIDTH + head * DIM);
                let place = s![row..row + SEQLEN, column..column + DIM];
                rows.slice_mut(place)
                    .assign(&found.slice(s![.., part * DIM..(part + 1) * DIM]));
            }
        }
    }
    rows
}

impl Attend for Definition {
    fn forward(&self, qkv: &Matrix) -> Result<Attended, Box<dyn Error>> {
        let o = by_head(1, |sequence, h| {
            let [q, k, v] = [0, 1, 2].map(|part| head(qkv, sequence, part, h));
            probabilities(&q, &k).dot(&v)
        });
        Ok(Attended { o, lse: Vec::new() })
    }

    fn backward(&self, qkv: &Matrix, _: &Attended, d_o: &Matrix) -> Result<Matrix, Box<dyn Error>> {
        Ok(by_head(3, |sequence, h| {
            let [q, k, v] = [0, 1, 2].map(|part| head(qkv, sequence, part, h));
            let d_o = head(d_o, sequence, 0, h);
            let p = probabilities(&q, &k);
            let dp = d_o.dot(&v.t());
            let delta = (&p * &dp).sum_axis(Axis(1)).insert_axis(Axis(1));
            let ds = &p * &(dp - delta) / (DIM as f64).sqrt();
            concatenate![Axis(1), ds.dot(&k), ds.t().dot(&q), p.t().dot(&d_o)]
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::{Device, TOLERANCE, train};

    #[test]
    fn the_curves_lie_on_each_other() {
        let mut losses = Vec::new();
        let largest = train(Device::cpu(), 40, |_, both| losses.push(both[0])).expect("trained");
        assert!(largest < TOLERANCE, "{largest}");
        // ln(128) = 4.85 nats say nothing about the text.
        assert!(losses[0] > 4.5 && losses[40] < 3.5, "{losses:?}");
    }
}
