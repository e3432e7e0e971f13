//! The backward pass: the specifications of its kernels, and their list.

use super::class::Class;
use super::{Dtype, HEAD_DIMS, Spec, generics};

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

    /// Counts of 16-wide tiles of the head dim and of the queries.
    const fn parts(self) -> [u32; 2] {
        [self.dim / 16, self.queries() / 16]
    }
}

/// The kernel that computes dk, dv and the sums of dq, causal or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackwardMain {
    /// Element type.
    pub dtype: Dtype,
    /// Largest head dim; smaller multiples of 8 are padded with zeros while loading.
    pub dim: u32,
    /// Work division.
    pub tile: BackwardTile,
    /// Whether it takes [options](crate::abi::Options).
    pub optional: bool,
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

impl BackwardTile {
    /// The tile of a class for a head dim: eight warps on a multiprocessor.
    ///
    /// # Panics
    /// If `dim` is none of [`HEAD_DIMS`].
    pub fn of(class: Class, dim: u32) -> Self {
        let own = |keys, queries, warps, kept, side_by_side, at_once| BackwardTile {
            keys,
            queries,
            warps,
            kept,
            side_by_side,
            at_once,
            // Two leave no room for the rest.
            ds_stages: if (class, dim) == (Class::Sm86, 256) {
                1
            } else {
                2
            },
        };
        match (class, dim) {
            (_, 32) => own(128, 64, 8, 2, 2, 1),
            (Class::Sm86, 64) => own(128, 64, 8, 4, 2, 2),
            (_, 64) => own(128, 128, 8, 0, 2, 1),
            (Class::Sm86, 96) => own(64, 64, 4, 0, 2, 1),
            (_, 96) => own(128, 64, 8, 0, 2, 1),
            (Class::Sm86, 128) => own(64, 32, 8, 8, 4, 2),
            (_, 128) => own(128, 64, 8, 0, 2, 2),
            (Class::Sm86, 192) => own(32, 32, 4, 0, 2, 2),
            (_, 192) => own(64, 64, 8, 0, 4, 1),
            (Class::Sm86, 256) => own(32, 32, 4, 0, 2, 2),
            (Class::Sm80, 256) => own(64, 32, 8, 0, 4, 2),
            (_, 256) => own(64, 64, 8, 0, 2, 2),
            _ => panic!("no tile for this head dim"),
        }
    }
}

impl BackwardMain {
    /// The kernel for a class's devices.
    pub fn of(dtype: Dtype, dim: u32, class: Class) -> Self {
        BackwardMain {
            dtype,
            dim,
            tile: BackwardTile::of(class, dim),
            optional: false,
        }
    }

    /// The kernel with options for a class's devices. A head dim has at most two tiles, the larger one where blocks have the
    /// shared memory. At 64 it spills, and so would K and V in registers.
    pub fn with_options(dtype: Dtype, dim: u32, class: Class) -> Self {
        let class = match class {
            Class::Sm90 | Class::Sm100 if dim != 64 => Class::Sm90,
            _ => Class::Sm86,
        };
        let mut main = BackwardMain {
            optional: true,
            ..Self::of(dtype, dim, class)
        };
        if dim == 64 {
            main.tile.kept = 0;
        }
        main
    }

    /// Counts of 16-wide tiles: of a pair's keys, the head dim, the queries; what is kept; a warp's part of dQ, as rows
    /// and columns, and the columns at once; and the block's keys.
    fn parts(&self) -> [u32; 8] {
        let tile = self.tile;
        let (dt, nt) = (self.dim / 16, tile.queries / 16);
        let one_below_other = tile.warps / 2 / tile.side_by_side;
        [
            2 * tile.keys / tile.warps / 16,
            dt,
            nt,
            tile.kept,
            nt / one_below_other,
            dt / tile.side_by_side,
            tile.at_once,
            tile.keys / 16,
        ]
    }

