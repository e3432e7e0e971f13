//! Compiles the kernels to PTX, with the feature `ptx`, and leaves them, compressed, where `src/ptx` embeds them. A
//! packaged crate has them in its folder `ptx`.

#[cfg(feature = "ptx")]
mod kernels {
    use kernel_builder::Package;
    use std::path::{Path, PathBuf};

    pub fn embed() {
        let packaged = Path::new("ptx");
        if packaged.exists() {
            println!("cargo::rerun-if-changed=ptx");
            let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
            copy(packaged, &out).expect("the package's files can be copied");
        } else {
            kernel_builder::script(&Package::kernels());
        }
    }

    fn copy(packaged: &Path, out: &Path) -> std::io::Result<()> {
        for file in std::fs::read_dir(packaged)? {
            let file = file?;
            std::fs::copy(file.path(), out.join(file.file_name()))?;
        }
        Ok(())
    }
}

fn main() {
    #[cfg(feature = "ptx")]
    kernels::embed();
    #[cfg(not(feature = "ptx"))]
    println!("cargo::rerun-if-changed=build.rs");
}
