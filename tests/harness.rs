//! Runs every test on every device.
//!
//! A test's name is `DEVICE::FILE::NAME`; devices are `cpu`, `emulator`, `cuda` and `cust`, which is the same GPU
//! through the command's driver. Without a GPU, or without
//! kernels in the program, the device's tests are reported as ignored, with the reason.
//!
//! The environment of `cargo xtask test` may name two files: a record of tests that passed, which need not run again, and
//! one for the seconds that each test takes.

use crate::passed::Passed;
use ferroattn::emulator::Options;
use ferroattn::{Attention, Class, Device, Dtype, Error, Problem, RawBackward};
use host::Cust;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How a test ends.
pub type Outcome = Result<Completion, Failed>;

/// A test that ran to its end.
pub const PASSED: Outcome = Ok(Completion::Completed);

/// Passes compared with the reference, for each device.
static RUNS: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

/// Time that each test took.
static TIMES: Mutex<BTreeMap<String, Duration>> = Mutex::new(BTreeMap::new());

/// The file for the seconds of each test: a line `SECONDS NAME` for each.
const TIMES_FILE: &str = "FERROATTN_TIMES";

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// The seed of the random cases of the test on this thread: it follows from the test's name, the device aside. So every
/// run draws the same cases, and devices share their references.
pub(crate) fn seed() -> u64 {
    SEED.get()
}

/// A test: a name, the kinds of devices it runs on, and what it does there.
pub struct Test {
    name: String,
    on: &'static [Kind],
    run: Arc<dyn Fn(&Device) -> Outcome + Send + Sync>,
}

/// The devices that tests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Cpu,
    Emulator,
    /// A GPU through the library's driver.
    Cuda,
    /// That GPU through the command's driver.
    Cust,
}

impl Kind {
    const ALL: &[Kind] = &[Kind::Cpu, Kind::Emulator, Kind::Cuda, Kind::Cust];

    fn name(self) -> &'static str {
        match self {
            Kind::Cpu => "cpu",
            Kind::Emulator => "emulator",
            Kind::Cuda => "cuda",
            Kind::Cust => "cust",
        }
    }

    fn open(self) -> Result<Device, Error> {
        match self {
            Kind::Cpu => Ok(Device::cpu()),
            Kind::Emulator => Device::emulator(Options::default()),
            Kind::Cuda => Device::cuda(0),
            Kind::Cust => Device::with_driver(Cust::open(0)?),
        }
    }
}

impl Test {
    /// A test for every device.
    pub fn new(
        name: impl Into<String>,
        run: impl Fn(&Device) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Test {
            name: name.into(),
            on: Kind::ALL,
            run: Arc::new(run),
        }
    }

    /// A test of the backward pass for every device; ignored on a device that has no kernel for it.
    pub fn backward(
        name: impl Into<String>,
        run: impl Fn(&Device) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Test::new(name, move |device| match lacks_backward(device) {
            Some(reason) => Ok(Completion::ignored_with(reason)),
            None => run(device),
        })
    }

    /// The test on GPUs only.
    #[must_use]
    pub fn on_gpus(self) -> Self {
        Test {
            on: &[Kind::Cuda, Kind::Cust],
            ..self
        }
    }

    /// The test on the CPU and on GPUs only.
    #[must_use]
    pub fn not_emulated(self) -> Self {
        Test {
            on: &[Kind::Cpu, Kind::Cuda, Kind::Cust],
            ..self
        }
    }

    /// The test by the name `group::NAME`.
    #[must_use]
    pub fn within(self, group: &str) -> Self {
        let name = format!("{group}::{}", self.name);
        Test { name, ..self }
    }

    /// A test of the emulator, on an emulated device of this class.
    #[must_use]
    pub fn emulated_as(&self, class: Class) -> Option<Self> {
        let run = Arc::clone(&self.run);
        let name = format!("{}_{class:?}", self.name).to_lowercase();
        let run = move |_: &Device| run(&Device::emulator_of(class, Options::default())?);
        let is_emulated = self.on.contains(&Kind::Emulator);
        is_emulated.then(|| Test::emulator(name, run))
    }

    /// These tests, and those of the emulator on an emulated Hopper GPU, too.
    #[must_use]
    pub fn and_on_hopper(tests: Vec<Self>) -> Vec<Self> {
        let of_hopper = tests
            .iter()
            .filter_map(|test| test.emulated_as(Class::Sm90));
        let of_hopper: Vec<_> = of_hopper.collect();
        tests.into_iter().chain(of_hopper).collect()
    }

    /// A test for the CPU only.
    pub fn cpu(
        name: impl Into<String>,
        run: impl Fn(&Device) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Test {
            on: &[Kind::Cpu],
            ..Test::new(name, run)
        }
    }

