//! PTX targets.

/// The target that the PTX of a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// Compute capability 8.0 and all later ones: PTX is forward compatible.
    Sm80,
    /// Compute capability 9.0 alone: the `a` marks instructions that no other device has.
    Sm90a,
}

impl Target {
    /// All targets.
    pub const ALL: &[Target] = &[Target::Sm80, Target::Sm90a];

    /// The name in PTX, for `-Ctarget-cpu` and `ptxas`.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Sm80 => "sm_80",
            Target::Sm90a => "sm_90a",
        }
    }

    /// The PTX version, as a target feature of rustc.
    pub const fn ptx_version(self) -> &'static str {
        match self {
            Target::Sm80 => "ptx70",
            Target::Sm90a => "ptx81",
        }
    }

    /// The devices that run it, in words.
    pub const fn devices(self) -> &'static str {
        match self {
            Target::Sm80 => "8.0 or later",
            Target::Sm90a => "9.0",
        }
    }

    /// Whether devices of a compute capability run the target's PTX.
    pub fn runs_on(self, compute_capability: (i32, i32)) -> bool {
        match self {
            Target::Sm80 => compute_capability >= (8, 0),
            Target::Sm90a => compute_capability == (9, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Target;

    #[test]
    fn sm_90a_runs_on_hopper_alone() {
        let runs = |target: Target| {
            [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 1)].map(|c| target.runs_on(c))
        };
        assert_eq!(runs(Target::Sm80), [false, true, true, true, true, true]);
        assert_eq!(
            runs(Target::Sm90a),
            [false, false, false, true, false, false]
        );
    }
}
