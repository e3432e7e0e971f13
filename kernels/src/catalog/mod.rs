//! The one table of kernels, read by the entry points, the builder, the host and the tests.

pub mod class;
mod gemm;
pub mod select;
pub mod wide;

pub use gemm::GemmTile;

use crate::ladder::table::{self as ladder, Loop, Shape};
use class::Class;

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

/// In what products are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Accumulation {
    /// IEEE binary16.
    Half,
    /// IEEE binary32.
    #[default]
    Single,
}

impl Accumulation {
    /// Every one.
    pub const ALL: [Self; 2] = [Accumulation::Half, Accumulation::Single];

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sums| sums.name() == name)
    }

    /// The name used in kernel names, on the command line and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Accumulation::Half => "f16",
            Accumulation::Single => "f32",
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
    /// Query rows a block holds (Br), a multiple of `16 * warps / team`.
    pub q_rows: u32,
    /// Keys of one step of the main loop (Bc), a multiple of 16.
    pub keys: u32,
    /// Warps of a block; each has `q_rows * team / warps` rows.
    pub warps: u32,
    /// Warps that share their rows, each with a part of the keys and of O's columns: mostly 1, which has
    /// its rows for itself.
    pub team: u32,
    /// K/V buffers in shared memory: 2, for decode kernels 2 or more, and 1 where warps share rows. The
    /// next blocks load while one is worked on.
    pub stages: u32,
    /// Slices of the keys in which V of a step passes: 1, or more where it does not fit whole.
    pub v_slices: u32,
    /// Slices of 16 elements of the head dim whose Q fragments stay in registers; those of the others
    /// are read from shared memory for every block.
    pub q_slices: u32,
    /// Blocks that should fit on one multiprocessor: bounds the registers (`.minnctapersm`).
    pub blocks_per_sm: u32,
}

impl Tile {
    /// Shared memory of a block, in bytes: the Q tile, and K and V for each stage; where warps share rows
    /// also P, and four numbers of each row from each of them.
    #[must_use]
    pub const fn shared_bytes(&self, head_dim: u32) -> u32 {
        let tiles = (self.q_rows + self.stages * 2 * self.keys) * head_dim * 2;
        match self.team {
            1 => tiles,
            team => tiles + self.q_rows * (2 * self.keys + 16 * team),
        }
    }
}

/// What a kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Attention, a query tile for each query head.
    Forward {
        /// Whether query `i` sees only keys up to `i + seqlen_kv - seqlen_q`.
        causal: bool,
    },
    /// Attention, causal or not: the query heads that share a key/value head share query tiles.
    Packed,
    /// The same of few queries on many keys.
    Decode,
    /// Attention, causal or not, for head dims above 256.
    Wide,
    /// Adds up what any of these found on each split of the keys.
    Combine,
    /// Copies an input whose rows are not [aligned](crate::abi::TensorRef::is_aligned) to where
    /// they are.
    Pack,
    /// A kernel of the [ladder](crate::ladder), causal or not.
    Ladder(Shape),
    /// A [matrix product](crate::gemm), simple if its tile has no stages.
    Gemm {
        /// How a block divides the work.
        tile: GemmTile,
        /// In what products are added up.
        accumulation: Accumulation,
    },
}

impl Family {
    /// Whether query heads that share a key/value head share query tiles.
    #[must_use]
    pub const fn is_packed(self) -> bool {
        matches!(self, Family::Packed | Family::Decode)
    }

    /// Whether a kernel computes attention with or without the causal mask.
    #[must_use]
    pub const fn serves(self, causal: bool) -> bool {
        match self {
            Family::Forward { causal: mask } => mask == causal,
            Family::Packed | Family::Decode | Family::Wide | Family::Ladder(_) => true,
            Family::Combine | Family::Pack | Family::Gemm { .. } => false,
        }
    }

    /// Whether a kernel computes a matrix product; the others belong to attention.
    #[must_use]
    pub const fn is_gemm(self) -> bool {
        matches!(self, Family::Gemm { .. })
    }
}

