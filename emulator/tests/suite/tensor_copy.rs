//! Tensor copies: boxes of random tensors against plain arithmetic, and every rule that a kernel can
//! break with them.

use emulator::{Argument, Error, Memory, Module, Options, Swizzle, TensorMap, launch};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Bytes of shared memory; the mbarrier `%bar` lies at its end.
const BYTES: u32 = 128 << 10;

/// A kernel of one thread around a body: `%from` and `%to` are tensor maps, `%out` writable memory,
/// `%c0` to `%c4` the coordinates. The mbarrier expects one arrival.
fn module(body: &str) -> String {
    let coordinates: String = (0..5)
        .map(|i| format!("ld.param.u32 %c{i}, [coordinates+{}];", 4 * i))
        .collect();
    format!(
        "
        .version 8.0
        .target sm_90a
        .address_size 64
        .extern .shared .align 1024 .b8 smem[];
        .visible .entry tiny(.param .u64 from, .param .u64 to, .param .u64 out,
                             .param .align 4 .b8 coordinates[20])
        {{
            .reg .pred %p<4>;
            .reg .b32 %r<8>, %c<5>, %smem, %bar;
            .reg .b64 %from, %to, %out;
            ld.param.u64 %from, [from];
            ld.param.u64 %to, [to];
            ld.param.u64 %out, [out];
            {coordinates}
            mov.u32 %smem, smem;
            add.s32 %bar, %smem, {};
            mbarrier.init.shared::cta.b64 [%bar], 1;
            fence.mbarrier_init.release.cluster;
            {body}
            ret;
        }}",
        BYTES - 8
    )
}

/// Memory with a tensor to load from, one to store to, and room for the box as it lies in shared
/// memory.
struct Tensors {
    memory: Memory,
    from: TensorMap,
    to: TensorMap,
    out: u64,
}

impl Tensors {
    /// Two tensors like `map`, of some bytes, the first one filled with `content`.
    fn new(map: TensorMap, content: &[u8]) -> Self {
        let memory = Memory::new();
        let address = memory.upload(content);
        let from = TensorMap { address, ..map };
        let address = memory.allocate(content.len());
        let to = TensorMap { address, ..map };
        let out = memory.allocate(BYTES as usize);
        Tensors {
            memory,
            from,
            to,
            out,
        }
    }

    fn run(&self, body: &str, coordinates: [i32; 5], seed: u64) -> Result<(), Error> {
        let module = Module::parse(&module(body), "tiny.ptx")?;
        let [from, to] = [self.from, self.to].map(|map| self.memory.upload(&map.encode()));
        let arguments = [
            Argument::U64(from),
            Argument::U64(to),
            Argument::U64(self.out),
            Argument::Bytes(bytemuck::cast_slice(&coordinates)),
        ];
        let options = Options {
            seed,
            counters: true,
            instruction_budget: 10_000,
            ..Options::default()
        };
        let kernel = module.entry("tiny")?;
        let one = [1, 1, 1];
        launch(&self.memory, kernel, one, one, BYTES, &arguments, &options).map(drop)
    }

    fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.memory.read(address, &mut read).unwrap();
        read
    }
}

