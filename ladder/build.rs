//! Compiles the kernels of the ladder to PTX: with the feature `ptx` all, else none.

#[path = "src/catalog.rs"]
#[allow(dead_code, reason = "the library's")]
mod catalog;
#[path = "src/options.rs"]
#[allow(dead_code, reason = "the library's")]
mod options;
#[path = "src/params.rs"]
#[allow(dead_code, reason = "the library's")]
mod params;
#[path = "src/timeline.rs"]
#[allow(dead_code, unused_imports, reason = "the library's")]
mod timeline;

use kernel_builder::{Error, Package, embed};
use std::path::PathBuf;

fn main() {
    for path in ["src", "../kernels/src", "../rust-toolchain.toml"] {
        println!("cargo::rerun-if-changed={path}");
    }
    for variable in ["KERNEL_RUSTC", "PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let package = Package {
        name: "ladder",
        uses: &["kernels"],
        kernels: catalog::specs(),
    };
    let modules = match std::env::var_os("CARGO_FEATURE_PTX") {
        Some(_) => kernel_builder::build(&package),
        None => Err(Error::NoCompiler),
    };
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let left = match modules {
        Ok(modules) => embed(Some(&modules), &out),
        Err(Error::NoCompiler) => embed(None, &out),
        Err(error) => Err(error),
    };
    if let Err(error) = left {
        for line in error.to_string().lines() {
            println!("cargo::error={line}");
        }
        std::process::exit(1);
    }
}
