//! References by their inputs: devices, kernels, schedules and layouts that compute a case share one.

use crate::Modifiers;
use ferroattn::backward::check as backward;
use ferroattn::check as forward;
use ferroattn::{Element, Problem};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock};

/// References held at a time: some hundreds of cases.
const CAPACITY: usize = 256;
/// Bytes that they take at most.
const BYTES: u64 = 256 << 20;

static FORWARD: LazyLock<References<forward::Expected>> = LazyLock::new(references);
static BACKWARD: LazyLock<References<backward::Expected>> = LazyLock::new(references);

type References<E> = Cache<Key, Arc<Reference<E>>, ByBytes>;

/// Inputs of a reference.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    /// Sizes and options.
    options: String,
    /// Digest of the elements of all inputs: 64 bits tell the thousands of cases of a run apart.
    inputs: u64,
}

struct Reference<E> {
    expected: E,
    bytes: usize,
}

#[derive(Clone)]
struct ByBytes;

impl<E> Weighter<Key, Arc<Reference<E>>> for ByBytes {
    fn weight(&self, _: &Key, reference: &Arc<Reference<E>>) -> u64 {
        reference.bytes as u64
    }
}

fn references<E>() -> References<E> {
    Cache::with_weighter(CAPACITY, BYTES, ByBytes)
}

/// The reference of a key, made if it is not there. Another thread that wants it meanwhile waits.
fn of<E>(
    references: &References<E>,
    key: &Key,
    make: impl FnOnce() -> E,
    bytes: fn(&E) -> usize,
) -> Arc<Reference<E>> {
    let made = references.get_or_insert_with(key, || {
        let expected = make();
        let bytes = bytes(&expected);
        Ok::<_, Infallible>(Arc::new(Reference { expected, bytes }))
    });
    let Ok(reference) = made;
    reference
}

impl Key {
    /// Tensors of options follow from the seed, the modifiers and the problem.
    fn new<T: Element>(
        problem: &Problem,
        modifiers: &Modifiers,
        seed: u64,
        more: impl std::fmt::Debug,
        inputs: &[&[T]],
        rows: Option<&[f32]>,
    ) -> Self {
        let seed = if modifiers.are_off() { 0 } else { seed };
        let mut digest = DefaultHasher::new();
        for input in inputs {
            bytemuck::cast_slice::<T, u8>(input).hash(&mut digest);
        }
        rows.map(bytemuck::cast_slice::<f32, u8>).hash(&mut digest);
        Key {
            options: format!("{:?} {problem:?} {modifiers:?} {seed} {more:?}", T::DTYPE),
            inputs: digest.finish(),
        }
    }
}

/// Compares all rows of a forward pass, whose options have the tensors of these modifiers and seed.
pub(crate) fn check_forward<T: Element>(
    found: &forward::Forward<T>,
    modifiers: &Modifiers,
    seed: u64,
) -> forward::Report {
    let inputs = [found.q, found.k, found.v];
    let key = Key::new(found.problem, modifiers, seed, found.acc, &inputs, None);
    let rows = forward::all_rows(found.problem);
    let make = || forward::Expected::new(found, &rows);
    let reference = of(&FORWARD, &key, make, forward::Expected::bytes);
    reference.expected.compare(found)
}

/// Compares all rows and keys of a backward pass, whose options have the tensors of these modifiers and seed.
pub(crate) fn check_backward<T: Element>(
    found: &backward::Backward<T>,
    modifiers: &Modifiers,
    seed: u64,
) -> backward::Report {
    let inputs = [found.q, found.k, found.v, found.d_o];
    let key = Key::new(found.problem, modifiers, seed, (), &inputs, found.d_lse);
    let rows = forward::all_rows(found.problem);
    let keys = backward::all_keys(found.problem);
    let make = || backward::Expected::new(found, &rows, &keys);
    let reference = of(&BACKWARD, &key, make, backward::Expected::bytes);
    reference.expected.compare(found)
}
