//! Compiles the kernels of [`Documents`], which `src/lib.rs` has: forward and backward, f16 and bf16.

use kernel_builder::{Package, script};
use kernels::catalog::custom;

fn main() {
    script(&Package {
        name: "custom_score",
        folder: env!("CARGO_MANIFEST_DIR").into(),
        uses: &["kernels"],
        kernels: custom::all("Documents", &[64, 128]),
    });
}
