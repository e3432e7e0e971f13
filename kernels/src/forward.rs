//! FlashAttention-2 forward (Dao 2023, Algorithm 1), one query tile a block.
//!
//! A block holds Br query rows, split over its warps in 16-row tiles, and walks over the keys in
//! blocks of Bc, from the last visible one to the first: the masked blocks come first. K and V are
//! double-buffered: the copies of the next block run beside both products of this one, behind one
//! barrier a block.
//!
//! Shared memory holds the Q tile, later O, and then K and V of each stage.

use crate::mask::Mask;
use crate::params::{ForwardParams, TensorRef};
use crate::ptx::{barrier, cp_async, global, shared, shuffle, special};
use crate::tile::{
    Accumulator, Copier, Element, GlobalRows, Operand, SharedTile, Softmax, SoftmaxScale,
};

/// Computes the block's tile of O and lse.
///
/// The block has `W` warps, each with `MT` tiles of 16 query rows; the head dim is at most
/// `16 * DT`, and a step takes `16 * NT` keys.
///
/// # Safety
/// Launched as [`ForwardParams`] and the kernel's row of the [table](crate::table) say: grid, block
/// size and shared memory, with tensors that are readable (q, k, v) and writable (o, lse) in full.
#[inline(always)]
pub unsafe fn forward<
    E: Element,
    M: Mask,
    const W: usize,
    const MT: usize,
    const DT: usize,
    const NT: usize,
    const Q_IN_REGISTERS: bool,
>(
    p: &ForwardParams,
) {
    let (br, bc) = ((16 * MT * W) as u32, (16 * NT) as u32);
    let threads = 32 * W as u32;
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(threads) };
    let (lane, warp) = (thread % 32, thread / 32);
    let place = Place::of_block(p, br);
    let (first, kv_head) = (place.first, place.head / p.group);
    let q = Copier::new(place.rows(&p.q, place.head), thread, threads);
    let k = Copier::new(place.rows(&p.k, kv_head), thread, threads);
    let v = Copier::new(place.rows(&p.v, kv_head), thread, threads);

    let mask = M::new(p.seqlen_q, p.seqlen_kv);
    let trips = mask.trip_count((first + br).min(p.seqlen_q) as i32 - 1, bc);
    let unmasked_trips = mask.unmasked_trip_count(first as i32, bc);

    let qo_tile = SharedTile::<DT> {
        base: shared::base(),
    };
    let k_tile = |j: u32| qo_tile.skip(br + j % 2 * 2 * bc);
    let v_tile = |j: u32| k_tile(j).skip(bc);
    // SAFETY: called when no thread reads the stage any more; readers wait for the copies.
    let load_kv = |j: u32, exist: u32| unsafe {
        k.load(k_tile(j), j * bc, bc, exist);
        v.load(v_tile(j), j * bc, bc, exist);
    };

    // SAFETY: every branch here depends on the block alone, so all threads reach every barrier and
    // all lanes every tensor-core instruction. The barrier at the top of a step makes block j
    // visible and tells that all warps are done with block j + 1, whose stage is loaded next.
    unsafe {
        q.load(qo_tile, first, br, p.seqlen_q - first);
        if trips > 0 {
            load_kv(trips - 1, p.seqlen_kv - (trips - 1) * bc);
        }
        cp_async::commit();
        cp_async::wait_all();
        barrier::block();

        // The warp's first row in the tile and in the sequence.
        let (warp_row, row) = (warp * 16 * MT as u32, first + warp * 16 * MT as u32);
        let warp_tile = qo_tile.skip(warp_row);
        let mut warp =
            Warp::<MT, DT, Q_IN_REGISTERS>::new(lane, warp_tile, SoftmaxScale::new(p.scale));
        let turn = |j: u32| {
            cp_async::wait_all();
            barrier::block();
            if j > 0 {
                load_kv(j - 1, bc);
            }
            cp_async::commit();
        };
        let mut j = trips;
        while j > unmasked_trips {
            j -= 1;
            turn(j);
            let visible = |i| mask.limit((row + i) as i32) - (j * bc) as i32;
            let visible = warp.map_rows(visible);
            warp.step::<E, M, NT, true>(k_tile(j), v_tile(j), visible);
        }
        while j > 0 {
            j -= 1;
            turn(j);
            warp.step::<E, M, NT, false>(k_tile(j), v_tile(j), [[bc as i32; 2]; MT]);
        }

        // Asked for again: over the loop these would hold registers.
        let place = Place::of_block(p, br);
        let thread = special::thread(threads);
        let (lane, warp_row) = (thread % 32, thread / 32 * 16 * MT as u32);
        let row = place.first + warp_row;
        let o_tile = SharedTile::<DT> {
            base: shared::base(),
        }
        .skip(warp_row);
        // A warp past the ragged end of the queries has nothing to store.
        if row < p.seqlen_q {
            let exist = p.seqlen_q - row;
            warp.finish::<E>(lane, o_tile, place.lse(p) + 4 * u64::from(row), exist);
            let o = Copier::new(place.rows(&p.o, place.head), lane, 32);
            o.store(o_tile, row, 16 * MT as u32, exist);
        }
    }
}

