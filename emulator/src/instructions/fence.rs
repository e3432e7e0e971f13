//! `fence.proxy.async` and `fence.mbarrier_init`: what threads wrote, for the asynchronous proxy.
//!
//! Bulk copies access memory through a proxy of their own, which sees what threads wrote only after
//! a fence; a barrier alone does not do. The fence may stand anywhere between the write and the copy:
//! in the thread that wrote, before a barrier, or in the thread that copies, after it.

use super::{for_each_lane, lanes};
use crate::decode::{Decoded, Decoder};

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let Some(kind) = d.opcode().strip_prefix("fence.") else {
        return Ok(None);
    };
    let operation = match kind {
        "proxy.async" | "proxy.async.shared::cta" | "proxy.async.shared::cluster" => lanes!(|c| {
            c.warp.fence(c.active);
            Ok(())
        }),
        // Writes of threads to global memory have no shadow.
        "proxy.async.global" => lanes!(|_| Ok(())),
        "mbarrier_init.release.cluster" => lanes!(|c| {
            for_each_lane(c.active, |lane| {
                c.mbarriers.announce(c.warp.accessor(lane as u32, c.line));
                Ok(())
            })?;
            c.warp.tick();
            Ok(())
        }),
        _ => return Ok(None),
    };
    d.operands::<0>()?;
    d.require_target(90)?;
    operation
}
