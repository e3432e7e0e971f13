//! A record of the tests that passed, and with what: `cargo xtask test --changed` runs the others.
//!
//! A test depends on the sources of the library, the emulator and the tests, and on the PTX of kernels. Its name may
//! say which: a test with the name of a forward kernel or of a matrix product between its `::` runs that kernel by name,
//! and beside it only kernels that are neither. Any other test depends on all. Tests on GPUs have no record, for their
//! driver and card are not in it.

use ferroattn::internals::Entry;
use kernels::catalog::{KERNELS, Kernel};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;

/// The file of the record, if there is to be one.
const FILE: &str = "FERROATTN_PASSED";
/// A digest of all sources but those of kernels.
const SOURCES: &str = "FERROATTN_SOURCES";

/// Tests that passed, by name, with a digest of all that they depend on.
pub(crate) struct Passed {
    before: HashMap<String, u64>,
    now: Mutex<File>,
    /// Inputs of all tests.
    build: String,
    /// Digests of kernels' modules, of which a test that names one depends on that one.
    named: Digests,
    /// Digests of all other kernels' modules, and of the ladder's.
    shared: [Digests; 2],
}

impl Passed {
    /// The record that the environment names.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn open() -> io::Result<Option<Self>> {
        let variables = [FILE, SOURCES].map(|name| std::env::var(name).ok());
        let [Some(path), Some(sources)] = variables else {
            return Ok(None);
        };
        let path = Path::new(&path);
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        // Later lines are of later runs.
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let lines = lines.filter_map(|(digest, name)| {
            let digest = u64::from_str_radix(digest, 16).ok()?;
            Some((name.to_owned(), digest))
        });
        let before: HashMap<_, _> = lines.collect();
        let mut file = File::create(path)?;
        for (name, digest) in &before {
            writeln!(file, "{digest:016x} {name}")?;
        }
        let (named, others): (Vec<&Kernel>, Vec<&Kernel>) = KERNELS.iter().partition(is_named);
        let of_ladder = ladder::catalog::KERNELS.iter().map(Entry::from);
        Ok(Some(Passed {
            before,
            now: Mutex::new(file),
            build: format!(
                "{sources} {} {}",
                cfg!(debug_assertions),
                proptest_variables()
            ),
            named: digests(named.into_iter().map(Entry::from)),
            shared: [
                digests(others.into_iter().map(Entry::from)),
                digests(of_ladder),
            ],
        }))
    }

    /// Whether the test passed with what it depends on now.
    pub fn has(&self, name: &str) -> bool {
        self.before.get(name) == Some(&self.digest(name))
    }

    /// Notes that the test passed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn add(&self, name: &str) -> io::Result<()> {
        let mut file = self.now.lock().expect("no test panics here");
        writeln!(file, "{:016x} {name}", self.digest(name))
    }

    /// A digest of all that a test depends on.
    fn digest(&self, name: &str) -> u64 {
        let mut digest = DefaultHasher::new();
        (&self.build, &self.shared).hash(&mut digest);
        let mut parts = name.split("::");
        match parts.find_map(|part| self.named.get(part)) {
            Some(module) => module.hash(&mut digest),
            None => self.named.hash(&mut digest),
        }
        digest.finish()
    }
}

/// Variables that decide which random cases are drawn.
fn proptest_variables() -> String {
    let all = std::env::vars().filter(|(name, _)| name.starts_with("PROPTEST_"));
    format!("{:?}", all.collect::<BTreeMap<_, _>>())
}

/// Whether a test that names the kernel runs no other kernel of this kind.
fn is_named(kernel: &&Kernel) -> bool {
    kernel.forward().is_some() || kernel.gemm().is_some()
}

/// Digests of modules, by kernel.
type Digests = BTreeMap<&'static str, u64>;

fn digests(kernels: impl Iterator<Item = Entry>) -> Digests {
    let mut modules = HashMap::new();
    let of = |entry: Entry| {
        let digest = *modules
            .entry(entry.module)
            .or_insert_with(|| digest(&entry.text().unwrap_or_default()));
        (entry.name, digest)
    };
    kernels.map(of).collect()
}

/// A digest of a module's instructions: lines of comments say where they come from.
fn digest(text: &str) -> u64 {
    let mut digest = DefaultHasher::new();
    let lines = text.lines().map(str::trim_start);
    for line in lines.filter(|line| !line.starts_with("//")) {
        line.hash(&mut digest);
    }
    digest.finish()
}
