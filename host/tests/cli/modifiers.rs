//! Windows, softcap, ALiBi, sinks, biases, masks, sequences and values of another head dim.

use super::*;

#[test]
fn each_alone_and_together_in_both_passes() {
    let sizes = "--heads 4 --kv-heads 2 --seqlen 65 --seqlen-kv 129 --dim 40 --iters 1 --warmup 0";
    for options in [
        "--window 20,3",
        "--window -,7",
        "--window 0,",
        "--softcap 2.5",
        "--alibi",
        "--sinks",
        "--bias",
        "--mask",
        "--dim-v 64",
        "--causal --window 30,5 --sinks",
        "--softcap 0.5 --alibi --scale -0.4",
        "--causal --window 1000,- --softcap 30 --alibi --sinks",
        "--batch 2 --causal --softcap 3 --bias --mask --dim-v 8 --sinks",
        "--batch 2 --causal --batch-invariant --alibi --bias",
    ] {
        for dtype in ["f16", "bf16", "f32"] {
            let line = format!("--pass both --check full --dtype {dtype} {sizes} {options}");
            let objects = json(&line);
            assert_eq!(objects.len(), 2, "{line}");
            for object in &objects {
                assert_eq!(object["passed"], true, "{line}");
                for tensor in ["alibi", "sinks"] {
                    let is_on = options.contains(tensor);
                    assert_eq!(object[tensor], is_on, "{line}");
                }
                for (tensor, elements) in [("bias", dtype), ("mask", "bytes")] {
                    let elements = options.contains(tensor).then_some(elements);
                    assert_eq!(object[tensor], serde_json::json!(elements), "{line}");
                }
            }
        }
    }
    // No row sees a key.
    let objects = json("--pass both --seqlen 300 --seqlen-kv 5 --window -,0 --sinks --check full");
    assert!(objects.iter().all(|object| object["passed"] == true));
}

#[test]
fn sequences_alone_and_with_other_options() {
    for options in [
        "--seqlen 90 --packed 64,0,1,25 --alibi",
        "--seqlen 90 --packed 90 --causal --sinks",
        "--seqlen 90 --packed 30,60 --window 9,2 --softcap 3",
        "--seqlen 90 --packed 50,40 --bias --mask --dim-v 40",
        "--batch 3 --seqlen 65 --seqlen-kv 129 --lengths 129,0,31 --causal",
        "--batch 2 --seqlen 1 --seqlen-kv 129 --lengths 100,3",
    ] {
        let sizes = "--heads 4 --kv-heads 2 --dim 24 --iters 1 --warmup 0";
        let line = format!("--pass both --check full --dtype f32 {sizes} {options}");
        let objects = json(&line);
        assert_eq!(objects.len(), 2, "{line}");
        for object in &objects {
            assert_eq!(object["passed"], true, "{line}");
        }
    }
}

