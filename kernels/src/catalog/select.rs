//! Which kernel serves a request.

use crate::abi::MAX_SEQLEN;
use crate::catalog::class::Class;
use crate::catalog::{
    Dtype, Family, Forward, HEAD_DIMS, Kernel, Kind, Levels, Loop, MaskKind, kernel,
};

/// The properties of a call that choose its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Element type.
    pub dtype: Dtype,
    /// Elements of a row of q and k.
    pub dim: u32,
    /// Elements of a row of v and o: `dim` without options.
    pub dim_v: u32,
    /// The mask: [`MaskKind::Options`] of a call with [options](crate::abi::Options) that plain kernels lack, beside a cache.
    pub mask: MaskKind,
    /// Whether an option has an element for each pair of query and key, or rows of v and o have another length.
    pub has_pairs: bool,
    /// Whether batch entries name the entries of a [cache](crate::abi::Options::cache), which decode kernels and kernels with
    /// options read.
    pub cached: bool,
    /// Whether v is the first part of k, in memory too, and no option changes scores.
    pub values_in_keys: bool,
    /// The levels of sums, if it is to multiply e4m3: two where inputs are e4m3 already, and values keep their mean.
    pub fp8: Option<Levels>,
    /// Whether k and v are of e4m3.
    pub e4m3_cache: bool,
    /// Whether one kernel serves all numbers of queries, of options and head dims like these.
    pub invariant: bool,
    /// Queries per head or, of packed queries beside pages, of a sequence in the mean.
    pub seqlen_q: u32,
    /// Queries of the longest sequence, as far as is known, where the others may have few. Hopper's kernel with options serves both.
    pub longest_q: u32,
    /// Query heads that share a key/value head.
    pub group: u32,
    /// Compute capability of the device.
    pub compute_capability: (i32, i32),
    /// Class of the device.
    pub class: Class,
}

/// The largest head dim that Hopper's grouped kernels leave to `mma.sync`: they would pad it to 64.
const MMA_GROUP_DIM: u32 = 32;

/// Whether a head dim is above [`HEAD_DIMS`].
pub fn is_wide(dim: u32) -> bool {
    HEAD_DIMS.last().is_some_and(|&most| dim > most)
}

/// The best kernel for a request, of the device's class and the smallest head dim that serves it.
pub fn select(request: &Request) -> Option<&'static Kernel> {
    Some(kernel(Family::Forward(best(request)?)))
}

