//! Memory of the device and of the host.

use crate::args::{Check, Pass};
use crate::choice::{Choice, Task};
use anyhow::{Context, Result, ensure};
use ferroattn::{Device, Tensor};
use indicatif::HumanBytes;
use std::hint::black_box;

/// An output whose elements fail the check if a kernel leaves them out.
pub fn poisoned<T: bytemuck::Pod, const R: usize>(
    device: &Device,
    shape: [usize; R],
    poison: T,
) -> ferroattn::Result<Tensor<T, R>> {
    Tensor::new(device, shape, &vec![poison; shape.iter().product()])
}

/// Bytes of a tensor.
pub fn bytes<const R: usize>(shape: [usize; R], element: usize) -> u128 {
    let extents = shape.into_iter().map(|extent| extent as u128);
    extents.product::<u128>() * element as u128
}

/// Compares the bytes that a device and the host, which may be one, need for these `sizes` with what is
/// free.
pub fn expect_free(device: &Device, on_device: u128, on_host: u128, sizes: &str) -> Result<()> {
    let (host, on_host) = if device.is_cpu() {
        (device.clone(), on_host + on_device)
    } else if device.is_emulator() {
        // Its memory is the host's, which takes two bytes for each.
        (device.clone(), on_host + 2 * on_device)
    } else {
        (Device::cpu(), on_host)
    };
    let mut needs = vec![(&host, on_host)];
    if *device != host {
        needs.push((device, on_device));
    }
    for (place, needed) in needs {
        let free = host::free_memory(place).context("cannot tell how much memory is free")?;
        ensure!(
            needed <= u128::from(free),
            "{sizes} too large: they need {} of memory on {}, which has {} free",
            shown(needed),
            place.name(),
            HumanBytes(free),
        );
    }
    // A limit on the process (`ulimit -v`) may be tighter; each thread and the program take a part of it.
    let threads = rayon::current_num_threads() as u128;
    let with_threads = on_host + (threads + 2) * (64 << 20);
    let mut all = Vec::<u8>::new();
    let allowed =
        usize::try_from(with_threads).is_ok_and(|size| all.try_reserve_exact(size).is_ok());
    black_box(all);
    ensure!(
        allowed,
        "{sizes} too large: they need {} of memory, more than this process may have",
        shown(on_host)
    );
    Ok(())
}

impl Task<'_> {
    /// Compares the memory that the problem needs with what is free, before anything is allocated.
    pub fn expect_memory(&self, choices: &[Choice]) -> Result<()> {
        let problem = &self.problem;
        let [q, k, v, o] = [
            problem.q_shape(),
            problem.k_shape(),
            problem.v_shape(),
            problem.o_shape(),
        ]
        .map(|shape| bytes(shape, self.dtype.bytes()));
        let lse = bytes(problem.lse_shape(), size_of::<f32>());
        let (mut inputs, mut outputs) = (q + k + v + self.pairs.bytes(), o + lse);
        if self.with_gradients() {
            inputs += o;
            outputs += q + k + v + self.d_bias_bytes();
        }
        let workspaces = choices.iter().map(|choice| choice.workspace_bytes);
        let on_device = inputs + outputs + workspaces.max().unwrap_or(0) as u128;
        // The host keeps the inputs for the check, and the outputs twice: the poison, or the file.
        let on_host = inputs + 2 * outputs + self.rounded_bytes() + self.check_bytes();
        let sizes = match self.args.input {
            None => "batch, heads, seqlen and dim are",
            Some(_) => "the tensors of --input are",
        };
        expect_free(self.device, on_device, on_host, sizes)
    }

    fn with_gradients(&self) -> bool {
        self.args.pass != Pass::Forward
    }

    /// Bytes of the gradient of a bias.
    fn d_bias_bytes(&self) -> u128 {
        let d_bias = self.pairs.bias.filter(|_| self.with_gradients());
        d_bias.map_or(0, |(_, shape)| bytes(shape, size_of::<f32>()))
    }

    /// Bytes of q, k and v in FP8, which a call on the CPU and the check keep in f32.
    fn rounded_bytes(&self) -> u128 {
        let p = &self.problem;
        let is_read = self.device.is_cpu() || self.args.run.check.rows() > 0;
        if self.args.rounding().is_none() || !is_read {
            return 0;
        }
        let shapes = [p.q_shape(), p.k_shape(), p.v_shape()];
        let of_shapes = shapes.map(|shape| bytes(shape, size_of::<f32>()));
        of_shapes.into_iter().sum()
    }

    /// Bytes that the check takes on the host.
    fn check_bytes(&self) -> u128 {
        let (problem, check) = (&self.problem, self.args.run.check);
        // Each thread keeps one head's k, scaled k, rounded k and v in f64; for the check of gradients, k, v, q and d_o,
        // and parts of dk and dv, whose work on the CPU takes less.
        let dim = problem.widest();
        let head = bytes([4, problem.seqlen_kv, dim], size_of::<f64>());
        let gradients = if self.with_gradients() {
            let keys = problem
                .seqlen_kv
                .min(check.rows().max(problem.seqlen_kv / 16));
            let rows = [2, problem.group(), problem.seqlen_q, dim];
            head / 2 + bytes(rows, size_of::<f64>()) + bytes([36, keys, dim], size_of::<f64>())
        } else {
            0
        };
        let heads = match check {
            Check::Off if !self.with_gradients() => 0,
            _ => problem.batch.saturating_mul(problem.kv_heads),
        };
        let of_heads = head.max(gradients) * heads.min(rayon::current_num_threads()) as u128;
        // The gradients of sinks and of a bias are checked 256 rows at a time, each twice, and with three sums in f64 for
        // each element of the gradient.
        let modifiers = &self.args.modifiers;
        let has_sums = self.with_gradients() && (modifiers.sinks || modifiers.bias);
        let of_sums = match has_sums && check.with_sums(problem) {
            true => {
                bytes([2 * 256, 6, problem.seqlen_kv], size_of::<f64>()) + 6 * self.d_bias_bytes()
            }
            false => 0,
        };
        of_heads + of_sums
    }
}

fn shown(bytes: u128) -> HumanBytes {
    HumanBytes(bytes.try_into().unwrap_or(u64::MAX))
}
