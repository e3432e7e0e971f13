//! The one table of kernels, read by the entry points, the builder, the host and the tests.

/// Element type of q, k, v and o.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// The name used in kernel names and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        }
    }
}

/// The PTX target a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// Ampere and everything later: PTX is forward compatible.
    Sm80,
}

impl Arch {
    /// Every target.
    pub const ALL: &[Arch] = &[Arch::Sm80];

    /// The target's name in PTX, for `-C target-cpu` and `ptxas`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Arch::Sm80 => "sm_80",
        }
    }

    /// Lowest compute capability that runs the target's PTX.
    #[must_use]
    pub const fn compute_capability(self) -> (i32, i32) {
        match self {
            Arch::Sm80 => (8, 0),
        }
    }
}

/// How a block divides the work, in the terms of the FlashAttention papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Query rows a block holds (Br), a multiple of `16 * warps`.
    pub q_rows: u32,
    /// Keys of one step of the main loop (Bc), a multiple of 16.
    pub keys: u32,
    /// Warps of a block; each owns `q_rows / warps` rows.
    pub warps: u32,
    /// K/V buffers in shared memory. With 2, the next block loads during both products of this one.
    /// With 1, V loads during the first product and the next K during the second.
    pub stages: u32,
    /// Whether Q's fragments stay in registers, or are read from shared memory for every block.
    pub q_in_registers: bool,
    /// Blocks that should fit on one multiprocessor: bounds the registers (`.minnctapersm`).
    pub blocks_per_sm: u32,
}

/// One kernel: a row of [`KERNELS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// The entry point's symbol in the PTX and the name on the command line.
    pub name: &'static str,
    /// PTX target.
    pub arch: Arch,
    /// Element type.
    pub dtype: Dtype,
    /// Largest head dim; smaller multiples of 8 are padded with zeros while loading.
    pub head_dim: u32,
    /// Whether query `i` sees only keys up to `i + seqlen_kv - seqlen_q`.
    pub causal: bool,
    /// Work division.
    pub tile: Tile,
}

impl Kernel {
    /// Threads of a block.
    #[must_use]
    pub const fn threads(&self) -> u32 {
        self.tile.warps * 32
    }

    /// Dynamic shared memory of a block, in bytes: the Q tile, and K and V for each stage.
    #[must_use]
    pub const fn shared_bytes(&self) -> u32 {
        (self.tile.q_rows + self.tile.stages * 2 * self.tile.keys) * self.head_dim * 2
    }

    /// The PTX module the kernel lives in, `FAMILY_DTYPE_dDIM`: loading one compiles few kernels.
    #[must_use]
    pub fn module(&self) -> &'static str {
        self.name.strip_suffix("_causal").unwrap_or(self.name)
    }
}

/// The `sm_80` tile of a head dim and mask.
///
/// Two m16 tiles a warp (`q_rows / warps = 32`) let every K and V fragment feed two products; O
/// then takes `head_dim` registers a lane, which ends at 128.
///
/// Losers, on an H200 (`docs/tuning.md`): 64: keys 32, -13 %. 128: Q in registers, -9 %; keys 64 in
/// one stage, +4 %, but spills. 256: two stages of 32 keys, -3 %, which the causal kernel pays
/// because it would spill.
#[must_use]
pub const fn sm80_tile(head_dim: u32, causal: bool) -> Tile {
    let (q_rows, keys, stages, q_in_registers) = match head_dim {
        32 | 64 => (128, 64, 2, true),
        96 | 128 => (128, 32, 2, false),
        192 => (64, 32, 2, true),
        256 if causal => (64, 32, 2, false),
        256 => (64, 64, 1, false),
        _ => panic!("no tile for this head dim"),
    };
    Tile {
        q_rows,
        keys,
        warps: 4,
        stages,
        q_in_registers,
        blocks_per_sm: 2,
    }
}

/// Calls `$with!` with every forward kernel: `name => element type, head dim, mask;`.
///
/// The element types and masks are those of the `tile` and [`mask`](crate::mask) modules.
macro_rules! forward_kernels {
    ($with:ident) => {
        $with! {
            forward_f16_d32 => F16, 32, Full;
            forward_f16_d32_causal => F16, 32, Causal;
            forward_f16_d64 => F16, 64, Full;
            forward_f16_d64_causal => F16, 64, Causal;
            forward_f16_d96 => F16, 96, Full;
            forward_f16_d96_causal => F16, 96, Causal;
            forward_f16_d128 => F16, 128, Full;
            forward_f16_d128_causal => F16, 128, Causal;
            forward_f16_d192 => F16, 192, Full;
            forward_f16_d192_causal => F16, 192, Causal;
            forward_f16_d256 => F16, 256, Full;
            forward_f16_d256_causal => F16, 256, Causal;
            forward_bf16_d32 => Bf16, 32, Full;
            forward_bf16_d32_causal => Bf16, 32, Causal;
            forward_bf16_d64 => Bf16, 64, Full;
            forward_bf16_d64_causal => Bf16, 64, Causal;
            forward_bf16_d96 => Bf16, 96, Full;
            forward_bf16_d96_causal => Bf16, 96, Causal;
            forward_bf16_d128 => Bf16, 128, Full;
            forward_bf16_d128_causal => Bf16, 128, Causal;
            forward_bf16_d192 => Bf16, 192, Full;
            forward_bf16_d192_causal => Bf16, 192, Causal;
            forward_bf16_d256 => Bf16, 256, Full;
            forward_bf16_d256_causal => Bf16, 256, Causal;
        }
    };
}
#[cfg(target_arch = "nvptx64")]
pub(crate) use forward_kernels;

macro_rules! rows {
    ($($name:ident => $dtype:ident, $dim:literal, $mask:ident;)*) => {
        &[$(Kernel {
            name: stringify!($name),
            arch: Arch::Sm80,
            dtype: Dtype::$dtype,
            head_dim: $dim,
            causal: <crate::mask::$mask as crate::mask::Mask>::CAUSAL,
            tile: sm80_tile($dim, <crate::mask::$mask as crate::mask::Mask>::CAUSAL),
        }),*]
    };
}

/// Every kernel.
pub const KERNELS: &[Kernel] = forward_kernels!(rows);

/// The head dims that have a kernel of their own, ascending.
pub const HEAD_DIMS: &[u32] = &[32, 64, 96, 128, 192, 256];

/// The largest head dim.
pub const MAX_HEAD_DIM: u32 = 256;

/// The kernel that serves a head dim: the smallest one that holds it.
#[must_use]
pub fn select(dtype: Dtype, dim: u32, causal: bool) -> Option<&'static Kernel> {
    KERNELS
        .iter()
        .filter(|k| k.dtype == dtype && k.causal == causal && k.head_dim >= dim)
        .min_by_key(|k| k.head_dim)
}
