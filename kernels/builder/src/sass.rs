//! Machine code: what the assembler makes of PTX, disassembled and counted.

use crate::ptxas::{self, CUBIN, find_tool, printed, version};
use crate::{Collectives, EntryPoint, Error, cache};
use std::collections::BTreeMap;
use std::process::Command;

/// The machine code of a module's PTX text on an architecture, as `nvdisasm` prints it.
///
/// # Errors
/// If `ptxas` or `nvdisasm` is missing or fails.
pub fn disassemble(module: &str, text: &str, target: &str) -> Result<String, Error> {
    let tool = |name: &'static str| find_tool(name).ok_or(Error::NoTool(name));
    let (ptxas, nvdisasm) = (tool("ptxas")?, tool("nvdisasm")?);
    let inputs = (version(&ptxas)?, version(&nvdisasm)?, text, target);
    cache::text("sass", inputs, |_| {
        let cubin = ptxas::assembled(&ptxas, module, text, target)?.join(CUBIN);
        printed(Command::new(nvdisasm).arg("--print-code").arg(cubin))
    })
}

/// Checks an entry's machine code: an `HGMMA` for each `wgmma`, or of e4m3 a `QGMMA`, of boolean masks too if the code `has_mask`, and no `WARPSYNC` beside
/// them.
///
/// With a `WARPSYNC` the assembler takes warps for divergent, since a loop's count or a branch differs between lanes
/// in its eyes. It then moves each word of a descriptor to a uniform register before each `wgmma`: 3 to 7 % of the time
/// (`docs/tuning.md`).
///
/// # Errors
/// [`Error::Contract`] with the entry and the instruction.
pub fn check(entry: &EntryPoint, sass: &str, has_mask: bool) -> Result<(), Error> {
    let all = Collectives::count(&entry.body).of("wgmma");
    if all == 0 {
        return Ok(());
    }
    let removed = match has_mask {
        true => 0,
        false => entry.kernel.code.products_of_masks,
    };
    let expected = (all - removed) as usize;
    let name = entry.kernel.name;
    let opcodes = opcodes(sass, name);
    for (what, expected) in [("GMMA", expected), ("WARPSYNC", 0)] {
        let named = opcodes
            .iter()
            .filter(|(opcode, _)| opcode.trim_start_matches(['H', 'Q']).starts_with(what));
        let found: usize = named.map(|(_, count)| count).sum();
        if found != expected {
            let rule = format!("{found} {what} in the machine code for {expected} in the PTX");
            return Err(Error::contract(name, rule));
        }
    }
    Ok(())
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
    use super::{check, opcodes};
    use crate::{EntryPoint, Package};

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
        let counts = [("BRA", 1), ("EXIT", 1), ("HMMA.16816.F32", 2), ("LDC", 1)];
        assert_eq!(opcodes(sass, "one"), counts.into());
    }

    #[test]
    fn warps_of_a_kernel_with_wgmma_stay_together() {
        let mut kernels = Package::kernels().kernels.into_iter();
        let kernel = kernels.find(|kernel| kernel.name == "hopper_f16_d32");
        let kernel = kernel.expect("in the catalog");
        let products = 24;
        let entry = EntryPoint {
            kernel,
            body: "wgmma.mma_async.x;\n".repeat(products),
        };
        let sass = |products, syncs| {
            let line = |code| format!("        /*0000*/    {code} ;\n");
            let products = line("HGMMA.64x64x16.F32 R24, gdesc[UR4], R24").repeat(products);
            let syncs = line("WARPSYNC.ALL").repeat(syncs);
            format!(".text.hopper_f16_d32:\n{products}{syncs}")
        };
        assert!(check(&entry, &sass(products, 0), false).is_ok());
        for (products, syncs) in [(products, 1), (products - 1, 0), (products + 1, 0)] {
            let error = check(&entry, &sass(products, syncs), false).unwrap_err();
            assert!(error.to_string().contains("in the machine code"));
        }
    }
}
