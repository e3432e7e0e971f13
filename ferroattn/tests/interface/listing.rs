//! A list of all public items, by rustdoc.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Lets a stable rustdoc write JSON. Set for cargo as a whole, the variable would build dependencies that look at it anew.
const RUSTDOC: &str = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n";

/// Every item that programs can name with all features on, a line each; what is hidden in the documentation is not.
pub fn listing() -> String {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let target = scratch.parent().expect("it lies in the target folder");
    let rustdoc = scratch.join("rustdoc-json");
    fs::write(&rustdoc, RUSTDOC).expect("written");
    fs::set_permissions(&rustdoc, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let written = Command::new(cargo)
        .args(["rustdoc", "--quiet", "--package", "ferroattn", "--lib"])
        .args(["--all-features", "--target-dir"])
        .arg(target)
        .args(["--", "-Zunstable-options", "--output-format=json"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("RUSTDOC", rustdoc)
        .env_remove("RUSTDOCFLAGS")
        .status()
        .expect("cargo runs");
    assert!(written.success(), "rustdoc wrote no JSON");
    let json = target.join("doc/ferroattn.json");
    let items = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build()
        .expect("public-api reads the JSON of this rustdoc");
    items.to_string()
}
