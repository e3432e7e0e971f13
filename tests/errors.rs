//! Every refused argument, on every device: a typed error names the argument.

use ferroattn::{
    Attention, BackwardInputs, Device, Dtype, Error, Gemm, GradientsMut, Problem, RawOptions,
    Result, Tensor, f16, kernel,
};
use tests::{Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    vec![
        Test::new("dims", dims),
        Test::new("heads", heads),
        Test::new("shapes_that_disagree", shapes_that_disagree),
        Test::new("scales", scales),
        Test::new("kernels", kernels),
        Test::kernels("f32", f32_on_a_device_with_kernels),
        Test::new("strides", strides),
        Test::new("views_outside_the_buffer", views_outside_the_buffer),
        Test::new("backward_arguments", backward_arguments),
        Test::kernels("backward_of_wide_heads", backward_of_wide_heads),
    ]
}

const SHAPE: [usize; 4] = [1, 2, 5, 16];

fn tensor(device: &Device, shape: [usize; 4]) -> Result<Tensor<f16>> {
    Tensor::new(device, shape, &vec![f16::ONE; shape.iter().product()])
}

/// Expects attention on tensors of these shapes to fail, with these words in the message.
fn refused(device: &Device, shapes: [[usize; 4]; 3], words: &str) -> Result<Error> {
    refused_with(&Attention::new(), device, shapes, words)
}

fn refused_with(
    options: &Attention,
    device: &Device,
    [q, k, v]: [[usize; 4]; 3],
    words: &str,
) -> Result<Error> {
    let [q, k, v] = [tensor(device, q)?, tensor(device, k)?, tensor(device, v)?];
    let error = options.forward(&q, &k, &v).expect_err("refused");
    let message = error.to_string();
    assert!(
        message.contains(words),
        "{message:?} does not say {words:?}"
    );
    assert_eq!(message.lines().count(), 1, "{message:?}");
    Ok(error)
}

fn dims(device: &Device) -> Outcome {
    for dim in [0, 1025, 1032, 2048] {
        let shape = [1, 1, 3, dim];
        let error = refused(device, [shape; 3], "from 1 to 1024")?;
        assert_eq!(error, Error::Dim(dim));
    }
    PASSED
}

fn heads(device: &Device) -> Outcome {
    for (heads, kv_heads) in [(3, 2), (2, 4)] {
        let (q, kv) = ([1, heads, 5, 8], [1, kv_heads, 5, 8]);
        let error = refused(device, [q, kv, kv], "multiple of kv_heads")?;
        assert_eq!(error, Error::Heads { heads, kv_heads });
    }
    PASSED
}

fn shapes_that_disagree(device: &Device) -> Outcome {
    let [batch, heads, seqlen, dim] = SHAPE;
    let other_batch = [batch + 1, heads, seqlen, dim];
    let other_heads = [batch, heads + 2, seqlen, dim];
    let other_seqlen = [batch, heads, seqlen + 1, dim];
    let other_dim = [batch, heads, seqlen, dim + 8];
    for other in [other_batch, other_dim] {
        refused(device, [SHAPE, other, SHAPE], "k has shape")?;
    }
    for other in [other_batch, other_heads, other_seqlen] {
        refused(device, [SHAPE, SHAPE, other], "v has shape")?;
    }
    refused(
        device,
        [SHAPE, SHAPE, [batch, heads, seqlen, 1025]],
        "dim_v is 1025",
    )?;
    let input = tensor(device, SHAPE)?;
    let wide = Attention::new().forward(&input, &input, &tensor(device, other_dim)?);
    assert_eq!(wide?.0.shape(), other_dim);

    let input = tensor(device, SHAPE)?;
    let mut o = tensor(device, other_seqlen)?;
    let mut lse = Tensor::zeros(device, [batch, heads, seqlen])?;
    let attention = Attention::new();
    let error = attention.forward_into(&input, &input, &input, &mut o, &mut lse);
    assert!(
        matches!(error, Err(Error::Shape { argument: "o", .. })),
        "{error:?}"
    );

    let mut o = tensor(device, SHAPE)?;
    let mut lse = Tensor::zeros(device, [batch, heads, seqlen - 1])?;
    let error = attention.forward_into(&input, &input, &input, &mut o, &mut lse);
    assert!(
        matches!(
            error,
            Err(Error::Shape {
                argument: "lse",
                ..
            })
        ),
        "{error:?}"
    );
    PASSED
}

fn scales(device: &Device) -> Outcome {
    for scale in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let options = Attention::new().scale(scale);
        let error = refused_with(&options, device, [SHAPE; 3], "must be finite")?;
        assert!(matches!(error, Error::Scale(_)), "{error:?}");
    }
    PASSED
}

fn kernels(device: &Device) -> Outcome {
    let options = Attention::new().kernel("forward_f16_d46");
    let error = refused_with(&options, device, [SHAPE; 3], "forward_f16_d46")?;
    assert!(matches!(error, Error::UnknownKernel { .. }), "{error:?}");
    PASSED
}

fn f32_on_a_device_with_kernels(device: &Device) -> Outcome {
    let refused = Error::NoKernels(Dtype::F32);
    let message = refused.to_string();
    assert_eq!(
        message,
        "no kernel computes f32, only f16 and bf16; use the CPU"
    );
    let ones = Tensor::new(device, SHAPE, &[1.0_f32; 160])?;
    for attention in [Attention::new(), Attention::new().kernel("forward_f16_d64")] {
        let error = attention.forward(&ones, &ones, &ones).expect_err("f32");
        assert_eq!(error, refused);
    }
    let problem = Problem::new(SHAPE, SHAPE, SHAPE, false, None)?;
    assert_eq!(
        kernel::suitable(device.facts(), Dtype::F32, &problem, &RawOptions::default()),
        Err(refused.clone())
    );
    let matrix = ones.reshape([10, 16])?;
    let error = Gemm::new().forward(&matrix, &matrix).expect_err("f32");
    assert_eq!(error, refused);
    PASSED
}

