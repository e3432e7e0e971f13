//! Every main kernel at its own head dim, on a device of its class.

use attention::emulator::Options;
use attention::{Class, Device};
use kernels::catalog::{Backward, Family, KERNELS};
use tests::{BackwardCase, Case, Test};

pub fn tests() -> Vec<Test> {
    let main = |family| match family {
        Family::Backward(Backward::Main(main)) => Some(main),
        _ => None,
    };
    let kernels = KERNELS.iter();
    let kernels = kernels.filter_map(|kernel| Some((kernel, main(kernel.family)?)));
    let tests = kernels.map(|(kernel, main)| {
        Test::emulator(kernel.name, move |_| {
            let class = Class::ALL.iter().find(|class| kernel.is_for(**class));
            let device = Device::emulator_of(*class.expect("of some class"), Options::default())?;
            let case = BackwardCase::from(Case {
                dtype: main.dtype.into(),
                heads: 2,
                seqlen_q: 100,
                seqlen_kv: 150,
                dim: main.dim as usize,
                causal: true,
                ..Case::default()
            });
            case.check(&device)
        })
    });
    tests.collect()
}
