//! Timed repetition of a call.

use crate::args::Run;
use crate::progress::Progress;
use ferroattn::{Device, Result};
use std::time::{Duration, Instant};

/// Calls queued before the host waits for the device, which runs them back to back: a launch takes no
/// time while the call before runs.
const QUEUED: usize = 32;

/// The device's time for each call after the warm-up; at least one call. By default the CPU stops early,
/// because a call may take seconds, and the emulator makes a single call, because its time says nothing
/// about the kernel.
pub fn times(
    run: &Run,
    device: &Device,
    progress: &Progress,
    name: &str,
    mut call: impl FnMut() -> Result<()>,
) -> Result<Vec<Duration>> {
    let on_gpu = !device.is_cpu() && !device.is_emulator();
    let queued = if on_gpu { QUEUED } else { 1 };
    let mut repeat = |stage, given: Option<usize>, on_device, on_emulator, cpu_limit| {
        // No new call starts after the limit.
        let (calls, limit) = match given {
            Some(calls) => (calls, Duration::MAX),
            None if device.is_emulator() => (on_emulator, Duration::MAX),
            None if device.is_cpu() => (on_device, Duration::from_millis(cpu_limit)),
            None => (on_device, Duration::MAX),
        };
        progress.steps(&format!("{stage} {name}"), calls);
        let start = Instant::now();
        let mut times = Vec::new();
        while times.len() < calls && (times.is_empty() || start.elapsed() < limit) {
            let events = (0..queued.min(calls - times.len()))
                .map(|_| {
                    let start = device.event()?;
                    call()?;
                    Ok([start, device.event()?])
                })
                .collect::<Result<Vec<_>>>()?;
            for [start, end] in &events {
                times.push(end.since(start)?);
            }
            progress.bar.inc(events.len() as u64);
        }
        Ok(times)
    };
    repeat("warming up", run.warmup, 5, 0, 500)?;
    repeat("timing", run.iters, 20, 1, 1500)
}

/// The time in the middle, or the mean of the two in the middle.
pub fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2
}

#[cfg(test)]
mod tests {
    use super::median;
    use std::time::Duration;

    #[test]
    fn median_of_odd_and_even() {
        let of = |times: &[u64]| {
            let times: Vec<_> = times.iter().copied().map(Duration::from_millis).collect();
            median(&times).as_millis()
        };
        assert_eq!(of(&[9]), 9);
        assert_eq!(of(&[9, 1, 2]), 2);
        assert_eq!(of(&[9, 1, 2, 4]), 3);
    }
}
