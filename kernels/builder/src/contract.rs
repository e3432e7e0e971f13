//! What an entry may and must contain.

use crate::{Entry, Error};
use kernels::table::{Family, Kernel};

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collectives {
    /// `mma.sync`
    pub mma: u32,
    /// `ldmatrix`
    pub ldmatrix: u32,
    /// `cp.async` of 16 bytes
    pub cp_async: u32,
    /// `bar.sync`
    pub bar: u32,
    /// `shfl.sync`
    pub shfl: u32,
    /// `redux.sync`
    pub redux: u32,
}

impl Collectives {
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
            bar: count("bar.sync "),
            shfl: count("shfl.sync."),
            redux: count("redux.sync."),
        }
    }

    /// The counts with the names of their instructions.
    #[must_use]
    pub fn named(self) -> [(&'static str, u32); 6] {
        [
            ("mma.sync", self.mma),
            ("ldmatrix", self.ldmatrix),
            ("cp.async", self.cp_async),
            ("bar.sync", self.bar),
            ("shfl.sync", self.shfl),
            ("redux.sync", self.redux),
        ]
    }
}

/// What the source of a kernel implies.
#[must_use]
pub fn expected(kernel: &Kernel) -> Collectives {
    match kernel.family {
        Family::Forward { causal } => attention(kernel, causal),
        // Full and causal in one kernel, which has the causal code.
        Family::Decode => attention(kernel, true),
        Family::Combine => Collectives {
            mma: 0,
            ldmatrix: 0,
            cp_async: 0,
            bar: 0,
            // Five rounds for the maximum, five for the sum, and the weights of eight splits.
            shfl: 5 + 5 + 8,
            redux: 0,
        },
        Family::Pack => Collectives::default(),
    }
}

/// A masked and an unmasked step, each with two products, a softmax and the loads of a later block.
fn attention(kernel: &Kernel, causal: bool) -> Collectives {
    let tile = kernel.tile;
    // 16x16 tiles: rows of a warp, head dim, keys.
    let (mt, dt, nt) = (
        tile.q_rows / tile.warps / 16,
        kernel.head_dim / 16,
        tile.keys / 16,
    );
    let causal = u32::from(causal);
    let steps = 2;
    // Two instructions for each product of 16x16 tiles. The guarded product of the causal kernels
    // computes P V and a count.
    let products = steps * 2 + causal * 2;
    // Q is read once, or in each step, and once more to negate it.
    let q_reads = 1 + if tile.q_in_registers { 1 } else { steps };
    // K and V are read in each step, V once more to look for infinities and, guarded, by each
    // 16-row tile.
    let kv_reads = steps * 2 + causal * (1 + mt);
    // The prologue loads Q, and K and V into all buffers but one, or K alone into the only one; each
    // step K and V.
    let tiles_ahead = if tile.stages == 1 {
        1
    } else {
        2 * (tile.stages - 1)
    };
    let rows_loaded = tile.q_rows + (tiles_ahead + steps * 2) * tile.keys;
    // A step has one barrier; a single stage changes hands between the products too.
    let barriers = if tile.stages == 1 { 2 } else { 1 };
    Collectives {
        mma: 2 * products * mt * dt * nt,
        ldmatrix: q_reads * mt * dt + kv_reads * nt * dt,
        cp_async: rows_loaded * kernel.head_dim / 8 / kernel.threads(),
        bar: 1 + steps * barriers,
        // Two rounds for each of a lane's two rows a tile: the maximum in each step, the final sum.
        shfl: 2 * 2 * mt * (steps + 1),
        redux: causal,
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
        if *found != expected {
            let rule = format!("{found} {instruction}, the source implies {expected}");
            return Err(Error::contract(name, rule));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::table::KERNELS;

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
        for kernel in KERNELS {
            let good = entry(kernel);
            check(&good).unwrap();
            for (breach, rule) in [
                ("\tst.local.b32 [%r1], %r2;", "local memory"),
                ("\tcall.uni panic_bounds_check;", "calls a function"),
                ("\tbar.sync 0;", "bar.sync"),
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
