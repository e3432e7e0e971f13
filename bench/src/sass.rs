//! `bench profile --sass`: what the assembler makes of a kernel, counted.

use crate::args::Profile;
use crate::{print, table};
use anyhow::{Context, Result, ensure};
use attention::ptx;
use kernel_builder::ptxas;
use kernels::class::Class;
use kernels::select::{Request, select};
use kernels::table::{KERNELS, Kernel};
use std::collections::BTreeMap;
use std::process::Command;

/// Prints how often each instruction stands in the kernel.
///
/// # Errors
/// If there is no such kernel, or a tool is missing or fails.
pub fn run(args: &Profile) -> Result<()> {
    let kernel = kernel(args)?;
    let sass = disassemble(kernel, &args.target)?;
    let counts = opcodes(&sass, kernel.name);
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

fn kernel(args: &Profile) -> Result<&'static Kernel> {
    let (shape, name) = (&args.call.shape, args.call.kernel.as_str());
    let kernel = match name {
        "auto" => select(&Request {
            dtype: shape.dtype.into(),
            dim: shape.dim as u32,
            causal: shape.causal,
            seqlen_q: shape.seqlen as u32,
            group: (shape.heads / shape.kv_heads()) as u32,
            compute_capability: capability(&args.target),
            class: class(&args.target),
        }),
        name => KERNELS.iter().find(|kernel| kernel.name == name),
    };
    kernel.with_context(|| format!("no kernel {name} for {shape}"))
}

/// The compute capability of a target such as `sm_90`; of one that cannot be read, that of the oldest
/// kernels.
fn capability(target: &str) -> (i32, i32) {
    let digits = target.trim_start_matches("sm_");
    let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
    let number = digits.parse().unwrap_or(80);
    (number / 10, number % 10)
}

/// The class of a target; of one that is not known, that of an H100.
fn class(target: &str) -> Class {
    let mut classes = Class::ALL.iter();
    let class = classes.find(|class| class.targets().contains(&target));
    class.copied().unwrap_or(Class::Sm90)
}

/// The machine code of the kernel's module, as text.
fn disassemble(kernel: &Kernel, target: &str) -> Result<String> {
    let missing = |tool| format!("no {tool}; type cargo xtask setup, or put it in the PATH");
    let ptxas = ptxas::find().with_context(|| missing("ptxas"))?;
    let nvdisasm = ptxas::find_tool("nvdisasm").with_context(|| missing("nvdisasm"))?;
    let text = ptx::module(kernel.module()).ok_or(attention::Error::NotCompiled)?;
    let folder = tempfile::tempdir()?;
    let (source, cubin) = (folder.path().join("ptx"), folder.path().join("cubin"));
    std::fs::write(&source, text)?;
    let mut assemble = Command::new(ptxas);
    assemble
        .args(["-arch", target, "-o"])
        .arg(&cubin)
        .arg(&source);
    output(&mut assemble)?;
    output(Command::new(nvdisasm).arg("--print-code").arg(&cubin))
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", said.trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// How often each instruction stands in an entry, by its name with modifiers.
fn opcodes<'a>(sass: &'a str, entry: &str) -> BTreeMap<&'a str, usize> {
    let label = format!(".text.{entry}:");
    let body = sass.lines().skip_while(|line| line.trim() != label).skip(1);
    let body = body.take_while(|line| !line.starts_with(".text."));
    let mut counts = BTreeMap::new();
    for opcode in body.filter_map(opcode) {
        *counts.entry(opcode).or_default() += 1;
    }
    counts
}

/// The instruction's name in a line `/*ADDRESS*/ CODE`.
fn opcode(line: &str) -> Option<&str> {
    let (_, code) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
    name(code)
}

/// The instruction's name in `@PREDICATE NAME OPERANDS ;`.
pub fn name(code: &str) -> Option<&str> {
    let mut words = code.split_whitespace();
    let name = words.find(|word| !word.starts_with('@'))?;
    Some(name.trim_end_matches(';'))
}

#[cfg(test)]
mod tests {
    use super::opcodes;

    #[test]
    fn instructions_of_one_entry_are_counted() {
        let sass = "\
.section .text.other,\"ax\",@progbits
.text.other:
        /*0000*/                   NOP ;
\t.section\t.text.one,\"ax\",@progbits
.text.one:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/              @!P0 HMMA.16816.F32 R4, R8, R2, R4 ;
        /*0020*/                   HMMA.16816.F32 R4, R8, R2, R4 ;
        /*0030*/               @P1 BRA `(.L_x_0) ;
        /*0040*/                   EXIT ;
.text.two:
        /*0000*/                   EXIT ;
";
        let counts = opcodes(sass, "one");
        let counts: Vec<_> = counts.into_iter().collect();
        assert_eq!(
            counts,
            [("BRA", 1), ("EXIT", 1), ("HMMA.16816.F32", 2), ("LDC", 1)]
        );
    }
}
