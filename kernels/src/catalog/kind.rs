//! The axes of attention kernels.

use super::class::Class;
use super::tile::{Tile, Tiles, of_dim};
use super::{decode, fp8, hopper, latent, sm80, wide};
use crate::layout::latent::LatentMemory;

/// The axes of a kernel that computes attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Its main loop.
    pub main_loop: Loop,
    /// The rows of a query tile.
    pub rows: Rows,
    /// Their mask.
    pub mask: MaskKind,
}

/// The main loops of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loop {
    /// By the instructions of all devices.
    Sm80,
    /// For few rows on many keys.
    Decode,
    /// For few rows on many keys of e4m3.
    DecodeE4m3,
    /// For head dims above 256.
    Wide,
    /// By the instructions of Hopper.
    Hopper,
    /// By the instructions of Hopper, for values that are the first part of the keys.
    Latent,
    /// By the instructions of Hopper for e4m3.
    Fp8(Levels),
}

/// The levels of sums of products of e4m3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Levels {
    /// O stays in registers.
    One,
    /// O of some keys is added to outer sums, for values that keep their mean.
    Two,
}

/// The rows of a query tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// Of one query head.
    Head,
    /// Of all query heads that share a key/value head.
    Group,
}

/// The mask that a kernel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaskKind {
    /// None.
    Full,
    /// The causal one: query `i` sees only keys up to `i + seqlen_kv - seqlen_q`.
    Causal,
    /// None or the causal one, as the launch says.
    Either,
    /// Any mask, and scores with [options](crate::abi::Options).
    Options,
}

impl MaskKind {
    /// The mask of a call without options.
    pub const fn of(causal: bool) -> Self {
        if causal {
            MaskKind::Causal
        } else {
            MaskKind::Full
        }
    }

    /// Whether it serves calls with or without the causal mask.
    pub fn serves(self, causal: bool) -> bool {
        match self {
            MaskKind::Full => !causal,
            MaskKind::Causal => causal,
            MaskKind::Either | MaskKind::Options => true,
        }
    }

    /// Whether kernels take [options](crate::abi::Options).
    pub fn has_options(self) -> bool {
        self == MaskKind::Options
    }

    /// What it adds to the name of a kernel, whose module has the kernel without a mask, too.
    pub(super) const fn suffix(self) -> &'static str {
        match self {
            MaskKind::Causal => "_causal",
            _ => "",
        }
    }

    /// The types of the mask and of the scores, for rows of one head.
    pub(super) const fn types(self) -> [&'static str; 2] {
        match self {
            MaskKind::Full => ["Full", "Scaled"],
            MaskKind::Causal => ["Causal", "Scaled"],
            MaskKind::Either => ["Either", "Scaled"],
            MaskKind::Options => ["Ranges", "Optional"],
        }
    }
}

impl Kind {
    /// All kinds; a [module](super::Spec::module) has the kinds that stand together.
    pub(super) const ALL: [&[Self]; 16] = [
        &Kind::with_masks(Loop::Sm80),
        &[Kind::of_group(Loop::Sm80)],
        &[Kind::of_group(Loop::Decode)],
        &[Kind::of_head(Loop::Wide, MaskKind::Either)],
        &Kind::with_masks(Loop::Hopper),
        &[Kind::of_group(Loop::Hopper)],
        &[Kind::of_head(Loop::Sm80, MaskKind::Options)],
        &[Kind::of_head(Loop::Hopper, MaskKind::Options)],
        &[Kind::of_head(Loop::Wide, MaskKind::Options)],
        &[Kind::DECODE_OPTIONS],
        &[Kind::LATENT],
        &Kind::with_masks(Loop::Fp8(Levels::One)),
        &Kind::with_masks(Loop::Fp8(Levels::Two)),
        &[Kind::of_head(Loop::Fp8(Levels::One), MaskKind::Options)],
        &[Kind::of_head(Loop::Fp8(Levels::Two), MaskKind::Options)],
        &[Kind::DECODE_E4M3],
    ];

    /// Few rows on many keys, with options.
    pub const DECODE_OPTIONS: Self = Kind {
        mask: MaskKind::Options,
        ..Kind::of_group(Loop::Decode)
    };

    /// Few rows on many keys of e4m3, with options.
    pub const DECODE_E4M3: Self = Kind {
        main_loop: Loop::DecodeE4m3,
        ..Self::DECODE_OPTIONS
    };

    /// Values that are the first part of the keys, with options that do not change scores.
    pub const LATENT: Self = Kind {
        mask: MaskKind::Options,
        ..Kind::of_group(Loop::Latent)
    };

    const fn with_masks(main_loop: Loop) -> [Self; 2] {
        let full = Kind::of_head(main_loop, MaskKind::Full);
        [full, Kind::of_head(main_loop, MaskKind::Causal)]
    }

    /// Kernels whose tiles have rows of one head.
    pub const fn of_head(main_loop: Loop, mask: MaskKind) -> Self {
        Kind {
            main_loop,
            rows: Rows::Head,
            mask,
        }
    }

