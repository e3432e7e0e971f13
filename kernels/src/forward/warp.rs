//! The work of one warp: its rows of Q, O, m and l, and a step of the main loop on them.

use super::non_finite::has_non_finite;
use crate::mask::Mask;
use crate::ptx::barrier;
use crate::tile::{Accumulator, Element, Operand, SharedTile, Softmax, SoftmaxScale};

/// What a warp carries through the loop: `MT` tiles of 16 query rows.
pub struct Warp<const MT: usize, const DT: usize, const Q_IN_REGISTERS: bool> {
    pub(super) lane: u32,
    q_tile: SharedTile<DT>,
    /// Read once if `Q_IN_REGISTERS`, else unused.
    q: [[Operand; DT]; MT],
    pub(super) o: [[Accumulator; DT]; MT],
    pub(super) softmax: Softmax<MT>,
}

impl<const MT: usize, const DT: usize, const Q_IN_REGISTERS: bool> Warp<MT, DT, Q_IN_REGISTERS> {
    /// Takes the warp's rows of the Q tile.
    ///
    /// # Safety
    /// As all of these: every lane of the warp makes the same call, and shared tiles are written
    /// and visible.
    #[inline(always)]
    pub unsafe fn new(lane: u32, q_tile: SharedTile<DT>, scale: SoftmaxScale) -> Self {
        let mut warp = Warp {
            lane,
            q_tile,
            q: [[Operand::ZERO; DT]; MT],
            o: [[Accumulator::ZERO; DT]; MT],
            softmax: Softmax::new(scale),
        };
        // SAFETY: the caller's promise; nobody but this warp uses its rows of the tile.
        unsafe {
            if scale.negative {
                for mt in 0..MT {
                    for dt in 0..DT {
                        let q = q_tile.a(lane, mt, dt).negate();
                        barrier::warp();
                        q_tile.set(lane, mt, dt, q);
                    }
                }
                barrier::warp();
            }
            if Q_IN_REGISTERS {
                for mt in 0..MT {
                    for dt in 0..DT {
                        warp.q[mt][dt] = q_tile.a(lane, mt, dt);
                    }
                }
            }
        }
        warp
    }

    /// `f` of the two rows a lane holds in each tile, counted from the warp's first.
    #[inline(always)]
    pub fn map_rows<T: Copy + Default>(&self, f: impl Fn(u32) -> T) -> [[T; 2]; MT] {
        let mut values = [[T::default(); 2]; MT];
        for mt in 0..MT {
            for r in 0..2 {
                values[mt][r] = f(16 * mt as u32 + self.lane / 4 + 8 * r as u32);
            }
        }
        values
    }

    /// `S = Q K^T`.
    #[inline(always)]
    pub unsafe fn scores<E: Element, const NT: usize>(
        &self,
        k_tile: SharedTile<DT>,
    ) -> [[Accumulator; NT]; MT] {
        let mut s = [[Accumulator::ZERO; NT]; MT];
        for dt in 0..DT {
            // SAFETY: the caller's promise.
            unsafe {
                let mut q = [Operand::ZERO; MT];
                for mt in 0..MT {
                    q[mt] = if Q_IN_REGISTERS {
                        self.q[mt][dt]
                    } else {
                        self.q_tile.a(self.lane, mt, dt)
                    };
                }
                for nt in 0..NT {
                    let k = k_tile.b(self.lane, nt, dt);
                    for mt in 0..MT {
                        s[mt][nt].mma::<E>(q[mt], k);
                    }
                }
            }
        }
        s
    }

    /// `P = softmax(S)`, `O += P V`. If `MASKED`, a row sees only the first `visible` keys of the
    /// block.
    #[inline(always)]
    pub unsafe fn accumulate<E: Element, M: Mask, const NT: usize, const MASKED: bool>(
        &mut self,
        mut s: [[Accumulator; NT]; MT],
        v_tile: SharedTile<DT>,
        visible: [[i32; 2]; MT],
    ) {
        let lane = self.lane;
        // SAFETY: the caller's promise.
        unsafe {
            if MASKED {
                for mt in 0..MT {
                    for nt in 0..NT {
                        s[mt][nt].mask_columns(lane, visible[mt].map(|v| v - 16 * nt as i32));
                    }
                }
            }

            let factors = self.softmax.update(&mut s);
            for mt in 0..MT {
                for dt in 0..DT {
                    self.o[mt][dt].scale_rows(factors[mt]);
                }
            }

            let mut p = [[Operand::ZERO; NT]; MT];
            for mt in 0..MT {
                for nt in 0..NT {
                    p[mt][nt] = s[mt][nt].to_operand::<E>();
                }
            }
            if MASKED && M::CAUSAL && has_non_finite::<E, DT, NT>(v_tile, lane) {
                self.add_guarded::<E, NT>(p, v_tile, visible);
            } else {
                self.add::<E, NT>(p, v_tile);
            }
        }
    }

    /// `O += P V`.
    #[inline(always)]
    unsafe fn add<E: Element, const NT: usize>(
        &mut self,
        p: [[Operand; NT]; MT],
        v_tile: SharedTile<DT>,
    ) {
        for nt in 0..NT {
            for dt in 0..DT {
                // SAFETY: the caller's promise.
                unsafe {
                    let v = v_tile.b_trans(self.lane, nt, dt);
                    for mt in 0..MT {
                        self.o[mt][dt].mma::<E>(p[mt][nt], v);
                    }
                }
            }
        }
    }
}
