//! Attention: the specification of its kernels, and their list.

use super::class::Class;
use super::hopper::Roles;
use super::parts::Parts;
use super::{Dtype, Spec, Target, decode, generics, hopper, packed, plain, wide};
use crate::layout::sm90::Sm90Memory;

/// Head dims of all kernels but the wide ones, ascending.
pub const HEAD_DIMS: &[u32] = &[32, 64, 96, 128, 192, 256];

/// Head dims of the wide kernels, ascending.
pub const WIDE_DIMS: &[u32] = &[384, 512, 768, 1024];

/// The largest head dim.
pub const MAX_HEAD_DIM: u32 = 1024;

/// A kernel that computes attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forward {
    /// The rows of a query tile, and their mask.
    pub kind: Kind,
    /// Element type of q, k, v and o.
    pub dtype: Dtype,
    /// Largest head dim; smaller multiples of 8 are padded with zeros while loading.
    pub dim: u32,
    /// Work division.
    pub tile: Tile,
}

/// The rows of a query tile, and their mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Rows of one query head.
    Plain {
        /// Whether query `i` sees only keys up to `i + seqlen_kv - seqlen_q`.
        causal: bool,
    },
    /// Rows of all query heads that share a key/value head, causal or not.
    Packed,
    /// Few rows of all query heads that share a key/value head, on many keys.
    Decode,
    /// Rows of one query head, causal or not, with head dims above 256.
    Wide,
    /// Rows of a plain kernel, by the instructions of Hopper.
    Hopper {
        /// Whether query `i` sees only keys up to `i + seqlen_kv - seqlen_q`.
        causal: bool,
    },
    /// Rows of a packed kernel, by the instructions of Hopper.
    HopperPacked,
    /// Rows of a plain kernel, with [options](crate::abi::Options).
    Optional,
    /// Rows of an optional kernel, by the instructions of Hopper.
    HopperOptional,
    /// Rows of a wide kernel, with options.
    WideOptional,
}

impl Kind {
    /// All kinds; a [module](Spec::module) has the kinds that stand together.
    pub const ALL: [&[Self]; 9] = [
        &[Kind::Plain { causal: false }, Kind::Plain { causal: true }],
        &[Kind::Packed],
        &[Kind::Decode],
        &[Kind::Wide],
        &[
            Kind::Hopper { causal: false },
            Kind::Hopper { causal: true },
        ],
        &[Kind::HopperPacked],
        &[Kind::Optional],
        &[Kind::HopperOptional],
        &[Kind::WideOptional],
    ];

    /// The head dims that have a kernel, ascending.
    pub fn dims(self) -> &'static [u32] {
        match self {
            Kind::Wide | Kind::WideOptional => WIDE_DIMS,
            Kind::Hopper { .. } | Kind::HopperOptional => hopper::DIMS,
            Kind::HopperPacked => hopper::PACKED_DIMS,
            _ => HEAD_DIMS,
        }
    }

    /// The smallest of [`dims`](Self::dims) that serves rows of q and k with `dim` elements, and of v and o with `dim_v`. Q
    /// and K pass wide kernels in windows, so with options only `dim_v` counts there.
    pub fn smallest(self, dim: u32, dim_v: u32) -> Option<u32> {
        let least = match self {
            Kind::WideOptional => dim_v,
            _ => dim.max(dim_v),
        };
        self.dims().iter().copied().find(|&dim| dim >= least)
    }

    /// Whether query heads that share a key/value head share query tiles.
    pub fn is_packed(self) -> bool {
        matches!(self, Kind::Packed | Kind::Decode | Kind::HopperPacked)
    }

    /// Whether the kernels compute attention with or without the causal mask.
    pub fn serves(self, causal: bool) -> bool {
        match self {
            Kind::Plain { causal: mask } | Kind::Hopper { causal: mask } => mask == causal,
            _ => true,
        }
    }

    /// Whether the kernels take [options](crate::abi::Options).
    pub fn is_optional(self) -> bool {
        matches!(
            self,
            Kind::Optional | Kind::HopperOptional | Kind::WideOptional
        )
    }

    /// The tile that suits a class's devices.
    ///
    /// # Panics
    /// If `dim` is none of [`dims`](Self::dims).
    pub fn tile(self, class: Class, dim: u32) -> Tile {
        match self {
            Kind::Plain { causal } => plain::tile(class, dim, causal),
            Kind::Packed => packed::tile(class, dim),
            Kind::Decode => decode::tile(class, dim),
            Kind::Wide => wide::tile(class, dim),
            // The one that fits all classes.
            Kind::WideOptional => wide::tile(Class::Sm86, dim),
            Kind::Hopper { .. } => hopper::tile(dim),
            Kind::HopperOptional => hopper::optional_tile(dim),
            Kind::HopperPacked => hopper::packed_tile(dim),
            Kind::Optional => plain::optional_tile(dim),
        }
    }
}

