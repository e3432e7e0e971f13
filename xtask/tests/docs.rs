//! The documents in Markdown.

use std::path::{Path, PathBuf};

/// Every tracked document, found from the workspace's root.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut documents = Vec::new();
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if name.ends_with(".md") {
                documents.push(path);
            }
        }
    }
    documents
}

/// Files, pictures and headings that links name. Links elsewhere are left out.
#[test]
fn links_lead_somewhere() {
    let documents = documents();
    assert!(documents.len() >= 5, "{documents:?}");
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        for link in text.split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            if file.contains("://") {
                continue;
            }
            let path = match file {
                "" => document.clone(),
                file => document.parent().unwrap().join(file),
            };
            assert!(path.exists(), "{}: no {link}", document.display());
            if !heading.is_empty() {
                let text = std::fs::read_to_string(&path).unwrap();
                let found = text
                    .lines()
                    .any(|line| anchor(line).as_deref() == Some(heading));
                assert!(found, "{}: no heading {link}", document.display());
            }
        }
    }
}

/// A heading's anchor, as GitHub makes it.
fn anchor(line: &str) -> Option<String> {
    let title = line.strip_prefix('#')?.trim_start_matches('#').trim();
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let title = title
        .to_lowercase()
        .chars()
        .filter(kept)
        .collect::<String>();
    Some(title.replace(' ', "-"))
}

#[test]
fn readme_is_a_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("README.md")).unwrap();
    let lines = text.lines().count();
    assert!(lines <= 150, "README.md has {lines} lines; docs/ has room");
}

#[test]
fn the_index_names_every_page() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let index = std::fs::read_to_string(folder.join("README.md")).unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_page = name.ends_with(".md") && name != "README.md";
        let listed = [format!("]({name})"), format!("]({name}#")];
        assert!(
            !is_page || listed.iter().any(|link| index.contains(link)),
            "docs/README.md does not name {name}"
        );
    }
}
