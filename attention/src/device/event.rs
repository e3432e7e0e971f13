//! Timing of a device's work.

use crate::device::driver;
use crate::device::{Backend, Device};
use crate::error::Result;
use std::time::{Duration, Instant};

/// A point in a device's work, from [`Device::event`].
#[derive(Debug)]
pub struct Event(Inner);

#[derive(Debug)]
enum Inner {
    Cpu(Instant),
    Cuda(driver::Event),
}

impl Event {
    pub(crate) fn record(device: &Device) -> Result<Self> {
        Ok(Event(match device.backend() {
            Backend::Cpu | Backend::Emulator(_) => Inner::Cpu(Instant::now()),
            Backend::Cuda(gpu) => Inner::Cuda(driver::Event::record(gpu)?),
        }))
    }

    /// Waits until the device reaches this point.
    ///
    /// # Errors
    /// If the driver reports a failure, of this call or of the work before the event.
    pub fn synchronize(&self) -> Result<()> {
        match &self.0 {
            Inner::Cpu(_) => Ok(()),
            Inner::Cuda(event) => event.synchronize(),
        }
    }

    /// The device's time between `start` and this event, which it waits for.
    ///
    /// # Errors
    /// If the driver reports a failure.
    ///
    /// # Panics
    /// If one event is of a CUDA device and the other is not.
    pub fn since(&self, start: &Event) -> Result<Duration> {
        self.synchronize()?;
        match (&start.0, &self.0) {
            (Inner::Cpu(start), Inner::Cpu(end)) => Ok(end.duration_since(*start)),
            (Inner::Cuda(start), Inner::Cuda(end)) => end.since(start),
            _ => panic!("events of different devices"),
        }
    }
}
