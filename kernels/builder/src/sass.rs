//! Machine code: what the assembler makes of PTX, disassembled and counted.

use crate::ptxas::{find_tool, printed, version};
use crate::{Error, cache};
use std::collections::BTreeMap;
use std::process::Command;

/// The machine code of a PTX text on an architecture, as `nvdisasm` prints it.
///
/// # Errors
/// If `ptxas` or `nvdisasm` is missing or fails.
pub fn disassemble(text: &str, target: &str) -> Result<String, Error> {
    let tool = |name: &'static str| find_tool(name).ok_or(Error::NoTool(name));
    let (ptxas, nvdisasm) = (tool("ptxas")?, tool("nvdisasm")?);
    let inputs = (version(&ptxas)?, version(&nvdisasm)?, text, target);
    cache::text("sass", inputs, |folder| {
        let (source, cubin) = (folder.join("ptx"), folder.join("cubin"));
        cache::write(&source, text)?;
        let mut assemble = Command::new(ptxas);
        assemble.args(["-arch", target, "-o"]).arg(&cubin);
        printed(assemble.arg(&source))?;
        printed(Command::new(nvdisasm).arg("--print-code").arg(&cubin))
    })
}

/// How often each instruction occurs in an entry, by its name with modifiers.
pub fn opcodes<'a>(sass: &'a str, entry: &str) -> BTreeMap<&'a str, usize> {
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
