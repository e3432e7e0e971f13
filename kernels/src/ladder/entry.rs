//! The entry points: one instance of a main loop for each row of the [table](super::table).

use super::fa1::fa1;
use super::naive::naive;
use super::rows::rows;
use super::table::{Q, Shape, all_ladder_kernels};
use super::teams::teams;
use crate::abi::ForwardParams;
use crate::catalog::Accumulation;
use crate::tile::{Accumulator as Single, Bf16, F16, HalfAccumulator as Half};

macro_rules! entries {
    (
        naive { $($naive:ident => $naive_element:ty;)* }
        fa1 { $($fa1:ident => $fa1_element:ty, $fa1_dim:literal;)* }
        rows { $($rows:ident => $rows_element:ty, $rows_sums:ident, $rows_dim:literal, $q:ident;)* }
        teams { $($teams:ident => $teams_element:ty, $teams_sums:ident, $team:literal, $o_tiles:literal;)* }
    ) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn $naive(params: ForwardParams) {
                // SAFETY: the launch is the caller's promise.
                unsafe { naive::<$naive_element>(&params) }
            }
        )*
        $(
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn $fa1(params: ForwardParams) {
                const SHAPE: Shape = Shape::fa1($fa1_dim);
                // SAFETY: the launch is the caller's promise.
                unsafe {
                    fa1::<
                        $fa1_element,
                        { SHAPE.tile().warps as usize },
                        { SHAPE.o_tiles as usize },
                        { SHAPE.n_tiles as usize },
                    >(&params);
                }
            }
        )*
        $(
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn $rows(params: ForwardParams) {
                const SHAPE: Shape = Shape::rows(Accumulation::$rows_sums, $rows_dim, Q::$q);
                // SAFETY: the launch is the caller's promise.
                unsafe {
                    rows::<
                        $rows_element,
                        $rows_sums,
                        { SHAPE.tile().warps as usize },
                        { SHAPE.m_tiles as usize },
                        { SHAPE.o_tiles as usize },
                        { SHAPE.n_tiles as usize },
                        { SHAPE.tile().q_slices as usize },
                    >(&params);
                }
            }
        )*
        $(
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn $teams(params: ForwardParams) {
                const SHAPE: Shape = Shape::teams(Accumulation::$teams_sums, $team, $o_tiles);
                // SAFETY: the launch is the caller's promise.
                unsafe {
                    teams::<
                        $teams_element,
                        $teams_sums,
                        { SHAPE.tile().warps as usize },
                        $team,
                        { SHAPE.m_tiles as usize },
                        { SHAPE.n_tiles as usize },
                        { (SHAPE.n_tiles * $team) as usize },
                        $o_tiles,
                    >(&params);
                }
            }
        )*
    };
}

all_ladder_kernels!(entries);
