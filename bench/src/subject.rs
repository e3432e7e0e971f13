//! What a run measures: attention or matrix products.

use crate::contender::Choice;
use crate::run::Plan;
use anyhow::Result;
use attention::{Device, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::{Debug, Display};

/// The size of one call, and all that differs between what is called.
pub trait Subject: Copy + Debug + Display + PartialEq + Serialize + DeserializeOwned {
    /// What the peers' script is told to compute.
    const NAME: &str;
    /// The peer that ratios compare with.
    const BASELINE: &str;
    /// The title of the column of these ratios.
    const RATIO: &str;
    /// The titles of [`cells`](Self::cells).
    const COLUMNS: &[&str];

    /// The size in cells of a table; the first [`NUMBERS`](Self::NUMBERS) are numbers.
    fn cells(&self) -> Vec<String>;

    /// How many of the cells are numbers.
    const NUMBERS: usize;

    /// Bytes of all inputs and outputs, each counted once.
    fn bytes(&self) -> f64;

    /// Floating-point operations.
    ///
    /// # Errors
    /// Names the size that is not allowed.
    fn flops(&self) -> Result<f64>;

    /// The fields of the peers' command to set up this size.
    ///
    /// # Errors
    /// Names the size that is not allowed.
    fn setup(&self) -> Result<Value>;

    /// Checks that there is a kernel of that name, with such options, on whatever device.
    ///
    /// # Errors
    /// If there is none; says what there is.
    fn check_name(&self, name: &str) -> Result<()>;

    /// The chosen kernels that serve this size.
    ///
    /// # Errors
    /// If there is none.
    fn kernels(&self, choice: &Choice, device: &Device) -> Result<Vec<String>>;

    /// Draws inputs and checks the result of each chosen kernel once: a wrong result has no speed.
    ///
    /// # Errors
    /// If a kernel computes it wrongly, or the device fails.
    fn contenders(&self, device: &Device, plan: &Plan) -> Result<Box<dyn Contenders>>;
}

/// The project's kernels on the inputs of one size.
pub trait Contenders {
    /// Name and splits of each.
    fn names(&self) -> Vec<(String, Option<u32>)>;

    /// Queues one launch.
    ///
    /// # Errors
    /// If the device fails.
    fn launch(&mut self, contender: usize) -> Result<()>;
}

/// Of reasons for which a kernel does not serve a size, the one that holds on every device: it does not exist.
///
/// # Errors
/// That one.
pub fn exists<T>(served: attention::Result<T>) -> Result<()> {
    match served {
        Err(error @ Error::UnknownKernel { .. }) => Err(error.into()),
        _ => Ok(()),
    }
}

/// The device's milliseconds for each of `iters` launches, after `lead` that are not timed. All are
/// queued back to back, with events around each, so that the time to launch one is hidden.
///
/// # Errors
/// If the device fails.
pub fn time(
    device: &Device,
    contenders: &mut dyn Contenders,
    contender: usize,
    lead: usize,
    iters: usize,
) -> Result<Vec<f64>> {
    for _ in 0..lead {
        contenders.launch(contender)?;
    }
    let mut events = Vec::with_capacity(iters);
    for _ in 0..iters {
        let start = device.event()?;
        contenders.launch(contender)?;
        events.push([start, device.event()?]);
    }
    let times = events.iter().map(|[start, end]| end.since(start));
    times.map(|time| Ok(time?.as_secs_f64() * 1e3)).collect()
}
