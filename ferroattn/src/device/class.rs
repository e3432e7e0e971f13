//! Classes of devices, as users name them.

use kernels::catalog::class;

/// Devices with the same tiles, named after the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// The A100's.
    Sm80,
    /// GPUs for workstations and games from compute capability 8.6 on.
    Sm86,
    /// The H100's.
    Sm90,
    /// The B200's.
    Sm100,
}

impl Class {
    /// Every class, that with the least shared memory first; of equals the oldest.
    pub const ALL: &[Class] = &[Class::Sm86, Class::Sm80, Class::Sm90, Class::Sm100];

    /// The name of its first target, on the command line too: `sm_80`.
    pub const fn name(self) -> &'static str {
        self.of_kernels().name()
    }

    /// The class of a target, such as `sm_89`.
    ///
    /// ```
    /// use ferroattn::Class;
    ///
    /// assert_eq!(Class::named("sm_89"), Some(Class::Sm86));
    /// assert_eq!(Class::named("sm_70"), None);
    /// ```
    pub fn named(target: &str) -> Option<Class> {
        class::Class::named(target).map(Class::from)
    }

    /// The class as the catalog knows it.
    pub(crate) const fn of_kernels(self) -> class::Class {
        match self {
            Class::Sm80 => class::Class::Sm80,
            Class::Sm86 => class::Class::Sm86,
            Class::Sm90 => class::Class::Sm90,
            Class::Sm100 => class::Class::Sm100,
        }
    }
}

#[doc(hidden)]
impl From<class::Class> for Class {
    fn from(class: class::Class) -> Self {
        match class {
            class::Class::Sm80 => Class::Sm80,
            class::Class::Sm86 => Class::Sm86,
            class::Class::Sm90 => Class::Sm90,
            class::Class::Sm100 => Class::Sm100,
        }
    }
}

#[doc(hidden)]
impl From<Class> for class::Class {
    fn from(class: Class) -> Self {
        class.of_kernels()
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, class};

    #[test]
    fn classes_are_those_of_the_catalog() {
        assert!(
            Class::ALL
                .iter()
                .map(|class| class.of_kernels())
                .eq(class::Class::ALL.iter().copied())
        );
        for &class in Class::ALL {
            assert_eq!(Class::from(class.of_kernels()), class);
            assert_eq!(Class::named(class.name()), Some(class));
        }
    }
}
