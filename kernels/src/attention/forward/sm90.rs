//! The forward kernel for Hopper: a producer warp loads by TMA, warpgroups of consumers multiply by `wgmma`.
//!
//! Blocks are persistent: each takes tiles until none is left. A tile has Br = 64 W query rows, 64 for each of `W`
//! warpgroups. The producer walks over the keys of the tile in blocks of Bc, from the last visible one to the first,
//! through `S` stages. Each warpgroup walks behind it, at its own pace.
//!
//! Two schedules of the consumers:
//!
//! - *Overlap*: while the tensor cores add `P V` of a block to O, and before that compute the scores of the next one,
//!   the warpgroup turns these scores into probabilities. It needs registers for S and P at once.
//! - *Serial*: scores, softmax, `P V`, one after the other. More warpgroups fill the tensor cores in turns.
//!
//! The first blocks, at the edge of the mask, take exact maxima. The others try the maxima of the blocks before: see
//! [`Softmax`].

use crate::abi::{ForwardParams, MAX_SEQLEN, Sm90Params};
use crate::attention::heads::Heads;
use crate::attention::mask::{Interval, Mask, Prefix, seen_blocks};
use crate::attention::score::Score;
use crate::attention::sequence::Sequence;
use crate::attention::{Softmax, Total, WorkTile};
use crate::layout::descriptor::Panels;
use crate::layout::fragment;
use crate::layout::rows::Rows;
use crate::layout::sm90::Sm90Memory;
use crate::ptx::wgmma::{self, Product};
use crate::ptx::{
    barrier, bulk, global, ldmatrix, mbarrier, setmaxnreg, shared, shuffle, special, tensor, vote,
};
use crate::tile::registers::{again, fence, opaque};
use crate::tile::whole::{map_rows, mask, to_operands};
use crate::tile::{Accumulator, Element, Operand, Ring};
use core::hint::{assert_unchecked, cold_path};

/// Rows of a warpgroup.
const ROWS: u32 = 64;

/// Computes tiles of O and lse, each on its split of the keys.
///
/// `W` warpgroups consume, and one more produces. The head dim is at most `16 * DT`, and a step takes `16 * NT` keys.
/// `GIVEN` registers stay with the producer's threads, `TAKEN` are a consumer's.
///
/// # Safety
/// Launched as [`Sm90Params`] and the kernel's row of the [catalog](crate::catalog) say, with tensors that are
/// readable (q, k, v) and writable (o, lse) in full; `maps` is the generic address of `params`.
#[inline(always)]
pub unsafe fn sm90<
    E: Element,
    M: Mask<Keys = Prefix>,
    H: Heads,
    C: Score,
    const W: u32,
    const DT: usize,
    const NT: usize,
    const S: u32,
    const OVERLAP: bool,
    const GIVEN: u32,
    const TAKEN: u32,
>(
    params: &Sm90Params,
    maps: u64,
) where
    [Accumulator; DT]: Product,
    [Accumulator; NT]: Product,
{
    let memory = Sm90Memory::new(
        shared::base(),
        [W * ROWS, 16 * NT as u32, 16 * DT as u32],
        S,
    );
    // SAFETY: the launch has this many threads a block. All of them reach the barrier; then each warpgroup has its
    // role.
    unsafe {
        let thread = special::thread(128 * (W + 1));
        if thread == 0 {
            for warpgroup in 0..W {
                mbarrier::init(memory.q_full(warpgroup), 1);
                mbarrier::init(memory.q_full(warpgroup) + 8, 4);
            }
            for stage in 0..2 * S {
                mbarrier::init(memory.k_full(stage), 1);
                mbarrier::init(memory.k_full(stage) + 8, 4 * W);
            }
            mbarrier::fence_init();
        }
        if thread < Sm90Memory::ZERO_BYTES / 16 {
            shared::store_u32x4(memory.zeros() + 16 * thread, [0; 4]);
            bulk::fence();
        }
        barrier::block();
        // The same in all lanes, which the assembler sees.
        let warpgroup = shuffle::of_lane(f32::from_bits(thread / 128), 0).to_bits();
        if warpgroup == W {
            setmaxnreg::decrease::<GIVEN>();
            if thread == 128 * W {
                produce::<M, H, W, DT, NT, S>(params, maps, memory);
            }
        } else {
            setmaxnreg::increase::<TAKEN>();
            consume::<E, M, H, C, W, DT, NT, S, OVERLAP>(&params.forward, memory, warpgroup);
        }
    }
}

