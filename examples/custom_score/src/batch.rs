//! Documents on a device, and the call that computes with them.

use super::Documents;
use ferroattn::{Attention, CustomKernels, Device, Result, Tensor};

// COMPILED_MODULES, which the build script leaves.
include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// The kernels of [`Documents`]; private, as they wait for ever with arrays that are no documents.
// SAFETY: the build script made the modules of this type, by this name.
static DOCUMENTS: CustomKernels =
    unsafe { CustomKernels::new::<Documents>("Documents", COMPILED_MODULES) };

/// The documents of a batch.
pub struct Batch {
    firsts: Tensor<u32, 2>,
    ends: Tensor<u32, 2>,
    slopes: Tensor<f32, 1>,
}

impl Batch {
    /// Documents of these lengths in each entry, all with the same number of tokens, and a slope for each head.
    ///
    /// # Errors
    /// If the device has no memory.
    ///
    /// # Panics
    /// If there are no entries, or they have different numbers of tokens.
    pub fn new(device: &Device, entries: &[&[u32]], slopes: &[f32]) -> Result<Self> {
        let mut tokens = entries.iter().map(|e| e.iter().sum::<u32>());
        let first = tokens.next().expect("an entry");
        assert!(tokens.all(|tokens| tokens == first), "entries differ");
        let tokens = first as usize;
        let (firsts, ends): (Vec<u32>, Vec<u32>) = entries.iter().flat_map(|e| bounds(e)).unzip();
        let shape = [entries.len(), tokens];
        Ok(Batch {
            firsts: Tensor::new(device, shape, &firsts)?,
            ends: Tensor::new(device, shape, &ends)?,
            slopes: Tensor::new(device, [slopes.len()], slopes)?,
        })
    }

    /// The call.
    ///
    /// # Safety
    /// Queries and keys of the call are as many entries of as many tokens.
    pub unsafe fn attention(&self) -> Attention<'_> {
        let Batch {
            firsts,
            ends,
            slopes,
        } = self;
        Attention::new().custom(&DOCUMENTS, [firsts.into(), ends.into(), slopes.into()])
    }
}

/// The first token of each token's document and the one after its last, of documents of these lengths.
fn bounds(lengths: &[u32]) -> impl Iterator<Item = (u32, u32)> {
    let starts = lengths.iter().scan(0, |end, &length| {
        *end += length;
        Some((*end - length, *end))
    });
    starts.flat_map(|(first, end)| (first..end).map(move |_| (first, end)))
}
