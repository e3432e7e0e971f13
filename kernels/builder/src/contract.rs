//! What an entry may and must contain.

use crate::{Entry, Error};
use kernels::catalog::GemmTile;
use kernels::catalog::{Accumulation, Family, Kernel, Tile};
use kernels::ladder::table::{Loop, Shape};
use kernels::layout::wide::WINDOW;
use std::ops::Add;

/// Text that no entry may contain, and what it means.
const FORBIDDEN: &[(&str, &str)] = &[
    (
        ".local",
        "uses local memory: an array is indexed at run time, or a loop was not unrolled",
    ),
    (
        "call",
        "calls a function: something was not inlined, or a panic was left in",
    ),
];

/// How often an instruction that whole warps execute together stands in an entry.
///
/// The compiler may not copy or drop one (see the `ptx` module of the kernels), and what the source
/// implies is known: so a difference is a miscompilation, or a change that belongs in [`expected`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collectives {
    /// `mma.sync`
    pub mma: u32,
    /// `ldmatrix`
    pub ldmatrix: u32,
    /// `cp.async` of 16 bytes
    pub cp_async: u32,
    /// `bar.sync` and `bar.red`
    pub bar: u32,
    /// `shfl.sync`
    pub shfl: u32,
    /// `redux.sync`
    pub redux: u32,
    /// `vote.sync`
    pub vote: u32,
}

impl Add for Collectives {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Collectives {
            mma: self.mma + other.mma,
            ldmatrix: self.ldmatrix + other.ldmatrix,
            cp_async: self.cp_async + other.cp_async,
            bar: self.bar + other.bar,
            shfl: self.shfl + other.shfl,
            redux: self.redux + other.redux,
            vote: self.vote + other.vote,
        }
    }
}

impl Collectives {
    const NONE: Self = Collectives {
        mma: 0,
        ldmatrix: 0,
        cp_async: 0,
        bar: 0,
        shfl: 0,
        redux: 0,
        vote: 0,
    };

    /// Counts them in the text of an entry.
    #[must_use]
    pub fn count(body: &str) -> Self {
        let count = |instruction: &str| {
            let lines = body.lines().map(str::trim_start);
            lines.filter(|line| line.starts_with(instruction)).count() as u32
        };
        Collectives {
            mma: count("mma.sync."),
            ldmatrix: count("ldmatrix.sync."),
            cp_async: count("cp.async.cg."),
            bar: count("bar.sync ") + body.matches("bar.red.").count() as u32,
            shfl: count("shfl.sync."),
            redux: count("redux.sync."),
            vote: body.matches("vote.sync.").count() as u32,
        }
    }

    /// The counts with the names of their instructions.
    #[must_use]
    pub fn named(self) -> [(&'static str, u32); 7] {
        [
            ("mma.sync", self.mma),
            ("ldmatrix", self.ldmatrix),
            ("cp.async", self.cp_async),
            ("bar", self.bar),
            ("shfl.sync", self.shfl),
            ("redux.sync", self.redux),
            ("vote.sync", self.vote),
        ]
    }
}

/// What the source of a kernel implies.
#[must_use]
pub fn expected(kernel: &Kernel) -> Collectives {
    match kernel.family {
        Family::Forward { .. } | Family::Packed => {
            // The code for the causal mask, whether causal or not, where heads share tiles.
            let causal = kernel.family != Family::Forward { causal: false };
            let main_loop = if kernel.tile.team > 1 {
                forward_shared_rows
            } else {
                forward
            };
            main_loop(&Parts::of(kernel), causal)
        }
        Family::Decode => decode(&Parts::of(kernel)),
        Family::Wide => wide(&Parts::of(kernel)),
        // Five rounds for the maximum, five for the sum, and the weights of eight splits.
        Family::Combine => Collectives {
            shfl: 5 + 5 + 8,
            ..Collectives::NONE
        },
        Family::Pack => Collectives::NONE,
        Family::Ladder(shape) => match shape.main_loop {
            Loop::Naive => Collectives::NONE,
            Loop::Fa1 => fa1(&Parts::of(kernel)),
            Loop::Rows | Loop::RowsInRegisters => rows(&Parts::of(kernel), shape),
            Loop::Teams => teams(&Parts::of(kernel)),
        },
        Family::Gemm { tile, .. } => gemm(&tile),
    }
}

/// What the parts of a main loop imply: products of 16x16 tiles take two instructions.
struct Parts {
    /// 16-row tiles of a warp; 16-wide slices of the head dim, and of those of O that the warp has; slices
    /// of a key block, and of those in the warp's scores.
    mt: u32,
    dt: u32,
    ot: u32,
    kt: u32,
    nt: u32,
    tile: Tile,
    head_dim: u32,
}

impl Parts {
    fn of(kernel: &Kernel) -> Self {
        let tile = kernel.tile;
        Parts {
            mt: tile.q_rows * tile.team / tile.warps / 16,
            dt: kernel.head_dim / 16,
            ot: kernel.head_dim / 16 / tile.team,
            kt: tile.keys / 16,
            nt: tile.keys / 16 / tile.team,
            tile,
            head_dim: kernel.head_dim,
        }
    }

