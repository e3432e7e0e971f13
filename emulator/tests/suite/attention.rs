//! Attention problems for the emulator: random inputs, a launch, and a plain reference.

use ::kernels::abi::{ForwardParams, PackParams, TensorRef};
use ::kernels::catalog::{self, Combine, Dtype, Family, Forward, Kernel, Kind, Pack};
use emulator::{Argument, Counters, Error, Memory, Module, Options, launch};
use half::{bf16, f16};
use kernel_builder::Package;
use kernels::abi::Divisor;
use kernels::abi::Order;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::LazyLock;

/// The text of the module that holds a kernel, as the builder makes it from today's source.
fn module_text(kernel: &Kernel) -> &'static str {
    static MODULES: LazyLock<Vec<kernel_builder::Module>> = LazyLock::new(|| {
        kernel_builder::build(&Package::kernels()).unwrap_or_else(|e| panic!("{e}"))
    });
    let mut modules = MODULES.iter();
    let module = modules.find(|module| module.name == kernel.module);
    &module
        .expect("the builder makes every module of the catalog")
        .text
}

/// A module with just this kernel.
pub fn ptx(kernel: &Kernel) -> String {
    const ENTRY: &str = ".visible .entry ";
    let text = module_text(kernel);
    let mut parts = text.split(ENTRY);
    let head = parts.next().unwrap_or_default();
    let start = format!("{}(", kernel.name);
    let entry = parts.find(|part| part.starts_with(&start));
    let entry = entry.unwrap_or_else(|| panic!("{} is not in its module", kernel.name));
    format!("{head}{ENTRY}{entry}")
}

/// A kernel's module, which must load.
pub fn module(kernel: &Kernel) -> Module {
    Module::parse(module_text(kernel), kernel.module).unwrap_or_else(|e| panic!("{e}"))
}

/// What a run launches.
pub struct Modules {
    /// The kernel.
    pub kernel: Module,
    /// What combines its splits.
    pub combine: Module,
    /// What copies its inputs, if their rows are not aligned.
    pub pack: Module,
}

impl Modules {
    /// A kernel's, which must load.
    pub fn of(kernel: &Kernel) -> Self {
        Modules {
            kernel: module(kernel),
            combine: module(combine(kernel)),
            pack: module(pack()),
        }
    }
}

/// The kernel of that name.
pub fn named(name: &str) -> &'static Kernel {
    catalog::named(name).expect("in the catalog")
}

/// What to compute, and how the tensors lie in memory.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    pub batch: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub seqlen_q: u32,
    pub seqlen_kv: u32,
    pub dim: u32,
    pub scale: f32,
    /// Elements between rows, heads and batches, and before the first: 0 is contiguous, a multiple
    /// of 8 keeps rows aligned.
    pub gap: u32,
    /// Of the inputs.
    pub seed: u64,
    /// For kernels that have it not in their type.
    pub causal: bool,
    /// Splits of the keys, but no more than there are key blocks.
    pub splits: u32,
    /// By how much the scores of every 32nd query rise from key to key, from the last to the first.
    pub rise: f32,
}

impl Problem {
    /// One head of a square problem.
    pub fn square(seqlen: u32, dim: u32) -> Self {
        Problem {
            batch: 1,
            heads: 1,
            kv_heads: 1,
            seqlen_q: seqlen,
            seqlen_kv: seqlen,
            dim,
            scale: 1.0 / (dim as f32).sqrt(),
            gap: 0,
            seed: 1,
            causal: false,
            splits: 1,
            rise: 0.0,
        }
    }

    /// Keys that a query sees.
    fn limit(&self, kernel: &Kernel, row: u32) -> u32 {
        let causal = match forward(kernel).kind {
            Kind::Plain { causal } => causal,
            _ => self.causal,
        };
        let limit = (row + 1 + self.seqlen_kv).saturating_sub(self.seqlen_q);
        if causal { limit } else { self.seqlen_kv }
    }
}

/// The kernel that combines a kernel's splits.
pub fn combine(kernel: &Kernel) -> &'static Kernel {
    let dtype = forward(kernel).dtype;
    catalog::kernel(Family::Combine(Combine { dtype }))
}

/// The specification of a kernel that computes attention.
pub fn forward(kernel: &Kernel) -> Forward {
    *kernel.forward().expect("it computes attention")
}

