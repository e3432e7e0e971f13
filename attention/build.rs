//! Compiles the kernels to PTX and leaves them, compressed, where `src/ptx.rs` embeds them.

use flate2::{Compression, write::ZlibEncoder};
use kernel_builder::Error;
use kernels::catalog::Arch;
use std::io::Write;
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
    let write = |name: &str, content: &[u8]| {
        let path = Path::new(&out).join(name);
        std::fs::write(&path, content)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    };
    let mut rows = String::new();
    for module in &modules {
        let file = format!("{}.ptx.z", module.name);
        write(&file, &compressed(&module.text));
        rows += &format!("    ({:?}, include_bytes!({file:?})),\n", module.name);
    }
    write(
        "modules.rs",
        format!(
            "const COMPILED_MODULES: Option<&[(&str, &[u8])]> = {};\n",
            if compiled {
                format!("Some(&[\n{rows}])")
            } else {
                "None".into()
            }
        )
        .as_bytes(),
    );
}

fn compressed(text: &str) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let written = encoder.write_all(text.as_bytes());
    let finished = written.and_then(|()| encoder.finish());
    finished.expect("memory takes what is written")
}