    /// `Q K^T`, for which what is not kept of Q is read again.
    fn scores(&self) -> Collectives {
        Collectives {
            mma: 2 * self.mt * self.dt * self.nt,
            ldmatrix: self.nt * self.dt + self.mt * (self.dt - self.tile.q_slices),
            ..Collectives::NONE
        }
    }

    /// New maxima: two rounds for each of a lane's two rows a tile.
    fn maxima(&self) -> Collectives {
        Collectives {
            shfl: 2 * 2 * self.mt,
            ..Collectives::NONE
        }
    }

    /// Probabilities relative to old maxima and, if they do not fit, scores and maxima once more.
    fn softmax(&self) -> Collectives {
        let vote = Collectives {
            vote: 1,
            ..Collectives::NONE
        };
        vote + self.scores() + self.maxima()
    }

    /// `P V`.
    fn product(&self) -> Collectives {
        Collectives {
            mma: 2 * self.mt * self.ot * self.kt,
            ldmatrix: self.kt * self.ot,
            ..Collectives::NONE
        }
    }

    /// P of so many slices of the keys, from shared memory.
    fn probabilities(&self, slices: u32) -> Collectives {
        Collectives {
            ldmatrix: self.mt * slices,
            ..Collectives::NONE
        }
    }

    /// `P V` under a mask: under the causal mask after a look for infinities, or else guarded, with
    /// a count beside every product.
    fn product_masked(&self, causal: bool) -> Collectives {
        if !causal {
            return self.product();
        }
        let look = Collectives {
            ldmatrix: self.nt * self.dt,
            redux: 1,
            ..Collectives::NONE
        };
        let guarded = Collectives {
            mma: 2 * 2 * self.mt * self.dt * self.nt,
            ldmatrix: self.mt * self.nt * self.dt,
            ..Collectives::NONE
        };
        look + guarded + self.product()
    }

    /// As [`product_masked`](Self::product_masked), where the look is a loop over windows of two 16x16 tiles of
    /// V, and the guarded product one over slices of the keys.
    fn product_masked_by_slices(&self) -> Collectives {
        let look = Collectives {
            ldmatrix: 2,
            redux: 1,
            ..Collectives::NONE
        };
        let guarded = Collectives {
            mma: 2 * 2 * self.mt * self.dt,
            ldmatrix: self.mt * self.dt,
            ..Collectives::NONE
        };
        look + guarded + self.product()
    }

    /// Of a loop over slices of the keys: P from shared memory, and its product, with a count beside.
    fn guarded(&self) -> Collectives {
        Collectives {
            mma: 2 * 2 * self.mt * self.ot,
            ldmatrix: self.mt + self.ot,
            ..Collectives::NONE
        }
    }

    /// Copies of so many rows.
    fn copies(&self, rows: u32) -> Collectives {
        Collectives {
            cp_async: rows * self.head_dim / 8 / (32 * self.tile.warps),
            ..Collectives::NONE
        }
    }

