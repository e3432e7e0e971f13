//! Random q, k and v, or matrices, to check and to time with.

use crate::forward::Problem;
use crate::gemm::GemmProblem;
use crate::tensor::Element;
use rand::rngs::{SmallRng, StdRng};
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use rayon::prelude::*;

/// Row-major q `[batch, heads, seqlen_q, dim]`, and k and v `[batch, kv_heads, seqlen_kv, dim]`, of
/// standard normal numbers: the same ones for a seed, whatever the number of threads.
///
/// ```
/// use attention::{Problem, f16, random};
///
/// let problem = Problem::new([1, 4, 100, 64], [1, 2, 80, 64], [1, 2, 80, 64], false, None)?;
/// let [q, k, v] = random::inputs::<f16>(&problem, 0);
/// assert_eq!([q.len(), k.len(), v.len()], [25_600, 10_240, 10_240]);
/// assert_ne!(k, v);
/// # Ok::<(), attention::Error>(())
/// ```
pub fn inputs<T: Element>(problem: &Problem, seed: u64) -> [Vec<T>; 3] {
    let mut seeds = StdRng::seed_from_u64(seed);
    let shapes = [problem.q_shape(), problem.k_shape(), problem.v_shape()];
    shapes.map(|shape| normal(shape.iter().product(), &mut seeds))
}

/// Row-major d_o `[batch, heads, seqlen_q, dim_v]` of standard normal numbers, other ones than [`inputs`] draws for a seed.
pub fn output_gradient<T: Element>(problem: &Problem, seed: u64) -> Vec<T> {
    let mut seeds = StdRng::seed_from_u64(!seed);
    normal(problem.o_shape().iter().product(), &mut seeds)
}

/// Logits of sinks, `[heads]`, of standard normal numbers.
pub fn sinks(problem: &Problem, seed: u64) -> Vec<f32> {
    // A seed of its own: the numbers of q would correlate with the sinks.
    let mut seeds = StdRng::seed_from_u64(seed.wrapping_add(1 << 63));
    normal(problem.heads, &mut seeds)
}

/// Row-major a `[m, k]` and b `[n, k]`, likewise.
pub fn matrices<T: Element>(problem: &GemmProblem, seed: u64) -> [Vec<T>; 2] {
    let mut seeds = StdRng::seed_from_u64(seed);
    let shapes = [problem.a_shape(), problem.b_shape()];
    shapes.map(|shape| normal(shape.iter().product(), &mut seeds))
}

fn normal<T: Element>(len: usize, seeds: &mut StdRng) -> Vec<T> {
    const CHUNK: usize = 1 << 14;
    let seeds: Vec<u64> = seeds.random_iter().take(len.div_ceil(CHUNK)).collect();
    let mut numbers = vec![T::from_f32(0.0); len];
    numbers
        .par_chunks_mut(CHUNK)
        .zip(seeds)
        .for_each(|(chunk, seed)| {
            let rng = SmallRng::seed_from_u64(seed);
            for (number, drawn) in chunk.iter_mut().zip(rng.sample_iter(StandardNormal)) {
                *number = T::from_f32(drawn);
            }
        });
    numbers
}
