//! Files of results in a folder.

use crate::gemm::GemmShape;
use crate::results::Results;
use crate::timeline::Timeline;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// The results of attention in a folder, in the order of their dates.
///
/// # Errors
/// If there are none, or one cannot be read.
pub fn all(folder: &Path) -> Result<Vec<Results>> {
    let mut all = Vec::new();
    for path in files(folder)? {
        if !has_products(&path) && Timeline::load(&path).is_err() {
            all.push(Results::load(&path)?);
        }
    }
    ensure!(!all.is_empty(), "no results in {}", folder.display());
    all.sort_by(|a, b| a.date.cmp(&b.date));
    Ok(all)
}

/// The timelines in a folder.
///
/// # Errors
/// If the folder cannot be read.
pub fn timelines(folder: &Path) -> Result<Vec<Timeline>> {
    let files = files(folder)?.into_iter();
    Ok(files
        .filter_map(|path| Timeline::load(&path).ok())
        .collect())
}

/// The files of a folder whose names end in `json`, in the order of their names.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder);
    let entries = entries.with_context(|| format!("no results in {}", folder.display()))?;
    let paths: Result<Vec<_>, _> = entries
        .map(|entry| Ok::<_, std::io::Error>(entry?.path()))
        .collect();
    let mut paths = paths?;
    paths.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "json")
    });
    paths.sort();
    Ok(paths)
}

/// Whether a file holds results of matrix products.
pub fn has_products(path: &Path) -> bool {
    Results::<GemmShape>::load(path).is_ok_and(|results| !results.measurements.is_empty())
}

#[cfg(test)]
mod tests {
    use super::all;
    use crate::grid::Grid;
    use crate::results::Results;
    use crate::results::tests::{products, results};

    #[test]
    fn a_file_holds_all_there_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let old = results(&Grid::Quick, |i| 1.0 + 0.1 * i as f64);
        let new = Results {
            date: "2026-11-21T04:26:01Z".to_owned(),
            ..old.clone()
        };
        // The later run has the name that sorts first.
        let paths = ["z.json", "sub/a.json"].map(|name| folder.path().join(name));
        old.save(&paths[0]).expect("written");
        new.save(&paths[1]).expect("written");
        assert_eq!(Results::load(&paths[0]).expect("read"), old);
        assert_eq!(all(folder.path()).expect("one").len(), 1);
        let moved = folder.path().join("a.json");
        std::fs::rename(&paths[1], &moved).expect("moved");
        // Results of matrix products are left out.
        let products = products();
        products
            .save(&folder.path().join("gemm.json"))
            .expect("written");
        assert_eq!(all(folder.path()).expect("two"), [old, new]);
        assert!(all(&folder.path().join("sub")).is_err());
    }
}
