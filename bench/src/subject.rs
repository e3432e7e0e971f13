//! The subject of a run: attention or matrix products.

use crate::choice::Choice;
use crate::plan::Plan;
use anyhow::Result;
use ferroattn::Device;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::{Debug, Display};

/// The size of one call, and how its kind of call is measured.
pub trait Subject: Copy + Debug + Display + PartialEq + Serialize + DeserializeOwned {
    /// The peer that ratios compare with.
    const BASELINE: &str;
    /// The title of the column of ratios.
    const RATIO: &str;
    /// The titles of [`cells`](Self::cells).
    const COLUMNS: &[&str];

    /// The peers' name for calls of these sizes.
    fn peers(sizes: &[Self]) -> &'static str;

    /// The size in cells of a table; the first [`NUMBERS`](Self::NUMBERS) hold numbers.
    fn cells(&self) -> Vec<String>;

    /// How many cells hold numbers.
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

    /// Checks a kernel's name and options without a device.
    ///
    /// # Errors
    /// If there is no such kernel; says which there are.
    fn check_name(&self, name: &str) -> Result<()>;

    /// Checks the names of a choice without a device.
    ///
    /// # Errors
    /// Says which name is unknown.
    fn check_names(&self, choice: &Choice) -> Result<()> {
        match choice {
            Choice::Named(names) => names.iter().try_for_each(|name| self.check_name(name)),
            Choice::Auto | Choice::All | Choice::Ladder => Ok(()),
        }
    }

    /// The chosen kernels that serve this size.
    ///
    /// # Errors
    /// If there is none.
    fn kernels(&self, choice: &Choice, device: &Device) -> Result<Vec<String>>;

    /// Draws random inputs and checks each chosen kernel's result once.
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

/// The device's milliseconds for each of `iters` launches, after `lead` untimed ones.
///
/// All launches are queued back to back, each between two events: the time to launch them is hidden.
///
/// # Errors
/// If the device fails.
pub fn time(
    device: &Device,
    lead: usize,
    iters: usize,
    mut launch: impl FnMut() -> Result<()>,
) -> Result<Vec<f64>> {
    for _ in 0..lead {
        launch()?;
    }
    let mut events = Vec::with_capacity(iters);
    for _ in 0..iters {
        let start = device.event()?;
        launch()?;
        events.push([start, device.event()?]);
    }
    let times = events.iter().map(|[start, end]| end.since(start));
    times.map(|time| Ok(time?.as_secs_f64() * 1e3)).collect()
}
