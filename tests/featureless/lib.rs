//! The library without its features: tensors of the host, plans for GPUs, and errors that name what is missing.
#![cfg(test)]

use ferroattn::{
    Attention, Class, Device, Dtype, Error, ErrorKind, Facts, Gemm, RawBackward, RawForward,
    Result, Tensor, merge, merge_backward,
};

fn tensor<const R: usize>(shape: [usize; R]) -> Tensor<f32, R> {
    Tensor::zeros(&Device::cpu(), shape).expect("memory")
}

/// The reason why a call is refused.
fn refused<T>(call: Result<T>) -> Error {
    call.err().expect("nothing computes it")
}

#[test]
fn tensors_lie_in_host_memory() {
    let numbers = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let tensor = Tensor::new(&Device::cpu(), [2, 3], &numbers).expect("memory");
    let columns = tensor.view().transpose(0, 1).expect("axes");
    let columns = columns.to_vec().expect("memory");
    assert_eq!(columns, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

#[test]
fn calls_on_the_cpu_name_the_feature() {
    let (q, lse, matrix) = (tensor([1, 2, 3, 8]), tensor([1, 2, 3]), tensor([3, 5]));
    let attention = Attention::new();
    let part = (&q, &lse);
    for error in [
        refused(attention.forward(&q, &q, &q)),
        refused(attention.backward(&q, &q, &q, &q, &lse, &q)),
        refused(merge(part, part)),
        refused(merge_backward(part, part, &q, None)),
        refused(Gemm::new().forward(&matrix, &matrix)),
        // Nothing is computed of it, but it is filled.
        refused(attention.forward(&q, &tensor([1, 2, 0, 8]), &tensor([1, 2, 0, 8]))),
    ] {
        assert_eq!(error, Error::NoCpu);
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("feature `cpu`"), "{error}");
    }
}

#[test]
fn arguments_are_checked_first() {
    let (q, k) = (tensor([1, 2, 3, 8]), tensor([1, 2, 4, 8]));
    let error = refused(Attention::new().forward(&q, &k, &q));
    assert!(
        matches!(error, Error::Shape { argument: "v", .. }),
        "{error}"
    );
}

#[test]
fn gpus_are_planned_without_their_kernels() -> Result<()> {
    let shape = [1, 2, 300, 64];
    let attention = Attention::new();
    let problem = attention.problem(shape, shape, shape)?;
    let (forward, backward) = (
        RawForward::row_major(&problem),
        RawBackward::row_major(&problem),
    );
    for class in [Class::Sm80, Class::Sm90] {
        let facts = Some(Facts::emulated(class));
        let plans = [
            attention.plan(facts.as_ref(), Dtype::F16, &forward)?,
            attention.backward_plan(facts.as_ref(), Dtype::F16, &backward)?,
        ];
        for step in plans.iter().flat_map(|plan| &plan.steps) {
            for text in [step.entry.text(), step.entry.marked_text()] {
                let error = refused(text);
                assert_eq!(error, Error::NotCompiled);
                assert!(error.to_string().contains("feature `ptx`"), "{error}");
            }
        }
        assert!(plans.iter().all(|plan| !plan.steps.is_empty()));
    }
    Ok(())
}
