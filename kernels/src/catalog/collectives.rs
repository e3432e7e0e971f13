//! Instructions that all lanes of a warp execute together, counted in a kernel.

use super::Tile;
use std::ops::Add;

/// Declares [`Collectives`]: for each field the instruction's name and the texts that are one; and a function of the
/// field's name, so that counts read as sums, such as `mma(4) + bar(1)`.
macro_rules! collectives {
    ($($field:ident: $name:literal = $($text:literal)|+;)*) => {
        /// How often each instruction of a whole warp, or of the whole block's pipeline, stands in a
        /// kernel.
        ///
        /// The compiler may not copy or drop one (see the `ptx` module of the kernels), and the source
        /// implies the number: a difference is a miscompilation, or a change that belongs in
        /// [`Spec::collectives`](super::Spec::collectives).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "fields are named as their instructions")]
        pub struct Collectives {
            $(pub $field: u32,)*
        }

        impl Collectives {
            /// None of any instruction.
            pub const NONE: Self = Collectives { $($field: 0,)* };

            /// Counts the instructions in the text of an entry.
            pub fn count(body: &str) -> Self {
                Collectives { $($field: 0 $(+ body.matches($text).count() as u32)+,)* }
            }

            /// The counts with the names of their instructions.
            pub fn named(self) -> Vec<(&'static str, u32)> {
                vec![$(($name, self.$field),)*]
            }
        }

        impl Add for Collectives {
            type Output = Self;

            fn add(self, other: Self) -> Self {
                Collectives { $($field: self.$field + other.$field,)* }
            }
        }

        $(
            #[doc = concat!("So many `", $name, "`.")]
            pub const fn $field(count: u32) -> Collectives {
                Collectives { $field: count, ..Collectives::NONE }
            }
        )*
    };
}

collectives! {
    mma: "mma.sync" = "mma.sync.";
    ldmatrix: "ldmatrix" = "ldmatrix.sync.";
    stmatrix: "stmatrix" = "stmatrix.sync.";
    cp_async: "cp.async" = "cp.async.cg.";
    bar: "bar" = "bar.sync " | "bar.arrive " | "bar.red.";
    shfl: "shfl.sync" = "shfl.sync.";
    redux: "redux.sync" = "redux.sync.";
    vote: "vote.sync" = "vote.sync.";
    wgmma: "wgmma" = "wgmma.mma_async.";
    wgmma_fence: "wgmma.fence" = "wgmma.fence.";
    wgmma_commit: "wgmma.commit" = "wgmma.commit_group.";
    wgmma_wait: "wgmma.wait" = "wgmma.wait_group.";
    setmaxnreg: "setmaxnreg" = "setmaxnreg.";
    tensor_load: "tensor load" = "cp.async.bulk.tensor.4d.shared::cluster.";
    tensor_store: "tensor store" = "cp.async.bulk.tensor.4d.global.";
    mbarrier_init: "mbarrier.init" = "mbarrier.init.";
    mbarrier_arrive: "mbarrier.arrive" = "mbarrier.arrive.";
    mbarrier_wait: "mbarrier.try_wait" = "mbarrier.try_wait.";
    bulk_load: "bulk load" = "cp.async.bulk.shared::cluster.global.";
    bulk_store: "bulk store" = "cp.async.bulk.global.shared::cta.";
    bulk_add: "bulk add" = "cp.reduce.async.bulk.global.shared::cta.";
}

/// The parts of a main loop, which give its collectives: products of 16x16 tiles take two instructions.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// 16-row tiles of a warp.
    pub mt: u32,
    /// 16-wide slices of the head dim.
    pub dt: u32,
    /// Slices of the head dim that a warp has of O.
    pub ot: u32,
    /// 16-wide slices of a key block.
    pub kt: u32,
    /// Slices of a key block that a warp computes scores of.
    pub nt: u32,
    /// Work division.
    pub tile: Tile,
    /// Head dim.
    pub dim: u32,
}