/// Above [`HEAD_DIMS`] it is the wide kernel, or a Hopper kernel if one has the head dim and there is more than half a tile of
/// queries. Else the decode kernel if one of its tiles holds the rows of all heads that share a key/value head; the grouped
/// kernel if each head alone would leave half of a tile empty; else the kernel of one head. The latter two are Hopper's, where
/// it has them and the device runs them. With options it is Hopper's kernel with options, or the one for other devices.
fn best(request: &Request) -> Option<Forward> {
    let of = |kind: Kind| {
        let dim = kind.smallest(request.dim, request.dim_v)?;
        let forward = Forward::of(kind, request.dtype, dim, request.class)?;
        let runs = kind.main_loop.target().runs_on(request.compute_capability);
        runs.then_some(forward)
    };
    let of_head = |main_loop, mask| of(Kind::of_head(main_loop, mask));
    let of_group = |main_loop, mask| of(Kind::of_group(main_loop, mask));
    let with_options = || {
        let other = match is_wide(request.dim.max(request.dim_v)) {
            true => Loop::Wide,
            false => Loop::Sm80,
        };
        of_head(Loop::Hopper, MaskKind::Options).or(of_head(other, MaskKind::Options))
    };
    if let Some(levels) = request.fp8 {
        return of_head(Loop::Fp8(levels), request.mask);
    }
    if request.e4m3_cache {
        return of_group(Loop::DecodeE4m3, MaskKind::Options);
    }
    let rows = u64::from(request.seqlen_q) * u64::from(request.group);
    if request.values_in_keys
        && rows <= u64::from(MAX_SEQLEN)
        && let Some(latent) = of_group(Loop::Latent, MaskKind::Options)
    {
        return Some(latent);
    }
    let hopper = of_head(Loop::Hopper, request.mask);
    if request.mask.has_options() || request.cached && is_wide(request.dim) {
        let other = with_options();
        let is_hopper = other.is_some_and(|other| other.kind.main_loop == Loop::Hopper);
        let queries = if is_hopper {
            request.longest_q
        } else {
            request.seqlen_q
        };
        let rows = u64::from(queries) * u64::from(request.group);
        let decode = of_group(Loop::Decode, MaskKind::Options).filter(|decode| {
            let most = match request.group {
                // Hopper's kernel was 1.06 times as fast with 64 rows, and level with 8.
                1 if is_hopper => decode.tile.q_rows / 2,
                _ => decode.tile.q_rows,
            };
            !request.invariant && !request.has_pairs && rows <= u64::from(most)
        });
        return decode.or(other);
    }
    if is_wide(request.dim) {
        // With fewer the other half of a tile, which the wide kernel does not have, costs what it gains.
        let hopper = hopper.filter(|hopper| request.seqlen_q > hopper.tile.q_rows / 2);
        return hopper.or(of_head(Loop::Wide, MaskKind::Either));
    }
    let decode = of_group(Loop::Decode, MaskKind::Either)?;
    let hopper_group =
        of_group(Loop::Hopper, MaskKind::Either).filter(|_| request.dim > MMA_GROUP_DIM);
    let shares_tiles = hopper_group.is_some() && request.group > 1;
    let decode_rows = match decode.dim {
        // Products take the time, from half a tile of rows on: with 64 rows grouped kernels were 1.28 times as fast on
        // an H200.
        193.. => decode.tile.q_rows / 2,
        // Hopper's grouped kernel was 1.14 times as fast with 16 rows.
        96 if shares_tiles => decode.tile.q_rows / 8,
        // It was level with 48 rows, and 1.04 times as fast with 56.
        128 if shares_tiles => decode.tile.q_rows / 4 * 3,
        _ => decode.tile.q_rows,
    };
    let sm80 = of_head(Loop::Sm80, request.mask)?;
    let alone = hopper.unwrap_or(sm80);
    // A padded grouped kernel has to win by more.
    let half = match hopper_group {
        Some(group) if group.dim == alone.dim => alone.tile.q_rows / 2,
        _ => sm80.tile.q_rows / 2,
    };
    if rows <= u64::from(decode_rows) {
        Some(decode)
    } else if request.cached {
        with_options()
    } else if request.group > 1 && request.seqlen_q <= half && rows <= u64::from(MAX_SEQLEN) {
        hopper_group.or(of_group(Loop::Sm80, MaskKind::Either))
    } else {
        Some(alone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::WIDE_DIMS;

    /// A causal call on an H100.
    fn request(dim: u32, seqlen_q: u32, group: u32) -> Request {
        Request {
            dtype: Dtype::F16,
            dim,
            dim_v: dim,
            mask: MaskKind::Causal,
            has_pairs: false,
            cached: false,
            values_in_keys: false,
            fp8: None,
            e4m3_cache: false,
            invariant: false,
            seqlen_q,
            longest_q: seqlen_q,
            group,
            compute_capability: (9, 0),
            class: Class::Sm90,
        }
    }

    /// The request on a device of the same tiles without Hopper's instructions.
    fn older(request: Request) -> Request {
        Request {
            compute_capability: (8, 0),
            ..request
        }
    }

    fn name(request: Request) -> &'static str {
        select(&request).expect("a kernel").name
    }

    #[test]
    fn rows_decide() {
        for (seqlen_q, group) in [(1, 1), (1, 48), (16, 1), (16, 3), (64, 1), (24, 2)] {
            assert_eq!(name(request(128, seqlen_q, group)), "decode_f16_d128");
        }
        // Of more rows Hopper's grouped kernel makes more.
        for (seqlen_q, group) in [(1, 49), (1, 64), (16, 4), (32, 2)] {
            let of_dim = |dim| request(dim, seqlen_q, group);
            assert_eq!(name(of_dim(128)), "hopper_packed_f16_d128");
            assert_eq!(name(of_dim(64)), "decode_f16_d64");
            assert_eq!(name(older(of_dim(128))), "decode_f16_d128");
        }
        for (seqlen_q, group) in [(1, 65), (13, 5), (16, 8), (33, 2), (64, 2), (64, 128)] {
            let of_dim = |dim| request(dim, seqlen_q, group);
            assert_eq!(name(of_dim(128)), "hopper_packed_f16_d128");
            assert_eq!(name(of_dim(64)), "hopper_packed_f16_d64");
            assert_eq!(name(older(of_dim(128))), "packed_f16_d128");
        }
        assert_eq!(name(request(128, 96, 2)), "hopper_packed_f16_d128");
        // Heads of more rows, one alone, and more rows than have a number.
        for (seqlen_q, group) in [(97, 2), (4096, 8), (65, 1), (4096, 1), (64, 1 << 25)] {
            assert_eq!(
                name(request(128, seqlen_q, group)),
                "hopper_f16_d128_causal"
            );
        }
    }

    #[test]
    fn head_dims_decide() {
        for (dim, seqlen_q, group, expected) in [
            // Padded kernels take fewer queries; none serves 32.
            (192, 8, 8, "decode_f16_d192"),
            (192, 9, 8, "hopper_packed_f16_d256"),
            (192, 32, 8, "hopper_packed_f16_d256"),
            (192, 33, 8, "hopper_f16_d192_causal"),
            (96, 1, 8, "decode_f16_d96"),
            (96, 2, 8, "hopper_packed_f16_d128"),
            (96, 64, 8, "hopper_packed_f16_d128"),
            (96, 65, 8, "hopper_f16_d96_causal"),
            (64, 128, 8, "hopper_packed_f16_d64"),
            (64, 129, 8, "hopper_f16_d64_causal"),
            (40, 32, 8, "hopper_packed_f16_d64"),
            (32, 64, 8, "packed_f16_d32"),
            (32, 65, 8, "hopper_f16_d32_causal"),
            (136, 1, 4, "decode_f16_d192"),
            (264, 4096, 1, "hopper_f16_d384_causal"),
            (512, 65, 1, "hopper_f16_d512_causal"),
            (512, 64, 1, "wide_f16_d512"),
            (264, 1, 1, "wide_f16_d384"),
            (520, 4096, 1, "wide_f16_d768"),
            (1024, 1, 1, "wide_f16_d1024"),
        ] {
            let found = name(request(dim, seqlen_q, group));
            assert_eq!(found, expected, "{dim}, {seqlen_q}");
        }
        assert_eq!(select(&request(1032, 4096, 1)), None);
        let compute_capability = (7, 5);
        let old = Request {
            compute_capability,
            ..request(128, 4096, 1)
        };
        assert_eq!(select(&old), None);
    }

    /// The compute capabilities that devices report, with their classes; the last is not known yet.
    const DEVICES: [((i32, i32), Class); 8] = [
        ((8, 0), Class::Sm80),
        ((8, 6), Class::Sm86),
        ((8, 9), Class::Sm86),
        ((9, 0), Class::Sm90),
        ((10, 0), Class::Sm100),
        ((10, 3), Class::Sm100),
        ((12, 0), Class::Sm86),
        ((13, 0), Class::Sm100),
    ];

    /// The kernel that serves a head dim and rows of so many queries, of heads that share keys or not.
    fn expected(
        device: ((i32, i32), Class),
        of: Dtype,
        mask: MaskKind,
        dim: u32,
        rows: u32,
    ) -> Forward {
        let (compute_capability, class) = device;
        let is_hopper = compute_capability == (9, 0);
        let kind = match (rows, dim) {
            (4096, ..=512) if is_hopper => Kind::of_head(Loop::Hopper, mask),
            (_, 257..) => Kind::of_head(Loop::Wide, MaskKind::Either),
            (4096, _) => Kind::of_head(Loop::Sm80, mask),
            (1, _) => Kind::of_group(Loop::Decode, MaskKind::Either),
            (_, 33..) if is_hopper => Kind::of_group(Loop::Hopper, MaskKind::Either),
            _ => Kind::of_group(Loop::Sm80, MaskKind::Either),
        };
        let padded = match kind == Kind::of_group(Loop::Hopper, MaskKind::Either) {
            true => dim.max(64).next_power_of_two(),
            false => {
                let dims = HEAD_DIMS.iter().chain(WIDE_DIMS);
                dims.copied().find(|&of| of >= dim).expect("served")
            }
        };
        Forward::of(kind, of, padded, class).expect("a tile")
    }

    #[test]
    fn every_device_has_its_kernel_for_every_request() {
        let calls = DEVICES.into_iter().flat_map(|device| {
            let dims = (8..=1024).step_by(8);
            dims.flat_map(move |dim| [(1, 1), (16, 8), (4096, 1)].map(|rows| (device, dim, rows)))
        });
        for (device, dim, (seqlen_q, group)) in calls {
            let (compute_capability, class) = device;
            for (dtype, causal) in Dtype::ALL
                .into_iter()
                .flat_map(|of| [(of, false), (of, true)])
            {
                let kernel = select(&Request {
                    dtype,
                    mask: MaskKind::of(causal),
                    compute_capability,
                    class: Class::of(compute_capability, class.shared_memory()),
                    ..request(dim, seqlen_q, group)
                });
                let kernel = kernel.expect("a kernel");
                let forward = expected(device, dtype, MaskKind::of(causal), dim, seqlen_q);
                assert_eq!(kernel.family, Family::Forward(forward));
            }
        }
    }

    /// Options of pairs, and rows that fill more than a tile, have kernels with rows of one head.
    #[test]
    fn few_rows_with_options_are_decoded() {
        let (decode, hopper) = ("decode_optional_f16_d128", "hopper_optional_f16_d128");
        for (seqlen_q, group, has_pairs, on_hopper, elsewhere) in [
            (1, 8, false, decode, decode),
            (8, 8, false, decode, decode),
            (9, 8, false, hopper, "optional_f16_d128"),
            (1, 8, true, hopper, "optional_f16_d128"),
            (32, 1, false, decode, decode),
            (33, 1, false, hopper, decode),
            (65, 1, false, hopper, "optional_f16_d128"),
        ] {
            let request = Request {
                mask: MaskKind::Options,
                has_pairs,
                ..request(128, seqlen_q, group)
            };
            assert_eq!(name(request), on_hopper, "{seqlen_q}, {group}");
            assert_eq!(name(older(request)), elsewhere, "{seqlen_q}, {group}");
        }
    }

    /// Beside a long sequence Hopper's kernel with options serves short ones, too; elsewhere the mean decides.
    #[test]
    fn the_longest_sequence_decides_on_hopper() {
        let (decode, hopper) = ("decode_optional_f16_d128", "hopper_optional_f16_d128");
        for (seqlen_q, longest_q, on_hopper, elsewhere) in [
            (1, 8, decode, decode),
            (2, 9, hopper, decode),
            (8, 1000, hopper, decode),
            (9, 1000, hopper, "optional_f16_d128"),
        ] {
            let request = Request {
                mask: MaskKind::Options,
                longest_q,
                ..request(128, seqlen_q, 8)
            };
            assert_eq!(name(request), on_hopper, "{seqlen_q}, {longest_q}");
            assert_eq!(name(older(request)), elsewhere, "{seqlen_q}, {longest_q}");
        }
    }

    #[test]
    fn dtype_and_mask_decide() {
        let long = request(40, 4096, 1);
        let mask = MaskKind::Full;
        assert_eq!(name(Request { mask, ..long }), "hopper_f16_d64");
        let dtype = Dtype::Bf16;
        let few = request(136, 1, 4);
        assert_eq!(name(Request { dtype, ..few }), "decode_bf16_d192");
    }

    /// Users and results know these kernels by name.
    #[test]
    fn the_choice_for_long_sequences_is_known() {
        for (class, expected) in [
            (Class::Sm80, ["", "", "", "", "", "_128x32"]),
            (
                Class::Sm86,
                ["", "_128x48", "_64x32", "_64x32", "_64x16", "_128x16"],
            ),
            (Class::Sm90, [""; 6]),
            (Class::Sm100, ["", "", "", "_128x16", "", "_128x16"]),
        ] {
            let main_loop = if class == Class::Sm90 {
                "hopper"
            } else {
                "forward"
            };
            for (&dim, tile) in HEAD_DIMS.iter().zip(expected) {
                let found = name(Request {
                    class,
                    compute_capability: class.compute_capability(),
                    ..request(dim, 4096, 1)
                });
                assert_eq!(found, format!("{main_loop}_f16_d{dim}{tile}_causal"));
            }
        }
    }

    /// Values that are the first part of keys have a kernel on Hopper, of two head dims alone.
    #[test]
    fn latent_attention_has_its_kernel() {
        let wide = "wide_optional_f16_d512";
        for (dim, dim_v, values_in_keys, on_hopper) in [
            (576, 512, true, "latent_f16_d576"),
            (576, 512, false, wide),
            (576, 504, true, wide),
            (584, 512, true, wide),
            (512, 512, true, "hopper_optional_f16_d512"),
        ] {
            for (seqlen_q, group) in [(1, 16), (4, 16), (1, 128), (4096, 16)] {
                let request = Request {
                    dim_v,
                    mask: MaskKind::Options,
                    has_pairs: dim_v != dim,
                    values_in_keys,
                    ..request(dim, seqlen_q, group)
                };
                assert_eq!(name(request), on_hopper, "{dim}, {dim_v}");
                assert_eq!(name(older(request)), wide);
            }
        }
    }

    /// e4m3 has kernels on Hopper, up to head dim 256.
    #[test]
    fn fp8_has_its_kernels() {
        for (dim, expected) in [(8, "f16_d64"), (128, "f16_d128"), (136, "f16_d256")] {
            let request = Request {
                fp8: Some(Levels::One),
                ..request(dim, 4096, 4)
            };
            assert_eq!(name(request), format!("fp8_{expected}_causal"));
            let with_options = Request {
                mask: MaskKind::Options,
                ..request
            };
            assert_eq!(name(with_options), format!("fp8_optional_{expected}"));
            let of_e4m3 = Request {
                fp8: Some(Levels::Two),
                ..with_options
            };
            let name_of_e4m3 = format!("fp8_two_levels_optional_{expected}");
            assert_eq!(name(of_e4m3), name_of_e4m3);
            assert_eq!(select(&older(request)), None);
            assert_eq!(
                select(&Request {
                    dim: 264,
                    ..request
                }),
                None
            );
        }
    }

    /// A cache of e4m3 has kernels on Hopper, which decode any number of rows.
    #[test]
    fn a_cache_of_e4m3_has_its_kernels() {
        for (dim, seqlen_q, expected) in [
            (16, 1, "decode_e4m3_f16_d64"),
            (96, 1, "decode_e4m3_f16_d128"),
            (256, 4096, "decode_e4m3_f16_d256"),
        ] {
            let request = Request {
                e4m3_cache: true,
                mask: MaskKind::Options,
                ..request(dim, seqlen_q, 4)
            };
            assert_eq!(name(request), expected);
            assert_eq!(select(&older(request)), None);
            assert_eq!(
                select(&Request {
                    dim: 272,
                    ..request
                }),
                None
            );
        }
    }

    /// Wide kernels hold the columns of o alone; all others hold rows of q, too.
    #[test]
    fn rows_of_v_may_differ() {
        for (dim, dim_v, hopper, other) in [
            (192, 128, "hopper_optional_f16_d192", "optional_f16_d192"),
            (128, 192, "hopper_optional_f16_d192", "optional_f16_d192"),
            (576, 512, "wide_optional_f16_d512", "wide_optional_f16_d512"),
            (
                16,
                264,
                "hopper_optional_f16_d384",
                "wide_optional_f16_d384",
            ),
            (
                264,
                16,
                "hopper_optional_f16_d384",
                "wide_optional_f16_d384",
            ),
            (1024, 8, "wide_optional_f16_d384", "wide_optional_f16_d384"),
        ] {
            let request = Request {
                dim_v,
                mask: MaskKind::Options,
                ..request(dim, 4096, 1)
            };
            assert_eq!(name(request), hopper);
            assert_eq!(name(older(request)), other);
        }
    }
}
