//! Queues of a device's work beside the default one.

use super::driver::{Handle, RawStream};
use super::event::Event;
use super::{Device, Gpu};
use crate::error::{Error, Result};
use std::ptr::null_mut;
use std::sync::Arc;

/// A queue of a device's work, from [`Device::stream`]: calls [on it](crate::Attention::on) run in their order, beside the work of
/// other streams.
///
/// Uploads, reads and copies of tensors are on the device's default stream. Each waits for what all streams of this type held
/// before, and holds back what they get later: a result is read without waiting for its stream. Two streams wait for each other
/// at [events](Self::wait_for) alone; a tensor that one of them writes while the other reads it has no certain elements.
///
/// The CPU and the emulator run each call when it comes, and their streams do nothing.
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::{Attention, Device, Tensor, f16};
///
/// let device = Device::cuda(0).unwrap_or(Device::cpu());
/// let [first, second] = [device.stream()?, device.stream()?];
/// let q = Tensor::new(&device, [1, 2, 100, 64], &[f16::ONE; 12_800])?;
/// // Beside each other.
/// let (o, _) = Attention::new().on(&first).forward(&q, &q, &q)?;
/// let (causal, _) = Attention::new().causal(true).on(&second).forward(&q, &q, &q)?;
/// // After both.
/// second.wait_for(&first.event()?)?;
/// let (last, _) = Attention::new().on(&second).forward(&o, &causal, &causal)?;
/// assert_eq!(last.to_vec()?, q.to_vec()?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Stream {
    device: Device,
    gpu: Option<(Arc<Gpu>, Handle)>,
    /// Whether it ends with this value.
    is_owned: bool,
}

impl Device {
    /// A new stream, empty.
    ///
    /// # Errors
    /// If the driver reports a failure.
    pub fn stream(&self) -> Result<Stream> {
        let create = |gpu: &Arc<Gpu>| Ok((Arc::clone(gpu), gpu.driver().create_stream()?));
        Ok(Stream {
            device: self.clone(),
            gpu: self.gpu().map(create).transpose()?,
            is_owned: true,
        })
    }

    /// A stream of another owner, such as candle's or one that a CUDA graph is captured on, for safe calls on it.
    ///
    /// # Safety
    /// - On a GPU `stream` is null, or a live stream of the device's primary context as long as the value.
    /// - The default stream does not wait for a stream that was created as a non-blocking one: nothing reads, writes or drops
    ///   tensors of its work before the caller has waited for it, and it gets no work on tensors that the default stream still
    ///   writes.
    pub unsafe fn borrow_stream(&self, stream: RawStream) -> Stream {
        Stream {
            device: self.clone(),
            gpu: self.gpu().map(|gpu| (Arc::clone(gpu), Handle(stream))),
            is_owned: false,
        }
    }
}

impl Stream {
    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The driver's own handle, for raw calls, until `self` drops; null on the CPU and the emulator.
    pub fn raw(&self) -> RawStream {
        self.gpu.as_ref().map_or(null_mut(), |(_, stream)| stream.0)
    }

    /// Marks this point in the stream's work.
    ///
    /// # Errors
    /// If the driver reports a failure.
    pub fn event(&self) -> Result<Event> {
        // SAFETY: the stream exists until `self` drops.
        unsafe { Event::on(&self.device, self.raw()) }
    }

    /// Lets what the stream gets from here on wait for an event of any stream; the host goes on.
    ///
    /// # Errors
    /// If the event is of another device, or the driver reports a failure.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        match (&self.gpu, event.handle()) {
            (None, None) => Ok(()),
            (Some((gpu, _)), Some((other, event))) if Arc::ptr_eq(gpu, other) => {
                // SAFETY: both exist, of this driver.
                unsafe { gpu.driver().wait_for(self.raw(), event) }
            }
            (_, other) => Err(Error::DeviceMismatch {
                argument: "event",
                expected: self.device.name().to_owned(),
                found: other
                    .map_or("CPU", |(gpu, _)| gpu.driver().name())
                    .to_owned(),
            }),
        }
    }

    /// Waits until the stream's work is done.
    ///
    /// # Errors
    /// If the driver reports a failure, of this call or of that work.
    pub fn synchronize(&self) -> Result<()> {
        match &self.gpu {
            None => Ok(()),
            // SAFETY: the stream exists until `self` drops.
            Some((gpu, stream)) => unsafe { gpu.driver().wait(stream.0) },
        }
    }
}

impl Drop for Stream {
    /// The driver finishes the work first.
    fn drop(&mut self) {
        if let (Some((gpu, stream)), true) = (&self.gpu, self.is_owned) {
            // SAFETY: created once, and destroyed once, here.
            unsafe { gpu.driver().destroy_stream(*stream) };
        }
    }
}