impl Parts {
    /// The parts of a kernel with this tile and head dim.
    pub fn new(tile: Tile, dim: u32) -> Self {
        Parts {
            mt: tile.q_rows * tile.team / tile.warps / 16,
            dt: dim / 16,
            ot: dim / 16 / tile.team,
            kt: tile.keys / 16,
            nt: tile.keys / 16 / tile.team,
            tile,
            dim,
        }
    }

    /// `Q K^T`, for which what is not kept of Q is read again.
    pub fn scores(&self) -> Collectives {
        let q = self.mt * (self.dt - self.tile.q_slices);
        mma(2 * self.mt * self.dt * self.nt) + ldmatrix(self.nt * self.dt + q)
    }

    /// Vectors of a bias, of two slices of a key block each, exchanged in each of a lane's two rows a tile.
    pub fn bias(&self) -> Collectives {
        shfl(4 * 2 * self.mt * self.nt.div_ceil(2))
    }

    /// New maxima: two rounds for each of a lane's two rows a tile.
    pub fn maxima(&self) -> Collectives {
        shfl(2 * 2 * self.mt)
    }

    /// Probabilities relative to old maxima and, if they do not fit, scores and maxima once more.
    pub fn softmax(&self) -> Collectives {
        vote(1) + self.scores() + self.maxima()
    }

    /// `P V`.
    pub fn product(&self) -> Collectives {
        mma(2 * self.mt * self.ot * self.kt) + ldmatrix(self.kt * self.ot)
    }

    /// `P V` under a mask: under the causal mask after a look for infinities, or else guarded, with
    /// a count beside every product.
    pub fn product_masked(&self, causal: bool) -> Collectives {
        let v = self.nt * self.dt;
        let look = ldmatrix(v) + redux(1);
        let guarded = mma(2 * 2 * self.mt * v) + ldmatrix(self.mt * v);
        match causal {
            true => look + guarded + self.product(),
            false => self.product(),
        }
    }

    /// `P V` with options: after a look for infinities, or else guarded, in a loop over the keys where O leaves registers.
    pub fn product_optional(&self) -> Collectives {
        let look = ldmatrix(self.nt * self.dt) + redux(1);
        let tiles = self.mt * self.ot;
        let guarded = match tiles < 16 {
            true => mma(2 * 2 * tiles) + ldmatrix(self.ot),
            false => mma(2 * 2 * self.kt * tiles) + ldmatrix(self.kt * tiles),
        };
        look + guarded + self.product()
    }

    /// A step whose sums are loops: scores of `window` slices of the head dim at a time; P from shared memory and
    /// its product, of `run` slices of the keys, after a look for infinities, or else [`guarded`](Self::guarded).
    pub fn in_loops(&self, window: u32, run: u32) -> Collectives {
        let (mt, nt, ot) = (self.mt, self.nt, self.ot);
        let scores = mma(2 * mt * nt * window) + ldmatrix((mt + nt) * window);
        let product = mma(2 * mt * run * ot) + ldmatrix(run * (mt + ot));
        let look = ldmatrix(run * ot) + redux(1);
        scores + product + look + self.guarded()
    }

    /// Of a loop over slices of the keys: P from shared memory, and its product, with a count beside.
    pub fn guarded(&self) -> Collectives {
        mma(2 * 2 * self.mt * self.ot) + ldmatrix(self.mt + self.ot)
    }

    /// Copies of so many rows.
    pub fn copies(&self, rows: u32) -> Collectives {
        cp_async(rows * self.dim / 8 / (32 * self.tile.warps))
    }

    /// Q is read to negate it, and what is kept of it once more; the row sums are exchanged at the
    /// end.
    pub fn around(&self) -> Collectives {
        let q = ldmatrix(self.mt * (self.dt + self.tile.q_slices)) + bar(1);
        q + self.copies(self.tile.q_rows) + self.maxima()
    }
}
