//! Compiles the kernels to PTX and leaves them where `src/ptx.rs` embeds them.

use kernel_builder::Error;
use kernels::table::Arch;
use std::path::Path;

fn main() {
    for path in [
        "kernels/src",
        "kernels/Cargo.toml",
        "Cargo.toml",
        "rust-toolchain.toml",
    ] {
        println!("cargo::rerun-if-changed=../{path}");
    }
    for variable in ["KERNEL_RUSTC", "PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }

    let mut modules = Vec::new();
    let mut compiled = true;
    for arch in Arch::ALL {
        match kernel_builder::build(*arch) {
            Ok(built) => modules.extend(built),
            Err(Error::NoCompiler) => {
                println!(
                    "cargo::warning={}; until then attention runs on the CPU only",
                    Error::NoCompiler
                );
                compiled = false;
                break;
            }
            Err(error) => {
                for line in error.to_string().lines() {
                    println!("cargo::error={line}");
                }
                std::process::exit(1);
            }
        }
    }

    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let write = |name: &str, text: &str| {
        let path = Path::new(&out).join(name);
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    };
    let mut rows = String::new();
    for module in &modules {
        let file = format!("{}.ptx", module.name);
        write(&file, &module.text);
        rows += &format!("    ({:?}, include_str!({file:?})),\n", module.name);
    }
    write(
        "modules.rs",
        &format!(
            "const COMPILED_MODULES: Option<&[(&str, &str)]> = {};\n",
            if compiled {
                format!("Some(&[\n{rows}])")
            } else {
                "None".into()
            }
        ),
    );
}