    /// Q is read to negate it, and what is kept of it once more; the row sums are exchanged at the
    /// end.
    fn around(&self) -> Collectives {
        let q = Collectives {
            ldmatrix: self.mt * (self.dt + self.tile.q_slices),
            bar: 1,
            ..Collectives::NONE
        };
        q + self.copies(self.tile.q_rows) + self.maxima()
    }
}

const BARRIER: Collectives = Collectives {
    bar: 1,
    ..Collectives::NONE
};

/// Copies of the first V and the first two K, the first scores; steps that only copy, masked steps
/// and others, each with the copies of two later tiles; and the last block, without.
fn forward(parts: &Parts, causal: bool) -> Collectives {
    let keys = parts.tile.keys;
    let ahead = parts.copies(2 * keys) + BARRIER;
    let first = parts.copies(3 * keys) + parts.scores();
    let masked = parts.maxima() + parts.product_masked(causal);
    let unmasked = parts.softmax() + parts.product();
    let idle = ahead;
    let steps = masked + ahead + parts.scores() + unmasked + ahead + parts.scores();
    parts.around() + first + idle + steps + masked + BARRIER
}

/// Copies of the first K and V; masked steps, where all of P comes from shared memory, guarded in a
/// loop; and others, with scores and maxima once more if need be. Each step has two barriers and
/// the copies of the next K and V, and an exchange of maxima takes one more of the team. Teams also
/// meet once Q is negated, for the row sums, and before and after O is in shared memory.
fn forward_shared_rows(parts: &Parts, causal: bool) -> Collectives {
    let keys = parts.tile.keys;
    let step = parts.scores() + parts.copies(2 * keys) + BARRIER + BARRIER + parts.product();
    let exchange = parts.maxima() + BARRIER;
    let guarded = if causal {
        parts.guarded()
    } else {
        Collectives::NONE
    };
    let masked = step + exchange + parts.probabilities(parts.kt) + guarded;
    let again = parts.scores() + exchange + BARRIER;
    let unmasked = step + parts.probabilities(parts.kt - parts.nt) + again;
    let teams = BARRIER + BARRIER + BARRIER + BARRIER;
    parts.around() + teams + parts.copies(2 * keys) + masked + unmasked
}

/// Copies into all buffers but one; masked steps, of the causal code whether causal or not, and
/// others, each with the copies of a later block.
fn decode(parts: &Parts) -> Collectives {
    let keys = parts.tile.keys;
    let first = parts.copies(2 * (parts.tile.stages - 1) * keys);
    let step = parts.copies(2 * keys) + BARRIER + parts.scores();
    let masked = step + parts.maxima() + parts.product_masked(true);
    let unmasked = step + parts.softmax() + parts.product();
    parts.around() + first + masked + unmasked
}

/// A wait for each window of Q and K, and for each slice of V: both load either. Before the loop all buffers but
/// one are filled. Teams exchange maxima in the loop and sums after it; O leaves between two barriers.
fn wide(parts: &Parts) -> Collectives {
    const WINDOW_SLICES: u32 = WINDOW / 16;
    let (tile, mt, nt, ot) = (parts.tile, parts.mt, parts.nt, parts.ot);
    let v_keys = tile.keys / tile.v_slices;
    let run = (v_keys / 16).min(2);
    let chunks = (tile.q_rows + tile.keys) * WINDOW / 8 + v_keys * parts.head_dim / 8;
    let loads = Collectives {
        cp_async: (tile.stages + 1) * chunks / (32 * tile.warps),
        ..Collectives::NONE
    };
    let scores = Collectives {
        mma: 2 * mt * nt * WINDOW_SLICES,
        ldmatrix: (mt + nt) * WINDOW_SLICES,
        ..Collectives::NONE
    };
    let product = Collectives {
        mma: 2 * mt * run * ot,
        ldmatrix: run * (mt + ot),
        ..Collectives::NONE
    };
    let look = Collectives {
        ldmatrix: run * ot,
        redux: 1,
        ..Collectives::NONE
    };
    let exchange = parts.maxima() + BARRIER;
    let products = scores + product + look + parts.guarded();
    let waits = BARRIER + BARRIER;
    loads + waits + products + exchange + exchange + BARRIER + BARRIER
}

/// Copies of K, V and Q, and a masked step of the causal code whether causal or not.
fn fa1(parts: &Parts) -> Collectives {
    let copies = parts.copies(2 * parts.tile.keys);
    let step = parts.scores() + parts.maxima() + parts.product_masked_by_slices();
    copies + parts.around() + step + BARRIER
}

/// Before the first step a copy, and another for each wait in the loops, two a step: masked steps, of the
/// causal code whether causal or not, and others, where kernels that sum in f16 follow every maximum.
fn rows(parts: &Parts, shape: Shape) -> Collectives {
    let copy = parts.copies(parts.tile.keys);
    let wait = BARRIER + BARRIER + copy;
    let step = wait + wait + parts.scores();
    let masked = step + parts.maxima() + parts.product_masked_by_slices();
    let softmax = match shape.acc {
        Accumulation::Single => parts.softmax(),
        Accumulation::Half => parts.maxima(),
    };
    let unmasked = step + softmax + parts.product();
    copy + parts.around() + BARRIER + masked + unmasked + o_store(parts.mt * parts.dt)
}

/// A wait for a slice of K, then for one of V; between, and at the end, what a team exchanges; P is read
/// from shared memory. Copies are loops over counts that the launch says.
fn teams(parts: &Parts) -> Collectives {
    const WINDOW: u32 = 4;
    const KEYS: u32 = 2;
    let (mt, nt, ot) = (parts.mt, parts.nt, parts.ot);
    let waits = BARRIER + BARRIER + BARRIER + BARRIER;
    let exchanges = match parts.tile.team {
        1 => Collectives::NONE,
        _ => BARRIER + BARRIER,
    };
    let scores = Collectives {
        mma: 2 * mt * nt * WINDOW,
        ldmatrix: (mt + nt) * WINDOW,
        ..Collectives::NONE
    };
    let product = Collectives {
        mma: 2 * mt * KEYS * ot,
        ldmatrix: KEYS * (mt + ot),
        ..Collectives::NONE
    };
    let look = Collectives {
        ldmatrix: KEYS * ot,
        redux: 1,
        ..Collectives::NONE
    };
    let softmax = parts.maxima() + parts.maxima();
    let products = scores + product + look + parts.guarded();
    waits + exchanges + softmax + products + o_store(mt * ot)
}

/// O by shuffles, four for each 16x16 tile, or by way of shared memory.
fn o_store(tiles: u32) -> Collectives {
    let shuffles = Collectives {
        shfl: 4 * tiles,
        ..Collectives::NONE
    };
    shuffles + BARRIER + BARRIER
}

/// Whether the source implies how often an instruction stands in a kernel: not `cp.async`, which is not
/// collective, in loops that the compiler unrolls as it likes.
fn is_implied(instruction: &str, kernel: &Kernel) -> bool {
    let in_loops = matches!(kernel.family, Family::Ladder(shape) if shape.main_loop == Loop::Teams);
    !(in_loops && instruction == "cp.async")
}

/// A step of a matrix product: the products of each slice and, with stages, the operands of the next
/// slice and the copies of a later tile. Before the loop the copies into all tiles but one and the first
/// operands; barriers before, in and after it.
fn gemm(tile: &GemmTile) -> Collectives {
    let (mt, nt) = (
        tile.rows / tile.warps_down / 16,
        tile.columns / tile.warps_across / 16,
    );
    let slices = tile.depth / 16;
    let products = Collectives {
        mma: slices * 2 * mt * nt,
        ..Collectives::NONE
    };
    if tile.stages == 0 {
        return products;
    }
    let threads = 32 * tile.warps_down * tile.warps_across;
    let copies = (tile.rows + tile.columns) * tile.depth / 8 / threads;
    Collectives {
        ldmatrix: (slices + 1) * (mt + nt),
        cp_async: tile.stages * copies,
        bar: 3,
        ..products
    }
}

/// Checks an entry.
///
/// # Errors
/// [`Error::Contract`] with the entry and the rule that it breaks.
pub fn check(entry: &Entry) -> Result<(), Error> {
    let name = entry.kernel.name;
    for (text, meaning) in FORBIDDEN {
        let mut lines = entry.body.lines();
        if let Some(line) = lines.find(|line| line.contains(text)) {
            return Err(Error::contract(name, format!("{meaning}: {}", line.trim())));
        }
    }
    let found = Collectives::count(&entry.body).named();
    for ((instruction, found), (_, expected)) in found.iter().zip(expected(entry.kernel).named()) {
        if *found != expected && is_implied(instruction, entry.kernel) {
            let rule = format!("{found} {instruction}, the source implies {expected}");
            return Err(Error::contract(name, rule));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::catalog;

    /// A body that fulfils the contract.
    fn entry(kernel: &'static Kernel) -> Entry {
        let mut body = String::from("{\n");
        let instructions = [
            "mma.sync.",
            "ldmatrix.sync.",
            "cp.async.cg.",
            "bar.sync ",
            "shfl.sync.",
            "redux.sync.",
            "vote.sync.",
        ];
        for (instruction, (_, count)) in instructions.iter().zip(expected(kernel).named()) {
            body += &format!("\t{instruction}x;\n").repeat(count as usize);
        }
        Entry {
            kernel,
            body: body + "}",
        }
    }

    #[test]
    fn every_breach_is_named() {
        for kernel in catalog::all() {
            let good = entry(kernel);
            check(&good).unwrap();
            for (breach, rule) in [
                ("\tst.local.b32 [%r1], %r2;", "local memory"),
                ("\tcall.uni panic_bounds_check;", "calls a function"),
                ("\tbar.sync 0;", "bar"),
                ("\tmma.sync.x;", "mma.sync"),
            ] {
                let mut bad = good.clone();
                bad.body = bad.body.replacen('\n', &format!("\n{breach}\n"), 1);
                let message = check(&bad).unwrap_err().to_string();
                assert!(
                    message.contains(kernel.name) && message.contains(rule),
                    "{message}"
                );
            }
            let mut bad = good.clone();
            bad.body = bad.body.replacen("shfl.sync.x;\n", "", 1);
            match expected(kernel).shfl {
                0 => check(&bad).unwrap(),
                _ => assert!(check(&bad).unwrap_err().to_string().contains("shfl")),
            }
        }
    }
}
