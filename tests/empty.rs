//! Calls without an entry, a head, a query or a key: results are empty, or what no key gives.

use ferroattn::{Attention, BackwardInputs, Device, Error, Gradients, Result, Tensor, f16};
use tests::{Outcome, PASSED, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("each_size", each_size),
        Test::new("sinks", sinks),
        Test::new("other_kinds", other_kinds),
    ]
}

/// An element of an output before a call.
const UNWRITTEN: f32 = 5.5;

/// A tensor `[batch, heads, rows, dim]` with columns that are no part of it.
fn wider(device: &Device, [batch, heads, rows, dim]: [usize; 4]) -> Result<Tensor<f16>> {
    let shape = [batch, heads, rows, dim + 8];
    let data = vec![f16::from_f32(UNWRITTEN); shape.iter().product()];
    Tensor::new(device, shape, &data)?.narrow(3, 0, dim)
}

/// The elements, and whether those between them are as before.
fn elements(tensor: Tensor<f16>) -> Result<(Vec<f32>, bool)> {
    let found = tensor.to_vec()?.into_iter().map(f16::to_f32).collect();
    let [batch, heads, rows, dim] = tensor.shape();
    let all = tensor.into_buffer().to_vec()?;
    assert_eq!(all.len(), batch * heads * rows * (dim + 8));
    let mut between = all.chunks(dim + 8).flat_map(|row| &row[dim..]);
    Ok((found, between.all(|x| x.to_f32() == UNWRITTEN)))
}

/// Each size 0 in turn, and all heads; with and without options, whose tensors are empty, too.
fn each_size(device: &Device) -> Outcome {
    for zero in [
        &[0][..],
        &[1],
        &[1, 2],
        &[3],
        &[4],
        &[3, 4],
        &[0, 1, 2, 3, 4],
    ] {
        let mut sizes = [2, 4, 2, 5, 6];
        zero.iter().for_each(|&size| sizes[size] = 0);
        let [batch, heads, kv_heads, seqlen_q, seqlen_kv] = sizes;
        let [q, k, v] = [
            [batch, heads, seqlen_q, 16],
            [batch, kv_heads, seqlen_kv, 16],
            [batch, kv_heads, seqlen_kv, 24],
        ];
        let o = [batch, heads, seqlen_q, 24];
        let of = |shape| wider(device, shape);
        let (inputs, mut out) = ([of(q)?, of(k)?, of(v)?], of(o)?);
        let bias = Tensor::<f32>::zeros(device, [1, 1, seqlen_q, seqlen_kv])?;
        let mask = Tensor::<u8>::zeros(device, [batch, 1, 1, seqlen_kv])?;
        for with_options in [false, true] {
            let plain = Attention::new().causal(true);
            let attention = match with_options {
                true => plain.softcap(3.0).bias(&bias).mask(&mask),
                false => plain,
            };
            let rows = vec![UNWRITTEN; batch * heads * seqlen_q];
            let mut lse = Tensor::new(device, [batch, heads, seqlen_q], &rows)?;
            let [q, k, v] = &inputs;
            attention.forward_into(q, k, v, &mut out, &mut lse)?;
            assert!(lse.to_vec()?.iter().all(|&lse| lse == f32::NEG_INFINITY));
            let mut gradients = Gradients::new(of(q.shape())?, of(k.shape())?, of(v.shape())?);
            let d_bias = vec![7.0; seqlen_kv];
            gradients.d_bias = with_options
                .then(|| Tensor::new(device, [1, 1, 1, seqlen_kv], &d_bias))
                .transpose()?;
            // A bias of one query is repeated.
            let row = Tensor::<f32>::zeros(device, [1, 1, 1, seqlen_kv])?;
            let attention = match with_options {
                true => Attention::new().bias(&row),
                false => attention,
            };
            let read = BackwardInputs::new(q, k, v, &out, &lse, &out).d_lse(&lse);
            attention.backward_into(&read, gradients.view_mut())?;
            for gradient in [gradients.dq, gradients.dk, gradients.dv] {
                let (found, is_kept) = elements(gradient)?;
                assert!(found.iter().all(|&x| x == 0.0) && is_kept, "{sizes:?}");
            }
            let d_bias = gradients.d_bias.map(|d_bias| d_bias.to_vec());
            let d_bias = d_bias.transpose()?.unwrap_or_default();
            assert!(d_bias.iter().all(|&x| x == 0.0), "{sizes:?}");
        }
        let (found, is_kept) = elements(out)?;
        assert!(found.iter().all(|&x| x == 0.0) && is_kept, "{sizes:?}");
        // New outputs.
        let [q, k, v] = &inputs;
        let (new, lse) = Attention::new().forward(q, k, v)?;
        assert_eq!((new.shape(), lse.shape()), (o, [batch, heads, seqlen_q]));
        let gradients = Attention::new().backward(q, k, v, &new, &lse, &new)?;
        assert_eq!(gradients.1.shape(), k.shape());
    }
    PASSED
}