fn strides(device: &Device) -> Outcome {
    let view = |strides: [isize; 4]| {
        Tensor::from_buffer(device.upload(&[f16::ONE; 4096])?, 0, SHAPE, strides)
    };
    let input = tensor(device, SHAPE)?;
    let mut lse = Tensor::zeros(device, [1, 2, 5])?;
    let attention = Attention::new();

    let mut o = tensor(device, SHAPE)?;
    let columns = view([160, 80, 1, 5])?;
    for (argument, [q, k, v]) in [
        ("q", [&columns, &input, &input]),
        ("k", [&input, &columns, &input]),
        ("v", [&input, &input, &columns]),
    ] {
        let error = attention.forward_into(q, k, v, &mut o, &mut lse);
        assert_eq!(
            error,
            Err(Error::Stride {
                argument,
                axis: "dim",
                stride: 5
            })
        );
    }
    let mut o = columns;
    let error = attention.forward_into(&input, &input, &input, &mut o, &mut lse);
    assert_eq!(
        error,
        Err(Error::Stride {
            argument: "o",
            axis: "dim",
            stride: 5
        })
    );

    for overlapping in [
        [160, 0, 16, 1],
        [160, 80, 15, 1],
        [160, 64, 16, 1],
        [160, 80, 0, 1],
    ] {
        let mut o = view(overlapping)?;
        let error = attention.forward_into(&input, &input, &input, &mut o, &mut lse);
        assert!(
            matches!(error, Err(Error::Overlap { argument: "o", .. })),
            "{error:?}"
        );
    }

    let mut o = tensor(device, SHAPE)?;
    let mut lse = Tensor::from_buffer(device.upload(&[0_f32; 64])?, 0, [1, 2, 5], [12, 6, 1])?;
    let error = attention.forward_into(&input, &input, &input, &mut o, &mut lse);
    assert_eq!(error, Err(Error::NotContiguous("lse")));
    PASSED
}

fn views_outside_the_buffer(device: &Device) -> Outcome {
    let far = isize::MAX / 2;
    for (offset, strides) in [
        (1, [160, 80, 16, 1]),
        (0, [160, 80, 17, 1]),
        (0, [160, 80, -16, 1]),
        (63, [160, 80, -16, 1]),
        (usize::MAX, [160, 80, 16, 1]),
        (0, [0, far, far, 1]),
        (0, [0, 80, isize::MIN, 1]),
    ] {
        let buffer = device.upload(&[f16::ONE; 160])?;
        let error = Tensor::from_buffer(buffer, offset, SHAPE, strides).expect_err("refused");
        assert!(
            matches!(error, Error::OutOfBounds { len: 160, .. }),
            "{error:?}"
        );
    }
    for (offset, strides) in [
        (0, [0, 80, 16, 1]),
        (64, [0, 80, -16, 1]),
        (144, [0, -80, -16, 1]),
    ] {
        Tensor::from_buffer(device.upload(&[f16::ONE; 160])?, offset, SHAPE, strides)?;
    }
    let error = Tensor::new(device, SHAPE, &[f16::ONE; 159]).expect_err("refused");
    assert!(
        matches!(
            error,
            Error::Length {
                expected: 160,
                found: 159,
                ..
            }
        ),
        "{error:?}"
    );
    PASSED
}

/// The requirements on each tensor of the backward pass; the library's own tests go through all of them.
fn backward_arguments(device: &Device) -> Outcome {
    let [batch, heads, seqlen, dim] = SHAPE;
    let longer = [batch, heads, seqlen + 1, dim];
    let input = tensor(device, SHAPE)?;
    let attention = Attention::new();
    for argument in ["o", "lse", "d_o", "d_lse", "dq", "dk", "dv"] {
        let of = |name: &str| {
            let shape = if name == argument { longer } else { SHAPE };
            tensor(device, shape)
        };
        let rows = |name: &str| {
            let rows = seqlen + usize::from(name == argument);
            Tensor::<f32, 3>::zeros(device, [batch, heads, rows])
        };
        let (mut dq, mut dk, mut dv) = (of("dq")?, of("dk")?, of("dv")?);
        let (o, lse, d_o, d_lse) = (of("o")?, rows("lse")?, of("d_o")?, rows("d_lse")?);
        let inputs = BackwardInputs::new(&input, &input, &input, &o, &lse, &d_o).d_lse(&d_lse);
        let error = attention.backward_into(&inputs, GradientsMut::new(&mut dq, &mut dk, &mut dv));
        let named =
            matches!(&error, Err(Error::Shape { argument: found, .. }) if *found == argument);
        assert!(named, "{argument}: {error:?}");
    }
    PASSED
}

/// Only the CPU computes them, and f32.
fn backward_of_wide_heads(device: &Device) -> Outcome {
    let lse = Tensor::<f32, 3>::zeros(device, [1, 1, 3])?;
    let attention = Attention::new();
    for dim in [264, 512, 1024] {
        let x = tensor(device, [1, 1, 3, dim])?;
        let error = attention
            .backward(&x, &x, &x, &x, &lse, &x)
            .expect_err("too wide");
        assert_eq!(error, Error::NoBackward(dim));
    }
    let x = Tensor::new(device, [1, 1, 3, 8], &[1.0_f32; 24])?;
    let error = attention
        .backward(&x, &x, &x, &x, &lse, &x)
        .expect_err("f32");
    assert_eq!(error, Error::NoKernels(Dtype::F32));
    PASSED
}
