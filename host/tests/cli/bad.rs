//! Bad input: each is refused with exit status 2, in one line or by clap.

use super::*;

#[test]
fn sizes() {
    let dims = "it must be a whole number from 1 to 1024";
    for wrong in [
        "0",
        "1025",
        "1032",
        "-64",
        "foo",
        "6.4",
        "18446744073709551616",
    ] {
        for option in ["dim", "dim-v"] {
            let value = format!("'{wrong}' for '--{option} <D>'");
            mistype(&format!("--{option} {wrong}"), &[&value, dims]);
        }
    }
    for option in ["seqlen", "seqlen-kv"] {
        for wrong in ["0", "-5", "2147482625", "99999999999999999999"] {
            let value = format!("'{wrong}' for '--{option} <");
            let allowed = "it must be a whole number from 1 to 2147482624";
            mistype(&format!("--{option} {wrong}"), &[&value, allowed]);
        }
    }
    for option in ["batch", "heads", "kv-heads"] {
        let value = format!("'0' for '--{option} <");
        mistype(&format!("--{option} 0"), &[&value, "from 1 to"]);
    }
    refuse(
        "--heads 6 --kv-heads 4",
        &["heads is 6", "multiple of kv_heads", "4"],
    );
    refuse(
        "--heads 4 --kv-heads 8",
        &["heads is 4", "multiple of kv_heads", "8"],
    );
    refuse("--batch 4611686018427387904", &["size of q overflows"]);
    refuse(
        "--seqlen 2000000000 --bias --pass both",
        &["size of bias overflows"],
    );
    refuse(
        "--batch 2305843009213693951 --heads 16 --seqlen 1",
        &["size of q overflows"],
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

/// A limit on the process is not part of what the machine has free.
#[test]
fn sizes_beyond_what_the_process_may_have() {
    // The program itself, with the kernels in it, takes 40 MB.
    for megabytes in (60..2000).step_by(20) {
        let run = "--device cpu --heads 3 --seqlen 1 --seqlen-kv 100000 --iters 1 --warmup 0";
        let script = format!("ulimit -v {megabytes}000 && exec \"$0\" {run}");
        let mut shell = Command::new("sh");
        shell.env("RAYON_NUM_THREADS", "2").arg("-c").arg(script);
        shell.arg(command().get_program());
        let finished = finished(shell.output().expect("sh starts"));
        if finished.status == Some(0) {
            return;
        }
        refused(&format!("{megabytes} MB"), &finished, &[]);
        let either = ["than this process may have", "cannot start threads"];
        let said = either.iter().any(|reason| finished.stderr.contains(reason));
        assert!(said, "{megabytes} MB: {}", finished.stderr);
    }
    panic!("2 GB are enough");
}

#[test]
fn options() {
    for scale in ["NaN", "inf", "-inf", "1e39", "-1e39", "big"] {
        let value = format!("'{scale}' for '--scale <S>'");
        let allowed = "from -3.4028235e38 to 3.4028235e38";
        mistype(&format!("--scale {scale}"), &[&value, allowed]);
    }
    let options = "batch heads kv-heads seqlen seqlen-kv warmup iters seed splits";
    for option in options.split(' ') {
        for wrong in ["-1", "x", "1.5", "18446744073709551616"] {
            let value = format!("'{wrong}' for '--{option} <");
            let allowed = "it must be a whole number from ";
            mistype(&format!("--{option} {wrong}"), &[&value, allowed]);
        }
    }
    mistype("--split-keys 0", &["--split-keys", "from 1 to"]);
    mistype("--iters 0", &["--iters", "from 1 to"]);
    mistype("--dtype f64", &["--dtype", "f16, bf16, f32, fp8"]);
    mistype("--check some", &["--check", "sample", "full", "off"]);
    mistype("--pass back", &["--pass", "forward, backward, both"]);
    mistype("--sequence 5", &["--sequence"]);
    for option in ["--alibi", "--sinks", "--bias", "--mask"] {
        let line = format!("--seqlen 8 {option} 1,2");
        mistype(&line, &["unexpected argument '1,2'"]);
    }
    mistype(
        "--seqlen 8 gemm",
        &["subcommand 'gemm' cannot be used with"],
    );
    mistype("--input x --dim 8", &["--input", "--dim"]);
    mistype("--input x --dim-v 8", &["--input", "--dim-v"]);
    refuse(
        "--splits 4",
        &["--splits is 4, but the CPU does not split", "emulator"],
    );
}

#[test]
fn devices() {
    let run_on = |device| run(&["--device", device, "--seqlen", "64"]);
    for device in ["gpu", "cuda:", "cuda:-1", "cuda:x", ""] {
        mistyped(
            device,
            &run_on(device),
            &["--device", "auto, cuda, cuda:0", "cpu", "emulator:sm_100"],
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
        let reason = format!("multiplies matrices; type gemm --kernel {name}");
        refuse(&format!("--kernel {name}"), &[&reason]);
    }
    refuse("--kernel gemm-simpel", &["did you mean gemm-simple"]);
    refuse("--kernel zzz", &["\"zzz\"", "--list-kernels"]);
    refuse(
        "--kernel forward_f16_d64",
        &["forward_f16_d64", "not on the CPU; type --device emulator"],
    );
    // No other device computes f32 either.
    refuse(
        "--kernel forward_f16_d64 --dtype f32",
        &["kernel forward_f16_d64 is for dtype f16, not f32"],
    );
    refuse(
        "--kernel naive --dtype f32",
        &["kernel naive computes f16 and bf16, not f32"],
    );
}

#[test]
fn options_of_the_ladder() {
    for wrong in ["-1", "0", "4", "x", "1.5", "4294967296"] {
        let value = format!("'{wrong}' for '--stages");
        let allowed = "it must be a whole number from 1 to 3";
        mistype(&format!("--stages {wrong}"), &[&value, allowed]);
    }
    mistype(
        "--swizzle foo",
        &["--swizzle", "foo", "none, pad, q, qk, qkv"],
    );
    mistype("--acc f64", &["--acc", "f64", "f16, f32"]);
    mistype(
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
            let reason =
                format!("--kernel {kernel} takes no {name}; these kernels of the ladder do: ");
            refuse(&line, &[&reason, "split-kv, split-q"]);
        }
    }
    for kernel in ["naive", "tiled-qkv", "ladder"] {
        let reasons = ["not on the CPU; type --device emulator"];
        refuse(&format!("--kernel {kernel}"), &reasons);
    }
    // Errors on every device are reported before those of one device.
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
        (
            "--kernel forward_f16_d64 --stages 2",
            "--kernel forward_f16_d64 takes no --stages",
        ),
    ] {
        refuse(line, &[reason]);
    }
}