/// Which tile a block computes. The producer decides, and the consumers read it from shared memory: where a tile
/// lies takes divisions, and the results would take their registers.
#[derive(Clone, Copy)]
struct Job {
    /// The split of the keys.
    split: u32,
    batch: u32,
    /// The number of the tile's heads in the batch entry.
    head: u32,
    /// The first row. Tiles end at the last row, so that the first one may start before row 0.
    first: i32,
}

impl Job {
    /// No tile is left.
    const NONE: Self = Job {
        split: u32::MAX,
        batch: 0,
        head: 0,
        first: 0,
    };

    /// The job at a place of the order, in tiles of `br` rows.
    #[inline(always)]
    fn at<H: Heads>(params: &ForwardParams, place: u32, br: u32) -> Self {
        let (split, tile, head) = params.order.place(place);
        let (batch, head) = params.tile_heads.divide(head);
        let rows = H::new(params, head).row_count(Sequence::new(params, batch).queries);
        Job {
            split,
            batch,
            head,
            first: (tile * br + rows) as i32 - (rows.div_ceil(br) * br) as i32,
        }
    }

    #[inline(always)]
    unsafe fn load(address: u32) -> Self {
        // SAFETY: the caller's promise.
        let [split, batch, head, first] = unsafe { shared::load_u32x4(address) };
        let first = first as i32;
        Job {
            split,
            batch,
            head,
            first,
        }
    }

    #[inline(always)]
    unsafe fn store(self, address: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            shared::store_u32x4(
                address,
                [self.split, self.batch, self.head, self.first as u32],
            );
        }
    }
}

/// A tile, its mask, and the rows that a block or a warpgroup has of it.
struct Part<H, M> {
    work: WorkTile<H>,
    mask: M,
    /// The first row.
    first: i32,
    rows: i32,
    /// Keys before the split.
    keys: u32,
}

impl<H: Heads, M: Mask<Keys = Prefix>> Part<H, M> {
    /// The rows of a job from row `skip` of its tile on.
    #[inline(always)]
    fn new(params: &ForwardParams, job: Job, skip: u32) -> Self {
        let work = WorkTile::<H>::new(params, job.split, job.batch, job.head, 0);
        let split = work.keys(params);
        // Else the mask checks the order of its bounds, and the code that both roles then share makes the assembler
        // ignore the consumers' registers.
        // SAFETY: a launch has no longer sequence.
        unsafe { assert_unchecked(split.keys <= MAX_SEQLEN) }
        Part {
            mask: M::new(params, work.sequence, split),
            first: job.first + skip as i32,
            rows: work.row_count() as i32,
            keys: split.first,
            work,
        }
    }

    /// What the first and the last of `count` rows see that exist.
    #[inline(always)]
    fn ends(&self, count: u32) -> [Prefix; 2] {
        let last = self.first + count as i32 - 1;
        [self.keys_of(self.first), self.keys_of(last)]
    }

    /// The keys of a row, or of the first row if it lies before it.
    #[inline(always)]
    fn keys_of(&self, row: i32) -> Prefix {
        self.mask.keys(self.work.query(row.max(0) as u32))
    }

    /// How many blocks some of the first `count` rows see: none if no such row exists.
    #[inline(always)]
    fn blocks(&self, count: u32, bc: u32) -> u32 {
        match self.first + count as i32 > 0 {
            true => seen_blocks(self.ends(count), bc).end,
            false => 0,
        }
    }
}

