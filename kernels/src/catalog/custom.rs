//! Kernels with the score or mask of another crate: the catalog's kernels with options, made with a
//! [`Custom`](crate::attention::custom::Custom) type, which has a name in the root of its crate.

use super::class::Class;
use super::{
    Backward, BackwardMain, Code, Dtype, Family, Forward, HEAD_DIMS, HopperBackward, HopperWay,
    Kernel, Kind, Loop, MaskKind, Spec, distinct, kernel,
};

/// All kernels of a type for head dims, none above 256, which are padded to the catalog's: forward and backward, of each
/// element type, for every device.
///
/// # Panics
/// If a head dim is above 256.
pub fn all(of: &str, dims: &[u32]) -> Vec<&'static Spec> {
    let padded = |&dim: &u32| {
        let served = HEAD_DIMS.iter().find(|&&served| served >= dim);
        *served.expect("head dims up to 256 have kernels")
    };
    let of_dtype = |dtype| { dims.iter() }.flat_map(move |dim| families(dtype, padded(dim)));
    let families = distinct(Dtype::ALL.into_iter().flat_map(of_dtype));
    let specs = families.map(|family| spec(of, kernel(family)));
    specs.map(|spec| &*Box::leak(Box::new(spec))).collect()
}

/// The name of the kernel that a type's crate makes of the catalog's kernel of this name.
pub fn name(of: &str, kernel: &str) -> String {
    format!("{}_{kernel}", of.to_lowercase())
}

/// The kernel that a type's crate makes of the catalog's, with its mask and its score.
fn spec(of: &str, kernel: &Kernel) -> Spec {
    let (name, code) = (name(of, kernel.name), kernel.code);
    let instance = { kernel.instance.clone() }.with("Ranges", &format!("CustomMask<{of}>"));
    let instance = instance.with("Optional", &format!("CustomScore<{of}>"));
    let code = Code {
        // No gradient of a bias is computed beside a type.
        shuffles_left_out: match kernel.family {
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
    };
    Spec {
        classes: kernel.classes.clone(),
        counted_as: kernel.name,
        code,
        ..Spec::new(name, kernel.target, kernel.launch, instance)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_type_has_its_kernels() {
        let kernels = all("Penalty", &[40, 128]);
        let names: Vec<_> = kernels.iter().map(|kernel| kernel.name).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        for name in [
            "penalty_optional_f16_d64",
            "penalty_optional_bf16_d128",
            "penalty_backward_optional_f16_d64",
            "penalty_backward_optional_bf16_d128",
            "penalty_backward_hopper_optional_f16_d64",
            "penalty_backward_hopper_stored_optional_bf16_d128",
        ] {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        for kernel in kernels {
            let types = &kernel.instance.types;
            for custom in ["CustomMask<Penalty>", "CustomScore<Penalty>"] {
                assert!(types.iter().any(|name| name == custom), "{types:?}");
            }
        }
    }
}