/// How a block divides the work, in the terms of the FlashAttention papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Query rows of a block (Br), a multiple of `16 * warps / team`.
    pub q_rows: u32,
    /// Keys of one step of the main loop (Bc), a multiple of 16.
    pub keys: u32,
    /// Warps of a block; each has `q_rows * team / warps` rows.
    pub warps: u32,
    /// Warps that share rows, each with a part of the keys and of O's columns; 1 where each has its own. In Hopper
    /// kernels blocks that share rows, each with a part of O's columns.
    pub team: u32,
    /// K/V buffers in shared memory: 2, in decode kernels 2 or more, and 1 where warps share rows. The
    /// next blocks load while one is worked on.
    pub stages: u32,
    /// Slices of the keys in which V of a step passes: 1 where it passes whole.
    pub v_slices: u32,
    /// Slices of 16 elements of the head dim whose Q fragments stay in registers; the others are read
    /// from shared memory for every block.
    pub q_slices: u32,
    /// Blocks that should fit on one multiprocessor: bounds the registers (`.minnctapersm`).
    pub blocks_per_sm: u32,
}

impl Tile {
    /// Shared memory of a block, in bytes: the Q tile, and K and V for each stage; where warps share rows
    /// also P, and four numbers for each row and warp of a team.
    pub const fn shared_bytes(&self, dim: u32) -> u32 {
        let tiles = (self.q_rows + self.stages * 2 * self.keys) * dim * 2;
        match self.team {
            1 => tiles,
            team => tiles + self.q_rows * (2 * self.keys + 16 * team),
        }
    }
}

impl Forward {
    /// The kernel for a class's devices.
    pub fn of(kind: Kind, dtype: Dtype, dim: u32, class: Class) -> Self {
        Forward {
            kind,
            dtype,
            dim,
            tile: kind.tile(class, dim),
        }
    }

    /// Slices of O's columns, each with query tiles of its own.
    pub fn slices(&self) -> u32 {
        match self.kind {
            Kind::Hopper { .. } | Kind::HopperOptional => self.tile.team,
            _ => 1,
        }
    }

    /// Sides of a block: groups of warpgroups that have the same rows, and every other block of keys.
    pub fn sides(&self) -> u32 {
        match self.kind {
            _ if self.takes_maps() => hopper::sides(&self.tile),
            _ => 1,
        }
    }

    /// Shared memory of a kernel that loads by tensor maps.
    pub fn memory(&self) -> Option<Sm90Memory> {
        self.takes_maps()
            .then(|| hopper::memory(&self.tile, self.dim))
    }

    /// The kernel of the same kind, dtype and head dim for another class's devices, perhaps this one.
    pub fn counterpart(self, class: Class) -> Self {
        Self::of(self.kind, self.dtype, self.dim, class)
    }
}

/// All kernels: of equal tiles of several classes one.
pub(super) fn all() -> impl Iterator<Item = Forward> {
    let mut kernels = Vec::new();
    for kinds in Kind::ALL {
        for dtype in Dtype::ALL {
            for &dim in kinds[0].dims() {
                for class in [Class::Sm90, Class::Sm80, Class::Sm86, Class::Sm100] {
                    for &kind in kinds {
                        let kernel = Forward::of(kind, dtype, dim, class);
                        if !kernels.contains(&kernel) {
                            kernels.push(kernel);
                        }
                    }
                }
            }
        }
    }
    kernels.into_iter()
}

