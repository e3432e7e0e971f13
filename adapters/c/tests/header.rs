//! The header is what cbindgen writes from the sources.

use std::path::Path;

#[test]
fn header_is_of_these_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("a valid file");
    // The crate's own sources, without cargo, which would look for those of all dependencies.
    let bindings = cbindgen::Builder::new()
        .with_config(config)
        .with_src(folder.join("src/lib.rs"))
        .generate()
        .expect("sources that cbindgen reads");
    let mut written = Vec::new();
    bindings.write(&mut written);
    let written = String::from_utf8(written).expect("UTF-8");
    let path = folder.join("include/ferroattn.h");
    if std::env::var_os("FERROATTN_WRITE_HEADER").is_some() {
        std::fs::write(&path, &written).expect("the folder may be written");
    }
    let header = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        header == written,
        "include/ferroattn.h is stale: FERROATTN_WRITE_HEADER=1 cargo test -p adapter-c --test header writes it"
    );
}
