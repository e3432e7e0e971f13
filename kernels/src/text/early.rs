//! Early launches: a kernel's blocks begin while the launch before it ends.

use super::entry::ENTRY;
use super::head;
use std::fmt::Write;

/// Waits until the launches before have ended and their stores are seen, then lets the next launch begin.
const WAIT: &str = "griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n";

/// The text with kernels that may be launched early, on devices of compute capability 9.0 or later.
///
/// Each waits at its first instruction. A launch then costs little of the time between two kernels: blocks are
/// placed, and have their parameters, when the launch before ends.
///
/// ```
/// let text = |version, target, wait| {
///     format!(".version {version}\n.target {target}\n.visible .entry one()\n{{\n.reg .b32 r<2>;\n{wait}ret;\n}}\n")
/// };
/// let wait = "griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n";
/// let early = kernels::text::early(&text("7.0", "sm_80", ""));
/// assert_eq!(early, Some(text("7.8", "sm_90", wait)));
/// let early = kernels::text::early(&text("8.1", "sm_90a", ""));
/// assert_eq!(early, Some(text("8.1", "sm_90a", wait)));
/// // Another compiler's form, in which no wait would stand.
/// assert_eq!(kernels::text::early(".entry one()\n{\nret;\n}\n"), None);
/// ```
///
/// `None` is for a text in which the start of a kernel is not found: it must not be launched early.
pub fn early(ptx: &str) -> Option<String> {
    let mut text = String::with_capacity(ptx.len() + 128);
    // Whether the lines before are the start of an entry point's body.
    let (mut in_entry, mut in_start) = (false, false);
    let mut waits = 0;
    for line in ptx.lines() {
        if in_start && !line.starts_with('.') {
            text.push_str(WAIT);
            waits += 1;
            (in_entry, in_start) = (false, false);
        }
        in_entry |= line.starts_with(ENTRY);
        in_start |= in_entry && line == "{";
        writeln!(text, "{}", head::for_hopper(line)).expect("a string takes all");
    }
    let entries = ptx.matches(".entry ").count();
    (waits == entries).then_some(text)
}
