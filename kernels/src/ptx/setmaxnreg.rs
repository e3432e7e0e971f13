//! `setmaxnreg`: a warpgroup gives registers back, or takes them.
//!
//! All registers of a block come from what its launch got: what some give, others can take. The assembler ignores
//! these instructions without launch bounds (warning C7508).

use core::arch::asm;

instructions! {
    /// Gives registers back, down to `COUNT` a thread, a multiple of 8 from 24 to 256.
    ///
    /// # Safety
    /// All lanes of the warpgroup make the same call, with more registers before it.
    decrease<COUNT>() = "setmaxnreg.dec.sync.aligned.u32 {};";

    /// Waits for registers, up to `COUNT` a thread, a multiple of 8 from 24 to 256.
    ///
    /// # Safety
    /// All lanes of the warpgroup make the same call, with fewer registers before it. Other warpgroups give as many.
    increase<COUNT>() = "setmaxnreg.inc.sync.aligned.u32 {};";
}
