//! Places in the source that a kernel was compiled from, as `.file` and `.loc` or comments name them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A line of the source that a kernel was compiled from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Path of the file, as the module gives it.
    pub file: Arc<str>,
    /// Line in the file, from 1.
    pub line: u32,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// The place that a `.loc` or a comment names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// Number that a `.file` gives to the file.
    pub file: u32,
    /// Line in the file; 0 where the compiler knows none.
    pub line: u32,
}

/// The files of a module, by the numbers that `.file` gives them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files(BTreeMap<u32, Arc<str>>);

impl Files {
    pub fn insert(&mut self, number: u32, path: &str) {
        self.0.insert(number, path.into());
    }

    /// The location that a comment names, as `path:line`.
    pub fn location(&mut self, place: &str) -> Option<Location> {
        let (path, line) = place.rsplit_once(':')?;
        let line = line.trim_end().parse().ok()?;
        let known = self.0.iter().find(|(_, known)| &***known == path);
        let file = match known {
            Some((number, _)) => *number,
            None => {
                let next = self.0.last_key_value().map_or(1, |(last, _)| last + 1);
                self.insert(next, path);
                next
            }
        };
        Some(Location { file, line })
    }

    /// The source line of a location, if its file has a name.
    pub fn source(&self, location: Option<Location>) -> Option<Source> {
        let Location { file, line } = location.filter(|location| location.line > 0)?;
        let file = Arc::clone(self.0.get(&file)?);
        Some(Source { file, line })
    }
}
