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
    /// K/V buffers in shared memory. With 2 or more, the next blocks load during both products of
    /// this one. With 1, V loads during the first product and the next K during the second.
    pub stages: u32,
    /// Whether Q's fragments stay in registers, or are read from shared memory for every block.
    pub q_in_registers: bool,
    /// Blocks that should fit on one multiprocessor: bounds the registers (`.minnctapersm`).
    pub blocks_per_sm: u32,
}

/// What a kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Attention, a query tile for each query head.
    Forward {
        /// Whether query `i` sees only keys up to `i + seqlen_kv - seqlen_q`.
        causal: bool,
    },
    /// Attention of few queries on many keys, causal or not: the query heads that share a key/value
    /// head share query tiles.
    Decode,
    /// Adds up what a forward or decode kernel found on each split of the keys.
    Combine,
    /// Copies an input whose rows are not [aligned](crate::params::TensorRef::is_aligned) to where
    /// they are.
    Pack,
}

impl Family {
    /// Whether a kernel computes attention with or without the causal mask.
    #[must_use]
    pub const fn serves(self, causal: bool) -> bool {
        match self {
            Family::Forward { causal: mask } => mask == causal,
            Family::Decode => true,
            Family::Combine | Family::Pack => false,
        }
    }
}

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
    /// Largest head dim; smaller multiples of 8 are padded with zeros while loading.
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

    /// Dynamic shared memory of a block, in bytes: the Q tile, and K and V for each stage; or what the
    /// warps of a pack kernel copy at a time, 16 bytes a lane.
    #[must_use]
    pub const fn shared_bytes(&self) -> u32 {
        match self.family {
            Family::Combine => 0,
            Family::Pack => 16 * self.threads(),
            _ => (self.tile.q_rows + self.tile.stages * 2 * self.tile.keys) * self.head_dim * 2,
        }
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

/// The `sm_80` decode tile of a head dim.
///
/// What counts is bytes on their way, and blocks enough to hide the latency of each other's steps, in
/// which often one warp alone has rows. All but one of a block's buffers are being filled: 72 to 144
/// KB for the blocks that fit an H100's multiprocessor. One block fits compute capability 8.6.
///
/// With fewer registers 128 (Q in registers) and 192 (three blocks) would spill.
#[must_use]
pub const fn sm80_decode_tile(head_dim: u32) -> Tile {
    let (keys, stages, q_in_registers, blocks_per_sm) = match head_dim {
        32 => (64, 4, true, 4),
        64 => (64, 4, true, 3),
        96 => (32, 4, true, 3),
        128 => (32, 3, false, 3),
        192 => (32, 3, true, 2),
        256 => (16, 4, false, 2),
        _ => panic!("no tile for this head dim"),
    };
    Tile {
        q_rows: 64,
        keys,
        warps: 4,
        stages,
        q_in_registers,
        blocks_per_sm,
    }
}

/// How the combine kernels divide the work: a warp takes a row, or half of one.
pub const COMBINE_TILE: Tile = Tile {
    q_rows: 4,
    keys: 0,
    warps: 4,
    stages: 0,
    q_in_registers: false,
    blocks_per_sm: 8,
};

/// How the pack kernel divides the work: a block takes rows of a head.
pub const PACK_TILE: Tile = Tile {
    q_rows: 64,
    ..COMBINE_TILE
};

/// Calls `$with!` with every kernel: of the forward kernels name, element type, head dim and mask, of
/// the decode kernels name, element type and head dim, of the combine kernels name and element type,
/// of the pack kernel the name.
///
/// The element types and masks are those of the `tile` and [`mask`](crate::mask) modules.
macro_rules! all_kernels {
    ($with:ident) => {
        $with! {
            forward {
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
            decode {
                decode_f16_d32 => F16, 32;
                decode_f16_d64 => F16, 64;
                decode_f16_d96 => F16, 96;
                decode_f16_d128 => F16, 128;
                decode_f16_d192 => F16, 192;
                decode_f16_d256 => F16, 256;
                decode_bf16_d32 => Bf16, 32;
                decode_bf16_d64 => Bf16, 64;
                decode_bf16_d96 => Bf16, 96;
                decode_bf16_d128 => Bf16, 128;
                decode_bf16_d192 => Bf16, 192;
                decode_bf16_d256 => Bf16, 256;
            }
            combine {
                combine_f16 => F16;
                combine_bf16 => Bf16;
            }
            pack {
                pack;
            }
        }
    };
}
#[cfg(target_arch = "nvptx64")]
pub(crate) use all_kernels;

macro_rules! rows {
    (
        forward { $($forward:ident => $forward_dtype:ident, $forward_dim:literal, $mask:ident;)* }
        decode { $($decode:ident => $decode_dtype:ident, $decode_dim:literal;)* }
        combine { $($combine:ident => $combine_dtype:ident;)* }
        pack { $($pack:ident;)* }
    ) => {
        &[
            $({
                const CAUSAL: bool = <crate::mask::$mask as crate::mask::Mask>::CAUSAL;
                Kernel {
                    name: stringify!($forward),
                    arch: Arch::Sm80,
                    family: Family::Forward { causal: CAUSAL },
                    dtype: Dtype::$forward_dtype,
                    head_dim: $forward_dim,
                    tile: sm80_tile($forward_dim, CAUSAL),
                }
            },)*
            $(Kernel {
                name: stringify!($decode),
                arch: Arch::Sm80,
                family: Family::Decode,
                dtype: Dtype::$decode_dtype,
                head_dim: $decode_dim,
                tile: sm80_decode_tile($decode_dim),
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
        ]
    };
}

/// Every kernel.
pub const KERNELS: &[Kernel] = all_kernels!(rows);

/// The head dims that have a kernel of their own, ascending.
pub const HEAD_DIMS: &[u32] = &[32, 64, 96, 128, 192, 256];

/// The largest head dim.
pub const MAX_HEAD_DIM: u32 = 256;

/// What a kernel is chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Element type.
    pub dtype: Dtype,
    /// Head dim.
    pub dim: u32,
    /// Whether query `i` sees only keys up to `i + seqlen_kv - seqlen_q`.
    pub causal: bool,
    /// Queries per head.
    pub seqlen_q: u32,
    /// Query heads that share a key/value head.
    pub group: u32,
    /// Compute capability of the device.
    pub compute_capability: (i32, i32),
}

/// The best kernel for a request: of the smallest head dim that will do, the decode kernel if the
/// forward kernel's query tiles would be mostly empty.
#[must_use]
pub fn select(request: &Request) -> Option<&'static Kernel> {
    let smallest = |is_wanted: fn(&Request, Family) -> bool| {
        KERNELS
            .iter()
            .filter(|kernel| is_wanted(request, kernel.family))
            .filter(|kernel| kernel.dtype == request.dtype && kernel.head_dim >= request.dim)
            .filter(|kernel| kernel.arch.compute_capability() <= request.compute_capability)
            .min_by_key(|kernel| kernel.head_dim)
    };
    let decode = smallest(|_, family| family == Family::Decode);
    let forward = smallest(|request, family| {
        let causal = request.causal;
        family == Family::Forward { causal }
    });
    let (Some(decode), Some(forward)) = (decode, forward) else {
        return decode.or(forward);
    };
    // One tile holds all heads, or every head would leave three quarters of a tile of its own.
    let packed = u64::from(request.seqlen_q) * u64::from(request.group);
    let fits = packed <= u64::from(decode.tile.q_rows);
    let sparse = request.group > 1 && request.seqlen_q <= forward.tile.q_rows / 4;
    Some(if fits || sparse { decode } else { forward })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(seqlen_q: u32, group: u32) -> Request {
        Request {
            dtype: Dtype::F16,
            dim: 128,
            causal: true,
            seqlen_q,
            group,
            compute_capability: (8, 0),
        }
    }

    fn name(request: Request) -> &'static str {
        select(&request).expect("a kernel").name
    }

    #[test]
    fn decode_kernels_serve_few_rows() {
        for (seqlen_q, group) in [(1, 1), (1, 128), (16, 1), (16, 8), (64, 1), (32, 2)] {
            assert_eq!(name(request(seqlen_q, group)), "decode_f16_d128");
        }
        for (seqlen_q, group) in [(65, 1), (33, 2), (4096, 1), (4096, 8)] {
            assert_eq!(name(request(seqlen_q, group)), "forward_f16_d128_causal");
        }
    }

    #[test]
    fn dtype_mask_and_dim_decide() {
        let long = request(4096, 1);
        assert_eq!(
            name(Request {
                causal: false,
                dim: 40,
                ..long
            }),
            "forward_f16_d64"
        );
        assert_eq!(
            name(Request {
                dtype: Dtype::Bf16,
                dim: 136,
                ..request(1, 4)
            }),
            "decode_bf16_d192"
        );
        assert_eq!(select(&Request { dim: 257, ..long }), None);
        let old = Request {
            compute_capability: (7, 5),
            ..long
        };
        assert_eq!(select(&old), None);
    }

    #[test]
    fn decode_blocks_share_a_multiprocessor() {
        // An H100 has 227 KB for its blocks' shared memory; a block of compute capability 8.6 has 99.
        for kernel in KERNELS
            .iter()
            .filter(|kernel| kernel.family == Family::Decode)
        {
            let bytes = kernel.shared_bytes();
            assert!(bytes <= 99 << 10, "{}: {bytes}", kernel.name);
            assert!(kernel.tile.blocks_per_sm * (bytes + 1024) <= 228 << 10);
            assert!(kernel.tile.blocks_per_sm >= 2);
        }
    }
}
