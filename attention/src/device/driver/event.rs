//! Points in the default stream's time.

use super::{Gpu, check};
use crate::error::Result;
use cust::sys;
use std::sync::Arc;
use std::time::Duration;

/// A recorded point in the default stream. (cust's own event needs a stream it created.)
#[derive(Debug)]
pub struct Event {
    raw: sys::CUevent,
    gpu: Arc<Gpu>,
}

// SAFETY: the driver accepts an event from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; no method changes the event after `record`.
unsafe impl Sync for Event {}

impl Event {
    /// Records the point after all work queued so far.
    pub fn record(gpu: &Arc<Gpu>) -> Result<Self> {
        let _current = gpu.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for a write.
        check("creating an event", unsafe {
            sys::cuEventCreate(&mut raw, 0)
        })?;
        let event = Event {
            raw,
            gpu: Arc::clone(gpu),
        };
        // SAFETY: the event was created in the current context; null is its default stream.
        let status = unsafe { sys::cuEventRecord(event.raw, std::ptr::null_mut()) };
        check("recording an event", status)?;
        Ok(event)
    }

    /// Waits until the device reaches the point.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.gpu.enter()?;
        // SAFETY: the event lives.
        check("waiting for the device", unsafe {
            sys::cuEventSynchronize(self.raw)
        })
    }

    /// Time from `start` to this event; both must have been waited for.
    pub fn since(&self, start: &Event) -> Result<Duration> {
        let _current = self.gpu.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: both events live.
        let status = unsafe { sys::cuEventElapsedTime(&mut milliseconds, start.raw, self.raw) };
        check("reading the time between events", status)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.gpu.enter() {
            // SAFETY: destroyed once, here.
            unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}
