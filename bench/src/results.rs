//! The results of a run, and their file.

use crate::shape::Shape;
use crate::stats;
use crate::subject::Subject;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results<S = Shape> {
    /// Marketing name of the GPU.
    pub device: String,
    /// When the run began, RFC 3339 in UTC.
    pub date: String,
    /// Version of the GPU's driver; `None` if unknown.
    pub driver: Option<String>,
    /// Version of each program and library.
    pub versions: BTreeMap<String, String>,
    /// The rate at which the device copies its memory: 10^9 bytes a second, read and written together. Old files
    /// lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_gbs: Option<f64>,
    /// Seed of the inputs.
    pub seed: u64,
    /// Timed launches of each contender and shape, unless its [`Speed`] says fewer.
    pub iters: usize,
    /// Untimed launches of each contender, before the timed ones.
    pub warmup: usize,
    /// One measurement for each shape.
    pub measurements: Vec<Measurement<S>>,
}

/// How fast each contender computes one shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement<S = Shape> {
    /// The computed shape.
    pub shape: S,
    /// The project's kernels, the default one first.
    pub kernels: Vec<Timing>,
    /// Other implementations.
    pub peers: Vec<Timing>,
}

/// How fast one contender is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// The kernel's name in the project's table, or the peer's.
    pub name: String,
    /// Splits of the keys in a kernel of the project. Old files lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub splits: Option<u32>,
    /// `None` if the peer does not serve the shape.
    pub speed: Option<Speed>,
}

/// Times of a launch, and the rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// Median of the samples.
    pub median_ms: f64,
    /// The fastest sample.
    pub min_ms: f64,
    /// 10^12 floating-point operations a second, at the median.
    pub tflops: f64,
    /// Timed launches, if fewer than the run's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<usize>,
}

impl Speed {
    /// The speed of launches of `flops` operations each, from their times.
    pub fn new(flops: f64, samples_ms: &[f64]) -> Self {
        let median_ms = stats::median(samples_ms);
        Speed {
            median_ms,
            min_ms: stats::minimum(samples_ms),
            tflops: flops / median_ms / 1e9,
            samples: None,
        }
    }
}

impl<S: Subject> Measurement<S> {
    /// The rate of the named peer, if it served the shape.
    pub fn peer(&self, name: &str) -> Option<f64> {
        let timing = self.peers.iter().find(|timing| timing.name == name)?;
        Some(timing.speed?.tflops)
    }

    /// 10^9 bytes of inputs and outputs a second, each counted once.
    pub fn gbs(&self, kernel: &Timing) -> Option<f64> {
        Some(self.shape.bytes() / kernel.speed?.median_ms / 1e6)
    }

    /// The rate of a kernel over the rate of [`Subject::BASELINE`].
    pub fn ratio(&self, kernel: &Timing) -> Option<f64> {
        Some(kernel.speed?.tflops / self.peer(S::BASELINE)?)
    }
}

impl<S: Subject> Results<S> {
    /// Names of the peers, in the order of the first shape.
    pub fn peers(&self) -> Vec<&str> {
        let peers = self.measurements.first().map(|first| &first.peers);
        let peers = peers.into_iter().flatten();
        peers.map(|timing| timing.name.as_str()).collect()
    }

    /// `DEVICE-DATE.json`, or `DEVICE-DATE-SUFFIX.json`.
    pub fn file_name(&self, suffix: Option<&str>) -> String {
        let day = self.date.split('T').next().unwrap_or_default();
        let parts = [Some(self.device.as_str()), Some(day), suffix];
        let parts: Vec<_> = parts.into_iter().flatten().map(slug).collect();
        format!("{}.json", parts.join("-"))
    }

    /// Writes the file and the folders it is in.
    pub fn save(&self, path: &Path) -> Result<()> {
        let write = || {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::write(path, serde_json::to_string_pretty(self)? + "\n")
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not a file of results", path.display()))
    }
}

/// Lower-case letters and digits, with single hyphens for everything between.
pub fn slug(name: &str) -> String {
    let lower = name.to_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    words.join("-")
}

#[cfg(test)]
pub mod tests {
    use super::{Measurement, Results, Speed, Timing, slug};
    use crate::gemm::{self, GemmShape};
    use crate::grid::Grid;
    use crate::shape::BASELINE;
    use crate::subject::Subject;

