//! Instructions that all lanes of a warp execute together, counted in kernels.

use crate::{Error, Module, cache, workspace};
use kernels::catalog::Spec;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

/// The instructions of a whole warp, or of the whole block's pipeline: names, and the texts that are one.
pub(crate) const INSTRUCTIONS: [(&str, &[&str]); 22] = [
    ("mma.sync", &["mma.sync."]),
    ("ldmatrix", &["ldmatrix.sync."]),
    ("stmatrix", &["stmatrix.sync."]),
    ("cp.async", &["cp.async.cg."]),
    ("bar", &["bar.sync ", "bar.arrive ", "bar.red."]),
    ("cluster barrier", &["barrier.cluster."]),
    ("shfl.sync", &["shfl.sync."]),
    ("redux.sync", &["redux.sync."]),
    ("vote.sync", &["vote.sync."]),
    ("wgmma", &["wgmma.mma_async."]),
    ("wgmma.fence", &["wgmma.fence."]),
    ("wgmma.commit", &["wgmma.commit_group."]),
    ("wgmma.wait", &["wgmma.wait_group."]),
    ("setmaxnreg", &["setmaxnreg."]),
    ("tensor load", &["cp.async.bulk.tensor.4d.shared::cluster."]),
    ("tensor store", &["cp.async.bulk.tensor.4d.global."]),
    ("mbarrier.init", &["mbarrier.init."]),
    ("mbarrier.arrive", &["mbarrier.arrive."]),
    ("mbarrier.try_wait", &["mbarrier.try_wait."]),
    ("bulk load", &["cp.async.bulk.shared::cluster.global."]),
    ("bulk store", &["cp.async.bulk.global.shared::cta."]),
    ("bulk add", &["cp.reduce.async.bulk.global.shared::cta."]),
];

/// The place of an instruction among all.
fn place(name: &str) -> Option<usize> {
    INSTRUCTIONS.iter().position(|(of, _)| *of == name)
}

/// The text of no instruction.
const NONE: &str = "none";

/// How often each instruction of a whole warp stands in a kernel. The compiler may neither copy nor drop one: see the `ptx`
/// module of the kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collectives([u32; INSTRUCTIONS.len()]);

impl Collectives {
    /// Counts the instructions in the text of an entry.
    pub fn count(body: &str) -> Self {
        Collectives(INSTRUCTIONS.map(|(_, texts)| {
            let counts = texts.iter().map(|text| body.matches(text).count());
            counts.sum::<usize>() as u32
        }))
    }

    /// The counts with the names of their instructions.
    pub fn named(self) -> impl Iterator<Item = (&'static str, u32)> + Clone {
        INSTRUCTIONS.map(|(name, _)| name).into_iter().zip(self.0)
    }

    /// The count of the instruction of a name.
    ///
    /// # Panics
    /// If no instruction has it.
    pub fn of(self, name: &str) -> u32 {
        self.0[place(name).expect("an instruction's name")]
    }

    /// Reads what [`Display`] wrote.
    fn parse(text: &str) -> Option<Self> {
        let mut counts = Self::default();
        if text == NONE {
            return Some(counts);
        }
        for count in text.split(", ") {
            let (count, name) = count.split_once(' ')?;
            counts.0[place(name)?] = count.parse().ok()?;
        }
        Some(counts)
    }
}

impl Display for Collectives {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let present = self.named().filter(|(_, count)| *count > 0);
        let counts: Vec<_> = present
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        match counts.is_empty() {
            true => f.write_str(NONE),
            false => f.write_str(&counts.join(", ")),
        }
    }
}

/// The counts that kernels had when somebody last looked at them: a file with a line for each kernel of f16, which bf16's share.
/// A difference is a miscompilation, or a change that a review sees in the file.
#[derive(Clone, Debug, Default)]
pub struct Golden(BTreeMap<String, Collectives>);

impl Golden {
    /// The file of a crate of kernels.
    pub fn path(folder: &Path) -> PathBuf {
        folder.join("collectives.txt")
    }

    /// The counts of the library's kernels, and of those in a folder.
    ///
    /// # Errors
    /// If a file cannot be read, or a line is none.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let mut golden = Golden::default();
        let library = workspace().join("kernels/entries");
        let own = Some(folder).filter(|folder| *folder != library);
        let paths = own.into_iter().chain([&*library]).map(Self::path);
        for path in paths.filter(|path| path.exists()) {
            for line in cache::read(&path)?.lines() {
                let count = |(name, counts): (&str, _)| {
                    Some((name.to_owned(), Collectives::parse(counts)?))
                };
                let counted = line.split_once(": ").and_then(count);
                let bad = || Error::contract(line, format!("is no line of {}", path.display()));
                golden.0.extend([counted.ok_or_else(bad)?]);
            }
        }
        Ok(golden)
    }

    /// The counts of a kernel.
    pub fn of(&self, kernel: &Spec) -> Option<Collectives> {
        let mut counts = *self.0.get(&Self::line(kernel.counted_as))?;
        counts.0[place("shfl.sync")?] -= kernel.code.shuffles_left_out;
        Some(counts)
    }

    /// Writes the file of a folder: counts of these modules, and of other `kernels` what the file had.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn bless(folder: &Path, kernels: &[&Spec], modules: &[Module]) -> Result<(), Error> {
        let mut counts = Self::read(folder)?.0;
        for entry in modules.iter().flat_map(|module| &module.entries) {
            counts.insert(
                Self::line(entry.kernel.name),
                Collectives::count(&entry.body),
            );
        }
        let names = kernels.iter().map(|kernel| Self::line(kernel.name));
        let names: BTreeSet<_> = names.collect();
        let line = |name| Some(format!("{name}: {}\n", counts.get(&name)?));
        let text: String = names.into_iter().filter_map(line).collect();
        cache::write(&Self::path(folder), text)
    }

    /// The name of a kernel's line.
    fn line(kernel: &str) -> String {
        kernel.replace("bf16", "f16")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_they_are_written() {
        let text = INSTRUCTIONS.map(|(_, texts)| texts.concat()).concat();
        for body in ["", "mma.sync.x; bar.sync 0; bar.arrive 1, 2;", &text] {
            let counts = Collectives::count(body);
            assert_eq!(Collectives::parse(&counts.to_string()), Some(counts));
        }
        let counts = Collectives::count("mma.sync.x; bar.sync 0; bar.arrive 1, 2;");
        assert_eq!(counts.to_string(), "1 mma.sync, 2 bar");
        for wrong in ["", "1 mma", "mma.sync", "x mma.sync", "1 mma.sync,2 bar"] {
            assert_eq!(Collectives::parse(wrong), None, "{wrong}");
        }
    }
}
