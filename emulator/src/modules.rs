//! The modules that this process read last: a test opens many devices, and each loads the same texts.

use crate::error::Error;
use crate::module::Module;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The process's modules, of 32 MB of text: more than the largest twenty together.
static MODULES: Modules = Modules::new(32 << 20);

impl Module {
    /// [Reads](Self::parse) a module, unless this process has read the same text under the same name lately.
    ///
    /// # Errors
    /// The conditions of [`parse`](Self::parse).
    pub fn shared(text: &str, name: &str) -> Result<Arc<Self>, Error> {
        MODULES.read(text, name)
    }
}

/// Modules of a limited size of text.
struct Modules {
    most_bytes: usize,
    /// The one used last at the end.
    recent: Mutex<Vec<Arc<Module>>>,
}

impl Modules {
    pub const fn new(most_bytes: usize) -> Self {
        Modules {
            most_bytes,
            recent: Mutex::new(Vec::new()),
        }
    }

    /// A module of a name and text: one that was read before, or a new one.
    pub fn read(&self, text: &str, name: &str) -> Result<Arc<Module>, Error> {
        let known = take(&mut self.lock(), text, name);
        // Read without the lock: other threads need other modules.
        let module = match known {
            Some(module) => module,
            None => Arc::new(Module::parse(text, name)?),
        };
        let mut recent = self.lock();
        // Another thread may have read it meanwhile.
        take(&mut recent, text, name);
        recent.push(Arc::clone(&module));
        let mut bytes = 0;
        let kept = recent.iter().rev().take_while(|module| {
            bytes += module.text_bytes();
            bytes <= self.most_bytes
        });
        let forgotten = recent.len() - kept.count().max(1);
        recent.drain(..forgotten);
        Ok(module)
    }

    /// Nothing between two changes of the list panics.
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Module>>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take(recent: &mut Vec<Arc<Module>>, text: &str, name: &str) -> Option<Arc<Module>> {
    let found = recent.iter().position(|module| module.is(text, name))?;
    Some(recent.remove(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kernel: &str) -> String {
        format!(".version 7.0 .target sm_80 .address_size 64 .visible .entry {kernel}() {{ ret; }}")
    }

    #[test]
    fn equal_texts_of_a_name_are_one_module() {
        let modules = Modules::new(1000);
        let read = |kernel, name| modules.read(&text(kernel), name).expect("a module");
        let module = read("a", "a.ptx");
        assert!(Arc::ptr_eq(&module, &read("a", "a.ptx")));
        assert!(!Arc::ptr_eq(&module, &read("b", "a.ptx")));
        assert!(!Arc::ptr_eq(&module, &read("a", "b.ptx")));
        assert!(read("b", "a.ptx").entry("b").is_ok());
    }

    #[test]
    fn the_oldest_is_forgotten() {
        let modules = Modules::new(2 * text("a").len());
        let read = |kernel| modules.read(&text(kernel), "m.ptx").expect("a module");
        let [a, b] = ["a", "b"].map(read);
        assert!(Arc::ptr_eq(&a, &read("a")));
        read("c");
        assert!(Arc::ptr_eq(&a, &read("a")));
        assert!(!Arc::ptr_eq(&b, &read("b")));
    }

    #[test]
    fn what_is_no_module_stays_none() {
        let modules = Modules::new(1000);
        assert!(modules.read("nothing", "a.ptx").is_err());
        assert!(modules.read("nothing", "a.ptx").is_err());
    }
}