/// The kernel that copies inputs whose rows are not aligned.
pub fn pack() -> &'static Kernel {
    named("pack")
}

/// Where a `[batch, heads, rows, dim]` tensor's elements lie.
#[derive(Clone, Copy)]
struct Layout {
    shape: [u32; 4],
    gap: usize,
}

impl Layout {
    fn strides(self) -> [usize; 3] {
        let [_, heads, rows, dim] = self.shape.map(|n| n as usize);
        let row = dim + self.gap;
        let head = rows * row + self.gap;
        [heads * head + self.gap, head, row]
    }

    fn index(self, [b, h, i]: [u32; 3]) -> usize {
        let position = [b, h, i].map(|n| n as usize);
        self.gap
            + self
                .strides()
                .iter()
                .zip(position)
                .map(|(s, n)| s * n)
                .sum::<usize>()
    }

    fn len(self) -> usize {
        self.index([self.shape[0], 0, 0]) + self.gap
    }

    fn rows(self) -> impl Iterator<Item = [u32; 3]> {
        let [batch, heads, rows, _] = self.shape;
        (0..batch)
            .flat_map(move |b| (0..heads).flat_map(move |h| (0..rows).map(move |i| [b, h, i])))
    }

    fn tensor_ref(self, address: u64) -> TensorRef {
        let [batch_stride, head_stride, row_stride] = self.strides().map(|s| s as i64);
        TensorRef {
            address: address + 2 * self.gap as u64,
            batch_stride,
            head_stride,
            row_stride,
        }
    }
}

fn to_f32(dtype: Dtype, bits: u16) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_bits(bits).to_f32(),
        Dtype::Bf16 => bf16::from_bits(bits).to_f32(),
    }
}

fn from_f32(dtype: Dtype, x: f32) -> u16 {
    match dtype {
        Dtype::F16 => f16::from_f32(x).to_bits(),
        Dtype::Bf16 => bf16::from_f32(x).to_bits(),
    }
}

/// What the gaps of the output hold, before and after: a NaN in both dtypes.
const POISON: u16 = 0x7fc1;

/// A tensor on the host.
struct Tensor {
    layout: Layout,
    data: Vec<u16>,
}

impl Tensor {
    fn random(p: &Problem, dtype: Dtype, heads: u32, rows: u32, random: &mut StdRng) -> Self {
        let layout = Layout {
            shape: [p.batch, heads, rows, p.dim],
            gap: p.gap as usize,
        };
        let mut data = vec![POISON; layout.len()];
        for row in layout.rows() {
            for element in &mut data[layout.index(row)..][..p.dim as usize] {
                *element = from_f32(dtype, random.random_range(-1.0..1.0));
            }
        }
        Tensor { layout, data }
    }

    /// Changes the first element of every row.
    fn set_first(&mut self, dtype: Dtype, value: impl Fn(u32) -> f32) {
        for row in self.layout.rows() {
            self.data[self.layout.index(row)] = from_f32(dtype, value(row[2]));
        }
    }

    /// Copies the tensor to read-only memory.
    fn upload(&self, memory: &Memory) -> TensorRef {
        let address = memory.upload(bytemuck::cast_slice(&self.data));
        self.layout.tensor_ref(address)
    }

    /// All elements, gaps included, as `f64`.
    fn widen(&self, dtype: Dtype) -> Vec<f64> {
        self.data
            .iter()
            .map(|bits| f64::from(to_f32(dtype, *bits)))
            .collect()
    }
}

/// Launches a kernel with a parameter block over a grid in one dimension.
fn launch_one(
    memory: &Memory,
    kernel: &Kernel,
    module: &Module,
    blocks: u32,
    params: &[u8],
    options: &Options,
) -> Result<Counters, Error> {
    launch(
        memory,
        module.entry(kernel.name)?,
        [blocks, 1, 1],
        [kernel.threads(), 1, 1],
        kernel.shared_bytes(),
        &[Argument::Bytes(params)],
        options,
    )
}

/// Launches the kernel that copies a tensor of this shape to a row-major one at `to`.
pub fn launch_pack(
    memory: &Memory,
    module: &Module,
    [batch, heads, rows, dim]: [u32; 4],
    from: TensorRef,
    to: u64,
    options: &Options,
) -> Result<Counters, Error> {
    let tiles = rows.div_ceil(Pack::ROWS);
    let params = PackParams {
        from,
        to,
        heads,
        rows,
        dim,
        tiles,
    };
    let bytes = bytemuck::bytes_of(&params);
    launch_one(
        memory,
        pack(),
        module,
        batch * heads * tiles,
        bytes,
        options,
    )
}