/// The family of the main loop's kernels by the table's word for their mask.
macro_rules! family {
    (Full) => {
        Family::Forward { causal: false }
    };
    (Causal) => {
        Family::Forward { causal: true }
    };
    (Packed) => {
        Family::Packed
    };
}
#[cfg(target_arch = "nvptx64")]
pub(crate) use family;

/// One kernel: a row of [`KERNELS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// The entry point's symbol in the PTX and the name on the command line.
    pub name: &'static str,
    /// PTX target.
    pub arch: Arch,
    /// What it does.
    pub family: Family,
    /// Element type; the pack kernel moves any of 16 bits.
    pub dtype: Dtype,
    /// Largest head dim; smaller multiples of 8 are padded with zeros while loading. 0 of a matrix
    /// product.
    pub head_dim: u32,
    /// Work division.
    pub tile: Tile,
}

impl Kernel {
    /// Threads of a block.
    #[must_use]
    pub const fn threads(&self) -> u32 {
        self.tile.warps * 32
    }

    /// Dynamic shared memory of a block, in bytes: a tile's, or what the warps of a pack kernel copy at a
    /// time, 16 bytes a lane; of a kernel of the ladder the least that its options need.
    #[must_use]
    pub const fn shared_bytes(&self) -> u32 {
        match self.family {
            Family::Combine => 0,
            Family::Pack => 16 * self.threads(),
            Family::Wide => wide::memory(&self.tile, self.head_dim).bytes,
            Family::Ladder(shape) => shape.shared_bytes(&ladder::LEAST, self.head_dim),
            Family::Gemm { tile, .. } => tile.shared_bytes(),
            _ => self.tile.shared_bytes(self.head_dim),
        }
    }

    /// The main loop, of a kernel of the [ladder](crate::ladder).
    #[must_use]
    pub const fn main_loop(&self) -> Option<Loop> {
        match self.family {
            Family::Ladder(shape) => Some(shape.main_loop),
            _ => None,
        }
    }

    /// Whether the kernel is the one of its kind for the devices of a class; of matrix products, whether
    /// a block fits.
    #[must_use]
    pub fn is_for(&self, class: Class) -> bool {
        match self.family {
            Family::Gemm { tile, .. } => tile.shared_bytes() <= class.shared_memory().block,
            _ => self.tile == class.tile(self.family, self.head_dim),
        }
    }

    /// The kernel of the same kind, perhaps this one, for the devices of a class.
    ///
    /// # Panics
    /// If the table lacks it.
    #[must_use]
    pub fn counterpart(&self, class: Class) -> &'static Kernel {
        let kind = |k: &Kernel| (k.family, k.dtype, k.head_dim, k.arch);
        let mut kernels = KERNELS.iter();
        let found = kernels.find(|other| kind(other) == kind(self) && other.is_for(class));
        found.expect("every class has a kernel of every kind")
    }

    /// The PTX module the kernel lives in, named as the kernel less its mask: loading one compiles few
    /// kernels, and all of them for the same devices.
    #[must_use]
    pub fn module(&self) -> &'static str {
        self.name.strip_suffix("_causal").unwrap_or(self.name)
    }
}

/// How the combine kernels divide the work: a warp takes a row, or half of one.
pub const COMBINE_TILE: Tile = Tile {
    q_rows: 4,
    keys: 0,
    warps: 4,
    team: 1,
    stages: 0,
    v_slices: 1,
    q_slices: 0,
    blocks_per_sm: 8,
};

/// How the pack kernel divides the work: a block takes rows of a head.
pub const PACK_TILE: Tile = Tile {
    q_rows: 64,
    ..COMBINE_TILE
};