/// `{%c0, %c1, ...}`
fn coordinates(rank: u32) -> String {
    let names: Vec<_> = (0..rank).map(|i| format!("%c{i}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// Loads a box, stores it to the other tensor, from there or its first element on, and copies its bytes in shared memory to
/// `%out`.
fn round_trip(rank: u32, bytes: u32) -> String {
    let coordinates = coordinates(rank);
    let inside: String = (0..rank)
        .map(|i| format!("max.s32 %c{i}, %c{i}, 0;"))
        .collect();
    format!(
        "prefetch.tensormap [%from];
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {bytes};
        cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
            [%smem], [%from, {coordinates}], [%bar];
        {{ .reg .pred done;
        again: mbarrier.try_wait.parity.shared::cta.b64 done, [%bar], 0, 1000;
        @done bra out; bra again; out: }}
        cp.async.bulk.global.shared::cta.bulk_group [%out], [%smem], {bytes};
        {inside}
        cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [%to, {coordinates}], [%smem];
        cp.async.bulk.commit_group;
        cp.async.bulk.wait_group 0;"
    )
}

/// The elements of a box, as their place in the box, and in the tensor if they lie there.
fn elements(map: &TensorMap, coordinates: [i32; 5]) -> Vec<(usize, Option<usize>)> {
    let rank = map.rank as usize;
    let count: u32 = map.box_sizes[..rank].iter().product();
    let element = map.element_bytes as usize;
    let places = (0..count as usize).map(|number| {
        let (mut rest, mut place) = (number, Some(0));
        for (dimension, first) in coordinates.iter().enumerate().take(rank) {
            let size = map.box_sizes[dimension] as usize;
            let index = i64::from(*first) + (rest % size) as i64;
            rest /= size;
            let stride = match dimension {
                0 => element,
                _ => map.strides[dimension - 1] as usize,
            };
            let is_inside = (0..map.sizes[dimension] as i64).contains(&index);
            place = place
                .filter(|_| is_inside)
                .map(|place| place + index as usize * stride);
        }
        (number * element, place)
    });
    places.collect()
}

/// Where a byte of a box goes that begins at a multiple of 1024.
fn swizzled(place: usize, swizzle: Swizzle) -> usize {
    let line = place / 128;
    let key = match swizzle {
        Swizzle::None => 0,
        Swizzle::B32 => line % 2,
        Swizzle::B64 => line % 4,
        Swizzle::B128 => line % 8,
    };
    ((place / 16) ^ key) * 16 + place % 16
}

#[test]
fn boxes_of_random_tensors() {
    let random = &mut StdRng::seed_from_u64(4);
    for case in 0..200 {
        let swizzles = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];
        let (swizzle, rank) = (
            swizzles[random.random_range(0..4)],
            random.random_range(1..6),
        );
        let element_bytes = [1, 2, 4, 8][random.random_range(0..4)];
        let row_bytes = match swizzle {
            Swizzle::None => 16 * random.random_range(1..12),
            swizzle => 16 << swizzle as u32,
        };
        let mut map = TensorMap {
            address: 0,
            element_bytes,
            rank,
            sizes: [0; 5],
            strides: [0; 4],
            box_sizes: [0; 5],
            swizzle,
        };
        map.box_sizes[0] = row_bytes / element_bytes;
        map.sizes[0] = random.random_range(1..200);
        let mut bytes = map.sizes[0] * u64::from(element_bytes);
        for dimension in 1..rank as usize {
            map.box_sizes[dimension] = random.random_range(1..6);
            map.sizes[dimension] = random.random_range(1..6);
            map.strides[dimension - 1] =
                bytes.next_multiple_of(16) + 16 * random.random_range(0..2);
            bytes = map.strides[dimension - 1] * map.sizes[dimension];
        }
        let coordinates = std::array::from_fn(|i| {
            let size = map.sizes[i] as i32;
            random.random_range(-size - 2..size + 3)
        });
        let content: Vec<u8> = (0..bytes).map(|_| random.random_range(1..=255)).collect();
        let tensors = Tensors::new(map, &content);
        let places = elements(&map, coordinates);
        let element = element_bytes as usize;
        let box_bytes = places.len() * element;
        let what = format!("case {case}: {map:?} at {coordinates:?}");
        tensors
            .run(&round_trip(rank, box_bytes as u32), coordinates, case)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let in_shared = tensors.read(tensors.out, box_bytes);
        let stored = tensors.read(tensors.to.address, content.len());
        // Bytes that were never written read as ones.
        let mut expected = vec![0xff; content.len()];
        let found = |place| &in_shared[swizzled(place, swizzle)..][..element];
        for (place, inside) in places {
            let found = found(place);
            match inside {
                None => assert!(found.iter().all(|byte| *byte == 0), "{what}: {place}"),
                Some(inside) => {
                    assert_eq!(found, &content[inside..inside + element], "{what}: {place}");
                }
            }
        }
        for (place, inside) in elements(&map, coordinates.map(|coordinate| coordinate.max(0))) {
            if let Some(inside) = inside {
                expected[inside..inside + element].copy_from_slice(found(place));
            }
        }
        assert!(stored == expected, "{what}: stored");
    }
}

/// Boxes of 4 rows of 16 words, from 10 rows of 24.
const MAP: TensorMap = TensorMap {
    address: 0,
    element_bytes: 4,
    rank: 2,
    sizes: [24, 10, 0, 0, 0],
    strides: [96, 0, 0, 0],
    box_sizes: [16, 4, 0, 0, 0],
    swizzle: Swizzle::B64,
};

/// The report of a body, the same rule under each of several schedules.
#[track_caller]
fn report(body: &str, map: TensorMap, content: usize) -> String {
    let tensors = Tensors::new(map, &vec![1; content]);
    let reports = (0..5).map(|seed| match tensors.run(body, [0; 5], seed) {
        Err(Error::Fault(fault)) => fault.rule.to_string(),
        other => panic!("no rule was broken: {other:?}"),
    });
    reports.last().expect("some seeds")
}

#[test]
fn copies_keep_the_rules_of_bulk_copies() {
    let good = round_trip(2, 256);
    let changed = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replace(from, to)
    };
    let tensors = Tensors::new(MAP, &[1; 960]);
    tensors.run(&good, [0; 5], 0).unwrap();
    let load = "[%smem], [%from";
    let wait = good.find("{ .reg .pred done").expect("a wait");
    for (body, says) in [
        (changed("[%bar], 256", "[%bar], 240"), "-16 bytes"),
        // The bytes of the whole box count, however few lie in the tensor.
        (changed("[%bar], 256", "[%bar], 272"), "16 bytes"),
        (changed(load, "[%smem+64], [%from"), "a multiple of 128"),
        (
            changed("%c1}], [%smem]", "%c1}], [%smem+64]"),
            "a multiple of 128",
        ),
        (
            changed(load, "[%smem+130944], [%from"),
            "outside the block's shared memory",
        ),
        (changed(load, "[%smem], [%out"), "never written"),
        (changed(load, "[%smem], [%from+16"), "a multiple of 64"),
        (
            changed(
                "arrive.expect_tx.shared::cta.b64 _, [%bar], 256;",
                "arrive.shared::cta.b64 _, [%bar];",
            ),
            "before a wait for its mbarrier's phase",
        ),
        (
            changed(
                "cp.async.bulk.global",
                "st.shared.b32 [%smem], %r0; cp.async.bulk.global",
            )
            .replace("prefetch", "mov.b32 %r0, 0; prefetch"),
            "no fence.proxy.async",
        ),
        (
            changed("cp.async.bulk.wait_group 0", "cp.async.bulk.wait_group 1"),
            "under way",
        ),
        (
            changed(
                "cp.async.bulk.commit_group;",
                "cp.async.bulk.commit_group; st.shared.b32 [%smem], %c0;",
            ),
            "the source of a bulk copy",
        ),
        (
            format!("{} ld.shared.b32 %r0, [%smem];", &good[..wait]),
            "before a wait for its mbarrier's phase",
        ),
        (changed("[%to,", "[%from,"), "read-only"),
        (
            changed("max.s32 %c1, %c1, 0;", "mov.b32 %c1, -1;"),
            "before the tensor",
        ),
    ] {
        let found = report(&body, MAP, 960);
        assert!(found.contains(says), "{says}: {found}: {body}");
    }
    // The tensor leaves its buffer; its elements were never written.
    assert!(report(&good, MAP, 320).contains("outside every buffer"));
    let unwritten = good.replace("[%from", "[%to");
    assert!(report(&unwritten, MAP, 960).contains("never written"));
}

#[test]
fn maps_keep_their_limits() {
    let wrong = |change: fn(&mut TensorMap)| {
        let mut map = MAP;
        change(&mut map);
        report(&round_trip(2, 256), map, 960)
    };
    for (found, says) in [
        (wrong(|map| map.rank = 0), "1 to 5 dimensions"),
        (wrong(|map| map.rank = 3), "a size of a tensor map"),
        (wrong(|map| map.rank = 1), "other dimensions"),
        (wrong(|map| map.element_bytes = 3), "1, 2, 4 or 8 bytes"),
        (wrong(|map| map.sizes[1] = 0), "1 to 2^32"),
        (wrong(|map| map.strides[0] = 100), "a multiple of 16"),
        (wrong(|map| map.box_sizes[1] = 257), "1 to 256"),
        (
            wrong(|map| map.swizzle = Swizzle::B128),
            "as long as its swizzle's",
        ),
        (wrong(|map| map.box_sizes[0] = 6), "a multiple of 16 bytes"),
    ] {
        assert!(found.contains(says), "{says}: {found}");
    }
    let mut misplaced = Tensors::new(MAP, &[1; 960]);
    misplaced.from.address += 8;
    let found = misplaced.run(&round_trip(2, 256), [0; 5], 0).unwrap_err();
    assert!(found.to_string().contains("a multiple of 16"), "{found}");
}

#[test]
fn what_is_no_tensor_copy_does_not_load() {
    for (from, to, says) in [
        (
            "[%from, {%c0, %c1}]",
            "[%from, {%c0}]",
            "expected 2 coordinates",
        ),
        ("[%from, {%c0, %c1}]", "[%from]", "coordinates"),
        (".tile.bulk_group", ".im2col.bulk_group", "unknown"),
    ] {
        let body = round_trip(2, 256).replace(from, to);
        let error = Module::parse(&module(&body), "tiny.ptx").unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}