/// What went wrong in a run.
#[derive(Debug)]
pub enum Failure {
    /// The emulator stopped the kernel.
    Error(Error),
    /// The kernel ran through and the result is wrong.
    Wrong(String),
}

/// A problem in the emulator's memory, ready to be launched.
pub struct Run<'a> {
    kernel: &'a Kernel,
    problem: Problem,
    memory: Memory,
    params: ForwardParams,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /// Address of the whole buffer that `o` lies in.
    o: u64,
}

impl<'a> Run<'a> {
    /// Draws the inputs, and fills the output with poison.
    pub fn new(kernel: &'a Kernel, p: &Problem) -> Self {
        let mut random = StdRng::seed_from_u64(p.seed);
        let memory = Memory::new();
        let mut tensor =
            |heads, rows| Tensor::random(p, forward(kernel).dtype, heads, rows, &mut random);
        let mut q = tensor(p.heads, p.seqlen_q);
        let mut k = tensor(p.kv_heads, p.seqlen_kv);
        let v = tensor(p.kv_heads, p.seqlen_kv);
        if p.rise != 0.0 {
            let rises = |i: u32| if i.is_multiple_of(32) { 1.0 } else { 0.0 };
            q.set_first(forward(kernel).dtype, rises);
            let last = p.seqlen_kv - 1;
            k.set_first(forward(kernel).dtype, |j| {
                p.rise / p.scale * (last - j) as f32
            });
        }
        let poison = vec![POISON; q.layout.len()];
        let o = memory.allocate(2 * poison.len());
        memory.write(o, bytemuck::cast_slice(&poison)).unwrap();
        let group = p.heads / p.kv_heads;
        let Forward { kind, tile, .. } = forward(kernel);
        let packed = if kind.is_packed() { group } else { 1 };
        let tile_heads = p.batch * p.heads / packed;
        let q_tiles = (p.seqlen_q * packed).div_ceil(tile.q_rows);
        let key_blocks = p.seqlen_kv.div_ceil(tile.keys).max(1);
        let split_blocks = key_blocks.div_ceil(p.splits);
        let splits = key_blocks.div_ceil(split_blocks);
        let rows = (p.batch * p.heads * p.seqlen_q) as usize;
        let params = ForwardParams {
            q: q.upload(&memory),
            k: k.upload(&memory),
            v: v.upload(&memory),
            o: q.layout.tensor_ref(o),
            lse: memory.allocate(4 * rows),
            partial_o: memory.allocate(4 * splits as usize * rows * p.dim as usize),
            partial_softmax: memory.allocate(8 * splits as usize * rows),
            heads: p.heads,
            tile_heads: Divisor::new(p.heads / packed),
            group: Divisor::new(group),
            // More than one wave, so that the last is smaller.
            order: Order::new(tile_heads, q_tiles, tile_heads.div_ceil(2)),
            seqlen_q: p.seqlen_q,
            seqlen_kv: p.seqlen_kv,
            dim: p.dim,
            scale: p.scale,
            o_aligned: u32::from(p.gap.is_multiple_of(8)),
            batch_heads: p.batch * p.heads,
            splits,
            split_keys: split_blocks * tile.keys,
            causal: u32::from(p.causal),
        };
        let problem = *p;
        Run {
            kernel,
            problem,
            memory,
            params,
            q,
            k,
            v,
            o,
        }
    }

