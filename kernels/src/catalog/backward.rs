//! The backward pass: the specifications of its kernels, and their list.

use super::class::Class;
use super::kind::MaskKind;
use super::tile::{Tiles, of_dim};
use super::{Code, Dtype, Instance, Launch, Spec, distinct};
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
    /// Sums of the gradient of the bias, where axes of it repeat.
    SumBias(SumBias),
}

/// The kernel that sums the gradient of a bias over axes that repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumBias {
    /// Element type.
    pub dtype: Dtype,
    /// Largest head dim, one of [`DIMS`](Self::DIMS).
    pub dim: u32,
}

impl SumBias {
    /// Largest head dims of the kernels.
    pub const DIMS: [u32; 3] = [64, 128, 256];
    /// Keys of a block (Bc): 16 a warp.
    pub const KEYS: u32 = 16 * Backward::WARPS;

    /// Queries that a block visits at a time (Br): as many as smaller devices have shared memory for.
    pub const fn queries(self) -> u32 {
        if self.dim > 128 { 32 } else { 64 }
    }
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

/// A tile with two stages of dS.
const fn own(
    [keys, queries, warps]: [u32; 3],
    [kept, side_by_side, at_once]: [u32; 3],
) -> BackwardTile {
    BackwardTile {
        keys,
        queries,
        warps,
        kept,
        side_by_side,
        at_once,
        ds_stages: 2,
    }
}

impl BackwardTile {
    const fn with_one_stage(self) -> Self {
        BackwardTile {
            ds_stages: 1,
            ..self
        }
    }
}

/// The tiles of any class.
const TILES: Tiles<BackwardTile> = &[
    (32, own([128, 64, 8], [2, 2, 1])),
    (64, own([128, 128, 8], [0, 2, 1])),
    (96, own([128, 64, 8], [0, 2, 1])),
    (128, own([128, 64, 8], [0, 2, 2])),
    (192, own([64, 64, 8], [0, 4, 1])),
    (256, own([64, 64, 8], [0, 2, 2])),
];

/// Half the queries, which fit an A100.
const SM80: Tiles<BackwardTile> = &[(256, own([64, 32, 8], [0, 4, 2]))];

/// Two stages of dS leave no room for the rest at D = 256.
const SM86: Tiles<BackwardTile> = &[
    (64, own([128, 64, 8], [4, 2, 2])),
    (96, own([64, 64, 4], [0, 2, 1])),
    (128, own([64, 32, 8], [8, 4, 2])),
    (192, own([32, 32, 4], [0, 2, 2])),
    (256, own([32, 32, 4], [0, 2, 2]).with_one_stage()),
];

/// With options the larger tile spills, and so would K and V in registers.
const OPTIONS: Tiles<BackwardTile> = &[(64, own([128, 64, 8], [0, 2, 2]))];

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

    /// Eight warps on a multiprocessor. Shared memory: K, V, and two stages of Q and dO; the stages of dS; two stages of two
    /// statistics of each row; and the job.
    const fn launch(&self) -> Launch {
        let tile = self.tile;
        let rows = 2 * tile.keys + 2 * 2 * tile.queries;
        let ds = BYTES * tile.ds_stages * tile.keys * tile.queries;
        let bytes = BYTES * rows * self.dim + ds + 2 * 2 * 4 * tile.queries + 16;
        Launch::new(tile.warps, 8 / tile.warps, bytes)
    }
}

impl Backward {
    /// Warps of a block that prepares or converts.
    pub const WARPS: u32 = 4;
    /// Warps of a block that sums the gradient of a sink.
    const SINK_WARPS: u32 = 16;
    /// Rows of a head that a block prepares.
    pub const PREPARED_ROWS: u32 = 8 * Self::WARPS;

    /// Element type; gradients of options have none.
    pub fn dtype(&self) -> Option<Dtype> {
        match self {
            Backward::Prepare(dtype)
            | Backward::Convert(dtype)
            | Backward::FarSums(dtype)
            | Backward::Far(dtype) => Some(*dtype),
            Backward::Main(main) => Some(main.dtype),
            Backward::SumBias(sums) => Some(sums.dtype),
            Backward::Sinks | Backward::ZeroBias => None,
        }
    }
}

/// All kernels: of equal tiles of several classes one.
pub(super) fn all() -> Vec<Backward> {
    let mut kernels = Vec::new();
    for dtype in Dtype::ALL {
        kernels.extend([Backward::Prepare(dtype), Backward::Convert(dtype)]);
        kernels.extend([Backward::FarSums(dtype), Backward::Far(dtype)]);
        kernels.extend(SumBias::DIMS.map(|dim| Backward::SumBias(SumBias { dtype, dim })));
        for &(dim, _) in TILES {
            for class in [Class::Sm90, Class::Sm80, Class::Sm86, Class::Sm100] {
                let of = |mask| BackwardMain::of(dtype, dim, class, mask);
                let mains = [MaskKind::Either, MaskKind::Options]
                    .into_iter()
                    .filter_map(of);
                kernels.extend(mains.map(Backward::Main));
            }
        }
    }
    kernels.extend([Backward::Sinks, Backward::ZeroBias]);
    distinct(kernels)
}

