//! Points in a device's work, to time what lies between.

use super::Device;
use super::driver::Handle;
use super::gpu::Gpu;
use crate::error::Result;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A point in a device's work, from [`Device::event`].
#[derive(Debug)]
pub struct Event(Point);

#[derive(Debug)]
enum Point {
    Cpu(Instant),
    Gpu { event: Handle, gpu: Arc<Gpu> },
}

impl Device {
    /// Marks this point in the device's work, to time what comes between two such points.
    ///
    /// # Errors
    /// If the driver reports a failure.
    pub fn event(&self) -> Result<Event> {
        Ok(Event(match self.gpu() {
            None => Point::Cpu(Instant::now()),
            Some(gpu) => Point::Gpu {
                event: gpu.driver().record()?,
                gpu: Arc::clone(gpu),
            },
        }))
    }
}

impl Event {
    /// Waits until the device reaches this point.
    ///
    /// # Errors
    /// If the driver reports a failure, of this call or of the work before the event.
    pub fn synchronize(&self) -> Result<()> {
        match &self.0 {
            Point::Cpu(_) => Ok(()),
            // SAFETY: the event exists until `self` drops.
            Point::Gpu { event, gpu } => unsafe { gpu.driver().reach(*event) },
        }
    }

    /// The device's time between `start` and this event, which it waits for.
    ///
    /// # Errors
    /// If the driver reports a failure.
    ///
    /// # Panics
    /// If the events are of two devices.
    pub fn since(&self, start: &Event) -> Result<Duration> {
        self.synchronize()?;
        match (&start.0, &self.0) {
            (Point::Cpu(start), Point::Cpu(end)) => Ok(end.duration_since(*start)),
            (
                Point::Gpu { event: start, gpu },
                Point::Gpu {
                    event: end,
                    gpu: same,
                },
            ) if Arc::ptr_eq(gpu, same) => {
                // SAFETY: both events exist, of this driver.
                unsafe { gpu.driver().elapsed(*start, *end) }
            }
            _ => panic!("events of two devices"),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Point::Gpu { event, gpu } = &self.0 {
            // SAFETY: recorded once, and destroyed once, here.
            unsafe { gpu.driver().forget(*event) };
        }
    }
}
