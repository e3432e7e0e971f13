//! The contract of an entry: what it may and must contain.

use crate::{Entry, Error};
use kernels::catalog::collectives::Collectives;

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

/// Checks an entry.
///
/// # Errors
/// [`Error::Contract`] with the entry and the rule that it breaks.
pub fn check(entry: &Entry) -> Result<(), Error> {
    let Entry { name, kernel, .. } = entry;
    for (text, meaning) in FORBIDDEN {
        if let Some(line) = entry.body.lines().find(|line| line.contains(text)) {
            return Err(Error::contract(name, format!("{meaning}: {}", line.trim())));
        }
    }
    // The assembler then gives consumers no more registers than a launch gives all.
    if kernel.collectives().setmaxnreg > 0 && entry.body.contains("trap;") {
        let rule = "panics in code that both roles share".to_owned();
        return Err(Error::contract(name, rule));
    }
    let found = Collectives::count(&entry.body).named();
    let expected = kernel.collectives().named();
    for ((instruction, found), (_, expected)) in found.into_iter().zip(expected) {
        let is_implied = instruction != "cp.async" || kernel.implies_copies();
        let is_kept = found == expected || found < expected && kernel.may_share();
        if !is_kept && is_implied {
            let rule = format!("{found} {instruction}, the source implies {expected}");
            return Err(Error::contract(name, rule));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Package;
    use kernels::catalog::{Custom, Spec};

    /// A body that fulfils the contract.
    fn entry(kernel: &'static dyn Spec) -> Entry {
        let mut body = String::from("{\n");
        let instructions = [
            "mma.sync.",
            "ldmatrix.sync.",
            "stmatrix.sync.",
            "cp.async.cg.",
            "bar.sync ",
            "shfl.sync.",
            "redux.sync.",
            "vote.sync.",
            "wgmma.mma_async.",
            "wgmma.fence.",
            "wgmma.commit_group.",
            "wgmma.wait_group.",
            "setmaxnreg.",
            "cp.async.bulk.tensor.4d.shared::cluster.",
            "cp.async.bulk.tensor.4d.global.",
            "mbarrier.init.",
            "mbarrier.arrive.",
            "mbarrier.try_wait.",
            "cp.async.bulk.shared::cluster.global.",
            "cp.async.bulk.global.shared::cta.",
            "cp.reduce.async.bulk.global.shared::cta.",
        ];
        for (instruction, (_, count)) in instructions.iter().zip(kernel.collectives().named()) {
            body += &format!("\t{instruction}x;\n").repeat(count as usize);
        }
        Entry {
            name: kernel.name(),
            kernel,
            body: body + "}",
        }
    }

    #[test]
    fn every_breach_is_named() {
        for kernel in Package::kernels().kernels {
            let good = entry(kernel);
            check(&good).unwrap();
            for (breach, rule) in [
                ("\tst.local.b32 [%r1], %r2;", "local memory"),
                ("\tcall.uni panic_bounds_check;", "calls a function"),
                ("\tbar.sync 0;", "bar"),
                ("\tmma.sync.x;", "mma.sync"),
                ("\tmbarrier.arrive.x;", "mbarrier.arrive"),
            ] {
                let mut bad = good.clone();
                bad.body = bad.body.replacen('\n', &format!("\n{breach}\n"), 1);
                let message = check(&bad).unwrap_err().to_string();
                assert!(
                    message.contains(&good.name) && message.contains(rule),
                    "{message}"
                );
            }
            let mut bad = good.clone();
            bad.body = bad.body.replacen("shfl.sync.x;\n", "", 1);
            match kernel.collectives().shfl {
                0 => check(&bad).unwrap(),
                _ => assert!(check(&bad).unwrap_err().to_string().contains("shfl")),
            }
            let mut bad = good.clone();
            bad.body += "\ttrap;";
            match kernel.collectives().setmaxnreg {
                0 => check(&bad).unwrap(),
                _ => assert!(check(&bad).unwrap_err().to_string().contains("both roles")),
            }
        }
    }

    /// Of a type's kernels the compiler may share instructions, and may double none.
    #[test]
    fn types_of_other_crates_may_share_instructions() {
        for kernel in Custom::all("Penalty", &[64]) {
            let load = "ldmatrix.sync.x;\n";
            let mut fewer = entry(kernel);
            fewer.body = fewer.body.replacen(load, "", 1);
            check(&fewer).unwrap();
            let mut more = entry(kernel);
            more.body += load;
            assert!(check(&more).unwrap_err().to_string().contains("ldmatrix"));
        }
    }
}