impl Spec for Backward {
    /// Of a main kernel, a tile that `sm_90` does not have is in the name: `BcxBr`.
    fn name(&self) -> String {
        let dtype = self.dtype().map_or("", Dtype::name);
        match self {
            Backward::Sinks => "backward_sinks".to_owned(),
            Backward::ZeroBias => "backward_zero_bias".to_owned(),
            Backward::Prepare(_) => format!("backward_{dtype}_prepare"),
            Backward::Convert(_) => format!("backward_{dtype}_convert"),
            Backward::FarSums(_) => format!("backward_{dtype}_far_sums"),
            Backward::Far(_) => format!("backward_{dtype}_far"),
            Backward::SumBias(sums) => format!("backward_{dtype}_sum_bias_d{}", sums.dim),
            Backward::Main(main) => {
                let optional = if main.mask.has_options() {
                    "optional_"
                } else {
                    ""
                };
                let name = format!("backward_{optional}{dtype}_d{}", main.dim);
                match self.is_for(Class::Sm90) {
                    true => name,
                    false => format!("{name}_{}x{}", main.tile.keys, main.tile.queries),
                }
            }
        }
    }

    fn launch(&self) -> Launch {
        match self {
            Backward::Main(main) => main.launch(),
            Backward::Sinks => Launch::new(Self::SINK_WARPS, 1, 4 * Self::SINK_WARPS),
            // Tiles of 16 rows of 256 columns: q and k, then v, d_o, and dS in rows of 32.
            Backward::FarSums(_) => Launch::new(1, 8, 2 * BYTES * 16 * 256),
            Backward::Far(_) => Launch::new(1, 8, 4 * BYTES * 16 * 256 + BYTES * 16 * 32),
            Backward::SumBias(sums) => {
                let rows = SumBias::KEYS + sums.queries();
                let blocks = if sums.dim > 128 { 2 } else { 3 };
                Launch::new(Self::WARPS, blocks, 2 * BYTES * rows * sums.dim)
            }
            _ => Launch::new(Self::WARPS, 8, 0),
        }
    }

    fn is_for(&self, class: Class) -> bool {
        let Backward::Main(main) = self else {
            return true;
        };
        Some(*main) == BackwardMain::of(main.dtype, main.dim, class, main.mask)
    }

    fn instance(&self) -> Instance {
        let w = self.threads() / 32;
        let generic = match self {
            Backward::Prepare(_) => generic! { prepare: W = w },
            Backward::Convert(_) => generic! { convert: W = w },
            Backward::FarSums(_) => generic! { far_sums: },
            Backward::Far(_) => generic! { far_gradients: },
            Backward::Sinks => generic! { sinks: W = w },
            Backward::ZeroBias => generic! { zero_bias: W = w },
            Backward::SumBias(sums) => {
                generic! { sum_bias: W = w, DT = sums.dim / K, NT = sums.queries() / 16 }
            }
            Backward::Main(main) => {
                let (tile, [qm, qn]) = (main.tile, main.parts_of_dq());
                let (mt, nt, kt) = (2 * tile.keys / w / 16, tile.queries / 16, tile.keys / 16);
                generic! { sm80:
                    W = w, MT = mt, DT = main.dim / K, NT = nt, QT = tile.kept, QM = qm, QN = qn, QC = tile.at_once,
                    KT = kt, DS = tile.ds_stages
                }
            }
        };
        let (params, types) = match self {
            Backward::Prepare(_) => ("PrepareParams", None),
            Backward::Convert(_) | Backward::Sinks | Backward::ZeroBias => ("BackwardParams", None),
            Backward::Main(main) => ("BackwardParams", Some(main.mask.types())),
            _ => ("BackwardParams", Some(MaskKind::Options.types())),
        };
        let (kernel, types) = (
            (params, "attention::backward"),
            types.map_or(vec![], Vec::from),
        );
        Instance::new(kernel, self.dtype(), &types, generic)
    }

    /// With options the compiler leaves some copies in loops. Options take registers: at D = 96 the tile of the smaller
    /// devices spills, outside the products.
    fn code(&self) -> Code {
        let (copies_vary, most_spills) = match self {
            Backward::Main(main) if main.mask.has_options() => (true, 64),
            Backward::SumBias(_) => (true, 64),
            Backward::FarSums(_) | Backward::Far(_) => (true, 0),
            _ => (false, 0),
        };
        Code {
            copies_vary,
            most_spills,
            ..Code::default()
        }
    }
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
                let (spec, tile) = (Backward::Main(main), main.tile);
                let blocks = class.shared_memory().resident_blocks(spec.shared_bytes());
                assert!(blocks > 0, "{class:?}: {main:?}");
                // Warps share out dQ and the keys, and a thread copies whole columns of tiles.
                let [qm, qn] = main.parts_of_dq();
                let dq = qm * qn * tile.warps / 2 * 256;
                assert_eq!(dq, tile.queries * dim, "{main:?}");
                assert_eq!(qn % tile.at_once, 0, "{main:?}");
                assert_eq!(2 * tile.keys % (tile.warps * 16), 0, "{main:?}");
                let threads = spec.threads();
                for (threads, rows) in [(threads, tile.keys), (threads / 2, tile.queries)] {
                    let share = Share::new(0, threads, dim / 8);
                    assert_eq!(rows % share.rows_per_step, 0, "{class:?}: {main:?}");
                }
                assert_eq!(crate::abi::ROW_PADDING % tile.queries, 0);
            }
        }
    }
}
