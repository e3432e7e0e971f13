//! Attention: the specification of its kernels, and their list.

use super::class::Class;
use super::kind::{Kind, Loop, Rows};
use super::roles::Roles;
use super::tile::Tile;
use super::{Code, Dtype, Family, Generic, Instance, Kernel, Launch, Spec, distinct, fp8, hopper};
use crate::generic;
use crate::layout::element::{BYTES, K};
use crate::layout::latent::LatentMemory;
use crate::layout::sm90::Sm90Memory;
use crate::layout::wide::WideMemory;

/// Head dims of all kernels but the wide ones, ascending.
pub const HEAD_DIMS: &[u32] = &[32, 64, 96, 128, 192, 256];

/// Head dims of the wide kernels, ascending.
pub const WIDE_DIMS: &[u32] = &[384, 512, 768, 1024];

/// The largest head dim.
pub const MAX_HEAD_DIM: u32 = WIDE_DIMS[WIDE_DIMS.len() - 1];

/// A kernel that computes attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forward {
    /// Main loop, rows, and mask.
    pub kind: Kind,
    /// Element type of q, k, v and o.
    pub dtype: Dtype,
    /// Largest head dim; smaller multiples of 8 are padded with zeros while loading.
    pub dim: u32,
    /// Work division.
    pub tile: Tile,
}

impl Forward {
    /// The kernel for a class's devices, if the kind has the head dim.
    pub fn of(kind: Kind, dtype: Dtype, dim: u32, class: Class) -> Option<Self> {
        let tile = kind.tile(class, dim)?;
        Some(Forward {
            kind,
            dtype,
            dim,
            tile,
        })
    }

    /// The kernel of the same kind, dtype and head dim for another class's devices, perhaps this one.
    pub fn counterpart(self, class: Class) -> Option<Self> {
        Self::of(self.kind, self.dtype, self.dim, class)
    }

    /// Whether it reads values as the first part of the keys.
    pub fn is_latent(&self) -> bool {
        self.kind.main_loop == Loop::Latent
    }

    /// Whether it decodes with a cache of e4m3.
    pub fn reads_e4m3(&self) -> bool {
        self.kind.main_loop == Loop::DecodeE4m3
    }

    /// Whether a [switch](crate::abi::Switch::Group) makes rows of one head those of all heads that share a key/value head.
    pub fn may_group(&self) -> bool {
        let kind = self.kind;
        let is_single = !kind.is_grouped() && self.slices() == 1;
        kind.mask.has_options() && !kind.multiplies_e4m3() && is_single
    }

    /// Slices of O's columns, each with query tiles of its own.
    pub fn slices(&self) -> u32 {
        match self.kind.main_loop {
            Loop::Hopper => self.tile.team,
            _ => 1,
        }
    }

    /// Sides of a block: groups of warpgroups that have the same rows, and every other block of keys.
    pub fn sides(&self) -> u32 {
        match self.kind.main_loop {
            Loop::Hopper => self.roles().sides,
            _ => 1,
        }
    }

    fn roles(&self) -> Roles {
        Roles::new(self.kind.main_loop, &self.tile)
    }

    /// Shared memory of a kernel that loads by tensor maps.
    pub fn memory(&self) -> Option<Sm90Memory> {
        let is_hopper = self.kind.main_loop == Loop::Hopper;
        is_hopper.then(|| hopper::memory(&self.tile, self.dim))
    }

    /// The parameter block, the types behind those of mask and heads, and bytes of shared memory.
    #[rustfmt::skip]
    fn row(&self) -> (&'static str, Vec<&'static str>, u32) {
        let (tile, dim, [_, score]) = (&self.tile, self.dim, self.kind.types());
        match self.kind.main_loop {
            Loop::Sm80 | Loop::Decode => ("ForwardParams", vec![score], tile.shared_bytes(dim)),
            Loop::Wide => {
                let keys = [tile.keys, tile.keys / tile.v_slices];
                let memory = WideMemory::new(tile.q_rows, keys, tile.team, tile.stages, dim);
                ("ForwardParams", vec![score], memory.bytes)
            }
            // The Q tile, and K and V for each stage.
            Loop::DecodeE4m3 => ("E4m3Params", vec![], (BYTES * tile.q_rows + tile.stages * 2 * tile.keys) * dim),
            Loop::Hopper => ("Sm90Params, maps", vec![score, "Unwatched"], hopper::shared_bytes(tile, dim)),
            Loop::Latent => ("Sm90Params, maps", vec![score], LatentMemory::new(0).bytes()),
            Loop::Fp8(levels) => {
                let (outer, memory) = (fp8::outer(levels, dim), fp8::memory(tile, dim));
                ("Fp8Params, maps", vec![score, outer], memory.bytes())
            }
        }
    }