/// The query tile of a block.
struct Place {
    batch: u32,
    head: u32,
    /// First row.
    first: u32,
    dim: u32,
    aligned: u32,
}

impl Place {
    #[inline(always)]
    fn of_block(p: &ForwardParams, br: u32) -> Self {
        let (block, q_tiles) = (special::block(), p.q_tiles);
        Place {
            batch: block / q_tiles / p.heads,
            head: block / q_tiles % p.heads,
            first: block % q_tiles * br,
            dim: special::opaque(p.dim),
            aligned: special::opaque(p.aligned),
        }
    }

    /// The rows of a head of a tensor, in this batch.
    #[inline(always)]
    fn rows(&self, tensor: &TensorRef, head: u32) -> GlobalRows {
        let batch = i64::from(self.batch) * tensor.batch_stride;
        let offset = batch + i64::from(head) * tensor.head_stride;
        GlobalRows {
            address: tensor.address.wrapping_add_signed(2 * offset),
            row_bytes: 2 * tensor.row_stride,
            dim: self.dim,
            aligned: self.aligned != 0,
        }
    }

    /// Address of the lse of the head's row 0.
    #[inline(always)]
    fn lse(&self, p: &ForwardParams) -> u64 {
        let head = u64::from(self.batch) * u64::from(p.heads) + u64::from(self.head);
        p.lse + 4 * head * u64::from(p.seqlen_q)
    }
}

/// What a warp carries through the loop: `MT` tiles of 16 query rows.
struct Warp<const MT: usize, const DT: usize, const Q_IN_REGISTERS: bool> {
    lane: u32,
    q_tile: SharedTile<DT>,
    /// Read once if `Q_IN_REGISTERS`, else unused.
    q: [[Operand; DT]; MT],
    o: [[Accumulator; DT]; MT],
    softmax: Softmax<MT>,
}

