//! The backward pass.

use super::*;

/// The numbers of a tensor in f32.
fn numbers(file: &SafeTensors, name: &str, shape: &[usize]) -> Vec<f32> {
    let tensor = file.tensor(name).expect("a tensor of that name");
    assert_eq!(
        (tensor.dtype(), tensor.shape()),
        (Dtype::F32, shape),
        "{name}"
    );
    bytemuck::pod_collect_to_vec(tensor.data())
}

#[test]
fn each_pass_has_a_row() {
    let line = "--seqlen 65 --seqlen-kv 129 --heads 4 --kv-heads 2 --dim 40 --causal --scale -0.2 --iters 2";
    for (pass, expected) in [
        ("forward", &["forward"][..]),
        ("backward", &["backward"]),
        ("both", &["forward", "backward"]),
    ] {
        for dtype in ["f16", "bf16", "f32"] {
            let objects = json(&format!(
                "--pass {pass} --check full --dtype {dtype} {line}"
            ));
            let passes: Vec<_> = objects.iter().map(|object| &object["pass"]).collect();
            assert_eq!(passes, expected);
            for object in &objects {
                let number = |field: &str| object[field].as_f64().expect(field);
                assert_eq!(
                    (&object["passed"], &object["kernel"]),
                    (&true.into(), &"cpu".into())
                );
                assert!(
                    0.0 < number("max_abs_err") && number("max_abs_err") <= number("tolerance")
                );
                let products = if object["pass"] == "forward" {
                    2.0
                } else {
                    5.0
                };
                let flops = products * 2.0 * 4.0 * 65.0 * 129.0 * 40.0 / 2.0;
                let rate = flops / number("median_ms") / 1e9;
                assert!((number("tflops") / rate - 1.0).abs() < 1e-6);
            }
        }
    }
    let table = succeed("--pass both --seqlen 70 --dim 264 --heads 1 --kernel all");
    for word in ["pass", "forward", "backward"] {
        assert!(table.contains(word), "{word}: {table}");
    }
    let unchecked = json("--pass both --seqlen 64 --check off --kernel cpu");
    assert!(
        unchecked
            .iter()
            .all(|object| object["passed"] == Value::Null)
    );
}

/// d_o comes from the file if it has one; what was computed goes to the other.
#[test]
fn files_go_in_and_come_out() {
    let folder = folder();
    let (q_shape, kv_shape) = ([1, 2, 3, 8], [1, 1, 4, 8]);
    let output = folder.path().join("gradients");
    let run = |input: &Path, pass: &str| {
        let (input, shown) = (input.display(), output.display());
        succeed(&format!(
            "--dtype f32 --check full --pass {pass} --input {input} --output {shown}"
        ));
        fs::read(&output).expect("an output file")
    };
    let input = write_with_d_o(&folder, 8, &[]);
    for (pass, names) in [
        ("backward", &["dk", "dq", "dv"][..]),
        ("both", &["dk", "dq", "dv", "lse", "o"]),
        ("forward", &["lse", "o"]),
    ] {
        let bytes = run(&input, pass);
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let mut found = file.names();
        found.sort_unstable();
        assert_eq!(found, names);
        if pass != "forward" {
            // All four keys weigh the same in all six rows.
            assert_eq!(numbers(&file, "dv", &kv_shape), [1.5; 32]);
            assert_eq!(numbers(&file, "dq", &q_shape), [0.0; 48]);
            assert_eq!(numbers(&file, "dk", &kv_shape), [0.0; 32]);
        }
    }
    // Without d_o in the file it is random.
    let input = write_even_weights(&folder, Dtype::F32, |x| x);
    let bytes = run(&input, "backward");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let dv = numbers(&file, "dv", &kv_shape);
    assert!(dv[0] != dv[1] && (dv[0] - dv[8]).abs() < 1e-6, "{dv:?}");
}

#[test]
fn bad_gradients_are_refused() {
    let folder = folder();
    let zeros = [0; 4096];
    let refuse_d_o = |dtype: Dtype, shape: &[usize], reasons: &[&str]| {
        let qkv = ["q", "k", "v"].map(|name| (name, Dtype::F16, &[1, 2, 3, 8][..], &zeros[..96]));
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let d_o: FileTensor = ("d_o", dtype, shape, &zeros[..bytes]);
        let input = write(&folder, &[&qkv[..], &[d_o]].concat());
        refuse(&format!("--pass both --input {}", input.display()), reasons);
        // The forward pass does not read it.
        succeed(&format!("--input {}", input.display()));
    };
    refuse_d_o(
        Dtype::F16,
        &[1, 2, 4, 8],
        &["d_o has shape [1, 2, 4, 8]; it must be [1, 2, 3, 8]"],
    );
    refuse_d_o(
        Dtype::F16,
        &[2, 3, 8],
        &["d_o has shape [2, 3, 8]", "[batch, heads"],
    );
    refuse_d_o(
        Dtype::BF16,
        &[1, 2, 3, 8],
        &["d_o is BF16; it must be F16, like q"],
    );
    refuse_d_o(
        Dtype::F64,
        &[1, 2, 3, 8],
        &["d_o is F64; it must be F16, BF16 or F32"],
    );
}

#[test]
fn options_that_do_not_fit_are_refused() {
    refuse(
        "--pass both --kernel forward_f16_d64",
        &["not on the CPU; type --device emulator"],
    );
    for kernel in ["naive", "ladder"] {
        let reason = format!("--kernel {kernel} computes the forward pass alone");
        refuse(&format!("--pass backward --kernel {kernel}"), &[&reason]);
    }
    refuse(
        "--pass backward --kernel forward_f16_d64",
        &["forward_f16_d64", "not on the CPU"],
    );
    refuse(
        "--pass backward --kernel zzz",
        &["\"zzz\"", "--list-kernels"],
    );
    refuse("--pass backward --splits 4", &["the CPU does not split"]);
    refuse(
        "--pass both --seqlen 2000000000 --dim 256",
        &["batch, heads, seqlen and dim", "memory on CPU"],
    );
}

/// No GPU has a kernel for the gradients of wide heads.
#[test]
fn wide_heads_are_for_the_cpu() {
    for wide in ["--dim 264", "--dim-v 264"] {
        let line = format!("--device emulator --pass both --seqlen 16 {wide}");
        let reason = match ferroattn::internals::ptx::COMPILED {
            true => "no kernel computes the backward pass for dim 264; use the CPU",
            false => "cargo xtask setup",
        };
        refused(&line, &run_line(&line), &[reason]);
    }
}

#[test]
fn nan_in_d_o_is_counted() {
    let folder = folder();
    let one = [f16::ONE; 48];
    let mut d_o = one;
    d_o[9] = f16::NAN;
    let tensors = [("q", &one), ("k", &one), ("v", &one), ("d_o", &d_o)].map(|(name, data)| {
        (
            name,
            Dtype::F16,
            &[1, 2, 3, 8][..],
            bytemuck::cast_slice(&data[..]),
        )
    });
    let input = write(&folder, &tensors);
    let finished = run_on_cpu(&format!(
        "--pass both --check full --input {}",
        input.display()
    ));
    assert_eq!(finished.status, Some(0), "{}", finished.stderr);
    let note = "note: rows with NaN or infinity, as f16: 0 of q, 0 of k, 0 of v, 1 of d_o\n";
    assert_eq!(finished.stderr, note);
}