    /// The main loop, with its numbers: counts of 16-wide slices but for warps, stages, and registers.
    fn generic(&self) -> Generic {
        let (tile, dt, kt) = (self.tile, self.dim / K, self.tile.keys / 16);
        let (w, t, s, qt) = (tile.warps, tile.team, tile.stages, tile.q_slices);
        let (mt, ot, nt) = (tile.q_rows * t / w / 16, dt / t, kt / t);
        match self.kind.main_loop {
            Loop::Sm80 if t == 1 => generic! { sm80: W = w, MT = mt, DT = dt, NT = kt, QT = qt },
            Loop::Sm80 => {
                generic! { team: W = w, T = t, MT = mt, DT = dt, OT = ot, KT = kt, NT = nt, QT = qt }
            }
            Loop::Decode => generic! { decode: W = w, DT = dt, NT = kt, QT = qt, S = s },
            Loop::DecodeE4m3 => {
                generic! { decode_e4m3: W = w, DT = dt, KT = dt / 2, NT = kt, QT = qt, S = s }
            }
            Loop::Wide => {
                let vt = kt / tile.v_slices;
                generic! { wide: W = w, T = t, DT = dt, OT = ot, KT = kt, VT = vt, RUN = vt.min(2), S = s }
            }
            Loop::Hopper => {
                let roles = self.roles();
                generic! { sm90:
                    G = roles.sides, W = roles.consumers / roles.sides, DT = dt, OT = ot, NT = kt,
                    NQ = roles.q_slots, S = s, GIVEN = roles.given, TAKEN = roles.taken
                }
            }
            Loop::Latent => {
                let Roles { given, taken, .. } = self.roles();
                let ot = LatentMemory::DIM_V / 2 / 16;
                generic! { latent: OT = ot, NT = kt / 2, QT = qt, S = s, GIVEN = given, TAKEN = taken }
            }
            Loop::Fp8(_) => {
                let roles = self.roles();
                generic! { fp8:
                    W = roles.consumers, DT = dt, OT = dt, NT = kt, PT = kt / 2, QT = dt / 2, QR = qt.min(1),
                    NQ = roles.q_slots, S = s, GIVEN = roles.given, TAKEN = roles.taken
                }
            }
        }
    }

    fn code(&self) -> Code {
        let has_options = self.kind.mask.has_options();
        let most_spills = match (self.kind.main_loop, self.dim) {
            // A few words, that are read once a step.
            (Loop::Fp8(_), _) => 64,
            // Rows of packed queries begin anywhere: four words on `sm_120`.
            (Loop::Decode, 256) if has_options => 16,
            // Windows take registers: two kernels spill on `sm_120`.
            (Loop::Sm80, 256) | (Loop::Wide, 512) if has_options => 64,
            _ => 0,
        };
        // Of a block behind hidden ones, and of the block before them.
        let products = self.dim / K + self.tile.keys / K;
        let may_hide = has_options && self.kind.main_loop == Loop::Hopper;
        Code {
            products_of_masks: if may_hide { products } else { 0 },
            // The compiler leaves some in loops.
            copies_vary: has_options && self.kind.main_loop == Loop::Sm80,
            most_spills,
            ..Code::default()
        }
    }

    /// The kernel, with the name of its kind. A tile that `sm_90` does not have is in the name: `BrxBc`, for decoding with stages, in
    /// wide kernels with stages and slices of V.
    fn kernel(self, kind: &str) -> Kernel {
        let (dtype, dim, tile) = (self.dtype, self.dim, self.tile);
        let is_of = |class| Some(self) == self.counterpart(class);
        let (rows, keys, stages, slices) = (tile.q_rows, tile.keys, tile.stages, tile.v_slices);
        let of_tile = match self.kind.main_loop {
            _ if is_of(Class::Sm90) => String::new(),
            Loop::Decode => format!("_{rows}x{keys}x{stages}"),
            Loop::Wide => format!("_{rows}x{keys}x{stages}x{slices}"),
            _ => format!("_{rows}x{keys}"),
        };
        let (element, [_, suffix]) = (dtype.name(), self.kind.mask.affixes());
        let name = format!("{kind}_{element}_d{dim}{of_tile}{suffix}");
        let heads = match (self.kind.rows, self.slices()) {
            (Rows::Group, _) => "HeadGroup".to_owned(),
            (Rows::Head, 1) if self.may_group() => "HeadOrGroup".to_owned(),
            (Rows::Head, 1) => "OneHead".to_owned(),
            (Rows::Head, slices) => format!("HeadSlice<{slices}>"),
        };
        let (params, others, shared_bytes) = self.row();
        let [mask, _] = self.kind.types();
        let types = [&[mask, &*heads], &*others].concat();
        let kernel = (params, "attention::forward");
        let instance = Instance::new(kernel, dtype, &types, self.generic());
        let launch = Launch::new(tile.warps, tile.blocks_per_sm, shared_bytes);
        let mut spec = Spec::new(name, self.kind.main_loop.target(), launch, instance);
        spec.classes.retain(|&class| is_of(class));
        spec.code = self.code();
        let family = Family::Forward(self);
        Kernel { family, spec }
    }
}

