//! PTX targets, and the instructions that they have.

/// Instructions that not all devices have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// Copies of bytes by the copy engine.
    BulkCopies,
    /// Copies of boxes by tensor maps. The parameter block starts with the maps, which must lie at multiples of 64.
    TensorMaps,
    /// Products of whole warpgroups.
    Wgmma,
    /// Numbers of e4m3.
    Fp8,
}

/// The target that the PTX of a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The name in PTX, for `-Ctarget-cpu` and `ptxas`.
    pub name: &'static str,
    /// The PTX version, as a target feature of rustc.
    pub ptx_version: &'static str,
    /// The compute capability of its first devices.
    first: (i32, i32),
    /// Whether later devices run its PTX.
    pub is_portable: bool,
    /// The devices that run it, in words.
    pub devices: &'static str,
    features: &'static [Feature],
}

impl Target {
    /// Compute capability 8.0 and all later ones: PTX is forward compatible.
    pub const SM80: Self = Target {
        name: "sm_80",
        ptx_version: "ptx70",
        first: (8, 0),
        is_portable: true,
        devices: "8.0 or later",
        features: &[],
    };

    /// Compute capability 9.0 alone: the `a` marks instructions that no other device has.
    const SM90A: Self = Target {
        name: "sm_90a",
        ptx_version: "ptx81",
        first: (9, 0),
        is_portable: false,
        devices: "9.0",
        features: &[
            Feature::BulkCopies,
            Feature::TensorMaps,
            Feature::Wgmma,
            Feature::Fp8,
        ],
    };

    /// All targets. A kernel's is the first that has its instructions.
    pub const ALL: &[Self] = &[Self::SM80, Self::SM90A];

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
        self.features.contains(&feature)
    }

    /// Whether devices of a compute capability run the target's PTX.
    pub fn runs_on(self, compute_capability: (i32, i32)) -> bool {
        let is_later = self.is_portable && compute_capability > self.first;
        compute_capability == self.first || is_later
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
        let of_all = [false, true, true, true, true, true];
        assert_eq!(runs(Target::with(&[])), of_all);
        let of_hopper = [false, false, false, true, false, false];
        assert_eq!(runs(Target::with(&[Feature::Wgmma])), of_hopper);
    }
}
