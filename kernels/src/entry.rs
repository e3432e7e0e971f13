//! The entry points: one instance of a generic kernel for each row of the table.

use crate::abi::GemmParams;
use crate::abi::{ForwardParams, PackParams};
use crate::attention::combine::combine;
use crate::attention::forward::{decode, sm80, team, wide};
use crate::attention::heads::{HeadGroup, OneHead};
use crate::attention::mask::{Causal, Either, Full};
use crate::attention::pack::pack as pack_rows;
use crate::attention::score::Scaled;
use crate::catalog::GemmTile;
use crate::catalog::class::Class;
use crate::catalog::{COMBINE_TILE, Family, PACK_TILE, Tile, all_kernels, family};
use crate::gemm::{multistage, simple};
use crate::tile::{Accumulator as Single, Bf16, F16, HalfAccumulator as Half};

/// The mask by the table's word.
macro_rules! mask {
    (Packed) => {
        Either
    };
    ($mask:ident) => {
        $mask
    };
}

/// The packing by the table's word for the mask.
macro_rules! heads {
    (Packed) => {
        HeadGroup
    };
    ($mask:ident) => {
        OneHead
    };
}

macro_rules! entries {
    (
        forward { $($forward:ident => $forward_element:ty, $forward_dim:literal, $mask:ident, $forward_class:ident;)* }
        forward_shared_rows { $($shared:ident => $shared_element:ty, $shared_dim:literal, $shared_mask:ident, $shared_class:ident;)* }
        decode { $($decode:ident => $decode_element:ty, $decode_dim:literal, $decode_class:ident;)* }
        wide { $($wide:ident => $wide_element:ty, $wide_dim:literal, $wide_class:ident;)* }
        combine { $($combine:ident => $combine_element:ty;)* }
        pack { $($pack:ident;)* }
        gemm_simple { $($simple:ident => $simple_element:ty, $simple_sums:ty;)* }
        gemm_multistage { $($multistage:ident => $multistage_element:ty, $multistage_sums:ty, [$($size:literal),*];)* }
    ) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn $forward(params: ForwardParams) {
                const FAMILY: Family = family!($mask);
                const TILE: Tile = Class::$forward_class.tile(FAMILY, $forward_dim);
                const {
                    assert!(TILE.stages == 2, "K and V are double-buffered");
                    assert!(TILE.team == 1, "a warp has its rows for itself");
                }
                // SAFETY: the launch is the caller's promise.
                unsafe {
                    sm80::<
                        $forward_element,
                        mask!($mask),
                        heads!($mask),
                        Scaled,
                        { TILE.warps as usize },
                        { (TILE.q_rows / TILE.warps / 16) as usize },
                        { $forward_dim / 16 },
                        { (TILE.keys / 16) as usize },
                        { TILE.q_slices as usize },
                    >(&params);
                }
            }
        )*
        $(
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn $shared(params: ForwardParams) {
                const FAMILY: Family = family!($shared_mask);
                const TILE: Tile = Class::$shared_class.tile(FAMILY, $shared_dim);
                const {
                    assert!(TILE.stages == 1, "K and V have a buffer each");
                }
                // SAFETY: the launch is the caller's promise.
                unsafe {
                    team::<
                        $shared_element,
                        mask!($shared_mask),
                        heads!($shared_mask),
                        Scaled,
                        { TILE.warps as usize },
                        { TILE.team as usize },
                        { (TILE.q_rows * TILE.team / TILE.warps / 16) as usize },
                        { $shared_dim / 16 },
                        { $shared_dim / 16 / TILE.team as usize },
                        { (TILE.keys / 16) as usize },
                        { (TILE.keys / TILE.team / 16) as usize },
                        { TILE.q_slices as usize },
                    >(&params);
                }
            }
        )*
        $(
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn $decode(params: ForwardParams) {
                const TILE: Tile = Class::$decode_class.tile(Family::Decode, $decode_dim);
                const {
                    assert!(TILE.stages >= 2, "two stages or more");
                    assert!(TILE.q_rows == 16 * TILE.warps, "16 rows a warp");
                }
                // SAFETY: the launch is the caller's promise.
                unsafe {
                    decode::<
                        $decode_element,
                        Either,
                        HeadGroup,
                        Scaled,
                        { TILE.warps as usize },
                        { $decode_dim / 16 },
                        { (TILE.keys / 16) as usize },
                        { TILE.q_slices as usize },
                        { TILE.stages as usize },
                    >(&params);
                }
            }
        )*
        $(
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn $wide(params: ForwardParams) {
                const TILE: Tile = Class::$wide_class.tile(Family::Wide, $wide_dim);
                const V_KEYS: u32 = TILE.keys / TILE.v_slices;
                const {
                    assert!(TILE.stages >= 2, "two stages or more");
                    assert!(TILE.q_rows == 32 * TILE.warps / TILE.team, "32 rows a warp");
                    assert!(TILE.keys == 32 * TILE.team, "32 keys a warp");
                }
                // SAFETY: the launch is the caller's promise.
                unsafe {
                    wide::<
                        $wide_element,
                        Either,
                        OneHead,
                        Scaled,
                        { TILE.warps as usize },
                        { TILE.team as usize },
                        { $wide_dim / 16 },
                        { $wide_dim / 16 / TILE.team as usize },
                        { (TILE.keys / 16) as usize },
                        { (V_KEYS / 16) as usize },
                        { if V_KEYS == 16 { 1 } else { 2 } },
                        { TILE.stages as usize },
                    >(&params);
                }
            }
        )*
        $(
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn $combine(params: ForwardParams) {
                // SAFETY: the launch is the caller's promise.
                unsafe { combine::<$combine_element, { COMBINE_TILE.warps as usize }>(&params) }
            }
        )*
        $(
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn $pack(params: PackParams) {
                // SAFETY: the launch is the caller's promise.
                unsafe {
                    pack_rows::<{ PACK_TILE.warps as usize }, { PACK_TILE.q_rows }>(&params);
                }
            }
        )*
        $(
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn $simple(params: GemmParams) {
                const TILE: GemmTile = GemmTile::SIMPLE;
                // SAFETY: the launch is the caller's promise.
                unsafe {
                    simple::<
                        $simple_element,
                        $simple_sums,
                        { TILE.warps_down as usize },
                        { TILE.warps_across as usize },
                        { (TILE.rows / TILE.warps_down / 16) as usize },
                        { (TILE.columns / TILE.warps_across / 16) as usize },
                    >(&params);
                }
            }
        )*
        $(
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn $multistage(params: GemmParams) {
                const TILE: GemmTile = GemmTile::multistage($($size),*);
                const {
                    assert!(TILE.stages >= 2 && TILE.depth >= 32, "a stage and a slice ahead");
                }
                // SAFETY: the launch is the caller's promise.
                unsafe {
                    multistage::<
                        $multistage_element,
                        $multistage_sums,
                        { TILE.warps_down as usize },
                        { TILE.warps_across as usize },
                        { (TILE.rows / TILE.warps_down / 16) as usize },
                        { (TILE.columns / TILE.warps_across / 16) as usize },
                        { (TILE.depth / 16) as usize },
                        { TILE.stages as usize },
                    >(&params);
                }
            }
        )*
    };
}

all_kernels!(entries);
