//! Instances of generic kernels.

use std::fmt::{Display, Formatter, Result};

/// A generic kernel with its types and numbers, which an entry point calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The type of the parameter block.
    pub params: &'static str,
    /// The kernel's path in Rust.
    pub kernel: String,
    /// Its types, in their order.
    pub types: Vec<String>,
    /// Its numbers, in their order, each with its name in the kernel: the builder compares the names.
    pub numbers: Vec<(&'static str, String)>,
}

/// The numbers of an [`Instance`]: `numbers! { W = 4, DT = dim / 16 }`.
#[macro_export]
macro_rules! numbers {
    ($($name:ident = $value:expr),*) => {
        vec![$((stringify!($name), $value.to_string())),*]
    };
}

impl Instance {
    /// An instance of a kernel.
    pub fn new(
        params: &'static str,
        kernel: impl Into<String>,
        types: &[&str],
        numbers: Vec<(&'static str, String)>,
    ) -> Self {
        Instance {
            params,
            kernel: kernel.into(),
            types: types.iter().copied().map(str::to_owned).collect(),
            numbers,
        }
    }

    /// The instance with another type in place of one of its types.
    ///
    /// # Panics
    /// If it has no such type.
    pub fn with(mut self, of: &str, other: &str) -> Self {
        let place = self.types.iter().position(|name| name == of);
        self.types[place.expect("the instance has the type")] = other.to_owned();
        self
    }
}

/// The kernel with its generics, as the macro `entry` takes it.
impl Display for Instance {
    fn fmt(&self, f: &mut Formatter) -> Result {
        let numbers = self
            .numbers
            .iter()
            .map(|(name, value)| format!("{name} = {value}"));
        let numbers = numbers.collect::<Vec<_>>().join(", ");
        write!(f, "{}<{}; {numbers}>", self.kernel, self.types.join(", "))
    }
}
