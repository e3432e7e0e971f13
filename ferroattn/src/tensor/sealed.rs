//! What keeps traits of elements and storages from other crates.

/// A type that this crate lets have a trait.
pub trait Sealed {}
