//! `cargo xtask doctor`: what this machine has, and what each missing piece would give.

mod driver;

use crate::shell;
use comfy_table::{Table, presets};
use driver::Driver;
use kernel_builder::{Compiler, Error, ptxas};
use kernels::catalog::Target;

/// Pieces of this machine.
struct Findings {
    /// Version of the compiler for the kernels, or of the rustc in use.
    rustc: Option<String>,
    compiler: Result<Compiler, Error>,
    /// Paths of `ptxas` and `nvdisasm`.
    tools: [Option<String>; 2],
    /// The driver, or why there is none.
    driver: Result<Driver, String>,
}

/// A piece: what was found of it or how to get it, and what it gives.
struct Row {
    piece: &'static str,
    found: Result<String, String>,
    gives: &'static str,
}

/// Prints the table; returns the exit status: 0, or 2 if `KERNEL_RUSTC` names no usable compiler, since nothing builds then.
pub fn run() -> u8 {
    let here = std::env::current_dir().unwrap_or_default();
    let path = |tool| {
        let path = ptxas::find_tool(tool)?;
        Some(
            path.strip_prefix(&here)
                .unwrap_or(&path)
                .display()
                .to_string(),
        )
    };
    let compiler = Compiler::find();
    let version = match &compiler {
        Ok(compiler) => Some(compiler.version.clone()),
        Err(_) => shell::output(&mut shell::command("rustc", "--version")).ok(),
    };
    let findings = Findings {
        rustc: version.map(|version| short(&version)),
        compiler,
        tools: ["ptxas", "nvdisasm"].map(path),
        driver: Driver::find(),
    };
    println!("{}\n{}", table(&findings.rows()), findings.summary());
    match findings.compiler {
        Err(Error::BadOverride(_)) => 2,
        _ => 0,
    }
}

/// `rustc 1.95.0`, of what rustc says of its version.
fn short(version: &str) -> String {
    Vec::from_iter(version.split_whitespace().take(2)).join(" ")
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_BORDERS_ONLY)
        .set_header(["piece", "found", "gives"]);
    for Row {
        piece,
        found,
        gives,
    } in rows
    {
        let found = match found {
            Ok(found) => found.clone(),
            Err(missing) => format!("MISSING: {missing}"),
        };
        table.add_row([*piece, &found, gives]);
    }
    table
}

impl Findings {
    fn rows(&self) -> Vec<Row> {
        let setup = |tool: &Option<String>| tool.clone().ok_or("cargo xtask setup".to_owned());
        let compiler = self.compiler.as_ref().map_err(|error| match error {
            Error::NoCompiler => "cargo xtask setup".to_owned(),
            other => other.to_string(),
        });
        let source = |compiler: &Compiler| compiler.library.display().to_string();
        let driver = self.driver.as_ref().map_err(Clone::clone);
        let asked = self
            .driver
            .as_ref()
            .map_err(|_| "no driver to ask".to_owned());
        vec![
            Row {
                piece: "compiler, 1.95 or later",
                found: setup(&self.rustc),
                gives: "GPU kernels; without them attention runs on the CPU alone",
            },
            Row {
                piece: "its library source (rust-src)",
                found: compiler.map(source),
                gives: "core for the GPU, which ships nowhere compiled",
            },
            Row {
                piece: "ptxas",
                found: setup(&self.tools[0]),
                gives: "checks of registers, spills and every target",
            },
            Row {
                piece: "nvdisasm",
                found: setup(&self.tools[1]),
                gives: "checks of Hopper's machine code; profile --sass",
            },
            Row {
                piece: "NVIDIA driver",
                found: driver.map(Driver::version),
                gives: "attention on a GPU",
            },
            Row {
                piece: "GPU, compute capability 8.0 or later",
                found: asked.clone().and_then(Driver::gpus),
                gives: "speed; --device emulator runs the kernels without one",
            },
            Row {
                piece: "PTX version",
                found: asked.and_then(ptx_versions),
                gives: "the driver compiles the kernels of these targets",
            },
        ]
    }

    /// The last line: where attention runs once it is built.
    fn summary(&self) -> &'static str {
        let has_gpu = self
            .driver
            .as_ref()
            .is_ok_and(|driver| driver.gpus().is_ok());
        match (&self.compiler, has_gpu) {
            (Err(Error::BadOverride(_)), _) => {
                "Nothing builds: set KERNEL_RUSTC to a rustc with its library source, or unset it."
            }
            (Err(_), _) => {
                "Attention runs on the CPU; cargo xtask setup, then build again, for kernels."
            }
            (Ok(_), false) => "Attention runs on the CPU, its kernels by --device emulator.",
            (Ok(_), true) => "Attention runs on the GPU.",
        }
    }
}