/// Without keys, lse is the sink, which only the CPU writes; without queries, its gradient is 0.
fn sinks(device: &Device) -> Outcome {
    let sinks = Tensor::new(device, [2], &[0.5_f32, f32::NEG_INFINITY])?;
    let attention = Attention::new().sinks(&sinks);
    let tensor = |rows| Tensor::<f16>::zeros(device, [3, 2, rows, 8]);
    let (some, none) = (tensor(4)?, tensor(0)?);
    let without_keys = attention.forward(&some, &none, &none);
    let d_lse = Tensor::new(device, [3, 2, 4], &[0.25_f32; 24])?;
    let inputs = BackwardInputs::new(&some, &none, &none, &some, &d_lse, &some).d_lse(&d_lse);
    let gradients = attention.backward_all(&inputs);
    match device.is_cpu() {
        true => {
            let (o, lse) = without_keys?;
            assert!(o.to_vec()?.iter().all(|x| x.to_f32() == 0.0));
            let expected = [[0.5; 4], [f32::NEG_INFINITY; 4]].concat().repeat(3);
            assert_eq!(lse.to_vec()?, expected);
            let d_sinks = gradients?.d_sinks.expect("of the sinks");
            assert_eq!(d_sinks.to_vec()?, [3.0, 0.0]);
        }
        false => {
            let refused = [without_keys.err(), gradients.err()];
            for error in refused {
                assert!(matches!(error, Some(Error::NoOption(_))), "{error:?}");
            }
        }
    }
    let (o, lse) = attention.forward(&none, &some, &some)?;
    let inputs = BackwardInputs::new(&none, &some, &some, &o, &lse, &o);
    let gradients = attention.backward_all(&inputs)?;
    let d_sinks = gradients.d_sinks.expect("of the sinks");
    assert_eq!(d_sinks.to_vec()?, [0.0; 2]);
    PASSED
}

/// Heads that do not divide, head dims of 0, and types that a GPU lacks are errors as ever.
fn other_kinds(device: &Device) -> Outcome {
    let tensor = |shape| Tensor::<f32>::zeros(device, shape);
    let refused = |q, k| -> Result<Option<Error>> {
        let (q, k) = (tensor(q)?, tensor(k)?);
        Ok(Attention::new().forward(&q, &k, &k).err())
    };
    let heads = refused([1, 3, 0, 8], [1, 2, 5, 8])?;
    assert!(matches!(heads, Some(Error::Heads { .. })), "{heads:?}");
    let none = refused([1, 2, 5, 8], [1, 0, 5, 8])?;
    assert_eq!(none, Some(Error::Zero("kv_heads")));
    assert_eq!(refused([1, 2, 0, 0], [1, 2, 5, 0])?, Some(Error::Dim(0)));
    let shapes = refused([0, 2, 5, 8], [1, 2, 5, 8])?;
    assert!(matches!(shapes, Some(Error::Shape { .. })), "{shapes:?}");
    let f32 = refused([0, 2, 5, 8], [0, 2, 5, 8])?;
    match device.is_cpu() {
        true => assert_eq!(f32, None),
        false => assert!(matches!(f32, Some(Error::NoKernels(_))), "{f32:?}"),
    }
    PASSED
}
