//! A copy by the copy engine of `sm_90a`.

use super::collectives::Collectives;
use super::{Spec, Target};
use crate::abi::BULK_BYTES;

/// The bulk copy kernel: it shows that kernels for `sm_90a` compile, are checked, and run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BulkCopy;

impl BulkCopy {
    const STAGES: u32 = 2;
}

impl Spec for BulkCopy {
    fn name(&self) -> String {
        "bulk_copy".into()
    }

    fn target(&self) -> Target {
        Target::Sm90a
    }

    fn threads(&self) -> u32 {
        64
    }

    fn blocks_per_sm(&self) -> u32 {
        1
    }

    /// The ring, and two barriers of 8 bytes for each stage.
    fn shared_bytes(&self) -> u32 {
        Self::STAGES * (BULK_BYTES + 16)
    }

    fn instance(&self) -> String {
        format!(
            "(BulkCopyParams) = bulk_copy::bulk_copy::<{}>",
            Self::STAGES
        )
    }

    /// A wait and an arrival of each role.
    fn collectives(&self) -> Collectives {
        Collectives {
            bar: 1,
            mbarrier_init: 2 * Self::STAGES,
            mbarrier_arrive: 2,
            mbarrier_wait: 2,
            bulk_load: 1,
            bulk_store: 1,
            ..Collectives::NONE
        }
    }
}
