//! Every class of devices, emulated, with the kernels and splits that it chooses.

use attention::emulator::Options;
use attention::{Attention, Class, Device, Error, Tensor, f16, kernel};
use proptest::prelude::*;
use tests::strategy::{cases, check_some, few_queries, of_dims};
use tests::{Case, Outcome, PASSED, Test};

/// Fewer random cases than elsewhere: other tests run every kernel by name.
const CASES: u32 = 24;

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let of_class = |&class: &Class| {
        let name = |what: &str| format!("{}::{what}", class.name());
        [
            Test::emulator(name("any"), move |_| {
                check_some(&emulated(class)?, CASES, wide(cases()))
            }),
            Test::emulator(name("few_queries"), move |_| {
                check_some(&emulated(class)?, CASES, wide(few_queries(cases())))
            }),
        ]
    };
    let random = Class::ALL.iter().flat_map(of_class);
    let limit = Test::emulator("shared_memory_is_limited", |_| shared_memory_is_limited());
    random.chain([limit]).collect()
}

fn emulated(class: Class) -> Result<Device, Error> {
    Device::emulator_of(class, Options::default())
}

/// Cases of the head dims where classes differ.
fn wide(cases: impl Strategy<Value = Case>) -> impl Strategy<Value = Case> {
    of_dims(cases, 5..=32)
}

/// A device neither offers nor runs a kernel whose block needs more shared memory than it has.
fn shared_memory_is_limited() -> Outcome {
    let case = Case {
        dim: 256,
        ..Case::default()
    };
    let (problem, large) = (case.problem()?, "forward_f16_d256_128x32");
    for &class in Class::ALL {
        let device = emulated(class)?;
        let offered = kernel::suitable(&device, case.dtype, &problem)?.contains(&large);
        assert_eq!(offered, class != Class::Sm86);
        let ones = Tensor::new(&device, case.q_shape(), &vec![f16::ONE; 150 * 256])?;
        let ran = Attention::new().kernel(large).forward(&ones, &ones, &ones);
        match ran {
            Ok(_) => assert!(offered),
            Err(Error::SharedMemory {
                needed, available, ..
            }) => {
                assert!(!offered);
                assert_eq!((needed, available), (128 << 10, 99 << 10));
            }
            Err(error) => return Err(error.into()),
        }
    }
    PASSED
}