impl Spec for Forward {
    /// A tile that `sm_90` does not have is in the name: `BrxBc`, for decoding with stages, in wide kernels
    /// with stages and slices of V.
    fn name(&self) -> String {
        let mask = match self.kind {
            Kind::Plain { causal: true } | Kind::Hopper { causal: true } => "_causal",
            _ => "",
        };
        self.module() + mask
    }

    /// The name without the mask: loading a module compiles few kernels.
    fn module(&self) -> String {
        let family = match self.kind {
            Kind::Plain { .. } => "forward",
            Kind::Packed => "packed",
            Kind::Decode => "decode",
            Kind::Wide => "wide",
            Kind::Hopper { .. } => "hopper",
            Kind::HopperPacked => "hopper_packed",
            Kind::Optional => "optional",
            Kind::HopperOptional => "hopper_optional",
            Kind::WideOptional => "wide_optional",
        };
        let tile = self.tile;
        let (rows, keys, stages, slices) = (tile.q_rows, tile.keys, tile.stages, tile.v_slices);
        let tile = match self.kind {
            _ if self.is_for(Class::Sm90) => String::new(),
            Kind::Decode => format!("_{rows}x{keys}x{stages}"),
            Kind::Wide | Kind::WideOptional => format!("_{rows}x{keys}x{stages}x{slices}"),
            _ => format!("_{rows}x{keys}"),
        };
        format!("{family}_{}_d{}{tile}", self.dtype.name(), self.dim)
    }

    fn target(&self) -> Target {
        match self.takes_maps() {
            true => Target::Sm90a,
            false => Target::Sm80,
        }
    }

    fn takes_maps(&self) -> bool {
        matches!(
            self.kind,
            Kind::Hopper { .. } | Kind::HopperPacked | Kind::HopperOptional
        )
    }

    fn threads(&self) -> u32 {
        32 * self.tile.warps
    }

    fn blocks_per_sm(&self) -> u32 {
        self.tile.blocks_per_sm
    }

    fn shared_bytes(&self) -> u32 {
        match self.kind {
            Kind::Wide | Kind::WideOptional => wide::memory(&self.tile, self.dim).bytes,
            _ if self.takes_maps() => hopper::shared_bytes(&self.tile, self.dim),
            _ => self.tile.shared_bytes(self.dim),
        }
    }

    /// Windows take registers: two kernels with options spill on `sm_120`.
    fn most_spills(&self) -> u32 {
        match (self.kind, self.dim) {
            (Kind::Optional, 256) | (Kind::WideOptional, 512) => 64,
            _ => 0,
        }
    }

    /// With options the compiler leaves some copies in loops.
    fn implies_copies(&self) -> bool {
        self.kind != Kind::Optional
    }

    fn is_for(&self, class: Class) -> bool {
        let runs = self.target().runs_on(class.compute_capability());
        runs && *self == self.counterpart(class)
    }

