//! Scores and masks of other crates.

use crate::device::Facts;
use crate::entry::Entry;
use crate::error::{Error, Result, expect_at_most};
use crate::forward::Problem;
use crate::ptx::{self, Modules};
use crate::tensor::RawTensor;
use crate::tensor_map::has_map;
use kernels::abi::{ARRAYS, ArrayRef};
use kernels::attention::custom::{Call, Custom, Pair};
use kernels::catalog::{self, Dtype, Family, Forward, Kernel, Kind, Loop, MaskKind};
use std::hash::{Hash, Hasher};
use std::ops::Range;

/// The kernels of a crate that are made with a [`Custom`] type, and the type for the host.
///
/// [`Attention::custom`](crate::Attention::custom) computes by them; the repository's `examples/custom_score` has one.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "cpu"),
    expect(dead_code, reason = "the CPU calls the type")
)]
pub struct CustomKernels {
    /// The type's name in the root of its crate.
    of: &'static str,
    modules: Modules,
    pub(super) arrays: usize,
    pub(super) keys: fn(&Call, u32) -> Range<u32>,
    pub(super) queries: fn(&Call, u32) -> Range<u32>,
    pub(super) score: fn(&Call, u32, f32, Pair) -> f32,
    pub(super) derivative: fn(&Call, u32, f32, Pair) -> f32,
}

impl CustomKernels {
    /// The kernels of a type that the builder knows by the name `of`, in the modules that the build script embedded.
    ///
    /// # Panics
    /// If the type wants more arrays than [a call has](ARRAYS).
    ///
    /// # Safety
    /// `modules` is `None`, or has what the builder made of this type by this name.
    pub const unsafe fn new<C: Custom>(of: &'static str, modules: Modules) -> Self {
        assert!(C::ARRAYS <= ARRAYS, "a call has fewer arrays");
        CustomKernels {
            of,
            modules,
            arrays: C::ARRAYS,
            keys: |call, query| C::keys(C::new(call, 0), query),
            queries: |call, key| C::queries(C::new(call, 0), key),
            score: |call, head, score, pair| C::score(C::new(call, head), score, pair),
            derivative: |call, head, score, pair| C::derivative(C::new(call, head), score, pair),
        }
    }

    /// The entry that the crate made of a kernel of the catalog.
    pub(crate) fn entry(&self, kernel: &'static Kernel) -> Option<Entry> {
        let name = catalog::custom::name(self.of, kernel.name);
        let name = ptx::name(self.modules, &name)?;
        Some(Entry {
            name,
            module: name,
            modules: self.modules,
            ..kernel.into()
        })
    }

    /// The first of the catalog's kernels that the crate has and a device can launch.
    pub(crate) fn first(
        &self,
        kernels: impl Iterator<Item = &'static Kernel>,
        dtype: Dtype,
        problem: &Problem,
        facts: &Facts,
    ) -> Result<(&'static Kernel, Entry)> {
        self.modules.ok_or(Error::NotCompiled)?;
        let mut fitting = kernels.filter(|kernel| facts.fits(kernel.launch.shared_bytes));
        let found = fitting.find_map(|kernel| Some((kernel, self.entry(kernel)?)));
        found.ok_or_else(|| {
            let (dtype, dim) = (dtype.name(), problem.widest());
            Error::unsuitable(
                format!("of {}", self.of),
                format!("is not for {dtype} of dim {dim}"),
            )
        })
    }

    /// The kernel of the forward pass, with the catalog's that it is made of: for Hopper if there is one, for the smallest head
    /// dim.
    pub(crate) fn forward(
        &self,
        dtype: Dtype,
        problem: &Problem,
        facts: &Facts,
        inputs: [&RawTensor; 3],
    ) -> Result<(&'static Kernel, Entry)> {
        let is_mapped = inputs.into_iter().all(has_map);
        let kinds = [Loop::Hopper, Loop::Sm80].map(|of| Kind::of_head(of, MaskKind::Options));
        let kernels = kinds.into_iter().flat_map(|kind| {
            let dims = kind.dims().filter(|&dim| dim as usize >= problem.widest());
            let of = move |dim| Forward::of(kind, dtype, dim, facts.class().into());
            dims.filter_map(of)
                .map(Family::Forward)
                .map(catalog::kernel)
        });
        let kernels = kernels.filter(|kernel| {
            let runs = kernel.target.runs_on(facts.compute_capability);
            runs && (is_mapped || !kernel.takes_maps())
        });
        self.first(kernels, dtype, problem, facts)
    }
}

/// An array in messages.
pub(super) const ARRAY: &str = "an array of custom";

/// An array of a call by address: 4-byte elements side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RawArray {
    /// Device address, a multiple of 4.
    pub address: u64,
    /// Elements.
    pub len: u64,
}

#[doc(hidden)]
impl From<RawArray> for ArrayRef {
    fn from(RawArray { address, len }: RawArray) -> Self {
        ArrayRef { address, len }
    }
}

/// A score or mask of another crate, with its arrays by address.
#[derive(Clone, Copy, Debug)]
pub struct RawCustom {
    /// The kernels.
    pub kernels: &'static CustomKernels,
    /// The arrays: as many as the type wants, then empty ones.
    pub arrays: [RawArray; ARRAYS],
}

impl PartialEq for RawCustom {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.kernels, other.kernels) && self.arrays == other.arrays
    }
}

impl Eq for RawCustom {}

impl Hash for RawCustom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (std::ptr::from_ref(self.kernels), self.arrays).hash(state);
    }
}

impl RawCustom {
    /// Checks that there are as many arrays as the type wants, each with an element.
    pub(super) fn validate(&self) -> Result<()> {
        let (given, others) = self.arrays.split_at(self.kernels.arrays);
        if let Some(extra) = others.iter().position(|array| array.len > 0) {
            let wanted = given.len();
            let found = wanted + extra + 1;
            return Err(Error::Arrays { wanted, found });
        }
        for array in given {
            if array.len == 0 {
                return Err(Error::Empty(ARRAY));
            }
            expect_at_most(ARRAY, array.len as usize, u32::MAX)?;
        }
        Ok(())
    }
}
