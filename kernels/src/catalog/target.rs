//! PTX targets, and the instructions that they have.

/// Instructions that not all devices have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Copies of bytes by the copy engine.
    BulkCopies,
    /// Copies of boxes by tensor maps. The parameter block starts with the maps, which must lie at multiples of 64.
    TensorMaps,
    /// Products of whole warpgroups.
    Wgmma,
}

/// The target that the PTX of a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// Compute capability 8.0 and all later ones: PTX is forward compatible.
    Sm80,
    /// Compute capability 9.0 alone: the `a` marks instructions that no other device has.
    Sm90a,
}

/// What a target is: its row.
struct Facts {
    /// In PTX, for `-Ctarget-cpu` and `ptxas`.
    name: &'static str,
    /// As a target feature of rustc.
    ptx_version: &'static str,
    /// The compute capability of its first devices.
    first: (i32, i32),
    /// The devices that run it, in words.
    devices: &'static str,
    /// Whether later devices run it.
    is_portable: bool,
    features: &'static [Feature],
}

impl Target {
    /// All targets. A kernel's is the first that has its instructions.
    pub const ALL: &[Target] = &[Target::Sm80, Target::Sm90a];

    const fn facts(self) -> Facts {
        match self {
            Target::Sm80 => Facts {
                name: "sm_80",
                ptx_version: "ptx70",
                first: (8, 0),
                devices: "8.0 or later",
                is_portable: true,
                features: &[],
            },
            Target::Sm90a => Facts {
                name: "sm_90a",
                ptx_version: "ptx81",
                first: (9, 0),
                devices: "9.0",
                is_portable: false,
                features: &[Feature::BulkCopies, Feature::TensorMaps, Feature::Wgmma],
            },
        }
    }

    /// The target of a kernel with these instructions.
    ///
    /// # Panics
    /// If no target has them all.
    pub fn with(features: &[Feature]) -> Self {
        let has_all = |target: &&Self| features.iter().all(|&feature| target.has(feature));
        *Self::ALL.iter().find(has_all).expect("a target has them")
    }

    /// Whether it has instructions.
    pub fn has(self, feature: Feature) -> bool {
        self.facts().features.contains(&feature)
    }

    /// The name in PTX, for `-Ctarget-cpu` and `ptxas`.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// The PTX version, as a target feature of rustc.
    pub const fn ptx_version(self) -> &'static str {
        self.facts().ptx_version
    }

    /// The devices that run it, in words.
    pub const fn devices(self) -> &'static str {
        self.facts().devices
    }

    /// Whether later devices than its first ones run the target's PTX.
    pub const fn is_portable(self) -> bool {
        self.facts().is_portable
    }

    /// Whether devices of a compute capability run the target's PTX.
    pub fn runs_on(self, compute_capability: (i32, i32)) -> bool {
        let first = self.facts().first;
        compute_capability == first || self.is_portable() && compute_capability > first
    }
}

#[cfg(test)]
mod tests {
    use super::{Feature, Target};

    #[test]
    fn sm_90a_runs_on_hopper_alone() {
        let runs = |target: Target| {
            [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 1)].map(|c| target.runs_on(c))
        };
        let any = Target::with(&[]);
        assert_eq!(runs(any), [false, true, true, true, true, true]);
        let hopper = Target::with(&[Feature::Wgmma]);
        assert_eq!(runs(hopper), [false, false, false, true, false, false]);
    }
}
