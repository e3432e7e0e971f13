//! Which kernel computes a problem.

use super::Problem;
use super::request::request;
use crate::device::Facts;
use crate::error::{Error, Result};
use crate::gemm;
use crate::options::{self, RawOptions};
pub use crate::plan::{CPU, EMPTY};
use crate::tensor::Dtype;
use kernels::abi::MAX_SEQLEN;
use kernels::catalog::select::{is_wide, select};
use kernels::catalog::{self, Auxiliary, Family, KERNELS, Kernel, Loop};

/// Names of the kernels that can compute a problem with options on a device with these facts, the default one first; on
/// the CPU, which is `None`, its own.
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::{Class, Dtype, Facts, Problem, RawOptions, kernel};
///
/// let (q, kv) = ([1, 32, 1, 128], [1, 8, 131_072, 128]);
/// let problem = Problem::new(q, kv, kv, false, None)?;
/// let h100 = Facts::emulated(Class::Sm90);
/// let names = kernel::suitable(Some(&h100), Dtype::F16, &problem, &RawOptions::default())?;
/// assert_eq!(names[0], "decode_f16_d128");
/// let names = kernel::suitable(None, Dtype::F16, &problem, &RawOptions::default())?;
/// assert_eq!(names, [kernel::CPU]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If the problem is not [valid](Problem::validate), no device has these facts, or there are kernels but none for the
/// element type.
pub fn suitable(
    facts: Option<&Facts>,
    dtype: Dtype,
    problem: &Problem,
    options: &RawOptions,
) -> Result<Vec<&'static str>> {
    problem.validate()?;
    let Some(facts) = facts else {
        return Ok(vec![CPU]);
    };
    facts.validate()?;
    if problem.is_empty() {
        return Ok(vec![EMPTY]);
    }
    let problem = &problem.in_vectors();
    let default = select(&request(
        options.type_of_kernel(dtype)?,
        problem,
        options,
        facts,
    ));
    let mut kernels: Vec<_> = KERNELS
        .iter()
        .filter(|kernel| obstacle(kernel, dtype, problem, options).is_none())
        .filter(|kernel| kernel.target.runs_on(facts.compute_capability))
        .filter(|kernel| facts.fits(kernel.launch.shared_bytes))
        .collect();
    kernels.sort_by_key(|&kernel| Some(kernel) != default);
    Ok(kernels.iter().map(|kernel| kernel.name).collect())
}

/// Checks that the kernel of that name can compute a problem on a device with these facts; on the CPU, which is `None`,
/// only its own can.
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::{Class, Dtype, Error, Facts, Problem, RawOptions, kernel};
///
/// let problem = Problem::new([1, 8, 512, 64], [1, 8, 512, 64], [1, 8, 512, 64], false, None)?;
/// let a100 = Facts::emulated(Class::Sm80);
/// let check = |facts, name| kernel::check(facts, name, Dtype::F16, &problem, &RawOptions::default());
/// check(Some(&a100), "forward_f16_d64")?;
/// assert!(matches!(check(Some(&a100), "forward_f16_d32"), Err(Error::UnsuitableKernel { .. })));
/// assert!(matches!(check(None, "forward_f16_d64"), Err(Error::NotOnCpu(_))));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If the problem is not [valid](Problem::validate), no device has these facts, or there is no such kernel (the error
/// lists similar names), or says why it cannot.
pub fn check(
    facts: Option<&Facts>,
    name: &str,
    dtype: Dtype,
    problem: &Problem,
    options: &RawOptions,
) -> Result<()> {
    problem.validate()?;
    facts.map_or(Ok(()), Facts::validate)?;
    match problem.is_empty() {
        true => expect_named(Some(name), dtype, problem, options, facts),
        false => resolve(Some(name), dtype, problem, options, facts).map(drop),
    }
}

