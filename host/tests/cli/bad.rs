//! Bad input: each is refused in one line, with exit status 2.

use super::*;

#[test]
fn sizes() {
    let allowed = "multiple of 8 from 8 to 1024";
    refuse("--dim 0", &["dim is 0", allowed]);
    refuse("--dim 12", &["dim is 12", allowed]);
    refuse("--dim 1032", &["dim is 1032", allowed]);
    for wrong in ["-64", "foo", "6.4", "18446744073709551616"] {
        refuse(&format!("--dim {wrong}"), &["--dim", wrong, allowed]);
    }
    // Where a kernel ends earlier, that is what is allowed.
    for wrong in ["0", "12", "1032"] {
        let reasons = [
            &format!("dim is {wrong}"),
            "for split-q it must be a multiple of 8 from 8 to 256",
        ];
        refuse(&format!("--kernel split-q --dim {wrong}"), &reasons);
        let line = format!("--kernel tiled-qk --dim {wrong}");
        refuse(&line, &[allowed]);
    }
    refuse("--seqlen 0", &["seqlen_q is 0", "at least 1"]);
    refuse("--seqlen-kv 0", &["seqlen_kv is 0", "at least 1"]);
    refuse("--batch 0", &["batch is 0", "at least 1"]);
    refuse("--heads 0", &["heads is 0", "at least 1"]);
    refuse("--kv-heads 0", &["kv_heads is 0", "at least 1"]);
    refuse(
        "--heads 6 --kv-heads 4",
        &["heads is 6", "multiple of kv_heads", "4"],
    );
    refuse(
        "--heads 4 --kv-heads 8",
        &["heads is 4", "multiple of kv_heads", "8"],
    );
}

#[test]
fn sizes_that_overflow() {
    refuse(
        "--seqlen 18446744073709551615",
        &["seqlen_q is", "at most 2147482624"],
    );
    refuse(
        "--seqlen-kv 2147482625",
        &["seqlen_kv is", "at most 2147482624"],
    );
    refuse("--batch 4611686018427387904", &["size of q overflows"]);
    refuse(
        "--batch 2305843009213693951 --heads 16 --seqlen 1",
        &["size of q overflows"],
    );
    refuse(
        "--seqlen 99999999999999999999",
        &[
            "--seqlen",
            "it must be a whole number up to 18446744073709551615",
        ],
    );
}

#[test]
fn sizes_beyond_the_memory() {
    let reasons = ["batch, heads, seqlen and dim", "memory on CPU", "free"];
    refuse("--seqlen 2000000000 --dim 256", &reasons);
    refuse(
        "--seqlen 1 --seqlen-kv 2000000000 --heads 1000 --dim 256",
        &reasons,
    );
    refuse("--batch 1000000000 --seqlen 1000", &reasons);
}

#[test]
fn options() {
    for scale in ["NaN", "inf", "-inf"] {
        refuse(&format!("--scale {scale}"), &["scale is", "finite"]);
    }
    refuse("--scale big", &["--scale"]);
    let options = "batch heads kv-heads seqlen seqlen-kv warmup iters seed splits";
    for option in options.split(' ') {
        for wrong in ["-1", "x", "1.5", "18446744073709551616"] {
            let reasons = [option, &format!("'{wrong}'"), "it must be a whole number"];
            refuse(&format!("--{option} {wrong}"), &reasons);
        }
    }
    refuse("--iters 0", &["--iters", "at least 1"]);
    refuse("--dtype f64", &["--dtype", "f16", "bf16"]);
    refuse("--check some", &["--check", "sample", "full", "off"]);
    refuse("--sequence 5", &["--sequence"]);
    refuse("--input x --dim 8", &["--input", "--dim"]);
}

#[test]
fn devices() {
    let run_on = |device| run(&["--device", device, "--seqlen", "64"]);
    for device in ["gpu", "cuda:", "cuda:-1", "cuda:x", ""] {
        refused(
            device,
            &run_on(device),
            &["--device", "auto, cuda, cuda:I", "cpu"],
        );
    }
    let finished = run_on("cuda:4096");
    let driver = !finished.stderr.contains("no NVIDIA driver");
    let reason = if driver {
        "no CUDA device 4096"
    } else {
        "libcuda"
    };
    refused("cuda:4096", &finished, &[reason]);
}

#[test]
fn kernels() {
    refuse(
        "--kernel forward_f16_d46",
        &["\"forward_f16_d46\"", "forward_f16_d64"],
    );
    for name in ["gemm-simple", "gemm-multistage", "gemm_simple_f16_f32"] {
        let reason = format!("multiplies matrices: the subcommand gemm --kernel {name} runs it");
        refuse(&format!("--kernel {name}"), &[&reason]);
    }
    refuse("--kernel gemm-simpel", &["did you mean gemm-simple"]);
    refuse("--kernel zzz", &["\"zzz\"", "--list-kernels"]);
    refuse(
        "--kernel forward_f16_d64",
        &["forward_f16_d64", "not on the CPU; type --device emulator"],
    );
}

