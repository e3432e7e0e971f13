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

use kernel_builder::{Package, embed, script};
use std::path::Path;

fn main() {
    if std::env::var_os("CARGO_FEATURE_PTX").is_some() {
        script(&Package {
            name: "ladder",
            folder: env!("CARGO_MANIFEST_DIR").into(),
            uses: &["kernels"],
            kernels: catalog::specs(),
        });
    } else {
        let out = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
        embed(None, Path::new(&out)).expect("the folder can be written");
    }
}