/// The targets whose PTX the driver knows, or the ones that it does not.
fn ptx_versions(driver: &Driver) -> Result<String, String> {
    let line = |target: &Target| {
        let digits = target.ptx_version.trim_start_matches("ptx");
        let (major, minor) = digits.split_at(1);
        format!("{major}.{minor} for {}", target.name)
    };
    let knows = |target: &&Target| driver.knows(target.ptx_version);
    let (known, unknown): (Vec<_>, Vec<_>) = Target::ALL.iter().partition(knows);
    let lines = |targets: Vec<&Target>| Vec::from_iter(targets.into_iter().map(line)).join(", ");
    match unknown.is_empty() {
        true => Ok(lines(known)),
        false => Err(format!("{}: a newer driver", lines(unknown))),
    }
}

#[cfg(test)]
mod tests {
    use super::driver::{Driver, Gpu};
    use super::{Findings, short, table};
    use kernel_builder::{Compiler, Error};

    fn gpu(compute_capability: (i32, i32)) -> Gpu {
        Gpu {
            name: "NVIDIA H200".to_owned(),
            compute_capability,
        }
    }

    /// A machine with all pieces.
    fn complete() -> Findings {
        Findings {
            rustc: Some(short("rustc 1.95.0 (59807616e 2026-04-14)\nbinary: rustc")),
            compiler: Ok(Compiler {
                rustc: "bin/rustc".into(),
                version: String::new(),
                library: "src/library".into(),
            }),
            tools: ["bin/ptxas", "bin/nvdisasm"].map(|path| Some(path.to_owned())),
            driver: Ok(Driver {
                cuda: (12, 8),
                gpus: vec![gpu((9, 0))],
            }),
        }
    }

    /// The pieces that are missing, each with how to get it.
    fn missing(findings: &Findings) -> Vec<(&'static str, String)> {
        let rows = findings.rows().into_iter();
        rows.filter_map(|row| Some((row.piece, row.found.err()?)))
            .collect()
    }

    #[test]
    fn a_complete_machine_misses_nothing() {
        let findings = complete();
        assert_eq!(missing(&findings), []);
        assert_eq!(findings.summary(), "Attention runs on the GPU.");
        let text = table(&findings.rows()).to_string();
        for part in [
            "rustc 1.95.0",
            "src/library",
            "NVIDIA H200 (9.0)",
            "CUDA 12.8",
            "8.1 for sm_90a",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("MISSING"), "{text}");
    }

    #[test]
    fn an_empty_machine_misses_all_and_runs_on_the_cpu() {
        let findings = Findings {
            rustc: None,
            compiler: Err(Error::NoCompiler),
            tools: [None, None],
            driver: Err("no libcuda.so.1".to_owned()),
        };
        assert_eq!(missing(&findings).len(), findings.rows().len());
        for (piece, how) in &missing(&findings)[..4] {
            assert_eq!(how, "cargo xtask setup", "{piece}");
        }
        assert!(
            findings
                .summary()
                .starts_with("Attention runs on the CPU; cargo xtask setup")
        );
        let no_source = Findings {
            compiler: Err(Error::NoCompiler),
            ..complete()
        };
        let expected = (
            "its library source (rust-src)",
            "cargo xtask setup".to_owned(),
        );
        assert_eq!(missing(&no_source), [expected]);
        let named = Findings {
            compiler: Err(Error::BadOverride("nowhere".into())),
            ..complete()
        };
        assert!(missing(&named)[0].1.contains("KERNEL_RUSTC=nowhere"));
        assert!(named.summary().starts_with("Nothing builds"));
    }

    #[test]
    fn old_drivers_and_gpus_are_named() {
        let with = |cuda, gpus| Findings {
            driver: Ok(Driver { cuda, gpus }),
            ..complete()
        };
        let old_driver = with((12, 0), vec![gpu((9, 0))]);
        let expected = ("PTX version", "8.1 for sm_90a: a newer driver".to_owned());
        assert_eq!(missing(&old_driver), [expected]);
        assert_eq!(missing(&with((10, 2), vec![gpu((8, 0))])).len(), 1);
        let old_gpu = with((12, 8), vec![gpu((7, 5))]);
        let (piece, how) = &missing(&old_gpu)[0];
        assert!(
            piece.starts_with("GPU") && how.contains("NVIDIA H200 (7.5)"),
            "{how}"
        );
        assert!(old_gpu.summary().contains("emulator"));
        assert_eq!(missing(&with((12, 8), Vec::new())).len(), 1);
        let both = with((12, 8), vec![gpu((7, 5)), gpu((8, 6))]);
        assert_eq!(missing(&both), []);
    }
}
