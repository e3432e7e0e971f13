//! In what products are added up.

use kernels::catalog;

/// In what the products of matrices are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Accumulation {
    /// IEEE binary16.
    Half,
    /// IEEE binary32.
    #[default]
    Single,
}

impl Accumulation {
    /// All types.
    pub const ALL: [Self; 2] = [Accumulation::Half, Accumulation::Single];

    /// The type of this name, `f16` or `f32`.
    ///
    /// ```
    /// use ferroattn::Accumulation;
    ///
    /// assert_eq!(Accumulation::named("f16"), Some(Accumulation::Half));
    /// ```
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sums| sums.name() == name)
    }

    /// The name in kernel names, on the command line and in results.
    pub const fn name(self) -> &'static str {
        self.of_kernels().name()
    }

    /// The type as the catalog knows it.
    pub(crate) const fn of_kernels(self) -> catalog::Accumulation {
        match self {
            Accumulation::Half => catalog::Accumulation::Half,
            Accumulation::Single => catalog::Accumulation::Single,
        }
    }
}

#[doc(hidden)]
impl From<catalog::Accumulation> for Accumulation {
    fn from(sums: catalog::Accumulation) -> Self {
        match sums {
            catalog::Accumulation::Half => Accumulation::Half,
            catalog::Accumulation::Single => Accumulation::Single,
        }
    }
}

#[doc(hidden)]
impl From<Accumulation> for catalog::Accumulation {
    fn from(sums: Accumulation) -> Self {
        sums.of_kernels()
    }
}