/// Calls `$with!` with every kernel: of the forward and packed kernels, for each of the two main loops, name,
/// element type, head dim, mask and class, of the decode and wide kernels name, element type, head dim and class, of
/// the combine kernels name and element type, of the pack kernel the name, of the matrix products name, element
/// type and [`Accumulation`], with the tile of [`GemmTile::multistage`] if it is not simple.
///
/// A kernel has the tile of that class, and serves all classes with an equal one. Where it is not the
/// tile of `Sm90` the name says it: `_BrxBc`, for decode kernels `_BrxBcxSTAGES`, for wide ones
/// `_BrxBcxSTAGESxSLICES`, with the slices of V.
///
/// The element types and masks are those of the `tile` and [`mask`](crate::mask) modules.
macro_rules! all_kernels {
    ($with:ident) => {
        $with! {
            forward {
                forward_f16_d32 => F16, 32, Full, Sm90;
                forward_f16_d32_causal => F16, 32, Causal, Sm90;
                forward_f16_d64 => F16, 64, Full, Sm90;
                forward_f16_d64_causal => F16, 64, Causal, Sm90;
                forward_f16_d64_128x48 => F16, 64, Full, Sm86;
                forward_f16_d64_128x48_causal => F16, 64, Causal, Sm86;
                forward_f16_d96 => F16, 96, Full, Sm90;
                forward_f16_d96_causal => F16, 96, Causal, Sm90;
                forward_f16_d96_64x32 => F16, 96, Full, Sm86;
                forward_f16_d96_64x32_causal => F16, 96, Causal, Sm86;
                forward_f16_d128 => F16, 128, Full, Sm90;
                forward_f16_d128_causal => F16, 128, Causal, Sm90;
                forward_f16_d128_64x32 => F16, 128, Full, Sm86;
                forward_f16_d128_64x32_causal => F16, 128, Causal, Sm86;
                forward_f16_d128_128x16 => F16, 128, Full, Sm100;
                forward_f16_d128_128x16_causal => F16, 128, Causal, Sm100;
                forward_f16_d192 => F16, 192, Full, Sm90;
                forward_f16_d192_causal => F16, 192, Causal, Sm90;
                forward_f16_d192_64x16 => F16, 192, Full, Sm86;
                forward_f16_d192_64x16_causal => F16, 192, Causal, Sm86;
                forward_f16_d256_128x32 => F16, 256, Full, Sm80;
                forward_f16_d256_128x32_causal => F16, 256, Causal, Sm80;
                forward_f16_d256_128x16 => F16, 256, Full, Sm86;
                forward_f16_d256_128x16_causal => F16, 256, Causal, Sm86;
                forward_bf16_d32 => Bf16, 32, Full, Sm90;
                forward_bf16_d32_causal => Bf16, 32, Causal, Sm90;
                forward_bf16_d64 => Bf16, 64, Full, Sm90;
                forward_bf16_d64_causal => Bf16, 64, Causal, Sm90;
                forward_bf16_d64_128x48 => Bf16, 64, Full, Sm86;
                forward_bf16_d64_128x48_causal => Bf16, 64, Causal, Sm86;
                forward_bf16_d96 => Bf16, 96, Full, Sm90;
                forward_bf16_d96_causal => Bf16, 96, Causal, Sm90;
                forward_bf16_d96_64x32 => Bf16, 96, Full, Sm86;
                forward_bf16_d96_64x32_causal => Bf16, 96, Causal, Sm86;
                forward_bf16_d128 => Bf16, 128, Full, Sm90;
                forward_bf16_d128_causal => Bf16, 128, Causal, Sm90;
                forward_bf16_d128_64x32 => Bf16, 128, Full, Sm86;
                forward_bf16_d128_64x32_causal => Bf16, 128, Causal, Sm86;
                forward_bf16_d128_128x16 => Bf16, 128, Full, Sm100;
                forward_bf16_d128_128x16_causal => Bf16, 128, Causal, Sm100;
                forward_bf16_d192 => Bf16, 192, Full, Sm90;
                forward_bf16_d192_causal => Bf16, 192, Causal, Sm90;
                forward_bf16_d192_64x16 => Bf16, 192, Full, Sm86;
                forward_bf16_d192_64x16_causal => Bf16, 192, Causal, Sm86;
                forward_bf16_d256_128x32 => Bf16, 256, Full, Sm80;
                forward_bf16_d256_128x32_causal => Bf16, 256, Causal, Sm80;
                forward_bf16_d256_128x16 => Bf16, 256, Full, Sm86;
                forward_bf16_d256_128x16_causal => Bf16, 256, Causal, Sm86;
                packed_f16_d32 => F16, 32, Packed, Sm90;
                packed_f16_d64 => F16, 64, Packed, Sm90;
                packed_f16_d64_128x48 => F16, 64, Packed, Sm86;
                packed_f16_d96 => F16, 96, Packed, Sm90;
                packed_f16_d96_64x32 => F16, 96, Packed, Sm86;
                packed_f16_d128 => F16, 128, Packed, Sm90;
                packed_f16_d128_64x32 => F16, 128, Packed, Sm86;
                packed_f16_d128_128x16 => F16, 128, Packed, Sm80;
                packed_f16_d192 => F16, 192, Packed, Sm90;
                packed_f16_d192_64x16 => F16, 192, Packed, Sm86;
                packed_f16_d256_128x16 => F16, 256, Packed, Sm80;
                packed_f16_d256_64x16 => F16, 256, Packed, Sm86;
                packed_bf16_d32 => Bf16, 32, Packed, Sm90;
                packed_bf16_d64 => Bf16, 64, Packed, Sm90;
                packed_bf16_d64_128x48 => Bf16, 64, Packed, Sm86;
                packed_bf16_d96 => Bf16, 96, Packed, Sm90;
                packed_bf16_d96_64x32 => Bf16, 96, Packed, Sm86;
                packed_bf16_d128 => Bf16, 128, Packed, Sm90;
                packed_bf16_d128_64x32 => Bf16, 128, Packed, Sm86;
                packed_bf16_d128_128x16 => Bf16, 128, Packed, Sm80;
                packed_bf16_d192 => Bf16, 192, Packed, Sm90;
                packed_bf16_d192_64x16 => Bf16, 192, Packed, Sm86;
                packed_bf16_d256_128x16 => Bf16, 256, Packed, Sm80;
                packed_bf16_d256_64x16 => Bf16, 256, Packed, Sm86;
            }
            forward_shared_rows {
                forward_f16_d256 => F16, 256, Full, Sm90;
                forward_f16_d256_causal => F16, 256, Causal, Sm90;
                forward_bf16_d256 => Bf16, 256, Full, Sm90;
                forward_bf16_d256_causal => Bf16, 256, Causal, Sm90;
                packed_f16_d256 => F16, 256, Packed, Sm90;
                packed_bf16_d256 => Bf16, 256, Packed, Sm90;
            }
            decode {
                decode_f16_d32 => F16, 32, Sm90;
                decode_f16_d64 => F16, 64, Sm90;
                decode_f16_d64_64x32x4 => F16, 64, Sm86;
                decode_f16_d96 => F16, 96, Sm90;
                decode_f16_d96_64x32x3 => F16, 96, Sm86;
                decode_f16_d128 => F16, 128, Sm90;
                decode_f16_d128_64x16x4 => F16, 128, Sm86;
                decode_f16_d192 => F16, 192, Sm90;
                decode_f16_d192_64x16x4 => F16, 192, Sm80;
                decode_f16_d192_64x16x2 => F16, 192, Sm86;
                decode_f16_d256 => F16, 256, Sm90;
                decode_f16_d256_64x16x3 => F16, 256, Sm80;
                decode_bf16_d32 => Bf16, 32, Sm90;
                decode_bf16_d64 => Bf16, 64, Sm90;
                decode_bf16_d64_64x32x4 => Bf16, 64, Sm86;
                decode_bf16_d96 => Bf16, 96, Sm90;
                decode_bf16_d96_64x32x3 => Bf16, 96, Sm86;
                decode_bf16_d128 => Bf16, 128, Sm90;
                decode_bf16_d128_64x16x4 => Bf16, 128, Sm86;
                decode_bf16_d192 => Bf16, 192, Sm90;
                decode_bf16_d192_64x16x4 => Bf16, 192, Sm80;
                decode_bf16_d192_64x16x2 => Bf16, 192, Sm86;
                decode_bf16_d256 => Bf16, 256, Sm90;
                decode_bf16_d256_64x16x3 => Bf16, 256, Sm80;
            }
            wide {
                wide_f16_d384 => F16, 384, Sm90;
                wide_f16_d384_64x128x3x4 => F16, 384, Sm86;
                wide_f16_d512 => F16, 512, Sm90;
                wide_f16_d512_64x128x2x4 => F16, 512, Sm86;
                wide_f16_d768 => F16, 768, Sm90;
                wide_f16_d768_32x256x2x8 => F16, 768, Sm80;
                wide_f16_d768_32x256x2x16 => F16, 768, Sm86;
                wide_f16_d1024 => F16, 1024, Sm90;
                wide_f16_d1024_32x256x2x8 => F16, 1024, Sm80;
                wide_f16_d1024_32x256x2x16 => F16, 1024, Sm86;
                wide_bf16_d384 => Bf16, 384, Sm90;
                wide_bf16_d384_64x128x3x4 => Bf16, 384, Sm86;
                wide_bf16_d512 => Bf16, 512, Sm90;
                wide_bf16_d512_64x128x2x4 => Bf16, 512, Sm86;
                wide_bf16_d768 => Bf16, 768, Sm90;
                wide_bf16_d768_32x256x2x8 => Bf16, 768, Sm80;
                wide_bf16_d768_32x256x2x16 => Bf16, 768, Sm86;
                wide_bf16_d1024 => Bf16, 1024, Sm90;
                wide_bf16_d1024_32x256x2x8 => Bf16, 1024, Sm80;
                wide_bf16_d1024_32x256x2x16 => Bf16, 1024, Sm86;
            }
            combine {
                combine_f16 => F16;
                combine_bf16 => Bf16;
            }
            pack {
                pack;
            }
            gemm_simple {
                gemm_simple_f16_f32 => F16, Single;
                gemm_simple_bf16_f32 => Bf16, Single;
                gemm_simple_f16_f16 => F16, Half;
            }
            gemm_multistage {
                gemm_f16_f32_256x128x64x3 => F16, Single, [256, 128, 64, 3];
                gemm_f16_f32_256x128x32x4 => F16, Single, [256, 128, 32, 4];
                gemm_f16_f32_256x128x32x3 => F16, Single, [256, 128, 32, 3];
                gemm_f16_f32_128x256x32x4 => F16, Single, [128, 256, 32, 4];
                gemm_f16_f32_128x256x32x3 => F16, Single, [128, 256, 32, 3];
                gemm_f16_f32_128x128x32x3 => F16, Single, [128, 128, 32, 3];
                gemm_f16_f32_128x128x32x4 => F16, Single, [128, 128, 32, 4];
                gemm_f16_f32_128x128x32x5 => F16, Single, [128, 128, 32, 5];
                gemm_f16_f32_64x64x64x4 => F16, Single, [64, 64, 64, 4];
                gemm_bf16_f32_256x128x64x3 => Bf16, Single, [256, 128, 64, 3];
                gemm_bf16_f32_256x128x32x4 => Bf16, Single, [256, 128, 32, 4];
                gemm_bf16_f32_256x128x32x3 => Bf16, Single, [256, 128, 32, 3];
                gemm_bf16_f32_128x256x32x4 => Bf16, Single, [128, 256, 32, 4];
                gemm_bf16_f32_128x256x32x3 => Bf16, Single, [128, 256, 32, 3];
                gemm_bf16_f32_128x128x32x3 => Bf16, Single, [128, 128, 32, 3];
                gemm_bf16_f32_128x128x32x4 => Bf16, Single, [128, 128, 32, 4];
                gemm_bf16_f32_128x128x32x5 => Bf16, Single, [128, 128, 32, 5];
                gemm_bf16_f32_64x64x64x4 => Bf16, Single, [64, 64, 64, 4];
                gemm_f16_f16_256x128x64x3 => F16, Half, [256, 128, 64, 3];
                gemm_f16_f16_256x128x32x4 => F16, Half, [256, 128, 32, 4];
                gemm_f16_f16_256x128x32x3 => F16, Half, [256, 128, 32, 3];
                gemm_f16_f16_128x256x32x4 => F16, Half, [128, 256, 32, 4];
                gemm_f16_f16_128x256x32x3 => F16, Half, [128, 256, 32, 3];
                gemm_f16_f16_128x128x32x3 => F16, Half, [128, 128, 32, 3];
                gemm_f16_f16_128x128x32x4 => F16, Half, [128, 128, 32, 4];
                gemm_f16_f16_128x128x32x5 => F16, Half, [128, 128, 32, 5];
                gemm_f16_f16_64x64x64x4 => F16, Half, [64, 64, 64, 4];
            }
        }
    };
}
#[cfg(target_arch = "nvptx64")]
pub(crate) use all_kernels;