    /// Kernels whose tiles have rows of all heads of a group.
    pub const fn of_group(main_loop: Loop) -> Self {
        Kind {
            main_loop,
            rows: Rows::Group,
            mask: MaskKind::Either,
        }
    }

    /// Whether query heads that share a key/value head share query tiles.
    pub fn is_grouped(self) -> bool {
        self.rows == Rows::Group
    }

    /// The types of the mask and of the scores.
    pub(super) fn types(self) -> [&'static str; 2] {
        match self.mask {
            MaskKind::Options if self.is_grouped() => ["Spans", "GroupScore"],
            MaskKind::Options if self.multiplies_e4m3() => ["Spans", "Optional"],
            mask => mask.types(),
        }
    }

    /// Whether kernels take options with an element for each pair of query and key, a bias or a mask, or rows of v of another length:
    /// rows of several heads do not.
    pub fn has_pairs(self) -> bool {
        self.mask.has_options() && !self.is_grouped() && !self.multiplies_e4m3()
    }

    /// Whether kernels multiply e4m3.
    pub fn multiplies_e4m3(self) -> bool {
        matches!(self.main_loop, Loop::Fp8(_))
    }

    /// What the names of its kernels begin with. Grouped rows are called packed there.
    pub(super) fn name(self) -> &'static str {
        match (self.main_loop, self.is_grouped(), self.mask.has_options()) {
            (Loop::Sm80, false, false) => "forward",
            (Loop::Sm80, true, _) => "packed",
            (Loop::Sm80, _, true) => "optional",
            (Loop::Hopper, false, false) => "hopper",
            (Loop::Hopper, true, _) => "hopper_packed",
            (Loop::Hopper, _, true) => "hopper_optional",
            (Loop::Wide, _, false) => "wide",
            (Loop::Wide, _, true) => "wide_optional",
            (Loop::Decode, _, false) => "decode",
            (Loop::Decode, _, true) => "decode_optional",
            (Loop::DecodeE4m3, _, _) => "decode_e4m3",
            (Loop::Latent, _, _) => "latent",
            (Loop::Fp8(Levels::One), _, false) => "fp8",
            (Loop::Fp8(Levels::One), _, true) => "fp8_optional",
            (Loop::Fp8(Levels::Two), _, false) => "fp8_two_levels",
            (Loop::Fp8(Levels::Two), _, true) => "fp8_two_levels_optional",
        }
    }

    /// The tables of tiles for a class's devices; the last one has all head dims.
    fn tables(self, class: Class) -> &'static [Tiles] {
        match self.main_loop {
            Loop::Sm80 => sm80::tables(self.rows, self.mask, class),
            Loop::Decode => decode::tables(self.mask, class),
            Loop::DecodeE4m3 => &[decode::E4M3],
            // With options the tiles that fit all classes.
            Loop::Wide if self.mask.has_options() => wide::tables(Class::Sm86),
            Loop::Wide => wide::tables(class),
            Loop::Hopper => hopper::tables(self.rows, self.mask),
            Loop::Latent => &[latent::SM90],
            Loop::Fp8(Levels::One) => &[fp8::SM90],
            Loop::Fp8(Levels::Two) => &[fp8::TWO_LEVELS],
        }
    }

    /// The head dims that have a kernel, ascending.
    pub fn dims(self) -> impl Iterator<Item = u32> {
        let all = self.tables(Class::Sm90).last().copied();
        all.unwrap_or_default().iter().map(|(dim, _)| *dim)
    }

    /// The smallest of [`dims`](Self::dims) that serves rows of q and k with `dim` elements, and of v and o with `dim_v`. Q
    /// and K pass wide kernels in windows, so with options only `dim_v` counts there. Kernels of latent attention serve no others.
    pub fn smallest(self, dim: u32, dim_v: u32) -> Option<u32> {
        let least = match (self.main_loop, self.mask) {
            (Loop::Latent, _) if [dim, dim_v] != [LatentMemory::DIM, LatentMemory::DIM_V] => {
                return None;
            }
            (Loop::Wide, MaskKind::Options) => dim_v,
            _ => dim.max(dim_v),
        };
        self.dims().find(|&dim| dim >= least)
    }

    /// The tile that suits a class's devices, if `dim` is one of [`dims`](Self::dims).
    pub fn tile(self, class: Class, dim: u32) -> Option<Tile> {
        of_dim(dim, self.tables(class))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tile of a head dim that the last table lacks would serve no call.
    #[test]
    fn tables_have_the_same_dims() {
        for kind in Kind::ALL.into_iter().flatten() {
            assert!(kind.dims().is_sorted());
            for &class in Class::ALL {
                assert!(kind.dims().all(|dim| kind.tile(class, dim).is_some()));
                let mut rows = kind.tables(class).iter().copied().flatten();
                assert!(rows.all(|(dim, _)| kind.dims().any(|of| of == *dim)));
            }
        }
    }
}
