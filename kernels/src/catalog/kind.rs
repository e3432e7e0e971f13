//! The axes of attention kernels.

use super::class::Class;
use super::tile::{Tile, Tiles, of_dim};
use super::{Target, decode, fp8, hopper, latent, sm80, wide};
use crate::layout::latent::LatentMemory as Memory;

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

impl Loop {
    /// The PTX target that has its instructions.
    pub(super) const fn target(self) -> Target {
        match self {
            Loop::Sm80 | Loop::Decode | Loop::Wide => Target::SM80,
            Loop::DecodeE4m3 | Loop::Hopper | Loop::Latent | Loop::Fp8(_) => Target::SM90A,
        }
    }
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
        match causal {
            true => MaskKind::Causal,
            false => MaskKind::Full,
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

    /// What it adds to the name of a kernel: before the element type, in those of gradients, and at the end.
    pub(super) const fn affixes(self) -> [&'static str; 2] {
        match self {
            MaskKind::Full | MaskKind::Either => ["", ""],
            MaskKind::Causal => ["", "_causal"],
            MaskKind::Options => ["optional_", ""],
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
    /// All kinds, by what the names of their kernels begin with: grouped rows are called packed there. Kinds of one name differ in
    /// their masks.
    #[rustfmt::skip]
    pub(super) const ALL: [(&str, &[Self]); 16] = [
        ("forward", &Kind::with_masks(Loop::Sm80)),
        ("packed", &[Kind::of_group(Loop::Sm80, MaskKind::Either)]),
        ("decode", &[Kind::of_group(Loop::Decode, MaskKind::Either)]),
        ("wide", &[Kind::of_head(Loop::Wide, MaskKind::Either)]),
        ("hopper", &Kind::with_masks(Loop::Hopper)),
        ("hopper_packed", &[Kind::of_group(Loop::Hopper, MaskKind::Either)]),
        ("optional", &[Kind::of_head(Loop::Sm80, MaskKind::Options)]),
        ("hopper_optional", &[Kind::of_head(Loop::Hopper, MaskKind::Options)]),
        ("wide_optional", &[Kind::of_head(Loop::Wide, MaskKind::Options)]),
        ("decode_optional", &[Kind::of_group(Loop::Decode, MaskKind::Options)]),
        ("latent", &[Kind::of_group(Loop::Latent, MaskKind::Options)]),
        ("fp8", &Kind::with_masks(Loop::Fp8(Levels::One))),
        ("fp8_two_levels", &Kind::with_masks(Loop::Fp8(Levels::Two))),
        ("fp8_optional", &[Kind::of_head(Loop::Fp8(Levels::One), MaskKind::Options)]),
        ("fp8_two_levels_optional", &[Kind::of_head(Loop::Fp8(Levels::Two), MaskKind::Options)]),
        ("decode_e4m3", &[Kind::of_group(Loop::DecodeE4m3, MaskKind::Options)]),
    ];

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
    pub const fn of_group(main_loop: Loop, mask: MaskKind) -> Self {
        Kind {
            rows: Rows::Group,
            ..Kind::of_head(main_loop, mask)
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
            (Loop::Latent, _) if [dim, dim_v] != [Memory::DIM, Memory::DIM_V] => return None,
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
    use crate::catalog::{HEAD_DIMS, WIDE_DIMS};

    /// A tile of a head dim that the last table lacks would serve no call.
    #[test]
    fn tables_have_the_same_dims() {
        let of_all = Kind::of_group(Loop::Sm80, MaskKind::Either).dims();
        assert!(of_all.eq(HEAD_DIMS.iter().copied()));
        let of_wide = Kind::of_head(Loop::Wide, MaskKind::Either).dims();
        assert!(of_wide.eq(WIDE_DIMS.iter().copied()));
        for kind in Kind::ALL.into_iter().flat_map(|(_, kinds)| kinds) {
            assert!(kind.dims().is_sorted());
            for &class in Class::ALL {
                assert!(kind.dims().all(|dim| kind.tile(class, dim).is_some()));
                let mut rows = kind.tables(class).iter().copied().flatten();
                assert!(rows.all(|(dim, _)| kind.dims().any(|of| of == *dim)));
            }
        }
    }
}
