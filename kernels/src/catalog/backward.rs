//! The backward pass: its kernels, their tiles, and their specifications.

use super::class::Class;
use super::kind::MaskKind;
use super::tile::{Tiles, of_dim};
use super::{Dtype, Family, Generic, Instance, Kernel, Launch, Spec, Target, distinct};
use crate::generic;
use crate::layout::element::{BYTES, K};

/// A kernel of the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backward {
    /// Statistics of the rows.
    Prepare(Dtype),
    /// dk, dv and the sums of dq.
    Main(BackwardMain),
    /// dq, from sums to 16 bits.
    Convert(Dtype),
    /// Sums of the rows with a [far](crate::abi::FAR_LSE) lse.
    FarSums(Dtype),
    /// Gradients of these rows.
    Far(Dtype),
    /// The gradient of the sinks, whatever the element type.
    Sinks,
    /// Zeros for the gradient of the bias.
    ZeroBias,
    /// Sums of the gradient of the bias, where axes of it repeat, up to a [head dim](Self::BIAS_DIMS).
    SumBias(Dtype, u32),
}

/// The kernel that computes dk, dv and the sums of dq.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackwardMain {
    /// Element type.
    pub dtype: Dtype,
    /// Largest head dim; smaller multiples of 8 are padded with zeros while loading.
    pub dim: u32,
    /// Work division.
    pub tile: BackwardTile,
    /// [`MaskKind::Either`], or [`MaskKind::Options`].
    pub mask: MaskKind,
}

/// How a block divides the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackwardTile {
    /// Keys of a block (Bc): two warps share `2 * keys / warps` of them, a multiple of 16.
    pub keys: u32,
    /// Queries of a step (Br), a multiple of 16.
    pub queries: u32,
    /// Warps of a block.
    pub warps: u32,
    /// Slices of 16 elements of the head dim whose fragments of K or V stay in registers.
    pub kept: u32,
    /// Warps side by side in dQ, each with a part of its columns: 2 or 4.
    pub side_by_side: u32,
    /// Slices of 16 columns of dQ that a warp has in registers at a time.
    pub at_once: u32,
    /// Stages of dS: 1 or 2.
    pub ds_stages: u32,
}

const fn own(
    [keys, queries, warps]: [u32; 3],
    [kept, side_by_side, at_once, ds_stages]: [u32; 4],
) -> BackwardTile {
    BackwardTile {
        keys,
        queries,
        warps,
        kept,
        side_by_side,
        at_once,
        ds_stages,
    }
}

/// The tiles of any class.
const TILES: Tiles<BackwardTile> = &[
    (32, own([128, 64, 8], [2, 2, 1, 2])),
    (64, own([128, 128, 8], [0, 2, 1, 2])),
    (96, own([128, 64, 8], [0, 2, 1, 2])),
    (128, own([128, 64, 8], [0, 2, 2, 2])),
    (192, own([64, 64, 8], [0, 4, 1, 2])),
    (256, own([64, 64, 8], [0, 2, 2, 2])),
];

/// Half the queries, which fit an A100.
const SM80: Tiles<BackwardTile> = &[(256, own([64, 32, 8], [0, 4, 2, 2]))];

/// Two stages of dS leave no room for the rest at D = 256.
const SM86: Tiles<BackwardTile> = &[
    (64, own([128, 64, 8], [4, 2, 2, 2])),
    (96, own([64, 64, 4], [0, 2, 1, 2])),
    (128, own([64, 32, 8], [8, 4, 2, 2])),
    (192, own([32, 32, 4], [0, 2, 2, 2])),
    (256, own([32, 32, 4], [0, 2, 2, 1])),
];

/// With options the larger tile spills, and so would K and V in registers.
const OPTIONS: Tiles<BackwardTile> = &[(64, own([128, 64, 8], [0, 2, 2, 2]))];

impl BackwardMain {
    /// The kernel for a class's devices that serves a mask, if there is one of the head dim. With options a head dim has at
    /// most two tiles, the larger one where blocks have the shared memory.
    pub fn of(dtype: Dtype, dim: u32, class: Class, mask: MaskKind) -> Option<Self> {
        let (mask, tables): (_, &[_]) = match (mask, class) {
            (MaskKind::Options, Class::Sm80 | Class::Sm86) => (mask, &[OPTIONS, SM86, TILES]),
            (MaskKind::Options, _) => (mask, &[OPTIONS, TILES]),
            (_, Class::Sm80) => (MaskKind::Either, &[SM80, TILES]),
            (_, Class::Sm86) => (MaskKind::Either, &[SM86, TILES]),
            (_, Class::Sm90 | Class::Sm100) => (MaskKind::Either, &[TILES]),
        };
        let tile = of_dim(dim, tables)?;
        Some(BackwardMain {
            dtype,
            dim,
            tile,
            mask,
        })
    }

