//! The watch of a kernel [under watch](crate::timeline).

use crate::timeline::{BLOCKS, EVENTS, TimelineParams};
use core::arch::asm;
use kernels::abi::{Event, Sm90Params};
use kernels::attention::forward::Watch;
use kernels::ptx::special;

/// Writes clocks.
pub struct Stamps;

impl Watch for Stamps {
    type Params = TimelineParams;

    #[inline(always)]
    fn work(params: &TimelineParams) -> &Sm90Params {
        &params.sm90
    }

    /// The warpgroup's places; 0 in the threads that write nothing.
    #[inline(always)]
    fn notes(params: &TimelineParams) -> u64 {
        // SAFETY: no block has more threads.
        let thread = unsafe { special::thread(1024) };
        match thread % 128 == 0 && special::block() == 0 {
            true => params.clocks + u64::from(thread / 128 * BLOCKS * EVENTS * 4),
            false => 0,
        }
    }

    /// One piece of assembly without a branch: the assembler takes none between a product and the wait for it.
    #[inline(always)]
    unsafe fn note(notes: u64, block: u32, event: Event) {
        let place = block.min(BLOCKS - 1) * EVENTS + event as u32;
        // SAFETY: the warpgroup has the place to itself, and one thread of it writes.
        unsafe {
            asm!(
                "{{ .reg .pred writes; .reg .b32 clock; mov.u32 clock, %clock; setp.ne.u64 writes, {notes}, 0;",
                "@writes st.global.b32 [{place}], clock; }}",
                notes = in(reg64) notes,
                place = in(reg64) notes + 4 * u64::from(place),
                options(nostack)
            );
        }
    }
}