/// Checks that a name is none, that of what has nothing to compute, or that of a kernel that could compute an empty problem.
pub(crate) fn expect_named(
    name: Option<&str>,
    dtype: Dtype,
    problem: &Problem,
    options: &RawOptions,
    facts: Option<&Facts>,
) -> Result<()> {
    match (name.filter(|&name| name != EMPTY), facts) {
        (Some(name), Some(_)) => named(name, dtype, problem, options).map(drop),
        (name, _) => resolve(name, dtype, problem, options, None).map(drop),
    }
}

/// The kernel of that name, or the best one, for a device with these facts. The CPU has neither facts nor a
/// kernel.
pub(crate) fn resolve(
    name: Option<&str>,
    dtype: Dtype,
    problem: &Problem,
    options: &RawOptions,
    facts: Option<&Facts>,
) -> Result<Option<&'static Kernel>> {
    let problem = &problem.in_vectors();
    let named = |name| named(name, dtype, problem, options);
    let Some(facts) = facts else {
        return match name.filter(|&name| name != CPU) {
            None => Ok(None),
            Some(name) => Err(Error::NotOnCpu(named(name)?.name.to_owned())),
        };
    };
    let of_kernel = options.type_of_kernel(dtype)?;
    let request = request(of_kernel, problem, options, facts);
    let best = || match options::first(problem, options) {
        Some(option) => select(&request).ok_or(Error::NoOption(option)),
        None => select(&request).ok_or(Error::Dim(problem.dim)),
    };
    let kernel = name.map_or_else(best, named)?;
    if facts.fits(kernel.launch.shared_bytes) {
        return Ok(Some(kernel));
    }
    let instead = kernel.forward().and_then(|forward| {
        let counterpart = forward.counterpart(facts.class().into())?;
        Some(catalog::kernel(Family::Forward(counterpart)))
    });
    Err(Error::SharedMemory {
        kernel: kernel.name,
        needed: kernel.launch.shared_bytes,
        available: facts.shared.block,
        instead: instead
            .filter(|instead| facts.fits(instead.launch.shared_bytes))
            .map(|instead| instead.name),
    })
}

/// The GPU kernel of a name, if it can compute the problem.
fn named(
    name: &str,
    dtype: Dtype,
    problem: &Problem,
    options: &RawOptions,
) -> Result<&'static Kernel> {
    let products = gemm::FAMILIES;
    match catalog::named(name) {
        _ if products.contains(&name) => Err(Error::Multiplies(name.to_owned())),
        Some(kernel) if kernel.gemm().is_some() => Err(Error::Multiplies(name.to_owned())),
        Some(kernel) => match obstacle(kernel, dtype, problem, options) {
            Some(reason) => Err(Error::unsuitable(name, reason)),
            None => Ok(kernel),
        },
        None if name == CPU => Err(Error::unsuitable(CPU, "runs on the CPU only")),
        None => {
            let names = KERNELS.iter().map(|kernel| kernel.name);
            let names = names.chain([CPU]).chain(products);
            Err(Error::unknown_kernel(name, names))
        }
    }
}

