//! The contract of an entry: what it may and must contain.

use crate::{Collectives, EntryPoint, Error, Golden};

/// Text that no entry may contain, and what it means.
#[rustfmt::skip]
const FORBIDDEN: &[(&str, &str)] = &[
    (".local", "uses local memory: an array is indexed at run time, or a loop was not unrolled"),
    ("call", "calls a function: something was not inlined, or a panic was left in"),
];

/// Checks an entry, and that its instructions of whole warps are those of the [golden](Golden) counts; without `golden` they may
/// be any.
///
/// # Errors
/// [`Error::Contract`] with the entry and the rule that it breaks.
pub fn check(entry: &EntryPoint, golden: Option<&Golden>) -> Result<(), Error> {
    let EntryPoint { kernel, .. } = entry;
    let name = kernel.name;
    for (text, meaning) in FORBIDDEN {
        if let Some(line) = entry.body.lines().find(|line| line.contains(text)) {
            return Err(Error::contract(name, format!("{meaning}: {}", line.trim())));
        }
    }
    let found = Collectives::count(&entry.body);
    // The assembler then gives consumers no more registers than a launch gives all.
    if found.of("setmaxnreg") > 0 && entry.body.contains("trap;") {
        let rule = "panics in code that both roles share".to_owned();
        return Err(Error::contract(name, rule));
    }
    let Some(golden) = golden else { return Ok(()) };
    let expected = golden.of(kernel).ok_or_else(|| {
        let rule = "has no line in collectives.txt; cargo xtask build-ptx --bless writes it";
        Error::contract(name, rule)
    })?;
    let code = kernel.code;
    for ((instruction, found), (_, expected)) in found.named().zip(expected.named()) {
        let is_implied = instruction != "cp.async" || !code.copies_vary;
        let is_kept = found == expected || found < expected && code.may_share;
        if !is_kept && is_implied {
            let rule = format!("{found} {instruction}, collectives.txt has {expected}");
            return Err(Error::contract(name, rule));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Package;
    use crate::collectives::INSTRUCTIONS;
    use kernels::catalog::{Spec, custom};

    /// The library's counts.
    fn golden() -> Golden {
        Golden::read(&Package::kernels().folder).unwrap()
    }

    /// A body that fulfils the contract.
    fn entry(kernel: &'static Spec, golden: &Golden) -> EntryPoint {
        let mut body = String::from("{\n");
        let counts = golden.of(kernel).expect("a line");
        for ((_, texts), (_, count)) in INSTRUCTIONS.iter().zip(counts.named()) {
            body += &format!("\t{}x;\n", texts[0]).repeat(count as usize);
        }
        let body = body + "}";
        EntryPoint { kernel, body }
    }

    #[test]
    fn every_breach_is_named() {
        let golden = golden();
        let check = |entry: &EntryPoint| check(entry, Some(&golden));
        for kernel in Package::kernels().kernels {
            let good = entry(kernel, &golden);
            let counts = golden.of(kernel).unwrap();
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
                assert!(message.contains(kernel.name), "{message}");
                assert!(message.contains(rule), "{message}");
            }
            let mut bad = good.clone();
            bad.body = bad.body.replacen("shfl.sync.x;\n", "", 1);
            match counts.of("shfl.sync") {
                0 => check(&bad).unwrap(),
                _ => assert!(check(&bad).unwrap_err().to_string().contains("shfl")),
            }
            let mut bad = good.clone();
            bad.body += "\ttrap;";
            match counts.of("setmaxnreg") {
                0 => check(&bad).unwrap(),
                _ => assert!(check(&bad).unwrap_err().to_string().contains("both roles")),
            }
        }
    }

    #[test]
    fn a_kernel_without_counts_is_named() {
        let kernel = Package::kernels().kernels[0];
        let entry = entry(kernel, &golden());
        let error = check(&entry, Some(&Golden::default())).unwrap_err();
        assert!(error.to_string().contains("build-ptx --bless"), "{error}");
        check(&entry, None).unwrap();
    }

    /// Of a type's kernels the compiler may share instructions, and may double none.
    #[test]
    fn types_of_other_crates_may_share_instructions() {
        let golden = golden();
        for kernel in custom::all("Penalty", &[64]) {
            let load = "ldmatrix.sync.x;\n";
            let mut fewer = entry(kernel, &golden);
            fewer.body = fewer.body.replacen(load, "", 1);
            check(&fewer, Some(&golden)).unwrap();
            let mut more = entry(kernel, &golden);
            more.body += load;
            let message = check(&more, Some(&golden)).unwrap_err().to_string();
            assert!(message.contains("ldmatrix"), "{message}");
        }
    }
}