/// Loads Q, K and V of the block's tiles.
#[inline(always)]
unsafe fn produce<
    M: Mask<Keys = Prefix>,
    H: Heads,
    const W: u32,
    const DT: usize,
    const NT: usize,
    const S: u32,
>(
    params: &Sm90Params,
    maps: u64,
    memory: Sm90Memory,
) {
    let (br, bc) = (W * ROWS, 16 * NT as u32);
    let [q_map, k_map, v_map] = [maps, maps + 128, maps + 256];
    let width = Panels::width_for(16 * DT as u32);
    // SAFETY: the barriers count what is loaded, and the stages' consumers; the boxes fit their places.
    unsafe {
        let load =
            |to: Panels, map: u64, full: u32, bytes: u32, row: i32, head: u32, batch: u32| {
                mbarrier::arrive_expect(full, bytes);
                let mut panel = 0;
                while panel < 16 * DT as u32 / width {
                    let place = [(panel * width) as i32, row, head as i32, batch as i32];
                    tensor::load(to.base + panel * to.panel_bytes(), map, place, full);
                    // Opaque: the loop stays one.
                    panel = opaque(panel + 1);
                }
            };
        let mut q = Ring::<1>(0);
        let mut place = Ring::<S>(0);
        let mut tile = special::block();
        // There are no more blocks than tiles.
        loop {
            let job = Job::at::<H>(&params.forward, tile, br);
            let part = Part::<H, M>::new(&params.forward, job, 0);
            // Blocks that are done early take more tiles, where a counter tells which are left.
            tile = match params.counter {
                0 => tile + special::blocks(),
                counter => special::blocks() + global::count(counter, params.tiles - 1),
            };
            let (batch, head) = (part.work.sequence.batch, part.work.heads.kv_head());
            let load_k = |place: Ring<S>, j: u32| {
                let (k, full) = (memory.k(place.stage()), memory.k_full(place.stage()));
                place.acquire(full);
                let row = (part.keys + j * bc) as i32;
                load(k, k_map, full, memory.kv_bytes(), row, head, batch);
            };
            // In the order in which the consumers need them; the first K does not wait for the end of the last tile.
            let mut j = part.blocks(br, bc);
            if j > 0 {
                load_k(place, j - 1);
            }
            // Each warpgroup goes on when its own rows are there: they do not wait for one another.
            let mut warpgroup = 0;
            while warpgroup < W {
                let full = memory.q_full(warpgroup);
                q.acquire(full);
                job.store(memory.job(warpgroup));
                let row = part.first + (warpgroup * ROWS) as i32;
                let (to, bytes) = (memory.q(warpgroup), memory.q_bytes());
                load(to, q_map, full, bytes, row, part.work.heads.first(), batch);
                warpgroup = opaque(warpgroup + 1);
            }
            q = q.next();
            while j > 0 {
                j = opaque(j - 1);
                if j > 0 {
                    load_k(place.next(), j - 1);
                }
                let (v, full) = (memory.v(place.stage()), memory.v_full(place.stage()));
                place.acquire(full);
                let row = (part.keys + j * bc) as i32;
                load(v, v_map, full, memory.kv_bytes(), row, head, batch);
                place = place.next();
            }
            if tile >= params.tiles {
                break;
            }
        }
        let mut warpgroup = 0;
        while warpgroup < W {
            q.acquire(memory.q_full(warpgroup));
            Job::NONE.store(memory.job(warpgroup));
            mbarrier::arrive(memory.q_full(warpgroup));
            warpgroup = opaque(warpgroup + 1);
        }
    }
}

/// A warpgroup's way through the stages, and where it reads.
struct Consumer<const DT: usize, const NT: usize, const S: u32, const OVERLAP: bool> {
    memory: Sm90Memory,
    warpgroup: u32,
    /// The block of keys whose scores are in work. V of the block before may be in work, too.
    block: Ring<S>,
}

impl<const DT: usize, const NT: usize, const S: u32, const OVERLAP: bool>
    Consumer<DT, NT, S, OVERLAP>