#[test]
fn options_of_the_ladder() {
    // Whatever the kernel, these are no values.
    for wrong in ["-1", "x", "1.5", "4294967296"] {
        let reasons = ["--stages", wrong, "it must be 1, 2 or 3"];
        refuse(&format!("--stages {wrong}"), &reasons);
    }
    refuse(
        "--swizzle foo",
        &["--swizzle", "foo", "none, pad, q, qk, qkv"],
    );
    refuse("--acc f64", &["--acc", "f64", "f16, f32"]);
    refuse(
        "--o-store foo",
        &["--o-store", "foo", "direct, shared, shuffle"],
    );
    for option in [
        "--stages 2",
        "--swizzle pad",
        "--acc f32",
        "--o-store direct",
    ] {
        let (name, _) = option.split_once(' ').expect("a value");
        for kernel in ["auto", "all", "cpu"] {
            let line = format!("--kernel {kernel} {option}");
            let reason = format!("kernel cpu has no {name}; these have: split-kv, split-q");
            refuse(&line, &[&reason]);
        }
    }
    for kernel in ["naive", "tiled-qkv", "ladder"] {
        let reasons = ["not on the CPU; type --device emulator"];
        refuse(&format!("--kernel {kernel}"), &reasons);
    }
    // What no device does is said first.
    for (line, reason) in [
        ("--kernel naive --stages 3", "naive has no option stages"),
        (
            "--kernel fa1 --dim 264",
            "fa1 serves dim up to 256, not 264",
        ),
        (
            "--kernel split-q --acc f16 --dtype bf16",
            "f16 for dtype f16 only",
        ),
        (
            "--kernel forward_f16_d64 --dim 72",
            "serves dim up to 64, not 72",
        ),
        ("--kernel forward_f16_d64 --stages 2", "has no --stages"),
    ] {
        refuse(line, &[reason]);
    }
}

#[test]
fn files() {
    let folder = folder();
    let path = folder.path().join("bad.safetensors");
    let refuse_it = |reason: &str| {
        let line = format!("--input {}", path.display());
        refuse(&line, &["--input", "bad.safetensors", reason]);
    };
    refuse_it("No such file");
    let incomplete = "not a whole safetensors file";
    for foreign in ["", "text that is longer than the eight bytes of a length"] {
        fs::write(&path, foreign).expect("a writable folder");
        refuse_it(incomplete);
    }
    let whole = fs::read(write_even_weights(&folder, Dtype::F16, f16::from_f32));
    let whole = whole.expect("the file just written");
    for length in [7, 50, whole.len() - 1] {
        fs::write(&path, &whole[..length]).expect("a writable folder");
        refuse_it(incomplete);
    }
}

/// A file of zeros with these tensors is refused.
fn refuse_tensors(tensors: &[(&str, Dtype, &[usize])], reasons: &[&str]) {
    let folder = folder();
    let zeros = [0; 4096];
    let tensors: Vec<FileTensor> = tensors
        .iter()
        .map(|&(name, dtype, shape)| {
            let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            (name, dtype, shape, &zeros[..bytes])
        })
        .collect();
    let path = write(&folder, &tensors);
    refuse(&format!("--input {}", path.display()), reasons);
}

#[test]
fn tensors() {
    use Dtype::{BF16, F16, F64, I16};
    let shape: &[usize] = &[1, 2, 3, 8];
    let absent = [("q", F16, shape), ("v", F16, shape)];
    refuse_tensors(&absent, &["--input", "no tensor k"]);
    for dtype in [F64, I16] {
        let foreign = [("q", F16, shape), ("k", F16, shape), ("v", dtype, shape)];
        refuse_tensors(&foreign, &["v is", "F16, BF16 or F32"]);
    }
    let mixed = [("q", F16, shape), ("k", BF16, shape), ("v", F16, shape)];
    refuse_tensors(&mixed, &["k is BF16", "F16"]);
}

#[test]
fn shapes() {
    let refuse_shapes = |q: &[usize], k: &[usize], v: &[usize], reasons: &[&str]| {
        refuse_tensors(
            &[
                ("q", Dtype::F16, q),
                ("k", Dtype::F16, k),
                ("v", Dtype::F16, v),
            ],
            reasons,
        );
    };
    let shape = [1, 2, 3, 8];
    refuse_shapes(
        &shape,
        &[2, 3, 8],
        &shape,
        &["k has shape [2, 3, 8]", "[batch, heads"],
    );
    refuse_shapes(
        &shape,
        &shape,
        &[1, 2, 4, 8],
        &["v has shape [1, 2, 4, 8]", "[1, 2, 3, 8]"],
    );
    for other in [[2, 2, 3, 8], [1, 2, 3, 16]] {
        refuse_shapes(&shape, &other, &other, &["k has shape", "[1, 2, 3, 8]"]);
    }
    refuse_shapes(&[1, 3, 3, 8], &shape, &shape, &["heads is 3", "kv_heads"]);
    refuse_shapes(&[1, 2, 3, 4], &[1, 2, 3, 4], &[1, 2, 3, 4], &["dim is 4"]);
    refuse_shapes(&[1, 2, 0, 8], &shape, &shape, &["seqlen_q is 0"]);
}

#[test]
fn outputs() {
    let folder = folder();
    let refuse_output = |path: &Path, reason: &str| {
        refuse(
            &format!("--output {}", path.display()),
            &["--output", reason],
        );
    };
    refuse_output(&folder.path().join("missing/o"), "cannot write");
    refuse_output(folder.path(), "is a folder");
    assert_eq!(file_names(&folder), [""; 0]);
}

#[test]
fn a_refused_run_leaves_the_output_alone() {
    let folder = folder();
    let path = folder.path().join("o.safetensors");
    let line = format!("--output {} --kernel forward_f16_d64", path.display());
    refuse(&line, &["not on the CPU"]);
    assert_eq!(file_names(&folder), [""; 0]);
    fs::write(&path, "precious").expect("a writable folder");
    refuse(&line, &["not on the CPU"]);
    assert_eq!(fs::read(&path).expect("the file just written"), b"precious");
    assert_eq!(file_names(&folder), [OsStr::new("o.safetensors")]);
}