/// Scores are 0: a row's lse counts the keys that it sees.
#[test]
fn sequences_have_the_lengths_of_the_list() {
    let folder = folder();
    let inputs = |shape: [usize; 4]| {
        let zeros = vec![0.0_f32; shape.iter().product()];
        let tensors = ["q", "k", "v"]
            .map(|name| -> FileTensor { (name, Dtype::F32, &shape, bytemuck::cast_slice(&zeros)) });
        write(&folder, &tensors);
    };
    let keys = |line: &str| -> Vec<f32> {
        let [lse] = outputs(&folder, line, ["lse"]);
        lse.into_iter().map(f32::exp).map(f32::round).collect()
    };
    inputs([1, 1, 6, 8]);
    assert_eq!(keys("--packed 2,0,3,1"), [2.0, 2.0, 3.0, 3.0, 3.0, 1.0]);
    assert_eq!(
        keys("--packed 2,0,3,1 --causal"),
        [1.0, 2.0, 1.0, 2.0, 3.0, 1.0]
    );
    inputs([2, 1, 3, 8]);
    assert_eq!(keys("--lengths 2,0"), [2.0, 2.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(
        keys("--lengths 3,1 --causal"),
        [1.0, 2.0, 3.0, 1.0, 0.0, 0.0]
    );
}

#[test]
fn they_are_shown() {
    let line = "--seqlen 64 --causal --window 20,- --softcap 30 --alibi --sinks";
    let table = succeed(line);
    let title = ", f16, causal, window 20,-, softcap 30, ALiBi, sinks\n";
    assert!(table.contains(title), "{table}");
    let object = &json(line)[0];
    let window = serde_json::json!({"left": 20, "right": null});
    assert_eq!(
        (&object["window"], &object["softcap"]),
        (&window, &30.0.into())
    );
    let sequences = succeed("--seqlen 64 --packed 30,4,30");
    assert!(
        sequences.contains(", f16, 3 packed sequences\n"),
        "{sequences}"
    );
    let sequences = &json("--seqlen 64 --packed 32,32 --causal")[0];
    let offsets = [0, 32, 64];
    assert_eq!(
        sequences["sequences"],
        serde_json::json!({"Packed": {"q": offsets, "kv": offsets}})
    );
    // Two sequences of half the length have half the work.
    let number = |field: &str| sequences[field].as_f64().expect(field);
    let flops = 2.0 * 8.0 * 32.0 * 32.0 * 64.0 * 2.0;
    assert!((number("tflops") * number("median_ms") * 1e9 / flops - 1.0).abs() < 1e-6);
    let padded = succeed("--batch 2 --seqlen 64 --lengths 30,4");
    assert!(padded.contains(", f16, padded\n"), "{padded}");
    let pairs = succeed("--seqlen 64 --dim-v 8 --bias --mask");
    let title = ", dim 64, dim_v 8, f16, bias in f16, mask of bytes\n";
    assert!(pairs.contains(title), "{pairs}");
    let invariant = succeed("--seqlen 64 --batch-invariant --split-keys 32");
    let title = ", f16, batch invariant, splits of 32 keys\n";
    assert!(invariant.contains(title), "{invariant}");
    let plain = succeed("--seqlen 64 --window -,-");
    assert!(plain.contains(", f16\n"), "{plain}");
}

/// Writes q, k, v and d_o with rows of 8 elements, by which all visible keys weigh the same; and `others`.
fn inputs(folder: &TempDir, others: &[FileTensor]) -> PathBuf {
    write_with_d_o(folder, 8, others)
}

/// The numbers of an output file's tensors in f32.
pub fn outputs<const N: usize>(folder: &TempDir, line: &str, names: [&str; N]) -> [Vec<f32>; N] {
    written(folder, &format!("--dtype f32 {line}"), names)
}

/// All scores are 0 before the options, so that weights are counted by hand.
#[test]
fn they_compute_what_they_should() {
    let folder = folder();
    inputs(&folder, &[]);
    // Query i sees keys i and i + 1.
    let [o, lse] = outputs(&folder, "--window 1,0", ["o", "lse"]);
    let rows: Vec<f32> = o.chunks(8).map(|row| row[0]).collect();
    expect_close(&rows, &[0.5, 1.5, 2.5, 0.5, 1.5, 2.5]);
    expect_close(&lse, &[2.0_f32.ln(); 6]);
    // The slopes of two heads are 2^-4 and 2^-8.
    let [lse] = outputs(&folder, "--alibi", ["lse"]);
    let sum = |slope: f32, distances: [u8; 4]| {
        let weights = distances.map(|distance| (-slope * f32::from(distance)).exp());
        weights.iter().sum::<f32>().ln()
    };
    let distances = [[1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]];
    let of = |slope| distances.map(|distances| sum(slope, distances));
    expect_close(&lse, &[of(0.0625), of(0.00390625)].concat());

    let (slopes, sinks) = ([0.0, 2.0_f32.ln()], [0.0, 4.0_f32.ln()]);
    inputs(
        &folder,
        &[
            ("alibi", Dtype::F32, &[2], bytemuck::cast_slice(&slopes)),
            ("sinks", Dtype::F32, &[2], bytemuck::cast_slice(&sinks)),
        ],
    );
    // Without their options, the file's are left alone.
    let [lse] = outputs(&folder, "", ["lse"]);
    expect_close(&lse, &[4.0_f32.ln(); 6]);
    let [lse] = outputs(&folder, "--alibi", ["lse"]);
    let halves = [2.25_f32.ln(), 2.25_f32.ln(), 1.875_f32.ln()];
    expect_close(&lse, &[[4.0_f32.ln(); 3], halves].concat());
    // Four keys and a sink that weighs as much as one key, or as four.
    let names = ["o", "lse", "dv", "d_sinks"];
    let [o, lse, dv, d_sinks] = outputs(&folder, "--sinks --pass both", names);
    expect_close(&o, &[[1.2; 24], [0.75; 24]].concat());
    expect_close(&lse, &[[5.0_f32.ln(); 3], [8.0_f32.ln(); 3]].concat());
    expect_close(&dv, &[3.0 / 5.0 + 3.0 / 8.0; 32]);
    // Less 1/5 of 8 * 1.2 and 1/2 of 8 * 0.75 in each row.
    expect_close(&d_sinks, &[-5.76, -9.0]);
}

/// Scores are 0 or hidden: a row's lse counts the keys that it sees.
#[test]
fn biases_and_masks_come_from_the_file() {
    let folder = folder();
    // 48 keys do not fill the words of bits.
    let (q_shape, kv_shape) = ([2, 2, 3, 8], [2, 1, 48, 8]);
    let zeros = vec![0_u8; 2 * 48 * 8 * 4];
    let inputs: [FileTensor; 3] = [
        ("q", Dtype::F32, &q_shape, &zeros[..2 * 2 * 3 * 8 * 4]),
        ("k", Dtype::F32, &kv_shape, &zeros),
        ("v", Dtype::F32, &kv_shape, &zeros),
    ];
    for [batch, heads, queries] in [[1, 1, 1], [2, 1, 1], [1, 2, 3], [2, 2, 3]] {
        // Row r of the tensor has the last 2r + 1 keys.
        let rows = batch * heads * queries;
        let hidden = |i: usize| i % 48 < 48 - (2 * (i / 48) + 1);
        let sees = |place: usize| u8::from(!hidden(place));
        let bytes: Vec<u8> = (0..rows * 48).map(sees).collect();
        let bits = bytes.chunks(48).flat_map(|row| {
            let words = row.chunks(32).map(|keys| {
                let bits = keys.iter().enumerate();
                bits.map(|(j, byte)| u32::from(*byte) << j).sum::<u32>()
            });
            words.flat_map(u32::to_le_bytes).collect::<Vec<_>>()
        });
        let bits: Vec<u8> = bits.collect();
        let scores: Vec<f32> = bytes.iter().map(|byte| f32::from(*byte).ln()).collect();
        let f16s: Vec<f16> = scores.iter().map(|&score| f16::from_f32(score)).collect();
        let bf16s: Vec<bf16> = scores.iter().map(|&score| bf16::from_f32(score)).collect();
        let row = |b: usize, h: usize, i: usize| {
            let [b, h, i] = [b.min(batch - 1), h.min(heads - 1), i.min(queries - 1)];
            (b * heads + h) * queries + i
        };
        let rows = (0..12).map(|r| row(r / 6, r / 3 % 2, r % 3));
        let expected: Vec<f32> = rows.map(|row| ((2 * row + 1) as f32).ln()).collect();
        let shape = [batch, heads, queries, 48];
        let words = [batch, heads, queries, 2];
        let tensors: [FileTensor; 6] = [
            ("bias", Dtype::F16, &shape, bytemuck::cast_slice(&f16s)),
            ("bias", Dtype::BF16, &shape, bytemuck::cast_slice(&bf16s)),
            ("bias", Dtype::F32, &shape, bytemuck::cast_slice(&scores)),
            ("mask", Dtype::BOOL, &shape, &bytes),
            ("mask", Dtype::U8, &shape, &bytes),
            ("mask", Dtype::U32, &words, &bits),
        ];
        for tensor in tensors {
            write(&folder, &[&inputs[..], &[tensor]].concat());
            let [lse] = outputs(&folder, &format!("--{}", tensor.0), ["lse"]);
            expect_close(&lse, &expected);
            let [lse] = outputs(&folder, "", ["lse"]);
            expect_close(&lse, &[48.0_f32.ln(); 12]);
        }
    }
}

#[test]
fn biases_have_a_gradient() {
    let folder = folder();
    let (heads, one) = ([0.0, 0.0, 0.0, f32::NEG_INFINITY], [0.0_f32; 4]);
    let both = [one, heads].concat();
    let bias = bytemuck::cast_slice(&both);
    inputs(&folder, &[("bias", Dtype::F32, &[1, 2, 1, 4], bias)]);
    let [d_bias, o] = outputs(&folder, "--bias --pass both", ["d_bias", "o"]);
    expect_close(&o, &[[1.5; 24], [1.0; 24]].concat());
    // In each of three rows, a quarter or a third of 8 * (v - o).
    let first = [-9.0, -3.0, 3.0, 9.0];
    expect_close(&d_bias, &[first, [-8.0, 0.0, 8.0, 0.0]].concat());
    let bias = bytemuck::cast_slice(&one);
    inputs(&folder, &[("bias", Dtype::F32, &[1, 1, 1, 4], bias)]);
    let [d_bias] = outputs(&folder, "--bias --pass backward", ["d_bias"]);
    expect_close(&d_bias, &first.map(|of_head| 2.0 * of_head));
}

#[test]
fn values_may_have_a_head_dim_of_their_own() {
    let folder = folder();
    let input = write_with_d_o(&folder, 16, &[]);
    let [o, dv] = outputs(&folder, "--pass both", ["o", "dv"]);
    expect_close(&o, &[1.5; 6 * 16]);
    expect_close(&dv, &[1.5; 4 * 16]);
    let output = folder.path().join("output");
    let bytes = fs::read(output).expect("an output file");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let shape = |name| file.tensor(name).expect("a gradient").shape().to_vec();
    assert_eq!(shape("o"), [1, 2, 3, 16]);
    assert_eq!(shape("dv"), [1, 1, 4, 16]);
    assert_eq!(shape("dk"), [1, 1, 4, 8]);
    let table = succeed(&format!("--input {}", input.display()));
    assert!(table.contains(", dim 8, dim_v 16, f16\n"), "{table}");
}

#[test]
fn the_seed_draws_their_numbers() {
    let folder = folder();
    inputs(&folder, &[]);
    for option in ["--sinks", "--bias", "--mask"] {
        let of = |seed| {
            let [lse] = outputs(&folder, &format!("{option} --seed {seed}"), ["lse"]);
            lse
        };
        assert_eq!(of(1), of(1), "{option}");
        assert_ne!(of(1), of(2), "{option}");
    }
}

#[test]
fn bad_values_are_refused() {
    for wrong in ["-1,0", "0,-1", "5", "a,b", "1,2,3", "1.5,0"] {
        let value = format!("'{wrong}' for '--window <LEFT,RIGHT>'");
        let allowed = "it must be LEFT,RIGHT: whole numbers, or - for no bound";
        mistype(&format!("--window {wrong}"), &[&value, allowed]);
    }
    for wrong in ["0", "-3", "NaN", "inf", "-inf", "1e39", "x"] {
        let value = format!("'{wrong}' for '--softcap <C>'");
        let allowed = "it must be a number above 0, at most 3.4028235e38";
        mistype(&format!("--softcap {wrong}"), &[&value, allowed]);
    }
    for option in ["--packed", "--lengths"] {
        for wrong in ["-1,65", "5,x", "", "1,,2", "1.5", "99999999999"] {
            let args = ["--device", "cpu", option, wrong];
            mistyped(
                &args.join(" "),
                &run(&args),
                &["LEN,LEN", "it must be a whole number from 0 to "],
            );
        }
    }
    for (line, reason) in [
        (
            "--seqlen 64 --packed 30,35",
            "the lengths of --packed add up to 65; they must add up to seqlen, which is 64",
        ),
        (
            "--seqlen 65 --seqlen-kv 64 --packed 30,35",
            "the lengths of --packed add up to 65; they must add up to seqlen_kv, which is 64",
        ),
        (
            "--batch 2 --seqlen 65 --packed 30,35",
            "batch is 2; with --packed it must be 1",
        ),
        (
            "--batch 2 --lengths 5",
            "--lengths has 1 lengths; it must have 2, one for each entry of the batch",
        ),
        (
            "--seqlen 64 --lengths 65",
            "--lengths has 65; it must be at most seqlen_kv, which is 64",
        ),
    ] {
        refuse(line, &[reason]);
    }
    mistype(
        "--seqlen 5 --packed 5 --lengths 5",
        &["cannot be used with"],
    );
    for option in ["--packed", "--lengths"] {
        let line = format!("--seqlen 5 {option} 2 {option} 3");
        mistype(&line, &[option, "cannot be used multiple times"]);
    }
    for option in [
        "--window 5,0",
        "--softcap 30",
        "--alibi",
        "--sinks",
        "--bias",
        "--mask",
        "--dim-v 8",
        "--packed 4096",
        "--lengths 7",
        "--page 16",
        "--prefix 1",
        "--append 1",
        "--fp8",
        "--batch-invariant",
        "--split-keys 64",
    ] {
        let (name, _) = option.split_once(' ').unwrap_or((option, ""));
        for kernel in ["tiled-qkv", "naive", "ladder"] {
            let reason = format!("--kernel {kernel} takes no {name}; the ladder has plain");
            refuse(&format!("--kernel {kernel} {option}"), &[&reason]);
        }
    }
}

#[test]
fn bad_tensors_are_refused() {
    let folder = folder();
    for name in ["alibi", "sinks"] {
        let two: &[usize] = &[2];
        for (dtype, shape) in [
            (Dtype::F32, &[3][..]),
            (Dtype::F32, &[1, 2]),
            (Dtype::F32, &[]),
            (Dtype::F16, two),
            (Dtype::F64, two),
        ] {
            let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            let input = inputs(&folder, &[(name, dtype, shape, &[0; 16][..bytes])]);
            let line = format!("--{name} --input {}", input.display());
            let found =
                format!("{name} is {dtype} {shape:?}; it must be F32 [heads], which is [2]");
            refuse(&line, &["--input", &found]);
        }
    }
}

#[test]
fn bad_tensors_of_pairs_are_refused() {
    let folder = folder();
    let axes = "[batch or 1, heads or 1, seqlen or 1, seqlen_kv], with the sizes of [1, 2, 3, 4]";
    let of_bits = "[batch or 1, heads or 1, seqlen or 1, ceil(seqlen_kv / 32)], with the sizes of [1, 2, 3, 1]";
    for (name, allowed, right, wrong) in [
        (
            "bias",
            format!("F16, BF16 or F32 {axes}"),
            Dtype::F32,
            Dtype::F64,
        ),
        (
            "bias",
            format!("F16, BF16 or F32 {axes}"),
            Dtype::F16,
            Dtype::U8,
        ),
        (
            "mask",
            format!("BOOL, U8 or, for bits, U32 {axes}"),
            Dtype::BOOL,
            Dtype::F32,
        ),
        (
            "mask",
            format!("BOOL, U8 or, for bits, U32 {axes}"),
            Dtype::U8,
            Dtype::I32,
        ),
        ("mask", format!("U32 {of_bits}"), Dtype::U32, Dtype::U32),
    ] {
        for (dtype, shape) in [
            (right, &[1, 2, 3, 5][..]),
            (right, &[2, 2, 3, 4]),
            (right, &[1, 3, 3, 4]),
            (right, &[1, 2, 2, 4]),
            (right, &[2, 3, 4]),
            (right, &[1, 1, 2, 3, 4]),
            (right, &[]),
            (right, &[1, 2, 0, 4]),
            (wrong, &[1, 2, 3, 4]),
        ] {
            let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            let input = inputs(&folder, &[(name, dtype, shape, &[0; 256][..bytes])]);
            let line = format!("--{name} --input {}", input.display());
            let found = format!("{name} is {dtype} {shape:?}; it must be {allowed}");
            refuse(&line, &["--input", &found]);
            // Without its option, it is left alone.
            succeed(&format!("--input {}", input.display()));
        }
    }
    // An extent of 1 is repeated, but not in the last axis.
    let input = inputs(&folder, &[("bias", Dtype::F32, &[1, 1, 1, 1], &[0; 4])]);
    refuse(
        &format!("--bias --input {}", input.display()),
        &["bias is F32 [1, 1, 1, 1]"],
    );
    let d_o = [0; 2 * 3 * 8 * 4];
    let v = [0; 4 * 16 * 4];
    let zeros = [0; 2 * 3 * 8 * 4];
    let input = write(
        &folder,
        &[
            ("q", Dtype::F32, &[1, 2, 3, 8], &zeros),
            ("k", Dtype::F32, &[1, 1, 4, 8], &zeros[..128]),
            ("v", Dtype::F32, &[1, 1, 4, 16], &v),
            ("d_o", Dtype::F32, &[1, 2, 3, 8], &d_o),
        ],
    );
    let line = format!("--pass backward --input {}", input.display());
    refuse(
        &line,
        &["d_o has shape [1, 2, 3, 8]; it must be [1, 2, 3, 16]"],
    );
}
