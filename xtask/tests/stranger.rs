//! The library in a crate that knows nothing of this workspace, as a path dependency and as it is packaged: an
//! environment of `PATH` and `HOME`, no CUDA installation, default features and the emulator.

use std::path::Path;
use std::process::Command;

const MANIFEST: &str = r#"
[package]
name = "stranger"
version = "0.1.0"
edition = "2024"

[workspace]

# Built once.
[profile.dev]
debug = false
incremental = false

"#;

/// Prints the devices that computed the mean of two values.
const PROGRAM: &str = r#"
use ferroattn::{Attention, Device, Tensor, emulator::Options, f16};

fn main() -> ferroattn::Result<()> {
    let devices = [Ok(Device::cpu()), Device::emulator(Options::default()), Device::cuda(0)];
    for device in devices {
        let device = match device {
            Ok(device) => device,
            Err(reason) => {
                println!("{reason}");
                continue;
            }
        };
        let q = Tensor::new(&device, [1, 1, 1, 8], &[f16::ONE; 8])?;
        let k = Tensor::new(&device, [1, 1, 2, 8], &[f16::ONE; 16])?;
        let v: Vec<f16> = (0..16).map(|n| f16::from_f32(n as f32)).collect();
        let v = Tensor::new(&device, [1, 1, 2, 8], &v)?;
        let (o, _) = Attention::new().forward(&q, &k, &v)?;
        let o: Vec<f32> = o.to_vec()?.into_iter().map(f16::to_f32).collect();
        assert_eq!(o, [4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
        println!("{} computed", device.name());
    }
    Ok(())
}
"#;

/// The output of a stranger's program that depends on the library in this folder.
fn built_with(library: &Path, program: &Path) -> String {
    std::fs::create_dir_all(program.join("src")).expect("a folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let write = |name: &str, text: &str| {
        std::fs::write(program.join(name), text).expect("a file");
    };
    let features = r#"features = ["emulator"]"#;
    let dependency = format!("[dependencies]\nferroattn = {{ path = {library:?}, {features} }}\n");
    write("Cargo.toml", &format!("{MANIFEST}{dependency}"));
    write("src/main.rs", PROGRAM);
    // The lock file keeps all versions, so that nothing is downloaded again.
    std::fs::copy(root.join("Cargo.lock"), program.join("Cargo.lock")).expect("a file");

    let cargo = std::env::var_os("CARGO").expect("cargo runs the tests");
    let toolchain = Path::new(&cargo).parent().expect("cargo's folder");
    let path = std::env::var_os("PATH").expect("a PATH");
    let path = [toolchain.into()]
        .into_iter()
        .chain(std::env::split_paths(&path));
    let output = Command::new(&cargo)
        .args(["run", "--quiet", "--target-dir"])
        .arg(kernel_builder::target_dir().join("stranger"))
        .current_dir(program)
        .env_clear()
        .env("PATH", std::env::join_paths(path).expect("folders"))
        .env("HOME", std::env::var_os("HOME").expect("a home"))
        .output()
        .expect("cargo runs");
    let [printed, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{errors}");
    assert!(printed.contains("CPU computed"), "{printed}");
    printed
}

#[test]
fn the_library_builds_anywhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let printed = built_with(&workspace.join("ferroattn"), &folder.path().join("path"));
    if kernel_builder::Compiler::find().is_err() {
        assert!(
            printed.contains("rustup component add rust-src"),
            "{printed}"
        );
        return;
    }
    assert!(printed.contains("emulator computed"), "{printed}");

    let packaged = folder.path().join("crate");
    let mut package = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let status = package.args(["package", "--crate"]).arg(&packaged).status();
    assert!(status.expect("the task runs").success());
    let library = packaged.join("ferroattn");
    let table = library.join("ptx").join(kernel_builder::TABLE);
    assert!(table.exists(), "the kernels are inside");
    let printed = built_with(&library, &folder.path().join("packaged"));
    assert!(printed.contains("emulator computed"), "{printed}");
}
