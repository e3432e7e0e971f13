//! `bench profile --sass`: the instructions of a kernel's machine code, counted.

use crate::args::Profile;
use crate::names::on_ladder;
use crate::table;
use crate::terminal::print;
use anyhow::{Context, Result, ensure};
use ferroattn::emulator::Options;
use ferroattn::internals::Entry;
use ferroattn::{Class, Device};
use kernel_builder::sass;
use kernels::catalog;
use ladder::Ladder;
use ladder::catalog::variants;

/// Prints how often each instruction occurs in the kernel.
///
/// # Errors
/// If there is no such kernel, or a tool is missing or fails.
pub fn run(args: &Profile) -> Result<()> {
    let kernel = kernel(args)?;
    let text = kernel.text()?;
    let code = sass::disassemble(kernel.name, &text, &args.target)?;
    let counts = sass::opcodes(&code, kernel.name);
    ensure!(!counts.is_empty(), "nvdisasm shows no {}", kernel.name);
    let total: usize = counts.values().sum();
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut table = table::empty(&["instruction", "count"], [1]);
    for (opcode, count) in counts {
        table.add_row([opcode, &count.to_string()]);
    }
    print(format_args!(
        "{} on {}: {total} instructions\n{table}",
        kernel.name, args.target
    ));
    Ok(())
}

/// The kernel with this name, or the one that the library takes on the target's devices.
fn kernel(args: &Profile) -> Result<Entry> {
    let (call, target) = (&args.call, args.target.as_str());
    let problem = call.shape.problem()?;
    let entry = |name: &str| {
        let rung = || ladder::catalog::named(name).map(Entry::from);
        catalog::named(name).map(Entry::from).or_else(rung)
    };
    if let Some(kernel) = entry(&call.kernel) {
        return Ok(kernel);
    }
    let class = Class::named(target).with_context(|| format!("no kernels are for {target}"))?;
    let device = Device::emulator_of(class, Options::default())?;
    let names = call.choice().kernels(&device, &call.shape)?;
    let found = names.first().and_then(|name| match on_ladder(name) {
        Ok(Some(Ladder { rung, acc, .. })) => {
            let (dtype, acc) = (call.shape.dtype.into(), acc.unwrap_or_default());
            // The number of stages is a parameter of the launch: all lead to the same kernel.
            variants(rung, dtype, acc.into(), problem.dim as u32, 1)
                .map(|(kernel, _)| kernel.into())
        }
        _ => entry(name),
    });
    found.with_context(|| format!("no kernel serves {} on {target}", call.shape))
}

#[cfg(test)]
mod tests {
    use super::kernel;
    use crate::args::{Args, Task};
    use clap::Parser;
    use ferroattn::internals::ptx;

    /// The name of the kernel that a command line means.
    fn name(line: &str) -> Result<&'static str, String> {
        let words = ["bench", "profile", "--sass"].into_iter();
        let args = Args::try_parse_from(words.chain(line.split_whitespace()));
        let Some(Task::Profile(profile)) = args.expect("valid").task else {
            panic!("a profile");
        };
        kernel(&profile)
            .map(|kernel| kernel.name)
            .map_err(|error| error.to_string())
    }

    /// Some command lines find these kernels; others find none, for reasons of one line.
    fn check<const F: usize, const N: usize>(found: [(&str, &str); F], none: [(&str, &str); N]) {
        if !ptx::COMPILED {
            return;
        }
        for (line, expected) in found {
            assert_eq!(name(line), Ok(expected), "{line}");
        }
        for (line, reason) in none {
            let error = name(line).expect_err(line);
            assert!(error.contains(reason), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn a_kernel_is_found_by_shape_or_name() {
        let found = [
            ("--dim 40", "hopper_f16_d64"),
            (
                "--dim 64 --causal --target sm_120",
                "forward_f16_d64_128x48_causal",
            ),
            ("--dim 512", "hopper_f16_d512"),
            ("--dim 520", "wide_f16_d768"),
            ("--kernel forward_f16_d128", "forward_f16_d128"),
            ("--kernel gemm_simple_f16_f16", "gemm_simple_f16_f16"),
        ];
        let none = [
            ("--kv-heads 0", "kv_heads is 0"),
            ("--heads 0", "heads is 0"),
            ("--dim 0", "it must be from 1 to 1024"),
            ("--seqlen 5000000000", "at most"),
            ("--kernel forward_f16_d65", "forward_f16_d64"),
            ("--kernel gemm-simple", "multiplies matrices"),
        ];
        check(found, none);
    }

    #[cfg(feature = "ladder")]
    #[test]
    fn a_kernel_of_the_ladder_is_found_by_its_options() {
        let found = [
            ("--kernel split-q --dtype bf16", "split_q_bf16_d64"),
            (
                "--kernel shared-kv:stages=2:acc=f16 --dim 72",
                "split_q_f16acc_d96",
            ),
            ("--kernel teams_f16_t4_o1", "teams_f16_t4_o1"),
        ];
        let none = [
            ("--kernel split-q --dim 264", "up to 256"),
            ("--kernel split-q:swizzle=foo", "swizzle=foo"),
            (
                "--kernel split-q:stages=3 --dim 256 --target sm_89",
                "would fit",
            ),
        ];
        check(found, none);
    }
}