macro_rules! rows {
    (
        forward { $($forward:ident => $forward_dtype:ident, $forward_dim:literal, $mask:ident, $forward_class:ident;)* }
        forward_shared_rows { $($shared:ident => $shared_dtype:ident, $shared_dim:literal, $shared_mask:ident, $shared_class:ident;)* }
        decode { $($decode:ident => $decode_dtype:ident, $decode_dim:literal, $decode_class:ident;)* }
        wide { $($wide:ident => $wide_dtype:ident, $wide_dim:literal, $wide_class:ident;)* }
        combine { $($combine:ident => $combine_dtype:ident;)* }
        pack { $($pack:ident;)* }
        gemm_simple { $($simple:ident => $simple_dtype:ident, $simple_sums:ident;)* }
        gemm_multistage { $($multistage:ident => $multistage_dtype:ident, $multistage_sums:ident, [$($size:literal),*];)* }
    ) => {
        &[
            $({
                const FAMILY: Family = family!($mask);
                Kernel {
                    name: stringify!($forward),
                    arch: Arch::Sm80,
                    family: FAMILY,
                    dtype: Dtype::$forward_dtype,
                    head_dim: $forward_dim,
                    tile: Class::$forward_class.tile(FAMILY, $forward_dim),
                }
            },)*
            $({
                const FAMILY: Family = family!($shared_mask);
                Kernel {
                    name: stringify!($shared),
                    arch: Arch::Sm80,
                    family: FAMILY,
                    dtype: Dtype::$shared_dtype,
                    head_dim: $shared_dim,
                    tile: Class::$shared_class.tile(FAMILY, $shared_dim),
                }
            },)*
            $(Kernel {
                name: stringify!($decode),
                arch: Arch::Sm80,
                family: Family::Decode,
                dtype: Dtype::$decode_dtype,
                head_dim: $decode_dim,
                tile: Class::$decode_class.tile(Family::Decode, $decode_dim),
            },)*
            $(Kernel {
                name: stringify!($wide),
                arch: Arch::Sm80,
                family: Family::Wide,
                dtype: Dtype::$wide_dtype,
                head_dim: $wide_dim,
                tile: Class::$wide_class.tile(Family::Wide, $wide_dim),
            },)*
            $(Kernel {
                name: stringify!($combine),
                arch: Arch::Sm80,
                family: Family::Combine,
                dtype: Dtype::$combine_dtype,
                head_dim: MAX_HEAD_DIM,
                tile: COMBINE_TILE,
            },)*
            $(Kernel {
                name: stringify!($pack),
                arch: Arch::Sm80,
                family: Family::Pack,
                dtype: Dtype::F16,
                head_dim: MAX_HEAD_DIM,
                tile: PACK_TILE,
            },)*
            $(gemm_row(
                stringify!($simple),
                Dtype::$simple_dtype,
                Accumulation::$simple_sums,
                GemmTile::SIMPLE,
            ),)*
            $(gemm_row(
                stringify!($multistage),
                Dtype::$multistage_dtype,
                Accumulation::$multistage_sums,
                GemmTile::multistage($($size),*),
            ),)*
        ]
    };
}

