//! One kernel of a module.

/// The start of a kernel's definition, up to its name.
pub(super) const ENTRY: &str = ".visible .entry ";

/// The text of a module with one of its kernels alone; `None` if it has no such kernel.
///
/// The driver compiles all kernels of a text that it is given, whichever is launched.
///
/// ```
/// let head = ".version 7.0\n.extern .shared .align 16 .b8 smem[];\n";
/// let [one, two] = ["one", "two"].map(|name| format!(".visible .entry {name}()\n{{\nret;\n}}\n"));
/// let module = [head, &one, &two].concat();
/// assert_eq!(kernels::text::entry(&module, "two"), Some([head, &two].concat()));
/// assert_eq!(kernels::text::entry(&module, "three"), None);
/// ```
pub fn entry(ptx: &str, name: &str) -> Option<String> {
    let mut parts = ptx.split(ENTRY);
    let head = parts.next()?;
    let is_named = |part: &&str| {
        let parameters = part.strip_prefix(name);
        parameters.is_some_and(|parameters| parameters.starts_with('('))
    };
    let definition = parts.find(is_named)?;
    Some([head, ENTRY, definition].concat())
}