    /// 16-wide slices of a warp's part of dQ: down and across.
    const fn parts_of_dq(&self) -> [u32; 2] {
        let (tile, dt, nt) = (self.tile, self.dim / K, self.tile.queries / 16);
        let one_below_other = tile.warps / 2 / tile.side_by_side;
        [nt / one_below_other, dt / tile.side_by_side]
    }

    /// Whether its tile is the one for a class's devices.
    fn is_for(&self, class: Class) -> bool {
        Some(*self) == Self::of(self.dtype, self.dim, class, self.mask)
    }

    /// Eight warps on a multiprocessor. Shared memory: K, V, and two stages of Q and dO; the stages of dS; two stages of two
    /// statistics of each row; and the job.
    const fn launch(&self) -> Launch {
        let tile = self.tile;
        let rows = 2 * tile.keys + 2 * 2 * tile.queries;
        let ds = BYTES * tile.ds_stages * tile.keys * tile.queries;
        let bytes = BYTES * rows * self.dim + ds + 2 * 2 * 4 * tile.queries + 16;
        Launch::new(tile.warps, 8 / tile.warps, bytes)
    }

    fn generic(&self) -> Generic {
        let (tile, [qm, qn]) = (self.tile, self.parts_of_dq());
        let w = tile.warps;
        let (mt, nt, kt) = (2 * tile.keys / w / 16, tile.queries / 16, tile.keys / 16);
        generic! { sm80:
            W = w, MT = mt, DT = self.dim / K, NT = nt, QT = tile.kept, QM = qm, QN = qn, QC = tile.at_once,
            KT = kt, DS = tile.ds_stages
        }
    }
}

impl Backward {
    /// Warps of a block that prepares or converts.
    pub const WARPS: u32 = 4;
    /// Rows of a head that a block prepares.
    pub const PREPARED_ROWS: u32 = 8 * Self::WARPS;
    /// Largest head dims of the kernels that sum the gradient of a bias.
    pub const BIAS_DIMS: [u32; 3] = [64, 128, 256];

    /// Keys of a block that sums the gradient of a bias, 16 a warp, and queries that it visits at a time: as many as smaller
    /// devices have shared memory for.
    pub const fn bias_tile(dim: u32) -> [u32; 2] {
        [16 * Self::WARPS, if dim > 128 { 32 } else { 64 }]
    }

    /// Element type, the mask whose types it takes, what its name ends with, its launch, and what it calls. A tile that `sm_90` does
    /// not have is in the name: `BcxBr`.
    #[rustfmt::skip]
    fn row(&self) -> (Option<Dtype>, Option<MaskKind>, String, Launch, Generic) {
        let (w, options) = (Self::WARPS, Some(MaskKind::Options));
        let small = Launch::new(w, 8, 0);
        match *self {
            Backward::Prepare(of) => (Some(of), None, "prepare".into(), small, generic! { prepare: W = w }),
            Backward::Convert(of) => (Some(of), None, "convert".into(), small, generic! { convert: W = w }),
            // Tiles of 16 rows of 256 columns: q and k, then v, d_o, and dS in rows of 32.
            Backward::FarSums(of) => {
                (Some(of), options, "far_sums".into(), Launch::new(1, 8, 2 * BYTES * 16 * 256), generic! { far_sums: })
            }
            Backward::Far(of) => {
                let launch = Launch::new(1, 8, 4 * BYTES * 16 * 256 + BYTES * 16 * 32);
                (Some(of), options, "far".into(), launch, generic! { far_gradients: })
            }
            // A word a warp.
            Backward::Sinks => (None, None, "sinks".into(), Launch::new(16, 1, 4 * 16), generic! { sinks: W = 16 }),
            Backward::ZeroBias => (None, None, "zero_bias".into(), small, generic! { zero_bias: W = w }),
            Backward::SumBias(of, dim) => {
                let [keys, queries] = Self::bias_tile(dim);
                let bytes = 2 * BYTES * (keys + queries) * dim;
                let launch = Launch::new(w, if dim > 128 { 2 } else { 3 }, bytes);
                let generic = generic! { sum_bias: W = w, DT = dim / K, NT = queries / 16 };
                (Some(of), options, format!("sum_bias_d{dim}"), launch, generic)
            }
            Backward::Main(main) => {
                let size = match main.is_for(Class::Sm90) {
                    true => format!("d{}", main.dim),
                    false => format!("d{}_{}x{}", main.dim, main.tile.keys, main.tile.queries),
                };
                (Some(main.dtype), Some(main.mask), size, main.launch(), main.generic())
            }
        }
    }