/// The row of a matrix product.
const fn gemm_row(
    name: &'static str,
    dtype: Dtype,
    accumulation: Accumulation,
    tile: GemmTile,
) -> Kernel {
    Kernel {
        name,
        arch: Arch::Sm80,
        family: Family::Gemm { tile, accumulation },
        dtype,
        head_dim: 0,
        tile: tile.block(),
    }
}

/// Every kernel but those of the [ladder](crate::ladder).
pub const KERNELS: &[Kernel] = all_kernels!(rows);

/// Every kernel.
pub fn all() -> impl Iterator<Item = &'static Kernel> {
    KERNELS.iter().chain(ladder::KERNELS)
}

/// The head dims that have a forward kernel of their own, ascending; [`WIDE_DIMS`](wide::WIDE_DIMS) has those above.
pub const HEAD_DIMS: &[u32] = &[32, 64, 96, 128, 192, 256];

/// The largest head dim.
pub const MAX_HEAD_DIM: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::format;

    const FAMILIES: [Family; 7] = [
        Family::Forward { causal: false },
        Family::Forward { causal: true },
        Family::Packed,
        Family::Decode,
        Family::Wide,
        Family::Combine,
        Family::Pack,
    ];

    /// Equal tiles are one kernel; a tile that is not that of `sm_90` is part of the name.
    #[test]
    fn every_tile_is_one_kernel() {
        for kernel in KERNELS {
            let kind = |k: &&Kernel| (k.family, k.dtype, k.head_dim);
            let equal = |k: &&Kernel| kind(k) == kind(&kernel) && k.tile == kernel.tile;
            assert_eq!(KERNELS.iter().filter(equal).count(), 1, "{}", kernel.name);
            assert!(Class::ALL.iter().any(|&class| kernel.is_for(class)));

            let (dtype, dim, tile) = (kernel.dtype.name(), kernel.head_dim, kernel.tile);
            let (family, mask, size) = match kernel.family {
                Family::Combine => {
                    assert_eq!(kernel.name, format!("combine_{dtype}"));
                    continue;
                }
                Family::Pack => {
                    assert_eq!(kernel.name, "pack");
                    continue;
                }
                Family::Gemm { tile, accumulation } => {
                    let sums = accumulation.name();
                    let name = match tile.stages {
                        0 => format!("gemm_simple_{dtype}_{sums}"),
                        stages => {
                            let GemmTile {
                                rows,
                                columns,
                                depth,
                                ..
                            } = tile;
                            format!("gemm_{dtype}_{sums}_{rows}x{columns}x{depth}x{stages}")
                        }
                    };
                    assert_eq!(kernel.name, name);
                    continue;
                }
                Family::Ladder(_) => unreachable!("these have a table of their own"),
                Family::Forward { causal } => {
                    let mask = if causal { "_causal" } else { "" };
                    ("forward", mask, format!("_{}x{}", tile.q_rows, tile.keys))
                }
                Family::Packed => ("packed", "", format!("_{}x{}", tile.q_rows, tile.keys)),
                Family::Decode => {
                    let size = format!("_{}x{}x{}", tile.q_rows, tile.keys, tile.stages);
                    ("decode", "", size)
                }
                Family::Wide => {
                    let (stages, slices) = (tile.stages, tile.v_slices);
                    let size = format!("_{}x{}x{stages}x{slices}", tile.q_rows, tile.keys);
                    ("wide", "", size)
                }
            };
            let size = if kernel.is_for(Class::Sm90) {
                ""
            } else {
                &size
            };
            assert_eq!(kernel.name, format!("{family}_{dtype}_d{dim}{size}{mask}"));
        }
        for (&class, family) in Class::ALL.iter().flat_map(|c| FAMILIES.map(|f| (c, f))) {
            for kernel in KERNELS.iter().filter(|kernel| kernel.family == family) {
                assert!(kernel.counterpart(class).is_for(class));
            }
        }
    }

    /// Loading a module compiles no kernel that the device will not use.
    #[test]
    fn a_module_is_for_the_same_devices() {
        for kernel in KERNELS {
            for other in KERNELS.iter().filter(|k| k.module() == kernel.module()) {
                for &class in Class::ALL {
                    assert_eq!(kernel.is_for(class), other.is_for(class), "{}", other.name);
                }
            }
        }
    }
}