    /// Shared memory of a block, in bytes: K, V, and two stages of Q and dO; the stages of dS; two stages of two statistics of
    /// each row; and the job.
    pub const fn shared_bytes(&self) -> u32 {
        let BackwardTile { keys, queries, .. } = self.tile;
        let rows = 2 * keys + 2 * 2 * queries;
        let ds = self.tile.ds_stages * 2 * keys * queries;
        2 * rows * self.dim + ds + 2 * 2 * 4 * queries + 16
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
pub(super) fn all() -> impl Iterator<Item = Backward> {
    let mut kernels = Vec::new();
    for dtype in Dtype::ALL {
        kernels.extend([Backward::Prepare(dtype), Backward::Convert(dtype)]);
        kernels.extend([Backward::FarSums(dtype), Backward::Far(dtype)]);
        kernels.extend(SumBias::DIMS.map(|dim| Backward::SumBias(SumBias { dtype, dim })));
        for &dim in HEAD_DIMS {
            for class in [Class::Sm90, Class::Sm80, Class::Sm86, Class::Sm100] {
                for main in [
                    BackwardMain::of(dtype, dim, class),
                    BackwardMain::with_options(dtype, dim, class),
                ] {
                    if !kernels.contains(&Backward::Main(main)) {
                        kernels.push(Backward::Main(main));
                    }
                }
            }
        }
    }
    kernels.extend([Backward::Sinks, Backward::ZeroBias]);
    kernels.into_iter()
}

impl Spec for Backward {
    /// Of a main kernel, a tile that `sm_90` does not have is in the name: `BcxBr`.
    fn name(&self) -> String {
        let dtype = self.dtype().map_or("", Dtype::name);
        let name = format!("backward_{dtype}");
        match self {
            Backward::Sinks => "backward_sinks".to_owned(),
            Backward::ZeroBias => "backward_zero_bias".to_owned(),
            Backward::Prepare(_) => name + "_prepare",
            Backward::Convert(_) => name + "_convert",
            Backward::FarSums(_) => name + "_far_sums",
            Backward::Far(_) => name + "_far",
            Backward::SumBias(sums) => format!("{name}_sum_bias_d{}", sums.dim),
            Backward::Main(main) => {
                let BackwardMain { dim, tile, .. } = main;
                let name = match main.optional {
                    true => format!("backward_optional_{dtype}_d{dim}"),
                    false => format!("{name}_d{dim}"),
                };
                match self.is_for(Class::Sm90) {
                    true => name,
                    false => format!("{name}_{}x{}", tile.keys, tile.queries),
                }
            }
        }
    }

    fn threads(&self) -> u32 {
        match self {
            Backward::Main(main) => 32 * main.tile.warps,
            Backward::Sinks => 32 * Self::SINK_WARPS,
            Backward::FarSums(_) | Backward::Far(_) => 32,
            _ => 32 * Self::WARPS,
        }
    }

    fn blocks_per_sm(&self) -> u32 {
        match self {
            Backward::Main(main) => 8 / main.tile.warps,
            Backward::Sinks => 1,
            Backward::SumBias(sums) => {
                if sums.dim > 128 {
                    2
                } else {
                    3
                }
            }
            _ => 8,
        }
    }

    fn shared_bytes(&self) -> u32 {
        match self {
            Backward::Main(main) => main.shared_bytes(),
            Backward::Sinks => 4 * Self::SINK_WARPS,
            // Tiles of 16 rows of 256 columns: q and k, then v, d_o, and dS in rows of 32.
            Backward::FarSums(_) => 2 * 2 * 16 * 256,
            Backward::SumBias(sums) => 2 * 2 * (SumBias::KEYS + sums.queries()) * sums.dim,
            Backward::Far(_) => 4 * 2 * 16 * 256 + 2 * 16 * 32,
            _ => 0,
        }
    }

    fn is_for(&self, class: Class) -> bool {
        match self {
            Backward::Main(main) if main.optional => {
                *main == BackwardMain::with_options(main.dtype, main.dim, class)
            }
            Backward::Main(main) => *main == BackwardMain::of(main.dtype, main.dim, class),
            _ => true,
        }
    }

    fn instance(&self) -> String {
        let warps = self.threads() / 32;
        let kernel = match self {
            Backward::Prepare(element) => format!("prepare::<{element:?}, {warps}>"),
            Backward::Convert(element) => format!("convert::<{element:?}, {warps}>"),
            Backward::FarSums(element) => format!("far_sums::<{element:?}, Ranges, Optional>"),
            Backward::Far(element) => format!("far_gradients::<{element:?}, Ranges, Optional>"),
            Backward::Sinks => format!("sinks::<{warps}>"),
            Backward::ZeroBias => format!("zero_bias::<{warps}>"),
            Backward::SumBias(sums) => {
                let (element, sizes) = (sums.dtype, generics(&sums.parts()));
                format!("sum_bias::<{element:?}, Ranges, Optional, {warps}, {sizes}>")
            }
            Backward::Main(main) => {
                let element = main.dtype;
                let sizes = generics(&main.parts());
                let ds_stages = main.tile.ds_stages;
                let rows = match main.optional {
                    true => "Ranges, Optional",
                    false => "Either, Scaled",
                };
                format!("sm80::<{element:?}, {rows}, {warps}, {sizes}, {ds_stages}>")
            }
        };
        let params = match self {
            Backward::Prepare(_) => "PrepareParams",
            _ => "BackwardParams",
        };
        format!("({params}) = attention::backward::{kernel}")
    }

    /// Options take registers: at D = 96 the tile of the smaller devices spills, outside the products.
    fn most_spills(&self) -> u32 {
        match self {
            Backward::Main(main) if main.optional => 64,
            Backward::SumBias(_) => 64,
            _ => 0,
        }
    }

    /// With options the compiler leaves some copies in loops.
    fn implies_copies(&self) -> bool {
        match self {
            Backward::Main(main) => !main.optional,
            Backward::FarSums(_) | Backward::Far(_) | Backward::SumBias(_) => false,
            _ => true,
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
            for &dim in HEAD_DIMS {
                let main = BackwardMain::of(Dtype::F16, dim, class);
                let (spec, tile) = (Backward::Main(main), main.tile);
                let blocks = class.shared_memory().resident_blocks(spec.shared_bytes());
                assert!(blocks > 0, "{class:?}: {main:?}");
                // Warps share out dQ, and a thread copies whole columns of tiles.
                let [mt, .., qm, qn, qc, _] = main.parts();
                assert_eq!(
                    qm * qn * tile.warps / 2 * 256,
                    tile.queries * dim,
                    "{main:?}"
                );
                assert_eq!(qn % qc, 0, "{main:?}");
                assert_eq!(mt * 16 * tile.warps, 2 * tile.keys, "{main:?}");
                for (threads, rows) in [
                    (spec.threads(), tile.keys),
                    (spec.threads() / 2, tile.queries),
                ] {
                    let share = Share::new(0, threads, dim / 8);
                    assert_eq!(rows % share.rows_per_step, 0, "{class:?}: {main:?}");
                }
                assert_eq!(crate::abi::ROW_PADDING % tile.queries, 0);
            }
        }
    }
}