where
    [Accumulator; DT]: Product,
    [Accumulator; NT]: Product,
{
    /// Passes a block by that the warpgroup does not see.
    #[inline(always)]
    unsafe fn pass(&mut self) {
        let (k, v) = (
            self.memory.k_full(self.block.stage()),
            self.memory.v_full(self.block.stage()),
        );
        // To release a stage without a wait could count in the wrong phase.
        // SAFETY: the caller's promise.
        unsafe {
            self.block.wait(k);
            self.block.release(k);
            self.block.wait(v);
            self.block.release(v);
        }
        self.block = self.block.next();
    }

    /// Line 8: `S = Q K^T`, issued as a group.
    #[inline(always)]
    unsafe fn issue_scores<E: Element>(&self, s: &mut [Accumulator; NT]) {
        // Opaque: the compiler would hold each operand's word over the tile.
        let q = self.memory.q(opaque(self.warpgroup));
        let k = self.memory.k(self.block.stage());
        // SAFETY: the caller's promise.
        unsafe {
            self.block.wait(self.memory.k_full(self.block.stage()));
            wgmma::fence();
            let (a, b) = (q.rows(0), k.rows(0));
            for dt in 0..DT as u32 {
                let (a, b) = (a.skip(q.to_columns(dt)), b.skip(k.to_columns(dt)));
                match (E::IS_BF16, dt > 0) {
                    (false, false) => s.rows::<false, false>(a, b),
                    (false, true) => s.rows::<false, true>(a, b),
                    (true, false) => s.rows::<true, false>(a, b),
                    (true, true) => s.rows::<true, true>(a, b),
                }
            }
            wgmma::commit();
        }
    }

    /// Line 10: `O += P V`, issued as a group; `O += P 0` where `V` is to be left out.
    #[inline(always)]
    unsafe fn issue_product<E: Element>(
        &self,
        block: Ring<S>,
        o: &mut [Accumulator; DT],
        p: &[Operand; NT],
        leave_out: bool,
    ) {
        let v = self.memory.v(block.stage());
        // SAFETY: the caller's promise.
        unsafe {
            block.wait(self.memory.v_full(block.stage()));
            wgmma::pin(o);
            wgmma::fence();
            let mut b = v.columns();
            if leave_out {
                // Without strides all rows and columns are the same few.
                b.low = self.memory.zeros() / 16;
                b.high &= !0xffff;
            }
            // Opaque, so that the compiler makes no branches of the choice.
            b.low = opaque(b.low);
            b.high = opaque(b.high);
            let step = opaque(if leave_out { 0 } else { v.to_rows(1) / 16 });
            for nt in 0..NT {
                let mut b = b;
                b.low += nt as u32 * step;
                match E::IS_BF16 {
                    false => o.columns::<false>(p[nt].0, b),
                    true => o.columns::<true>(p[nt].0, b),
                }
            }
            wgmma::commit();
        }
    }

    /// `O += P V` of a block, and the scores of the next one, [waited for](Self::wait_scores) later.
    #[inline(always)]
    unsafe fn issue_step<E: Element>(
        &mut self,
        s: &mut [Accumulator; NT],
        o: &mut [Accumulator; DT],
        p: &[Operand; NT],
        leave_out: bool,
    ) {
        let last = self.block;
        self.block = last.next();
        // SAFETY: the caller's promise.
        unsafe {
            if OVERLAP {
                self.issue_scores::<E>(s);
                self.issue_product::<E>(last, o, p, leave_out);
            } else {
                self.finish::<E>(last, o, p, leave_out);
                self.issue_scores::<E>(s);
            }
        }
    }

    /// Waits for the scores, after which `PENDING` groups were issued.
    #[inline(always)]
    unsafe fn wait_scores<const PENDING: u32>(&self, s: &mut [Accumulator; NT]) {
        // SAFETY: the caller's promise.
        unsafe {
            match OVERLAP {
                true => wgmma::wait::<PENDING>(),
                false => wgmma::wait::<0>(),
            }
            wgmma::pin(s);
        }
    }

    /// Waits for O: after this it may be scaled, and P replaced.
    #[inline(always)]
    unsafe fn settle(&self, o: &mut [Accumulator; DT]) {
        if OVERLAP {
            // SAFETY: the caller's promise.
            unsafe {
                wgmma::wait::<0>();
                wgmma::pin(o);
                self.release_v(Ring(self.block.0 - 1));
            }
        }
    }

    /// `O += P V` of a block, which is there at the return.
    #[inline(always)]
    unsafe fn finish<E: Element>(
        &self,
        block: Ring<S>,
        o: &mut [Accumulator; DT],
        p: &[Operand; NT],
        leave_out: bool,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            self.issue_product::<E>(block, o, p, leave_out);
            wgmma::wait::<0>();
            wgmma::pin(o);
            self.release_v(block);
        }
    }

    #[inline(always)]
    unsafe fn release_k(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.block.release(self.memory.k_full(self.block.stage())) }
    }

    #[inline(always)]
    unsafe fn release_v(&self, block: Ring<S>) {
        // SAFETY: the caller's promise.
        unsafe { block.release(self.memory.v_full(block.stage())) }
    }

    /// As line 8, of the 16 rows of a warp, by itself.
    #[inline(always)]
    unsafe fn warp_scores<E: Element>(&self, row: u32) -> [Accumulator; NT] {
        let (q, k) = (
            self.memory.q(self.warpgroup),
            self.memory.k(self.block.stage()),
        );
        let lane = special::lane();
        let (a_row, a_chunk) = fragment::ldmatrix_rows_first(lane);
        let (b_row, b_chunk) = fragment::ldmatrix_chunks_first(lane);
        let mut s = [Accumulator::ZERO; NT];
        let (mut column, end) = (0, opaque(16 * DT as u32));
        while column < end {
            // SAFETY: the caller's promise; the addresses lie in the tiles.
            unsafe {
                let a = ldmatrix::x4(q.chunk(row + a_row, column + 8 * a_chunk));
                for nt in 0..NT {
                    let b_row = 16 * nt as u32 + b_row;
                    let b = ldmatrix::x4(k.chunk(b_row, column + 8 * b_chunk));
                    s[nt].mma::<E>(Operand(a), Operand(b));
                }
            }
            column += 16;
        }
        s
    }

    /// Whether V of the next product holds an infinity or a NaN, for all warps of the warpgroup alike.
    #[inline(always)]
    unsafe fn has_non_finite<E: Element>(&self, thread: u32, warpgroup: u32) -> bool {
        let v = self.memory.v(self.block.stage());
        // 16-byte chunks of a thread, a few of which are read at once.
        let chunks = NT * DT / 4;
        let at_once = const {
            if (NT * DT / 4).is_multiple_of(4) {
                4
            } else {
                1
            }
        };
        let mut found = 0;
        // SAFETY: the caller's promise.
        unsafe {
            self.block.wait(self.memory.v_full(self.block.stage()));
            let (mut address, end) = (v.base + thread * 16, v.base + opaque(2048 * chunks as u32));
            while address < end {
                for i in 0..at_once {
                    let pairs = shared::load_u32x4(address + 2048 * i);
                    for i in 0..4 {
                        found = E::add_zero_times(found, pairs[i]);
                    }
                }
                address += 2048 * at_once;
            }
            barrier::some_any(1 + warpgroup, 128, found != 0)
        }
    }

    /// As line 10, of the 16 rows of a warp, by itself: with 0 for the elements of V that are not finite, and NaN where a
    /// row sees such an element.
    #[inline(always)]
    unsafe fn add_guarded<E: Element>(
        &self,
        o: &mut [Accumulator; DT],
        p: &mut [Operand; NT],
        keys: [Prefix; 2],
    ) {
        let v = self.memory.v(self.block.stage());
        let (mut row, end) = (0, opaque(16 * NT as u32));
        while row < end {
            let lane = special::lane();
            let (lane_row, chunk) = fragment::ldmatrix_rows_first(lane);
            let seen = Operand::ones::<E>(lane, keys.map(|keys| keys.counted_from(row as i32)));
            for dt in 0..DT {
                let mut count = Accumulator::ZERO;
                // SAFETY: the caller's promise; the address lies in the tile.
                unsafe {
                    fence();
                    let column = 16 * dt as u32 + 8 * chunk;
                    let v = Operand(ldmatrix::x4_trans(v.chunk(row + lane_row, column)));
                    let (finite, non_finite) = v.split_non_finite::<E>();
                    o[dt].mma::<E>(p[0], finite);
                    count.mma::<E>(seen, non_finite);
                }
                o[dt].spoil(count);
            }
            // Registers have no index, so the next slice moves to the front. In the end P is as before.
            let first = p[0];
            for nt in 1..NT {
                p[nt - 1] = p[nt];
            }
            p[NT - 1] = first;
            row += 16;
        }
    }
}

