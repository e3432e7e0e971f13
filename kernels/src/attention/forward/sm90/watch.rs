//! The watch of a block's roles: it does nothing or, in a kernel of its own, notes when they pass a point.

use crate::abi::{Event, Sm90Params};

/// Watches the roles of a block. Its functions take no value of it: in a consumer, a field of an unknown type keeps rustc
/// from simplifying the others, and kernels that watch nothing would spill.
pub trait Watch {
    /// The kernel's parameter block.
    type Params;

    /// The parameters of the work.
    fn work(params: &Self::Params) -> &Sm90Params;

    /// Where the thread notes what its warpgroup does.
    fn notes(params: &Self::Params) -> u64;

    /// Notes that the warpgroup passed a point of its work on a block of keys, which counts over all tiles.
    ///
    /// # Safety
    /// The conditions of [`sm90`](super::sm90): all lanes of the producer's warp make the call, or all of a consumer.
    unsafe fn note(notes: u64, block: u32, event: Event);
}

/// Watches nothing.
pub struct Unwatched;

impl Watch for Unwatched {
    type Params = Sm90Params;

    #[inline(always)]
    fn work(params: &Sm90Params) -> &Sm90Params {
        params
    }

    #[inline(always)]
    fn notes(_params: &Sm90Params) -> u64 {
        0
    }

    #[inline(always)]
    unsafe fn note(_notes: u64, _block: u32, _event: Event) {}
}
