//! The entry points, which the builder writes: a line for each kernel of the catalog.

use crate::params::LadderParams;
use crate::stamps::Stamps;
use crate::timeline::TimelineParams;
use crate::{fa1, hopper, naive, rows, teams};
use kernels::abi::Sm90Params;
use kernels::attention::options::mask::{Causal, Full};
use kernels::attention::options::score::Scaled;
use kernels::attention::workload::heads::OneHead;
use kernels::entry;
use kernels::tile::{Accumulator as Single, Bf16, F16, HalfAccumulator as Half};

include!(env!("KERNEL_ENTRIES"));