/// Computes the warpgroup's rows of the block's tiles.
#[inline(always)]
unsafe fn consume<
    E: Element,
    M: Mask<Keys = Prefix>,
    H: Heads,
    C: Score,
    const W: u32,
    const DT: usize,
    const NT: usize,
    const S: u32,
    const OVERLAP: bool,
>(
    params: &ForwardParams,
    memory: Sm90Memory,
    warpgroup: u32,
) where
    [Accumulator; DT]: Product,
    [Accumulator; NT]: Product,
{
    let (br, bc) = (W * ROWS, 16 * NT as u32);
    let row = warpgroup * ROWS;
    // The thread, its warp's first row in the warpgroup, and its lane.
    // SAFETY: the block has this many threads.
    let who = || {
        let thread = unsafe { special::thread(128 * (W + 1)) };
        (thread % 128, thread / 32 % 4 * 16, thread % 32)
    };
    let scale = C::new(params).scale();
    let mut q = Ring::<1>(0);
    let mut consumer = Consumer::<DT, NT, S, OVERLAP> {
        memory,
        warpgroup,
        block: Ring(0),
    };
    // SAFETY: every stage is waited for before it is read, and released after. All branches but the cold ones depend on
    // the tile and the warpgroup alone; the cold ones hold instructions of a warp alone.
    unsafe {
        loop {
            q.wait(memory.q_full(warpgroup));
            let job = Job::load(memory.job(warpgroup));
            if job.split == Job::NONE.split {
                break;
            }
            let part = Part::<H, M>::new(params, job, row);
            let own = part.blocks(ROWS, bc);
            let mut j = Part::<H, M>::new(params, job, 0).blocks(br, bc);
            while j > own {
                j = opaque(j - 1);
                consumer.pass();
            }
            // One lane releases Q and the job, after all have read them. Returns the job once more.
            let release_q = |q: Ring<1>| {
                let job = again(|| Job::load(memory.job(warpgroup)));
                barrier::warp();
                q.release(memory.q_full(warpgroup));
                job
            };
            let mut o = [Accumulator::ZERO; DT];
            let job;
            let mut softmax = Softmax::<1>::new(scale);
            if j > 0 {
                if scale.negative {
                    let (_, warp_row, lane) = who();
                    negate(memory.q(warpgroup), warp_row, lane, 16 * DT as u32);
                    barrier::some(1 + warpgroup, 128);
                }
                let keys = |j: u32| {
                    let (part, (_, warp_row, _)) = again(|| {
                        (
                            Part::<H, M>::new(params, Job::load(memory.job(warpgroup)), row),
                            who(),
                        )
                    });
                    let [keys] = map_rows::<_, 1>(|i| {
                        let row = part.first + (warp_row + i) as i32;
                        let query = part.work.query(row.max(0) as u32);
                        part.mask.keys_of_block(query, (j * bc) as i32)
                    });
                    keys
                };
                // Where a row sees only part of a block, the warpgroup looks for infinities and NaN in V, while the
                // tensor cores compute the scores.
                let look = |consumer: &Consumer<DT, NT, S, OVERLAP>| {
                    !M::UNIFORM && consumer.has_non_finite::<E>(who().0, warpgroup)
                };
                // Adds the product where there are some.
                let guard = |consumer: &Consumer<DT, NT, S, OVERLAP>,
                             found: bool,
                             o: &mut [Accumulator; DT],
                             p: &mut [Operand; NT],
                             j: u32| {
                    if found {
                        cold_path();
                        consumer.add_guarded::<E>(o, p, keys(j));
                    }
                    // One lane releases V, after all have read it.
                    if !M::UNIFORM {
                        barrier::warp();
                    }
                };
                // Blocks `exact..j` take exact maxima: all down to the last one that the first row sees, so that each row
                // has seen a key.
                let [first, _] = part.ends(ROWS);
                let exact = (((first.end as u32).max(1) - 1) / bc).min(j - 1);

                j -= 1;
                let mut s = [Accumulator::ZERO; NT];
                consumer.issue_scores::<E>(&mut s);
                let mut leave_out = look(&consumer);
                consumer.wait_scores::<0>(&mut s);
                exact_softmax::<NT>(&mut softmax, &mut s, keys(j));
                consumer.release_k();
                let [mut p] = to_operands::<E, 1, NT>([s]);
                guard(&consumer, leave_out, &mut o, &mut p, j);
                // No product is under way from a step to the next: the assembler would wait for each one.
                while j > exact {
                    j -= 1;
                    consumer.issue_step::<E>(&mut s, &mut o, &p, leave_out);
                    leave_out = look(&consumer);
                    consumer.wait_scores::<1>(&mut s);
                    let factors = exact_softmax::<NT>(&mut softmax, &mut s, keys(j));
                    consumer.release_k();
                    consumer.settle(&mut o);
                    for dt in 0..DT {
                        o[dt].scale_rows(factors);
                    }
                    [p] = to_operands::<E, 1, NT>([s]);
                    guard(&consumer, leave_out, &mut o, &mut p, j);
                }
                while j > 0 {
                    j -= 1;
                    consumer.issue_step::<E>(&mut s, &mut o, &p, leave_out);
                    consumer.wait_scores::<1>(&mut s);
                    leave_out = false;
                    let mut tiles = [s];
                    let sums = softmax.apply(&mut tiles);
                    [s] = tiles;
                    // The branch keeps the exponentials before the wait, which the assembler would move up.
                    let fit = !vote::any(!sums.fit());
                    let mut factors = [1.0; 2];
                    if fit {
                        softmax.add(sums);
                    } else {
                        cold_path();
                        s = consumer.warp_scores::<E>(who().1);
                        barrier::warp();
                        let maxima = softmax.maxima(&s);
                        factors = softmax.update(0, &mut s, maxima);
                    }
                    consumer.settle(&mut o);
                    if !fit {
                        cold_path();
                        for dt in 0..DT {
                            o[dt].scale_rows(factors);
                        }
                    }
                    consumer.release_k();
                    [p] = to_operands::<E, 1, NT>([s]);
                }
                job = release_q(q);
                consumer.finish::<E>(consumer.block, &mut o, &p, leave_out);
                consumer.block = consumer.block.next();
            } else {
                job = release_q(q);
            }
            q = q.next();
            store::<E, H, M, W, DT>(params, job, o, &softmax);
        }
    }
}