    /// Results of a grid in which a kernel takes 1 ms, the baseline `ratio(i)` ms on shape `i`, and another peer
    /// serves no shape.
    pub fn results(grid: &Grid, ratio: impl Fn(usize) -> f64) -> Results {
        let shapes = grid.shapes().expect("a valid grid");
        let measurements = shapes.into_iter().enumerate().map(|(i, shape)| {
            let flops = shape.flops().expect("a valid shape");
            let timing = |name: &str, ms: Option<f64>| Timing {
                name: name.to_owned(),
                splits: (name == "forward_x").then_some(1),
                speed: ms.map(|ms| Speed::new(flops, &[ms, ms, 2.0 * ms])),
            };
            Measurement {
                shape,
                kernels: vec![timing("forward_x", Some(1.0))],
                peers: vec![timing(BASELINE, Some(ratio(i))), timing("other", None)],
            }
        });
        Results {
            device: "NVIDIA H200".to_owned(),
            date: "2026-11-21T04:26:00Z".to_owned(),
            driver: None,
            versions: [("ferroattn".to_owned(), "0.1.0".to_owned())].into(),
            copy_gbs: Some(4000.0),
            seed: 0,
            iters: 3,
            warmup: 0,
            measurements: measurements.collect(),
        }
    }

    /// Results of the grid of matrix products; kernels and baseline take 1 ms.
    pub fn products() -> Results<GemmShape> {
        let timing = |name: &str, shape: &GemmShape| Timing {
            name: name.to_owned(),
            splits: None,
            speed: Some(Speed::new(shape.flops().expect("valid"), &[1.0])),
        };
        let attention = results(&Grid::Quick, |_| 1.0);
        Results {
            device: attention.device,
            date: "2026-11-21T05:26:00Z".to_owned(),
            driver: attention.driver,
            versions: attention.versions,
            copy_gbs: attention.copy_gbs,
            seed: 0,
            iters: 1,
            warmup: 0,
            measurements: gemm::shapes()
                .into_iter()
                .map(|shape| Measurement {
                    shape,
                    kernels: vec![timing("gemm_x", &shape)],
                    peers: vec![timing(GemmShape::BASELINE, &shape)],
                })
                .collect(),
        }
    }

    #[test]
    fn slugs_have_no_other_characters() {
        assert_eq!(slug("NVIDIA GeForce RTX 4090"), "nvidia-geforce-rtx-4090");
        assert_eq!(slug(" NVIDIA  H100/PCIe (80GB) "), "nvidia-h100-pcie-80gb");
        assert_eq!(slug("2026-11-21"), "2026-11-21");
    }

    #[test]
    fn files_are_named_by_device_and_day() {
        let results = results(&Grid::Quick, |_| 1.0);
        assert_eq!(results.file_name(None), "nvidia-h200-2026-11-21.json");
        assert_eq!(
            results.file_name(Some("my grid")),
            "nvidia-h200-2026-11-21-my-grid.json"
        );
    }

    #[test]
    fn a_rate_comes_from_the_median() {
        let speed = Speed::new(6e9, &[4.0, 2.0, 3.0]);
        assert_eq!((speed.median_ms, speed.min_ms), (3.0, 2.0));
        assert!((speed.tflops - 2.0).abs() < 1e-12);
    }

    #[test]
    fn only_fewer_samples_are_written() {
        let usual = Speed::new(6e9, &[2.0]);
        let line = r#"{"median_ms":2.0,"min_ms":2.0,"tflops":3.0}"#;
        assert_eq!(serde_json::to_string(&usual).expect("a line"), line);
        assert_eq!(serde_json::from_str::<Speed>(line).expect("a speed"), usual);
        let fewer = Speed {
            samples: Some(4),
            ..usual
        };
        let line = serde_json::to_string(&fewer).expect("a line");
        assert!(line.ends_with(r#""samples":4}"#), "{line}");
        assert_eq!(
            serde_json::from_str::<Speed>(&line).expect("a speed"),
            fewer
        );
    }
}