    /// Launches what copies the inputs, if their rows are not aligned, the kernel and, if it splits
    /// the keys, what combines the splits; returns what the kernel did, and what the last one did.
    pub fn launch(
        &self,
        modules: &Modules,
        options: &Options,
    ) -> Result<(Counters, Option<Counters>), Error> {
        let kernel = self.kernel;
        let mut params = self.params;
        for (input, tensor) in [
            (&mut params.q, &self.q),
            (&mut params.k, &self.k),
            (&mut params.v, &self.v),
        ] {
            if !input.is_aligned() {
                let copy = Layout {
                    gap: 0,
                    ..tensor.layout
                };
                let to = self.memory.allocate(2 * copy.len());
                launch_pack(&self.memory, &modules.pack, copy.shape, *input, to, options)?;
                *input = copy.tensor_ref(to);
            }
        }
        let params = &params;
        let bytes = bytemuck::bytes_of(params);
        let blocks = params.order.blocks() * params.splits;
        let counters = launch_one(
            &self.memory,
            kernel,
            &modules.kernel,
            blocks,
            bytes,
            options,
        )?;
        if params.splits == 1 {
            return Ok((counters, None));
        }
        let combine = combine(kernel);
        let warps = params.batch_heads * params.seqlen_q * params.dim.div_ceil(128);
        let blocks = warps.div_ceil(Combine::WARPS);
        let combined = &modules.combine;
        let combined = launch_one(&self.memory, combine, combined, blocks, bytes, options)?;
        Ok((counters, Some(combined)))
    }

    /// Compares o, lse and the gaps around o with what they should be.
    pub fn compare(&self) -> Result<(), String> {
        let p = &self.problem;
        let mut o = vec![0_u16; self.q.layout.len()];
        self.memory
            .read(self.o, bytemuck::cast_slice_mut(&mut o))
            .unwrap();
        let mut lse = vec![0_f32; (p.batch * p.heads * p.seqlen_q) as usize];
        self.memory
            .read(self.params.lse, bytemuck::cast_slice_mut(&mut lse))
            .unwrap();
        self.compare_values(o, &lse)
    }

    fn compare_values(&self, mut o: Vec<u16>, lse: &[f32]) -> Result<(), String> {
        let (kernel, p) = (self.kernel, &self.problem);
        let dim = p.dim as usize;
        // Values lie in -1..1. P and O are rounded to the dtype, each by half a unit in the last
        // place.
        let tolerance = match forward(kernel).dtype {
            Dtype::F16 => 2_f64.powi(-10),
            Dtype::Bf16 => 2_f64.powi(-7),
        };
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|t| t.widen(forward(kernel).dtype));
        for (row, lse) in self.q.layout.rows().zip(lse) {
            let [batch, head, i] = row;
            let kv_row = |j| {
                self.k
                    .layout
                    .index([batch, head / (p.heads / p.kv_heads), j])
            };
            let start = self.q.layout.index(row);
            let query = &q[start..start + dim];
            let limit = p.limit(kernel, i);
            let score = |j| {
                let products = query.iter().zip(&k[kv_row(j)..]).map(|(q, k)| q * k);
                products.sum::<f64>() * f64::from(p.scale)
            };
            let scores: Vec<f64> = (0..limit).map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            let mut expected = vec![0.0; dim];
            for (j, score) in (0..limit).zip(&scores) {
                let weight = (score - max).exp() / sum;
                for (e, v) in expected.iter_mut().zip(&v[kv_row(j)..]) {
                    *e += weight * v;
                }
            }
            let expected_lse = if limit == 0 { max } else { max + sum.ln() };
            let lse = f64::from(*lse);
            let error = (lse - expected_lse).abs();
            if lse != expected_lse && (error > 1e-5 * (1.0 + max.abs()) || error.is_nan()) {
                return Err(format!("lse of row {row:?}: {lse}, not {expected_lse}"));
            }
            for (d, (bits, expected)) in o[start..].iter().zip(expected).enumerate() {
                let found = f64::from(to_f32(forward(kernel).dtype, *bits));
                let error = (found - expected).abs();
                if error > tolerance || error.is_nan() {
                    return Err(format!(
                        "o of row {row:?}, column {d}: {found}, not {expected}"
                    ));
                }
            }
            o[start..start + dim].fill(POISON);
        }
        match o.iter().position(|bits| *bits != POISON) {
            Some(index) => Err(format!(
                "element {index} of o, between its rows, was overwritten"
            )),
            None => Ok(()),
        }
    }
}

/// Runs a kernel on random inputs and compares the result.
pub fn check(
    kernel: &Kernel,
    modules: &Modules,
    p: &Problem,
    options: &Options,
) -> Result<(Counters, Option<Counters>), Failure> {
    let run = Run::new(kernel, p);
    let counters = run.launch(modules, options).map_err(Failure::Error)?;
    run.compare().map_err(Failure::Wrong)?;
    Ok(counters)
}
