//! Runs every test on every device.
//!
//! Tests are named `cpu::FILE::NAME` and `cuda::FILE::NAME`. Where there is no GPU, or the program has no
//! kernels in it, the latter are reported as ignored, with the reason.

use attention::{Device, Error};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

/// How a test ends.
pub type Outcome = Result<Completion, Failed>;

/// A test that ran to its end.
pub const PASSED: Outcome = Ok(Completion::Completed);

/// Forward passes compared with the reference, for each device.
static RUNS: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

/// A named function of a device.
pub struct Test {
    name: String,
    on_cpu: bool,
    run: Arc<dyn Fn(&Device) -> Outcome + Send + Sync>,
}

impl Test {
    /// A test for every device.
    pub fn new(
        name: impl Into<String>,
        run: impl Fn(&Device) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Test {
            name: name.into(),
            on_cpu: true,
            run: Arc::new(run),
        }
    }

    /// A test for GPUs only.
    pub fn cuda(
        name: impl Into<String>,
        run: impl Fn(&Device) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Test {
            on_cpu: false,
            ..Test::new(name, run)
        }
    }
}

/// Runs the tests as the command line says, and says how many forward passes they were made of.
#[must_use]
pub fn main(groups: impl IntoIterator<Item = (&'static str, Vec<Test>)>) -> ExitCode {
    let cuda = Device::cuda(0);
    let mut trials = Vec::new();
    let tests = groups
        .into_iter()
        .flat_map(|(group, tests)| tests.into_iter().map(move |test| (group, test)));
    for (group, Test { name, on_cpu, run }) in tests {
        let name = format!("{group}::{name}");
        if on_cpu {
            let run = Arc::clone(&run);
            let trial = move || run(&Device::cpu());
            trials.push(Trial::ignorable_test(format!("cpu::{name}"), trial));
        }
        let cuda = cuda.clone();
        trials.push(Trial::ignorable_test(
            format!("cuda::{name}"),
            move || match cuda {
                Ok(device) => run(&device),
                Err(error @ (Error::NoDriver(_) | Error::NoDevice { .. } | Error::NotCompiled)) => {
                    Ok(Completion::ignored_with(error))
                }
                Err(error) => Err(error.into()),
            },
        ));
    }
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    for (device, runs) in RUNS.lock().expect("counted").iter() {
        println!("{device}: {runs} forward passes compared with the reference");
    }
    conclusion.exit_code()
}

pub(crate) fn count_run(device: &Device) {
    let mut runs = RUNS.lock().expect("counted");
    *runs.entry(device.name().to_owned()).or_default() += 1;
}