/// Line 9 with exact maxima, where each row sees only `keys`; returns the factors of O.
#[inline(always)]
unsafe fn exact_softmax<const NT: usize>(
    softmax: &mut Softmax<1>,
    s: &mut [Accumulator; NT],
    keys: [Prefix; 2],
) -> [f32; 2] {
    let mut tiles = [*s];
    mask(&mut tiles, [keys]);
    [*s] = tiles;
    // SAFETY: the caller's promise.
    let maxima = unsafe { softmax.maxima(s) };
    softmax.update(0, s, maxima)
}

/// Negates the 16 rows of a warp, so that scores have the order of scaled ones.
#[inline(always)]
unsafe fn negate(q: Panels, row: u32, lane: u32, dim: u32) {
    let (mut i, end) = (lane, opaque(16 * dim / 8));
    while i < end {
        let address = q.chunk(row + i % 16, i / 16 * 8);
        // SAFETY: the caller's promise.
        unsafe {
            let pairs = shared::load_u32x4(address);
            shared::store_u32x4(address, pairs.map(|pair| pair ^ 0x8000_8000));
        }
        i += 32;
    }
    bulk::fence();
}

/// Lines 12 to 15: stores the results of a warp's 16 rows from `row` on in the tile.
#[inline(always)]
unsafe fn store<E: Element, H: Heads, M: Mask<Keys = Prefix>, const W: u32, const DT: usize>(
    params: &ForwardParams,
    job: Job,
    o: [Accumulator; DT],
    softmax: &Softmax<1>,
) {
    let (part, lane) = again(|| {
        // SAFETY: the block has this many threads.
        let thread = unsafe { special::thread(128 * (W + 1)) };
        let row = thread / 32 * 16;
        (Part::<H, M>::new(params, job, row), thread % 32)
    });
    let row_of = |r: usize| part.first + (lane / 4 + 8 * r as u32) as i32;
    // SAFETY: the caller's promise. Only this warp stores these rows; no branch on a row holds an instruction of a
    // warp.
    unsafe {
        let [totals] = softmax.totals();
        if Sequence::split_count(params) > 1 {
            for r in 0..2 {
                let row = row_of(r);
                if row >= 0 && row < part.rows {
                    store_partial_row(params, &part.work, row as u32, lane, &o, r, totals[r]);
                }
            }
            return;
        }
        let finished = totals.map(Total::finish);
        let mut chunks = [[[0; 4]; 2]; DT];
        for pair in 0..DT / 2 {
            for r in 0..2 {
                let mut pairs = [0; 4];
                for i in 0..4 {
                    let tile = o[2 * pair + i / 2].0;
                    let (a, b) = (tile[4 * (i % 2) + 2 * r], tile[4 * (i % 2) + 2 * r + 1]);
                    pairs[i] = E::pack(a * finished[r].0, b * finished[r].0);
                }
                chunks[pair][r] = shuffle::transpose(pairs, lane);
            }
        }
        let rows = part.work.q_rows(&params.o);
        for r in 0..2 {
            let row = row_of(r);
            if row < 0 || row >= part.rows {
                continue;
            }
            let address = rows.at(row as u32);
            for pair in 0..DT / 2 {
                let column = 32 * pair as u32 + 8 * (lane % 4);
                if column < rows.elements() {
                    let address = address + 2 * u64::from(column);
                    if params.o_aligned != 0 {
                        global::store_u32x4(address, chunks[pair][r]);
                    } else {
                        global::store_elements(address, chunks[pair][r], 8);
                    }
                }
            }
            if lane % 4 == 0 {
                global::store_f32(part.work.lse(params, row as u32), finished[r].1);
            }
        }
    }
}

/// Stores the partial results of a row: its part of O that the lane holds, not divided by l; and m and l.
#[inline(always)]
unsafe fn store_partial_row<H: Heads, const DT: usize>(
    params: &ForwardParams,
    work: &WorkTile<H>,
    row: u32,
    lane: u32,
    o: &[Accumulator; DT],
    r: usize,
    total: Total,
) {
    let index = work.partial(params, row);
    let address = params.partial_o + 4 * index * u64::from(params.dim) + 8 * u64::from(lane % 4);
    for dt in 0..DT {
        let [a, b, c, d] = o[dt].row(r);
        let column = 16 * dt as u32;
        // SAFETY: the caller's promise.
        unsafe {
            if column < params.dim {
                global::store_f32x2(address + 4 * u64::from(column), [a, b]);
            }
            if column + 8 < params.dim {
                global::store_f32x2(address + 4 * u64::from(column) + 32, [c, d]);
            }
        }
    }
    if lane % 4 == 0 {
        // SAFETY: the caller's promise.
        unsafe {
            global::store_f32x2(params.partial_softmax + 8 * index, [total.max, total.sum]);
        }
    }
}
