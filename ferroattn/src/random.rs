//! Random q, k and v, tensors of options, or matrices, to check and to time with.

use crate::forward::Problem;
use crate::gemm::GemmProblem;
use crate::tensor::Element;
use rand::rngs::{SmallRng, StdRng};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use rayon::prelude::*;

/// Row-major q `[batch, heads, seqlen_q, dim]`, k `[batch, kv_heads, seqlen_kv, dim]` and v
/// `[batch, kv_heads, seqlen_kv, dim_v]` of standard normal numbers: the same ones for a seed, whatever the number of
/// threads.
///
/// ```
/// use ferroattn::{Problem, f16, random};
///
/// let problem = Problem::new([1, 4, 100, 64], [1, 2, 80, 64], [1, 2, 80, 64], false, None)?;
/// let [q, k, v] = random::inputs::<f16>(&problem, 0);
/// assert_eq!([q.len(), k.len(), v.len()], [25_600, 10_240, 10_240]);
/// assert_ne!(k, v);
/// # Ok::<(), ferroattn::Error>(())
/// ```
///
/// # Panics
/// If the host has no memory for them.
pub fn inputs<T: Element>(problem: &Problem, seed: u64) -> [Vec<T>; 3] {
    let mut seeds = StdRng::seed_from_u64(seed);
    let shapes = [problem.q_shape(), problem.k_shape(), problem.v_shape()];
    shapes.map(|shape| normal(shape.iter().product(), &mut seeds))
}

/// Row-major d_o `[batch, heads, seqlen_q, dim_v]` of standard normal numbers, other ones than [`inputs`] draws for a seed.
///
/// # Panics
/// If the host has no memory for them.
pub fn output_gradient<T: Element>(problem: &Problem, seed: u64) -> Vec<T> {
    let mut seeds = StdRng::seed_from_u64(!seed);
    normal(problem.o_shape().iter().product(), &mut seeds)
}

/// Gives all entries of row-major keys or values the first rows of the first one: a prefix that they share.
///
/// ```
/// let mut keys = [1, 2, 3, 4, 5, 6];
/// ferroattn::random::share_prefix(&mut keys, [2, 1, 3, 1], 2);
/// assert_eq!(keys, [1, 2, 3, 1, 2, 6]);
/// ```
///
/// # Panics
/// If an entry has fewer rows, or the shape has other elements than these.
pub fn share_prefix<T: Copy>(elements: &mut [T], shape: [usize; 4], rows: usize) {
    let [_, heads, keys, dim] = shape;
    assert_eq!(
        elements.len(),
        shape.iter().product(),
        "elements of the shape"
    );
    assert!(rows <= keys, "an entry has {keys} rows for {rows}");
    if elements.is_empty() {
        return;
    }
    let (head, shared) = (keys * dim, rows * dim);
    let (first, others) = elements.split_at_mut(heads * head);
    for (number, to) in others.chunks_mut(head).enumerate() {
        let from = number % heads * head;
        to[..shared].copy_from_slice(&first[from..from + shared]);
    }
}

/// Logits of sinks, `[heads]`, of standard normal numbers.
///
/// # Panics
/// If the host has no memory for them.
pub fn sinks(problem: &Problem, seed: u64) -> Vec<f32> {
    // A seed of its own: the numbers of q would correlate with the sinks.
    let mut seeds = StdRng::seed_from_u64(seed.wrapping_add(1 << 63));
    normal(problem.heads, &mut seeds)
}

/// A row-major bias of standard normal numbers.
///
/// # Panics
/// If the host has no memory for them.
pub fn bias<T: Element>(shape: [usize; 4], seed: u64) -> Vec<T> {
    let mut seeds = StdRng::seed_from_u64(seed.wrapping_add(1 << 62));
    normal(shape.iter().product(), &mut seeds)
}

/// A row-major mask of bytes, in blocks of 128 x 128 pairs: every second one of a row of blocks is hidden, every fourth
/// is seen, and in the others, such as the first, each pair is either.
///
/// ```
/// let mask = ferroattn::random::mask([1, 1, 3, 512], 0);
/// assert_eq!((&mask[128..256], &mask[256..384]), (&[0; 128][..], &[1; 128][..]));
/// assert!(mask[..128].contains(&0) && mask[..128].contains(&1));
/// ```
///
/// # Panics
/// If the host has no memory for them.
pub fn mask([batch, heads, queries, keys]: [usize; 4], seed: u64) -> Vec<u8> {
    const BLOCK: usize = 128;
    const SEEN: [f64; 4] = [0.5, 0.0, 1.0, 0.0];
    let seeds = StdRng::seed_from_u64(seed.wrapping_add(3 << 62));
    let rows = batch * heads * queries;
    let seeds: Vec<u64> = seeds.random_iter().take(rows).collect();
    let mut mask = vec![0; rows * keys];
    let rows = mask.par_chunks_mut(keys.max(1)).zip(seeds).enumerate();
    rows.for_each(|(row, (mask, seed))| {
        let mut rng = SmallRng::seed_from_u64(seed);
        let band = row % queries / BLOCK;
        for (i, block) in mask.chunks_mut(BLOCK).enumerate() {
            block.fill_with(|| u8::from(rng.random_bool(SEEN[(band + i) % SEEN.len()])));
        }
    });
    mask
}

/// The numbers from 0 to `count - 1` in any order: pages of a table.
///
/// ```
/// let mut table = ferroattn::random::permutation(100, 0);
/// table.sort_unstable();
/// assert!(table.into_iter().eq(0..100));
/// ```
///
/// # Panics
/// If there are more than an i32 counts.
pub fn permutation(count: usize, seed: u64) -> Vec<i32> {
    let count = i32::try_from(count).expect("as many as an i32 counts");
    let mut numbers: Vec<i32> = (0..count).collect();
    numbers.shuffle(&mut StdRng::seed_from_u64(seed));
    numbers
}

/// Row-major a `[m, k]` and b `[n, k]`, likewise.
///
/// # Panics
/// If the host has no memory for them.
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
