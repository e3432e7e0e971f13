//! Points in a device's work, to time what lies between.

use super::Device;
use super::driver::{Handle, RawStream};
use super::gpu::Gpu;
use crate::error::Result;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A point in a device's work, from [`Device::event`], or in that of a [stream](super::Stream::event).
#[derive(Debug)]
pub struct Event {
    /// The host's time, which is the CPU's.
    now: Instant,
    gpu: Option<(Arc<Gpu>, Handle)>,
}

impl Device {
    /// Marks this point in the device's work, to time what comes between two such points.
    ///
    /// # Errors
    /// If the driver reports a failure.
    pub fn event(&self) -> Result<Event> {
        // SAFETY: null is the default stream.
        unsafe { Event::on(self, null_mut()) }
    }
}

impl Event {
    /// Marks this point in the work of a stream.
    ///
    /// # Safety
    /// The stream is valid.
    pub(super) unsafe fn on(device: &Device, stream: RawStream) -> Result<Self> {
        // SAFETY: the caller's word.
        let record =
            |gpu: &Arc<Gpu>| unsafe { Ok((Arc::clone(gpu), gpu.driver().record(stream)?)) };
        Ok(Event {
            gpu: device.gpu().map(record).transpose()?,
            now: Instant::now(),
        })
    }

    /// The driver's event, and what made it; none on the CPU.
    pub(super) fn handle(&self) -> Option<(&Arc<Gpu>, Handle)> {
        self.gpu.as_ref().map(|(gpu, event)| (gpu, *event))
    }

    /// Waits until the device reaches this point.
    ///
    /// # Errors
    /// If the driver reports a failure, of this call or of the work before the event.
    pub fn synchronize(&self) -> Result<()> {
        match &self.gpu {
            None => Ok(()),
            // SAFETY: the event exists until `self` drops.
            Some((gpu, event)) => unsafe { gpu.driver().reach(*event) },
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
        match (&start.gpu, &self.gpu) {
            (None, None) => Ok(self.now.duration_since(start.now)),
            // SAFETY: both events exist, of this driver.
            (Some((gpu, start)), Some((same, end))) if Arc::ptr_eq(gpu, same) => unsafe {
                gpu.driver().elapsed(*start, *end)
            },
            _ => panic!("events of two devices"),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some((gpu, event)) = &self.gpu {
            // SAFETY: recorded once, and destroyed once, here.
            unsafe { gpu.driver().forget(*event) };
        }
    }
}
