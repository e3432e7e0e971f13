//! `barrier.cluster`: the barrier of a cluster's blocks, as all lanes of a warp execute it. It also orders their accesses to memory.

use crate::cluster::ClusterUse;
use crate::decode::{Action, Decoded, Decoder};

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let side = match d.opcode() {
        "barrier.cluster.arrive.aligned" | "barrier.cluster.arrive.release.aligned" => {
            ClusterUse::Arrive
        }
        "barrier.cluster.wait.aligned" | "barrier.cluster.wait.acquire.aligned" => ClusterUse::Wait,
        _ => return Ok(None),
    };
    d.require_target(90)?;
    d.operands::<0>()?;
    Ok(Some(Action::Cluster(side)))
}