    fn instance(&self) -> String {
        let score = match self.kind.is_optional() {
            true => "Optional",
            false => "Scaled",
        };
        let p = Parts::new(self.tile, self.dim);
        let (tile, element) = (self.tile, self.dtype);
        let rows = match self.kind {
            Kind::Plain { causal: false } => "Full, OneHead",
            Kind::Plain { causal: true } => "Causal, OneHead",
            Kind::Packed | Kind::Decode => "Either, HeadGroup",
            Kind::Wide => "Either, OneHead",
            Kind::Optional | Kind::WideOptional => "Ranges, OneHead",
            Kind::Hopper { .. } | Kind::HopperPacked | Kind::HopperOptional => {
                let heads = match self.slices() {
                    1 => "OneHead".to_owned(),
                    slices => format!("HeadSlice<{slices}>"),
                };
                let rows = match self.kind {
                    Kind::Hopper { causal: false } => format!("Full, {heads}"),
                    Kind::Hopper { causal: true } => format!("Causal, {heads}"),
                    Kind::HopperOptional => format!("Ranges, {heads}"),
                    _ => "Either, HeadGroup".to_owned(),
                };
                let Roles {
                    consumers,
                    q_slots,
                    given,
                    taken,
                } = Roles::new(&tile);
                let sides = self.sides();
                let sizes = [
                    sides,
                    consumers / sides,
                    p.dt,
                    p.ot,
                    p.kt,
                    q_slots,
                    tile.stages,
                ];
                let sizes = generics(&sizes);
                let generics =
                    format!("{element:?}, {rows}, {score}, Unwatched, {sizes}, {given}, {taken}");
                return format!("(Sm90Params, maps) = attention::forward::sm90::<{generics}>");
            }
        };
        let (kernel, sizes) = match self.kind {
            Kind::Decode => {
                assert!(
                    tile.stages >= 2 && p.mt == 1,
                    "two stages or more; 16 rows a warp"
                );
                ("decode", vec![p.dt, p.kt, tile.q_slices, tile.stages])
            }
            Kind::Wide | Kind::WideOptional => {
                assert!(tile.stages >= 2, "two stages or more");
                assert!(p.mt == 2 && p.nt == 2, "32 rows and 32 keys a warp");
                let v = p.kt / tile.v_slices;
                (
                    "wide",
                    vec![tile.team, p.dt, p.ot, p.kt, v, v.min(2), tile.stages],
                )
            }
            _ if tile.team == 1 => {
                assert_eq!(tile.stages, 2, "K and V are double-buffered");
                ("sm80", vec![p.mt, p.dt, p.kt, tile.q_slices])
            }
            _ => {
                assert_eq!(tile.stages, 1, "K and V have a buffer each");
                (
                    "team",
                    vec![tile.team, p.mt, p.dt, p.ot, p.kt, p.nt, tile.q_slices],
                )
            }
        };
        let (warps, sizes) = (tile.warps, generics(&sizes));
        let generics = format!("{element:?}, {rows}, {score}, {warps}, {sizes}");
        format!("(ForwardParams) = attention::forward::{kernel}::<{generics}>")
    }

    fn products_of_masks(&self) -> u32 {
        match self.kind {
            Kind::HopperOptional => hopper::products_of_masks(&self.tile, self.dim),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::select::is_wide;
    use crate::layout::share::Share;

    fn every() -> impl Iterator<Item = (Class, Forward)> {
        Class::ALL.iter().flat_map(|&class| {
            let kinds = Kind::ALL.into_iter().flatten();
            kinds.flat_map(move |kind| {
                let of = move |&dim| (class, Forward::of(*kind, Dtype::F16, dim, class));
                kind.dims().iter().map(of)
            })
        })
    }

    /// Eight warps on a multiprocessor; four where eight spill.
    #[test]
    fn eight_warps_share_a_multiprocessor() {
        for (class, kernel) in
            every().filter(|(_, k)| matches!(k.kind, Kind::Plain { .. } | Kind::Packed))
        {
            let blocks = class.shared_memory().resident_blocks(kernel.shared_bytes());
            let tile = kernel.tile;
            let warps = match (class, kernel.kind, kernel.dim) {
                (Class::Sm86, Kind::Packed, 256) => 4,
                _ => 8,
            };
            assert!(
                tile.blocks_per_sm <= blocks && tile.blocks_per_sm * tile.warps == warps,
                "{class:?}: {blocks} blocks of {kernel:?}"
            );
        }
    }

    #[test]
    fn two_decode_blocks_share_a_multiprocessor() {
        for (class, kernel) in every().filter(|(_, kernel)| kernel.kind == Kind::Decode) {
            let blocks = class.shared_memory().resident_blocks(kernel.shared_bytes());
            let wanted = match (class, kernel.dim) {
                (Class::Sm86, 256) => 1,
                (Class::Sm80 | Class::Sm86, _) => 2,
                _ => kernel.tile.blocks_per_sm,
            };
            assert!(blocks >= wanted, "{class:?}: {blocks} blocks of {kernel:?}");
        }
    }

    /// A thread copies whole columns of a tile, so a tile's rows are a multiple of a step's.
    #[test]
    fn all_threads_copy_every_tile() {
        for (_, kernel) in every().filter(|(_, k)| !is_wide(k.dim) && !k.takes_maps()) {
            let share = Share::new(0, kernel.threads(), kernel.dim / 8);
            assert_eq!(kernel.tile.keys % share.rows_per_step, 0, "{kernel:?}");
            assert_eq!(kernel.tile.q_rows % share.rows_per_step, 0, "{kernel:?}");
        }
    }
}
