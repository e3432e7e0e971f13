//! Instances of generic kernels.

use super::Dtype;
use std::fmt::{Display, Formatter, Result};

/// A generic kernel with its types and numbers, which an entry point calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The type of the parameter block, with `, maps` behind it where the block starts with tensor maps, which must lie at
    /// multiples of 64.
    pub params: &'static str,
    /// The kernel's module in Rust.
    pub module: String,
    /// The type of elements, which is the first of its types; kernels that serve all types have none.
    pub element: Option<Dtype>,
    /// Its other types, in their order.
    pub types: Vec<String>,
    /// Its name and numbers.
    pub generic: Generic,
}

/// The name of a generic kernel, and its numbers in their order, each with its name: the builder compares them with the kernel.
pub type Generic = (&'static str, Vec<(&'static str, String)>);

/// A [`Generic`](crate::catalog::Generic): `generic! { sm80: W = 4, DT = dim / 16 }`.
#[macro_export]
macro_rules! generic {
    ($kernel:ident: $($name:ident = $value:expr),*) => {
        (stringify!($kernel), vec![$((stringify!($name), $value.to_string())),*])
    };
}

impl Instance {
    /// An instance of a kernel with parameters, of a module.
    pub fn new(
        (params, module): (&'static str, &str),
        element: impl Into<Option<Dtype>>,
        types: &[&str],
        generic: Generic,
    ) -> Self {
        Instance {
            params,
            module: module.to_owned(),
            element: element.into(),
            types: types.iter().copied().map(str::to_owned).collect(),
            generic,
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
        let (kernel, numbers) = &self.generic;
        let element = self.element.map(|dtype| format!("{dtype:?}"));
        let types: Vec<_> = element.iter().chain(&self.types).cloned().collect();
        let numbers = { numbers.iter() }.map(|(name, value)| format!("{name} = {value}"));
        let [types, numbers] = [types, numbers.collect()].map(|parts| parts.join(", "));
        write!(f, "{}::{kernel}<{types}; {numbers}>", self.module)
    }
}
