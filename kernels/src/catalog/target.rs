//! PTX targets, and the devices that run them.

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
}

impl Target {
    /// Compute capability 8.0 and all later ones: PTX is forward compatible.
    pub const SM80: Self = Target {
        name: "sm_80",
        ptx_version: "ptx70",
        first: (8, 0),
        is_portable: true,
        devices: "8.0 or later",
    };

    /// Compute capability 9.0 alone, for the copy engine, tensor maps, products of whole warpgroups, and numbers of e4m3. The `a`
    /// marks instructions that no other device has.
    pub const SM90A: Self = Target {
        name: "sm_90a",
        ptx_version: "ptx81",
        first: (9, 0),
        is_portable: false,
        devices: "9.0",
    };

    /// All targets.
    pub const ALL: &[Self] = &[Self::SM80, Self::SM90A];

    /// Whether devices of a compute capability run the target's PTX.
    pub fn runs_on(self, compute_capability: (i32, i32)) -> bool {
        let is_later = self.is_portable && compute_capability > self.first;
        compute_capability == self.first || is_later
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
        let of_all = [false, true, true, true, true, true];
        assert_eq!(runs(Target::SM80), of_all);
        let of_hopper = [false, false, false, true, false, false];
        assert_eq!(runs(Target::SM90A), of_hopper);
    }
}
