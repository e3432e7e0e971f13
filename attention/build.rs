//! Compiles the kernels to PTX and leaves them, compressed, where `src/ptx.rs` embeds them. A packaged crate has them
//! in its folder `ptx`.

use kernel_builder::{Error, Package, embed};
use std::path::{Path, PathBuf};

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let packaged = Path::new("ptx");
    let left = if packaged.exists() {
        println!("cargo::rerun-if-changed=ptx");
        copy(packaged, &out)
    } else {
        compile(&out)
    };
    if let Err(error) = left {
        for line in error.to_string().lines() {
            println!("cargo::error={line}");
        }
        std::process::exit(1);
    }
}

fn compile(out: &Path) -> Result<(), Error> {
    for path in ["kernels/src", "rust-toolchain.toml"] {
        println!("cargo::rerun-if-changed=../{path}");
    }
    for variable in ["KERNEL_RUSTC", "PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    match kernel_builder::build(&Package::kernels()) {
        Ok(modules) => embed(Some(&modules), out),
        Err(error @ Error::NoCompiler) => {
            println!("cargo::warning={error}; until then attention runs on the CPU only");
            embed(None, out)
        }
        Err(error) => Err(error),
    }
}

fn copy(packaged: &Path, out: &Path) -> Result<(), Error> {
    let copied = || {
        for file in std::fs::read_dir(packaged)? {
            let file = file?;
            std::fs::copy(file.path(), out.join(file.file_name()))?;
        }
        Ok(())
    };
    copied().map_err(|source| Error::File(packaged.into(), source))
}
