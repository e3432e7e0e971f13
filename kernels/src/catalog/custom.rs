//! Kernels with the score or mask of another crate: the catalog's kernels with options, made with its type.

use super::class::Class;
use super::{
    Backward, BackwardMain, Code, Dtype, Family, Feature, Forward, HEAD_DIMS, HopperBackward,
    HopperWay, Instance, Kind, Launch, Loop, MaskKind, Spec, distinct,
};

/// A kernel with options, made with a [`Custom`](crate::attention::custom::Custom) type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Custom {
    /// The type, by its name in the root of its crate.
    pub of: &'static str,
    /// The catalog's kernel with options.
    pub kernel: Family,
}

impl Custom {
    /// All kernels of a type for head dims, none above 256, which are padded to the catalog's: forward and backward, of each
    /// element type, for every device.
    ///
    /// # Panics
    /// If a head dim is above 256.
    pub fn all(of: &'static str, dims: &[u32]) -> Vec<&'static dyn Spec> {
        let padded = |&dim: &u32| HEAD_DIMS.iter().copied().find(|&served| served >= dim);
        let kernels = Dtype::ALL.into_iter().flat_map(|dtype| {
            let dims = dims.iter().map(padded);
            dims.flat_map(move |dim| {
                families(dtype, dim.expect("head dims up to 256 have kernels"))
            })
        });
        let kernels = distinct(kernels).into_iter();
        let specs = kernels.map(|kernel| Box::leak(Box::new(Custom { of, kernel })) as &dyn Spec);
        specs.collect()
    }

    /// The name of the kernel that a type's crate makes of the catalog's kernel of this name.
    pub fn name_of(of: &str, kernel: &str) -> String {
        format!("{}_{kernel}", of.to_lowercase())
    }
}

/// The kernels with options of a head dim, for every device.
fn families(dtype: Dtype, dim: u32) -> Vec<Family> {
    let forward = |main_loop, class| {
        let kind = Kind::of_head(main_loop, MaskKind::Options);
        Forward::of(kind, dtype, dim, class).map(Family::Forward)
    };
    let far = [Backward::FarSums(dtype), Backward::Far(dtype)];
    let mut families: Vec<_> = far.map(|far| Some(Family::Backward(far))).into();
    for &class in Class::ALL {
        let main = BackwardMain::of(dtype, dim, class, MaskKind::Options).map(Backward::Main);
        families.extend([forward(Loop::Sm80, class), main.map(Family::Backward)]);
    }
    families.push(forward(Loop::Hopper, Class::Sm90));
    let hopper = |way| HopperBackward::of(way, dtype, dim, MaskKind::Options);
    let hopper = [HopperWay::Sums, HopperWay::Stored].map(hopper);
    families.extend(hopper.map(|kernel| kernel.map(Family::HopperBackward)));
    families.into_iter().flatten().collect()
}

impl Spec for Custom {
    fn name(&self) -> String {
        Self::name_of(self.of, &self.kernel.spec().name())
    }

    fn features(&self) -> &'static [Feature] {
        self.kernel.spec().features()
    }

    fn launch(&self) -> Launch {
        self.kernel.spec().launch()
    }

    fn is_for(&self, class: Class) -> bool {
        self.kernel.spec().is_for(class)
    }

    /// The catalog's, with the mask and the score of the type.
    fn instance(&self) -> Instance {
        let instance = self.kernel.spec().instance();
        let instance = instance.with("Ranges", &format!("CustomMask<{}>", self.of));
        instance.with("Optional", &format!("CustomScore<{}>", self.of))
    }

    fn counted_as(&self) -> String {
        self.kernel.spec().name()
    }

    fn code(&self) -> Code {
        let code = self.kernel.spec().code();
        Code {
            // No gradient of a bias is computed beside a type.
            shuffles_left_out: match self.kernel {
                Family::HopperBackward(kernel) => kernel.shuffles_of_bias_gradient(),
                _ => 0,
            },
            // The compiler may leave them in loops beside a longer score.
            copies_vary: true,
            // It depends on the type's code.
            may_share: true,
            // A score's numbers take registers.
            most_spills: code.most_spills + 64,
            ..code
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_type_has_its_kernels() {
        let kernels = Custom::all("Penalty", &[40, 128]);
        let names: Vec<_> = kernels.iter().map(|kernel| kernel.name()).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        for name in [
            "penalty_optional_f16_d64",
            "penalty_optional_bf16_d128",
            "penalty_backward_optional_f16_d64",
            "penalty_backward_optional_bf16_d128",
            "penalty_backward_hopper_optional_f16_d64",
            "penalty_backward_hopper_stored_optional_bf16_d128",
        ] {
            assert!(names.iter().any(|found| found == name), "{name}: {names:?}");
        }
        for kernel in kernels {
            let types = kernel.instance().types;
            for custom in ["CustomMask<Penalty>", "CustomScore<Penalty>"] {
                assert!(types.iter().any(|name| name == custom), "{types:?}");
            }
        }
    }
}
