//! Early launches: a kernel's blocks begin while the launch before it ends.

use super::entry::ENTRY;
use super::head::raised;

/// Waits until the launches before have ended and their stores are seen.
const WAIT: &str = "griddepcontrol.wait;\n";

/// Lets the next launch begin.
const BEGIN_NEXT: &str = "griddepcontrol.launch_dependents;\n";

/// The text with kernels that may be launched early, on devices of compute capability 9.0 or later.
///
/// Each waits at its first instruction, unless it waits itself, by `barrier::launches`, later. Until then it writes nothing, and reads only
/// what was there when the last launch that waits at its first instruction began: those behind that one may all run at once. A launch then costs
/// little of the time between two kernels: blocks are placed, and have their parameters, when the launch before ends.
///
/// ```
/// let text = |version, target, begin| {
///     format!(".version {version}\n.target {target}\n.visible .entry one()\n{{\n.reg .b32 r<2>;\n{begin}ret;\n}}\n")
/// };
/// let [wait, next] = ["griddepcontrol.wait;\n", "griddepcontrol.launch_dependents;\n"];
/// let both = [wait, next].concat();
/// let early = kernels::text::early(&text("7.0", "sm_80", ""));
/// assert_eq!(early, Some(text("7.8", "sm_90", &both)));
/// let early = kernels::text::early(&text("8.1", "sm_90a", ""));
/// assert_eq!(early, Some(text("8.1", "sm_90a", &both)));
/// // One that waits itself.
/// let early = kernels::text::early(&text("8.1", "sm_90a", wait));
/// assert_eq!(early, Some(text("8.1", "sm_90a", &[next, wait].concat())));
/// // Another compiler's form, in which no wait would stand.
/// assert_eq!(kernels::text::early(".entry one()\n{\nret;\n}\n"), None);
/// ```
///
/// `None` is for a text in which the start of a kernel is not found: it must not be launched early.
pub fn early(ptx: &str) -> Option<String> {
    let mut parts = ptx.split(ENTRY);
    let head = parts.next().filter(|head| !head.contains(".entry "))?;
    let mut text = raised(head);
    for kernel in parts {
        let (before, body) = kernel.split_at(start_of_code(kernel)?);
        let wait = if body.contains(WAIT.trim_end()) {
            ""
        } else {
            WAIT
        };
        text.extend([ENTRY, before, wait, BEGIN_NEXT, body]);
    }
    Some(text)
}

/// Where a kernel's instructions start, behind its declarations.
fn start_of_code(kernel: &str) -> Option<usize> {
    const BODY: &str = "\n{\n";
    let mut start = kernel.find(BODY)? + BODY.len();
    for line in kernel[start..].split_inclusive('\n') {
        if !line.starts_with('.') {
            return Some(start);
        }
        start += line.len();
    }
    None
}