    /// A test for GPUs only.
    pub fn cuda(
        name: impl Into<String>,
        run: impl Fn(&Device) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Test {
            on: &[Kind::Cuda, Kind::Cust],
            ..Test::new(name, run)
        }
    }

    /// A test for devices that run kernels: GPUs and the emulator.
    pub fn kernels(
        name: impl Into<String>,
        run: impl Fn(&Device) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Test {
            on: &[Kind::Emulator, Kind::Cuda, Kind::Cust],
            ..Test::new(name, run)
        }
    }

    /// A test for the emulator only.
    pub fn emulator(
        name: impl Into<String>,
        run: impl Fn(&Device) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Test {
            on: &[Kind::Emulator],
            ..Test::new(name, run)
        }
    }
}

/// The error of a device that has no kernel for the backward pass of a common head dim.
fn lacks_backward(device: &Device) -> Option<Error> {
    let shape = [1, 1, 1, 64];
    let problem = Problem::new(shape, shape, shape, false, None).expect("a valid problem");
    let args = RawBackward::row_major(&problem);
    let plan = Attention::new().backward_plan(device.facts(), Dtype::F16, &args);
    plan.err()
        .filter(|error| matches!(error, Error::NoBackward(_)))
}

/// Runs the tests that the command line selects, and prints how many passes they compared.
///
/// # Panics
/// If a file that the environment names cannot be read or written.
#[must_use]
pub fn main(groups: impl IntoIterator<Item = (&'static str, Vec<Test>)>) -> ExitCode {
    let devices: Vec<_> = Kind::ALL.iter().map(|kind| (*kind, kind.open())).collect();
    let passed = Arc::new(Passed::open().expect("a file for the record of passed tests"));
    let mut trials = Vec::new();
    for (group, tests) in groups {
        for Test { name, on, run } in tests {
            for (kind, device) in devices.iter().filter(|(kind, _)| on.contains(kind)) {
                let (run, device, passed) = (Arc::clone(&run), device.clone(), Arc::clone(&passed));
                let name = format!("{}::{group}::{name}", kind.name());
                // The record knows nothing of a GPU.
                let is_recorded = matches!(kind, Kind::Cpu | Kind::Emulator);
                let trial_name = name.clone();
                let trial = move || {
                    let record = (*passed).as_ref().filter(|_| is_recorded);
                    if record.is_some_and(|record| record.has(&name)) {
                        return Ok(Completion::ignored_with(
                            "passed before, with the same text",
                        ));
                    }
                    let outcome = match device {
                        Ok(device) => timed(&name, || run(&device)),
                        Err(
                            error @ (Error::NoDriver(_)
                            | Error::NoDevice { .. }
                            | Error::NotCompiled),
                        ) => Ok(Completion::ignored_with(error)),
                        Err(error) => Err(error.into()),
                    };
                    if let (Some(record), Ok(Completion::Completed)) = (record, &outcome) {
                        record.add(&name)?;
                    }
                    outcome
                };
                trials.push(Trial::ignorable_test(trial_name, trial));
            }
        }
    }
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    for (device, runs) in RUNS.lock().expect("counted").iter() {
        println!("{device}: {runs} passes compared with the reference");
    }
    write_times().expect("a file for the times of tests");
    conclusion.exit_code()
}

/// Runs a test with the seed of its name, and notes its time.
fn timed(name: &str, run: impl FnOnce() -> Outcome) -> Outcome {
    let (_, of_devices) = name.split_once("::").expect("DEVICE::FILE::NAME");
    let (file, test) = of_devices.split_once("::").expect("FILE::NAME");
    // FNV-1a, which is the same on every machine and in every build.
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let bytes = file.bytes().chain(test.bytes());
    SEED.set(bytes.fold(0xcbf2_9ce4_8422_2325, fold));
    let start = Instant::now();
    let outcome = run();
    let mut times = TIMES.lock().expect("written");
    times.insert(name.to_owned(), start.elapsed());
    outcome
}

fn write_times() -> std::io::Result<()> {
    let Some(file) = std::env::var_os(TIMES_FILE) else {
        return Ok(());
    };
    let mut lines = String::new();
    for (name, time) in TIMES.lock().expect("written").iter() {
        let _ = writeln!(lines, "{:.3} {name}", time.as_secs_f64());
    }
    std::fs::write(file, lines)
}

/// Options of an emulator that counts.
#[must_use]
pub fn counting() -> Options {
    Options {
        counters: true,
        ..Options::default()
    }
}

pub(crate) fn count_run(device: &Device) {
    let mut runs = RUNS.lock().expect("counted");
    *runs.entry(device.name().to_owned()).or_default() += 1;
}
