//! Which kernel serves a request.

use crate::abi::MAX_SEQLEN;
use crate::catalog::class::Class;
use crate::catalog::{
    Dtype, Family, Forward, HEAD_DIMS, Kernel, Kind, Loop, MaskKind, Spec, kernel,
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
    /// Whether query `i` sees only keys up to `i + seqlen_kv - seqlen_q`.
    pub causal: bool,
    /// Whether the call has [options](crate::abi::Options) that plain kernels lack, beside a cache.
    pub optional: bool,
    /// Whether batch entries name the entries of a [cache](crate::abi::Options::cache), which decode kernels and kernels with
    /// options read.
    pub cached: bool,
    /// Queries per head.
    pub seqlen_q: u32,
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
/// queries. Else the decode kernel if one of its tiles holds the rows of all
/// heads that share a key/value head; the grouped kernel if each head alone would leave half of a tile empty; else the
/// kernel of one head. The latter two are Hopper's, where it has them and the device runs them. With options it is Hopper's
/// kernel with options, or the one for other devices.
fn best(request: &Request) -> Option<Forward> {
    let of = |kind: Kind| {
        let dim = kind.smallest(request.dim, request.dim_v)?;
        let forward = Forward::of(kind, request.dtype, dim, request.class)?;
        let runs = forward.target().runs_on(request.compute_capability);
        runs.then_some(forward)
    };
    let of_head = |main_loop, mask| of(Kind::of_head(main_loop, mask));
    let with_options = || {
        let other = match is_wide(request.dim.max(request.dim_v)) {
            true => Loop::Wide,
            false => Loop::Sm80,
        };
        of_head(Loop::Hopper, MaskKind::Options).or(of_head(other, MaskKind::Options))
    };
    let mask = MaskKind::of(request.causal);
    let hopper = of_head(Loop::Hopper, mask);
    if request.optional || request.cached && is_wide(request.dim) {
        return with_options();
    }
    if is_wide(request.dim) {
        // With fewer the other half of a tile, which the wide kernel does not have, costs what it gains.
        let hopper = hopper.filter(|hopper| request.seqlen_q > hopper.tile.q_rows / 2);
        return hopper.or(of_head(Loop::Wide, MaskKind::Either));
    }
    let decode = of(Kind::of_group(Loop::Decode))?;
    let rows = u64::from(request.seqlen_q) * u64::from(request.group);
    let hopper_group = of(Kind::of_group(Loop::Hopper)).filter(|_| request.dim > MMA_GROUP_DIM);
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
    let sm80 = of_head(Loop::Sm80, mask)?;
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
        hopper_group.or(of(Kind::of_group(Loop::Sm80)))
    } else {
        Some(alone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(seqlen_q: u32, group: u32) -> Request {
        Request {
            dtype: Dtype::F16,
            dim: 128,
            dim_v: 128,
            causal: true,
            optional: false,
            cached: false,
            seqlen_q,
            group,
            compute_capability: (9, 0),
            class: Class::Sm90,
        }
    }

    /// The request with another head dim.
    fn of_dim(dim: u32, request: Request) -> Request {
        Request {
            dim,
            dim_v: dim,
            ..request
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
    fn decode_kernels_serve_few_rows() {
        for (seqlen_q, group) in [(1, 1), (1, 48), (16, 1), (16, 3), (64, 1), (24, 2)] {
            assert_eq!(name(request(seqlen_q, group)), "decode_f16_d128");
        }
        // Of more rows Hopper's grouped kernel makes more.
        for (seqlen_q, group) in [(1, 49), (1, 64), (16, 4), (32, 2)] {
            let request = request(seqlen_q, group);
            assert_eq!(name(request), "hopper_packed_f16_d128");
            assert_eq!(name(of_dim(64, request)), "decode_f16_d64");
            assert_eq!(name(older(request)), "decode_f16_d128");
        }
    }

    #[test]
    fn grouped_kernels_serve_heads_that_fill_tiles_together() {
        for (seqlen_q, group) in [(1, 65), (13, 5), (16, 8), (33, 2), (64, 2), (64, 128)] {
            let request = request(seqlen_q, group);
            assert_eq!(name(request), "hopper_packed_f16_d128");
            let narrow = of_dim(64, request);
            assert_eq!(name(narrow), "hopper_packed_f16_d64");
            assert_eq!(name(older(request)), "packed_f16_d128");
        }
        assert_eq!(name(request(96, 2)), "hopper_packed_f16_d128");
        // Heads of more rows, one alone, and more rows than have a number.
        for (seqlen_q, group) in [(97, 2), (4096, 8), (65, 1), (4096, 1), (64, 1 << 25)] {
            assert_eq!(name(request(seqlen_q, group)), "hopper_f16_d128_causal");
        }
        // Padded kernels take fewer queries; none serves 32.
        for (dim, seqlen_q, expected) in [
            (192, 8, "decode_f16_d192"),
            (192, 9, "hopper_packed_f16_d256"),
            (192, 32, "hopper_packed_f16_d256"),
            (192, 33, "hopper_f16_d192_causal"),
            (96, 1, "decode_f16_d96"),
            (96, 2, "hopper_packed_f16_d128"),
            (96, 64, "hopper_packed_f16_d128"),
            (96, 65, "hopper_f16_d96_causal"),
            (64, 128, "hopper_packed_f16_d64"),
            (64, 129, "hopper_f16_d64_causal"),
            (40, 32, "hopper_packed_f16_d64"),
            (32, 64, "packed_f16_d32"),
            (32, 65, "hopper_f16_d32_causal"),
        ] {
            let request = of_dim(dim, request(seqlen_q, 8));
            assert_eq!(name(request), expected, "{dim}, {seqlen_q}");
        }
    }

    #[test]
    fn dtype_mask_and_dim_decide() {
        let long = request(4096, 1);
        assert_eq!(
            name(Request {
                causal: false,
                ..of_dim(40, long)
            }),
            "hopper_f16_d64"
        );
        assert_eq!(
            name(Request {
                dtype: Dtype::Bf16,
                ..of_dim(136, request(1, 4))
            }),
            "decode_bf16_d192"
        );
        for (dim, rows, expected) in [
            (264, 4096, "hopper_f16_d384_causal"),
            (512, 65, "hopper_f16_d512_causal"),
            (512, 64, "wide_f16_d512"),
            (264, 1, "wide_f16_d384"),
            (520, 4096, "wide_f16_d768"),
            (1024, 1, "wide_f16_d1024"),
        ] {
            let request = of_dim(dim, request(rows, 1));
            assert_eq!(name(request), expected);
        }
        assert_eq!(select(&of_dim(1032, long)), None);
        let old = Request {
            compute_capability: (7, 5),
            ..long
        };
        assert_eq!(select(&old), None);
    }

    /// The compute capabilities that devices report, with their classes.
    const DEVICES: [((i32, i32), Class); 8] = [
        ((8, 0), Class::Sm80),
        ((8, 6), Class::Sm86),
        ((8, 9), Class::Sm86),
        ((9, 0), Class::Sm90),
        ((10, 0), Class::Sm100),
        ((10, 3), Class::Sm100),
        ((12, 0), Class::Sm86),
        // Not known yet.
        ((13, 0), Class::Sm100),
    ];

    #[test]
    fn every_device_has_its_kernel_for_every_request() {
        for (compute_capability, class) in DEVICES {
            let device = class.shared_memory();
            let is_hopper = compute_capability == (9, 0);
            for (dim, dtype, causal) in (8..=1024).step_by(8).flat_map(|dim| {
                let masks = Dtype::ALL.map(|dtype| [(dim, dtype, false), (dim, dtype, true)]);
                masks.into_iter().flatten()
            }) {
                let mask = MaskKind::of(causal);
                let expected = |seqlen_q, group| match (seqlen_q, group) {
                    _ if dim > 512 || dim > 256 && !is_hopper => {
                        Kind::of_head(Loop::Wide, MaskKind::Either)
                    }
                    _ if dim > 256 => Kind::of_head(Loop::Hopper, mask),
                    (1, _) => Kind::of_group(Loop::Decode),
                    (_, 8) if is_hopper && dim > 32 => Kind::of_group(Loop::Hopper),
                    (_, 8) => Kind::of_group(Loop::Sm80),
                    _ if is_hopper => Kind::of_head(Loop::Hopper, mask),
                    _ => Kind::of_head(Loop::Sm80, mask),
                };
                for (seqlen_q, group) in [(1, 1), (16, 8), (4096, 1)] {
                    if is_wide(dim) && seqlen_q != 4096 {
                        continue;
                    }
                    let kernel = select(&Request {
                        dtype,
                        causal,
                        compute_capability,
                        class: Class::of(compute_capability, device),
                        ..of_dim(dim, request(seqlen_q, group))
                    });
                    let kernel = kernel.expect("a kernel");
                    let kind = expected(seqlen_q, group);
                    let padded = kind.smallest(dim, dim).expect("served");
                    let forward = Forward::of(kind, dtype, padded, class).expect("a tile");
                    assert_eq!(kernel.family, Family::Forward(forward));
                    let blocks = device.resident_blocks(kernel.shared_bytes());
                    // Decode kernels are compiled for as many blocks as fit an H100; tests beside their tiles count them.
                    let least = match kind.main_loop {
                        Loop::Decode => 1,
                        _ => kernel.blocks_per_sm(),
                    };
                    assert!(blocks >= least, "{}: {blocks} blocks", kernel.name);
                }
            }
        }
    }

    /// Users and results know these kernels by name.
    #[test]
    fn the_choice_for_long_sequences_is_known() {
        let of = |class: Class, dim| {
            name(Request {
                class,
                compute_capability: class.compute_capability(),
                ..of_dim(dim, request(4096, 1))
            })
        };
        let names = |class| HEAD_DIMS.iter().map(move |&dim| of(class, dim));
        let plain = |dim| format!("forward_f16_d{dim}_causal");
        let tiled = |dim, tile| format!("forward_f16_d{dim}_{tile}_causal");
        let hopper = |dim| format!("hopper_f16_d{dim}_causal");
        assert!(names(Class::Sm90).eq(HEAD_DIMS.iter().map(hopper)));
        assert!(names(Class::Sm80).eq([
            plain(&32),
            plain(&64),
            plain(&96),
            plain(&128),
            plain(&192),
            tiled(256, "128x32")
        ]));
        assert!(names(Class::Sm86).eq([
            plain(&32),
            tiled(64, "128x48"),
            tiled(96, "64x32"),
            tiled(128, "64x32"),
            tiled(192, "64x16"),
            tiled(256, "128x16")
        ]));
        assert!(names(Class::Sm100).eq([
            plain(&32),
            plain(&64),
            plain(&96),
            tiled(128, "128x16"),
            plain(&192),
            tiled(256, "128x16")
        ]));
    }

    /// Wide kernels hold the columns of o alone; all others hold rows of q, too.
    #[test]
    fn rows_of_v_may_differ() {
        let of = |dim, dim_v| Request {
            dim,
            dim_v,
            optional: true,
            ..request(4096, 1)
        };
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
            assert_eq!(name(of(dim, dim_v)), hopper);
            assert_eq!(name(older(of(dim, dim_v))), other);
        }
    }
}