impl<const MT: usize, const DT: usize, const Q_IN_REGISTERS: bool> Warp<MT, DT, Q_IN_REGISTERS> {
    /// Takes the warp's rows of the Q tile.
    ///
    /// # Safety
    /// As all of these: every lane of the warp makes the same call, and shared tiles are written
    /// and visible.
    #[inline(always)]
    unsafe fn new(lane: u32, q_tile: SharedTile<DT>, scale: SoftmaxScale) -> Self {
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
    fn map_rows<T: Copy + Default>(&self, f: impl Fn(u32) -> T) -> [[T; 2]; MT] {
        let mut values = [[T::default(); 2]; MT];
        for mt in 0..MT {
            for r in 0..2 {
                values[mt][r] = f(16 * mt as u32 + self.lane / 4 + 8 * r as u32);
            }
        }
        values
    }

    /// One block of keys: `S = Q K^T`, `P = softmax(S)`, `O += P V`. If `MASKED`, a row sees only
    /// the first `visible` keys of the block.
    #[inline(always)]
    unsafe fn step<E: Element, M: Mask, const NT: usize, const MASKED: bool>(
        &mut self,
        k_tile: SharedTile<DT>,
        v_tile: SharedTile<DT>,
        visible: [[i32; 2]; MT],
    ) {
        let lane = self.lane;
        let mut s = [[Accumulator::ZERO; NT]; MT];
        // SAFETY: the caller's promise.
        unsafe {
            for dt in 0..DT {
                let mut q = [Operand::ZERO; MT];
                for mt in 0..MT {
                    q[mt] = if Q_IN_REGISTERS {
                        self.q[mt][dt]
                    } else {
                        self.q_tile.a(lane, mt, dt)
                    };
                }
                for nt in 0..NT {
                    let k = k_tile.b(lane, nt, dt);
                    for mt in 0..MT {
                        s[mt][nt].mma::<E>(q[mt], k);
                    }
                }
            }
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

    /// `O += P V` where V holds an infinity or a NaN that some row must not see: there P = 0, and 0
    /// times it is NaN. So it counts as 0, and O becomes NaN where a row sees it: where the product
    /// of visibility and non-finiteness, both 0 or 1, is not 0.
    #[inline(always)]
    unsafe fn add_guarded<E: Element, const NT: usize>(
        &mut self,
        p: [[Operand; NT]; MT],
        v_tile: SharedTile<DT>,
        visible: [[i32; 2]; MT],
    ) {
        for dt in 0..DT {
            for mt in 0..MT {
                let mut count = Accumulator::ZERO;
                // SAFETY: the caller's promise.
                unsafe { barrier::warp() }
                for nt in 0..NT {
                    let limits = visible[mt].map(|v| v - 16 * nt as i32);
                    let seen = Operand::ones_below::<E>(self.lane, limits);
                    // SAFETY: the caller's promise.
                    unsafe {
                        let v = v_tile.b_trans(self.lane, nt, dt);
                        let (finite, non_finite) = v.split_non_finite::<E>();
                        self.o[mt][dt].mma::<E>(p[mt][nt], finite);
                        count.mma::<E>(seen, non_finite);
                    }
                }
                for i in 0..8 {
                    if count.0[i] != 0.0 {
                        self.o[mt][dt].0[i] = f32::NAN;
                    }
                }
            }
        }
    }

    /// Normalizes O and writes it to the warp's rows of the Q tile, from where it can leave in
    /// 16-byte pieces; stores lse, of which the first `exist` rows exist.
    #[inline(always)]
    unsafe fn finish<E: Element>(
        mut self,
        lane: u32,
        o_tile: SharedTile<DT>,
        lse: u64,
        exist: u32,
    ) {
        for mt in 0..MT {
            // SAFETY: the caller's promise; nobody but this warp uses its rows of the tile, and one
            // lane of four stores the lse of a row.
            unsafe {
                let (factors, row_lse) = self.softmax.finish(mt);
                for dt in 0..DT {
                    self.o[mt][dt].scale_rows(factors);
                    o_tile.set(lane, mt, dt, self.o[mt][dt].to_operand::<E>());
                }
                for r in 0..2 {
                    let row = (16 * mt + 8 * r) as u32 + lane / 4;
                    if lane % 4 == 0 && row < exist {
                        global::store_f32(lse + 4 * u64::from(row), row_lse[r]);
                    }
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { barrier::warp() }
    }
}

/// Whether a tile of V holds an infinity or a NaN: the same answer in all lanes.
///
/// # Safety
/// Every lane of the warp makes the same call, and the tile is written and visible.
#[inline(always)]
unsafe fn has_non_finite<E: Element, const DT: usize, const NT: usize>(
    v_tile: SharedTile<DT>,
    lane: u32,
) -> bool {
    let mut found = 0;
    for nt in 0..NT {
        for dt in 0..DT {
            // SAFETY: the caller's promise.
            found |= unsafe { v_tile.b_trans(lane, nt, dt) }.non_finite::<E>();
        }
    }
    // SAFETY: the caller's promise.
    unsafe { shuffle::or(found) != 0 }
}