/// Why a kernel cannot compute a problem.
fn obstacle(
    kernel: &Kernel,
    dtype: Dtype,
    problem: &Problem,
    options: &RawOptions,
) -> Option<String> {
    let forward = match kernel.family {
        Family::Forward(forward) => forward,
        Family::Auxiliary(Auxiliary::Combine(_)) => {
            return Some("combines what other kernels find on splits of the keys".to_owned());
        }
        Family::Auxiliary(Auxiliary::Merge(_) | Auxiliary::MergeBackward(_)) => {
            return Some("merges what other kernels find on parts of the keys".to_owned());
        }
        Family::Auxiliary(Auxiliary::Append(_) | Auxiliary::AppendE4m3(_)) => {
            return Some("appends keys and values to a cache".to_owned());
        }
        Family::Auxiliary(Auxiliary::Csr) => {
            return Some("copies pages to a table".to_owned());
        }
        Family::Auxiliary(
            Auxiliary::Pack | Auxiliary::Unpack | Auxiliary::Spread | Auxiliary::Gather,
        ) => {
            return Some("copies what other kernels compute with".to_owned());
        }
        Family::Auxiliary(
            Auxiliary::RoundRows(_)
            | Auxiliary::Moments(_)
            | Auxiliary::RoundValues(_)
            | Auxiliary::ScaleRows
            | Auxiliary::MomentsE4m3
            | Auxiliary::TransposeValues,
        ) => return Some("rounds what other kernels compute with".to_owned()),
        Family::Auxiliary(Auxiliary::Ranges | Auxiliary::Blocks) => {
            return Some("finds what queries and keys see".to_owned());
        }
        Family::Backward(_) | Family::HopperBackward(_) => {
            return Some("is of the backward pass".to_owned());
        }
        Family::Gemm(_) => return Some("multiplies matrices".to_owned()),
        Family::Auxiliary(Auxiliary::BulkCopy) => return Some("copies numbers".to_owned()),
    };
    let [dim, dim_v] = [problem.dim, problem.dim_v].map(|dim| dim as u32);
    let most = dim.max(dim_v);
    if options.type_of_kernel(dtype) != Ok(forward.dtype) {
        let (needed, found) = (forward.dtype.name(), dtype.name());
        Some(format!("is for dtype {needed}, not {found}"))
    } else if forward.is_latent() && !options.values_in_keys {
        Some("serves values that are the first part of the keys, in memory too".to_owned())
    } else if forward.kind.multiplies_e4m3() && options.fp8.is_none() {
        Some("multiplies e4m3, for calls with fp8".to_owned())
    } else if forward.reads_e4m3() && options.e4m3_cache.is_none() {
        Some("reads k and v of e4m3, for calls with e4m3_cache".to_owned())
    } else if let Some(option) = match forward.kind.main_loop {
        Loop::Latent => options::first_of_scores(problem, options),
        Loop::Fp8(_) if forward.kind.mask.has_options() => {
            options::first_not_in_fp8(problem, options)
        }
        Loop::Fp8(_) => options::first_beside_fp8(problem, options),
        Loop::DecodeE4m3 => options::first_of_pairs(problem, options),
        _ if options.fp8.is_some() => Some(options::FP8),
        _ if options.e4m3_cache.is_some() => Some(options::E4M3_CACHE),
        _ if forward.kind.has_pairs() => None,
        _ if forward.kind.mask.has_options() => options::first_of_pairs(problem, options),
        Loop::Decode => options::first_beside_cache(problem, options),
        _ => options::first(problem, options),
    } {
        Some(format!("computes no {option}"))
    } else if !forward.kind.mask.serves(problem.causal) {
        let mask = if problem.causal {
            "attention without a mask"
        } else {
            "causal attention only"
        };
        Some(format!("is for {mask}"))
    } else if forward.is_latent() && forward.kind.smallest(dim, dim_v).is_none() {
        Some(format!(
            "serves dim 576 with dim_v 512, not {dim} with {dim_v}"
        ))
    } else if forward
        .kind
        .smallest(dim, dim_v)
        .is_none_or(|least| forward.dim < least)
    {
        Some(format!("serves dim up to {}, not {most}", forward.dim))
    } else if is_wide(forward.dim) && !is_wide(most) {
        Some(format!("serves dim above 256, not {most}"))
    } else if forward.kind.is_grouped()
        && problem.heads > 0
        && problem.seqlen_q as u128 * problem.group() as u128 > u128::from(MAX_SEQLEN)
    {
        let rows = "seqlen_q * heads / kv_heads";
        Some(format!("serves {rows} up to {MAX_SEQLEN}"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{CPU, EMPTY, check, resolve, suitable};
    use crate::attention::Attention;
    use crate::backward::RawBackward;
    use crate::device::Facts;
    use crate::device::{Class, SharedMemory};
    use crate::error::{Error, Result};
    use crate::forward::{Problem, RawForward};
    use crate::options::RawOptions;
    use crate::tensor::Dtype;

    const H100: Facts = Facts::emulated(Class::Sm90);

    fn resolved(name: Option<&str>, q: [usize; 4], kv: [usize; 4]) -> Result<&'static str> {
        resolved_on(&H100, name, q, kv)
    }

    fn resolved_on(
        facts: &Facts,
        name: Option<&str>,
        q: [usize; 4],
        kv: [usize; 4],
    ) -> Result<&'static str> {
        let problem = Problem::new(q, kv, kv, false, None).expect("valid");
        let options = RawOptions::default();
        let kernel = resolve(name, Dtype::F16, &problem, &options, Some(facts))?;
        Ok(kernel.expect("not on the CPU").name)
    }

    fn named(name: &str) -> Result<&'static str> {
        resolved(Some(name), [1, 2, 500, 64], [1, 2, 500, 64])
    }

    #[test]
    fn the_default_is_the_smallest_that_holds_the_dim() {
        let name = |rows, dim| resolved(None, [1, 2, rows, dim], [1, 1, 90, dim]);
        assert_eq!(name(500, 40), Ok("hopper_f16_d64"));
        assert_eq!(name(500, 256), Ok("hopper_f16_d256"));
        assert_eq!(name(500, 264), Ok("hopper_f16_d384"));
        assert_eq!(name(64, 264), Ok("wide_f16_d384"));
        assert_eq!(name(3, 40), Ok("decode_f16_d64"));
        assert_eq!(name(50, 32), Ok("packed_f16_d32"));
        assert_eq!(name(50, 40), Ok("hopper_packed_f16_d64"));
        assert_eq!(name(50, 72), Ok("hopper_packed_f16_d128"));
    }

    #[test]
    fn a_named_kernel_must_serve_the_problem() {
        for name in ["forward_f16_d128", "packed_f16_d64", "decode_f16_d64"] {
            assert_eq!(named(name), Ok(name));
        }
        for name in [
            "forward_f16_d32",
            "forward_bf16_d64",
            "forward_f16_d64_causal",
            "decode_f16_d32",
            "wide_f16_d384",
            "hopper_f16_d384",
            "combine_f16",
            "merge_backward_f16",
            "pack",
            CPU,
        ] {
            let error = named(name).expect_err("unsuitable");
            assert!(
                matches!(error, Error::UnsuitableKernel { .. }),
                "{name}: {error}"
            );
        }
        let (q, kv) = ([1, 4, 1 << 30, 8], [1, 1, 1, 8]);
        for name in ["packed_f16_d32", "decode_f16_d32"] {
            let error = resolved(Some(name), q, kv).expect_err("too many rows");
            assert!(error.to_string().contains("up to"), "{error}");
        }
    }

    #[test]
    fn a_kernel_must_fit_the_device() {
        let shape = [1, 2, 500, 128];
        let on = |class, name: &str| resolved_on(&Facts::emulated(class), Some(name), shape, shape);
        for class in [Class::Sm80, Class::Sm90] {
            assert_eq!(
                on(class, "forward_f16_d256_128x32"),
                Ok("forward_f16_d256_128x32")
            );
        }
        // One block of 64 KB fits, if not as many as it is meant for.
        assert_eq!(on(Class::Sm86, "forward_f16_d128"), Ok("forward_f16_d128"));
        let error = on(Class::Sm86, "forward_f16_d256_128x32").expect_err("too large");
        assert_eq!(
            error.to_string(),
            "kernel forward_f16_d256_128x32 needs 131072 bytes of shared memory for a block; \
             the device has 101376; forward_f16_d256_128x16 would fit"
        );
        // Less than any class: no other name helps, and the default says so too.
        let tiny = Facts {
            shared: SharedMemory {
                block: 40 << 10,
                multiprocessor: 64 << 10,
            },
            ..H100
        };
        for name in [None, Some("forward_f16_d128")] {
            let error = resolved_on(&tiny, name, shape, shape).expect_err("too large");
            assert!(
                matches!(
                    error,
                    Error::SharedMemory {
                        instead: None,
                        available: 40960,
                        ..
                    }
                ),
                "{error}"
            );
        }
    }

    /// Calls without an entry, a head, a query or a key, forward and backward.
    #[test]
    fn a_kernel_of_an_empty_problem_must_be_known() {
        let shapes = [
            ([0, 2, 5, 64], [0, 2, 7, 64]),
            ([1, 0, 5, 64], [1, 0, 7, 64]),
            ([1, 2, 0, 64], [1, 2, 7, 64]),
            ([1, 2, 5, 64], [1, 2, 0, 64]),
        ];
        let options = RawOptions::default();
        for ((q, kv), facts) in shapes
            .into_iter()
            .flat_map(|s| [(s, Some(&H100)), (s, None)])
        {
            let problem = Problem::new(q, kv, kv, false, None).expect("valid");
            let forward = |name: &str| {
                let (call, args) = (
                    Attention::new().kernel(name),
                    RawForward::row_major(&problem),
                );
                call.plan(facts, Dtype::F16, &args).map(|plan| plan.kernel)
            };
            let backward = |name: &str| {
                let (call, args) = (
                    Attention::new().kernel(name),
                    RawBackward::row_major(&problem),
                );
                let plan = call.backward_plan(facts, Dtype::F16, &args);
                plan.map(|plan| plan.kernel)
            };
            let check = |name| check(facts, name, Dtype::F16, &problem, &options);
            for name in ["forward_f16_d46", "", "decode"] {
                let refused = check(name).expect_err("unknown");
                assert!(matches!(refused, Error::UnknownKernel { .. }), "{refused}");
                assert_eq!(forward(name), Err(refused));
                backward(name).expect_err("unknown");
            }
            for name in suitable(facts, Dtype::F16, &problem, &options).expect("valid") {
                assert_eq!(check(name), Ok(()));
                assert_eq!(forward(name), Ok(EMPTY));
                assert_eq!(backward(name), Ok(EMPTY));
            }
            // Names of other problems mean what they mean there.
            let is_gpu = facts.is_some();
            for name in ["forward_f16_d64", "packed_f16_d64"] {
                assert_eq!(forward(name).is_ok(), is_gpu, "{name}");
            }
            let of_gradients = backward("backward_f16_d64");
            assert_eq!(of_gradients.is_ok(), is_gpu);
            for name in ["forward_f16_d32", "backward_f16_d64", "gemm-hopper", "pack"] {
                check(name).expect_err("unsuitable");
            }
            backward("forward_f16_d64").expect_err("no gradients");
        }
    }

    #[test]
    fn facts_that_no_device_has_are_refused() {
        let problem = Problem::new([1, 2, 5, 64], [1, 2, 5, 64], [1, 2, 5, 64], false, None);
        let (problem, options) = (problem.expect("valid"), RawOptions::default());
        let none = Facts {
            multiprocessors: 0,
            ..H100
        };
        let refused = Error::Zero("multiprocessors");
        let names = suitable(Some(&none), Dtype::F16, &problem, &options);
        assert_eq!(names, Err(refused.clone()));
        let checked = check(Some(&none), CPU, Dtype::F16, &problem, &options);
        assert_eq!(checked, Err(refused));
    }

    #[test]
    fn an_unknown_kernel_has_near_names() {
        let shape = [1, 2, 500, 64];
        let problem = Problem::new(shape, shape, shape, false, None).expect("valid");
        let options = RawOptions::default();
        let near = |name| match resolve(Some(name), Dtype::F16, &problem, &options, None) {
            Err(Error::UnknownKernel { near, .. }) => near,
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(near("forward_f16_d46")[0], "forward_f16_d64");
        assert!(near("zzz").is_empty());
    }
}