    fn kernel(self) -> Kernel {
        let (dtype, mask, end, launch, generic) = self.row();
        let element = dtype.map_or(String::new(), |dtype| format!("{}_", dtype.name()));
        let ([prefix, _], params) = match self {
            Backward::Main(main) => (main.mask.affixes(), "BackwardParams"),
            Backward::Prepare(_) => ([""; 2], "PrepareParams"),
            _ => ([""; 2], "BackwardParams"),
        };
        let types = mask.map_or(vec![], |mask| mask.types().into());
        let instance = Instance::new((params, "attention::backward"), dtype, &types, generic);
        let name = format!("backward_{prefix}{element}{end}");
        let mut spec = Spec::new(name, Target::SM80, launch, instance);
        if let Backward::Main(main) = self {
            spec.classes.retain(|&class| main.is_for(class));
        }
        // With options the compiler leaves some copies in loops.
        spec.code.copies_vary = mask == Some(MaskKind::Options);
        // Options take registers: at D = 96 the tile of the smaller devices spills, outside the products.
        if spec.code.copies_vary && matches!(self, Backward::Main(_) | Backward::SumBias(..)) {
            spec.code.most_spills = 64;
        }
        let family = Family::Backward(self);
        Kernel { family, spec }
    }
}

/// All kernels: of equal tiles of several classes one.
pub(super) fn all() -> impl Iterator<Item = Kernel> {
    let mut kernels = Vec::new();
    for dtype in Dtype::ALL {
        kernels.extend([Backward::Prepare(dtype), Backward::Convert(dtype)]);
        kernels.extend([Backward::FarSums(dtype), Backward::Far(dtype)]);
        kernels.extend(Backward::BIAS_DIMS.map(|dim| Backward::SumBias(dtype, dim)));
        for &(dim, _) in TILES {
            for class in [Class::Sm90, Class::Sm80, Class::Sm86, Class::Sm100] {
                let of = |mask| BackwardMain::of(dtype, dim, class, mask).map(Backward::Main);
                let masks = [MaskKind::Either, MaskKind::Options].into_iter();
                kernels.extend(masks.filter_map(of));
            }
        }
    }
    kernels.extend([Backward::Sinks, Backward::ZeroBias]);
    distinct(kernels).map(Backward::kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::share::Share;

    #[test]
    fn tiles_fit_their_class() {
        for &class in Class::ALL {
            for &(dim, _) in TILES {
                let main =
                    BackwardMain::of(Dtype::F16, dim, class, MaskKind::Either).expect("a tile");
                let (spec, tile) = (Backward::Main(main).kernel(), main.tile);
                let blocks = class
                    .shared_memory()
                    .resident_blocks(spec.launch.shared_bytes);
                assert!(blocks > 0, "{class:?}: {main:?}");
                // Warps share out dQ and the keys, and a thread copies whole columns of tiles.
                let [qm, qn] = main.parts_of_dq();
                let dq = qm * qn * tile.warps / 2 * 256;
                assert_eq!(dq, tile.queries * dim, "{main:?}");
                assert_eq!(qn % tile.at_once, 0, "{main:?}");
                assert_eq!(2 * tile.keys % (tile.warps * 16), 0, "{main:?}");
                let threads = spec.launch.threads;
                for (threads, rows) in [(threads, tile.keys), (threads / 2, tile.queries)] {
                    let share = Share::new(0, threads, dim / 8);
                    assert_eq!(rows % share.rows_per_step, 0, "{class:?}: {main:?}");
                }
                assert_eq!(crate::abi::ROW_PADDING % tile.queries, 0);
            }
        }
    }
}