/// All kernels: of equal tiles of several classes one.
pub(super) fn all() -> impl Iterator<Item = Kernel> {
    let of_modules = |kinds: (_, _)| Dtype::ALL.map(|dtype| (kinds, dtype));
    let kinds = Kind::ALL.into_iter().flat_map(of_modules);
    kinds.flat_map(|((name, kinds), dtype)| {
        let mut kernels = Vec::new();
        for dim in kinds[0].dims() {
            for class in [Class::Sm90, Class::Sm80, Class::Sm86, Class::Sm100] {
                let of = |&kind| Forward::of(kind, dtype, dim, class);
                kernels.extend(kinds.iter().filter_map(of));
            }
        }
        distinct(kernels).map(|forward| forward.kernel(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::share::Share;
    use crate::layout::wide::WINDOW;

    /// The kernels of a dtype, with each class that they are for, and its threads and bytes of shared memory.
    fn every() -> impl Iterator<Item = (Class, Forward, [u32; 2])> {
        let kernels = all().filter(|kernel| kernel.dtype() == Some(Dtype::F16));
        kernels.flat_map(|kernel| {
            let forward = *kernel.forward().expect("of this family");
            let launch = [kernel.launch.threads, kernel.launch.shared_bytes];
            let classes = kernel.spec.classes.into_iter();
            classes.map(move |class| (class, forward, launch))
        })
    }

    /// Eight warps, or four where eight spill. Two blocks of decode kernels, or one where two do not fit.
    #[test]
    fn blocks_share_a_multiprocessor() {
        for (class, kernel, [_, bytes]) in every() {
            let (kind, tile) = (kernel.kind, kernel.tile);
            let least = match (kind.main_loop, class, kernel.dim) {
                (Loop::Decode, Class::Sm86, 256) => 1,
                (Loop::Decode, Class::Sm80 | Class::Sm86, _) => 2,
                _ => tile.blocks_per_sm,
            };
            let blocks = class.shared_memory().resident_blocks(bytes);
            assert!(blocks >= least, "{class:?}: {blocks} blocks of {kernel:?}");
            let warps = match (class, kind.rows, kernel.dim) {
                (Class::Sm86, Rows::Group, 256) => 4,
                _ => 8,
            };
            if kind.main_loop == Loop::Sm80 {
                assert_eq!(tile.blocks_per_sm * tile.warps, warps, "{kernel:?}");
            }
        }
    }

    /// What main loops ask of tiles. A thread copies whole columns of a tile, so a tile's rows are a multiple of a step's.
    #[test]
    fn tiles_suit_their_main_loops() {
        for (_, kernel, [threads, _]) in every() {
            let (tile, dim) = (kernel.tile, kernel.dim);
            let [rows, keys] = [tile.q_rows / tile.warps, tile.keys / tile.team];
            let suits = match kernel.kind.main_loop {
                Loop::Hopper | Loop::Latent | Loop::Fp8(_) => {
                    // The registers of a multiprocessor, in the granularity of an allocation.
                    let at_launch = (65536 / (32 * tile.warps)).min(255) / 8 * 8;
                    let roles = kernel.roles();
                    let needed = roles.given + roles.consumers * roles.taken;
                    needed <= at_launch * (roles.consumers + 1)
                        && roles.given < at_launch
                        && at_launch < roles.taken
                }
                Loop::Decode | Loop::DecodeE4m3 => tile.stages >= 2 && rows == 16,
                Loop::Wide => {
                    let is_shared = rows * tile.team == 32 && keys == 32;
                    // A slice is on its way while another is in use, at most so many windows ahead of the last.
                    let in_stages = tile.stages >= 2 && tile.stages - 1 <= 256 / WINDOW;
                    // O's columns are in whole slices of 16, at most 8 a warp.
                    let in_slices = dim.is_multiple_of(16 * tile.team) && dim <= 128 * tile.team;
                    is_shared
                        && in_stages
                        && in_slices
                        && tile.keys.is_multiple_of(16 * tile.v_slices)
                }
                // Two buffers each for K and V, or one.
                Loop::Sm80 => tile.stages == if tile.team == 1 { 2 } else { 1 },
            };
            assert!(suits, "{kernel:?}");
            if matches!(
                kernel.kind.main_loop,
                Loop::Decode | Loop::DecodeE4m3 | Loop::Sm80
            ) {
                let share = Share::new(0, threads, dim / 8);
                let halves = if kernel.reads_e4m3() { 2 } else { 1 };
                let of_keys = Share::new(0, threads, dim / 8 / halves);
                assert_eq!(tile.keys % of_keys.rows_per_step, 0, "{kernel:?}");
                assert_eq!(tile.q_rows % share.rows_per_step, 0, "{kernel:?}");
            }
        }
    }
}
