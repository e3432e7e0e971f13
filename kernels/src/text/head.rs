//! The head of a module: the version of PTX and the target.

use std::borrow::Cow;

/// The first PTX version and target with `griddepcontrol` and clusters (PTX ISA 7.8, "Parallel Synchronization and
/// Communication Instructions").
const VERSION: (u32, u32) = (7, 8);
const TARGET: u32 = 90;

/// A text of the builder for compute capability 9.0 and later: its head names no older version or target.
///
/// ```
/// let text = |version, target| format!(".version {version}\n.target {target}\n.visible .entry one()\n");
/// assert_eq!(kernels::text::raised(&text("7.0", "sm_80")), text("7.8", "sm_90"));
/// assert_eq!(kernels::text::raised(&text("8.1", "sm_90a")), text("8.1", "sm_90a"));
/// ```
pub fn raised(ptx: &str) -> String {
    ptx.split_inclusive('\n').map(for_hopper).collect()
}

/// A line, or the one in its place.
pub(super) fn for_hopper(line: &str) -> Cow<'_, str> {
    let (text, end) = match line.strip_suffix('\n') {
        Some(text) => (text, "\n"),
        None => (line, ""),
    };
    newer(text).map_or(line.into(), |newer| (newer + end).into())
}

/// What takes the place of a line that names an older version or target.
fn newer(line: &str) -> Option<String> {
    if let Some(version) = line.strip_prefix(".version ") {
        let (major, minor) = version.split_once('.')?;
        let old = (major.parse().ok()?, minor.parse().ok()?) < VERSION;
        return old.then(|| format!(".version {}.{}", VERSION.0, VERSION.1));
    }
    let target = line.strip_prefix(".target sm_")?;
    let old = target.parse::<u32>().ok()? < TARGET;
    old.then(|| format!(".target sm_{TARGET}"))
}
