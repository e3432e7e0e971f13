//! `bench plot`: charts of results, one for each element type.
//!
//! A chart has a panel for each head dim and mask, with TFLOP/s over the sequence length. Of several
//! shapes of one length it shows the one with the most queries, so that a line speaks of one thing.

use crate::args::Plot;
use crate::print;
use crate::results::{self, Measurement, Results, slug};
use crate::roofline::{self, Roofline};
use crate::shape::Dtype;
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use svg::{Anchor, Stroke, Svg};

const PANEL: (f64, f64) = (410.0, 250.0);
const MARGIN_LEFT: f64 = 58.0;
const GAP: (f64, f64) = (54.0, 64.0);
const HEADER: f64 = 126.0;
const FOOTER: f64 = 58.0;

const INK: &str = "#222222";
const FAINT: &str = "#6b7280";
const GRID: &str = "#e5e7eb";
/// The project's default kernel first; told apart by colour-blind readers too (Okabe and Ito).
const COLORS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000",
];

/// What the device can do at best.
const CEILING: Stroke = Stroke {
    color: FAINT,
    width: 1.2,
    dashes: "6 4",
};

/// Writes the charts of the given or the newest results.
///
/// # Errors
/// If there are no results that can be drawn, or a file cannot be read or written.
pub fn run(args: &Plot) -> Result<()> {
    let file = match &args.file {
        Some(file) => file.clone(),
        // No decode shapes, nor the ladder's.
        None => results::newest(&args.results, |results| obstacle(results).is_none())
            .with_context(|| format!("nothing to draw: {DRAWN}"))?,
    };
    if results::has_products(&file) {
        bail!("{} has matrix products; {DRAWN}", file.display());
    }
    let results = Results::load(&file)?;
    if let Some(reason) = obstacle(&results) {
        bail!("{} {reason}; {DRAWN}", file.display());
    }
    for (dtype, svg) in charts(&results) {
        let name = format!("{}-{dtype}.svg", slug(&results.device));
        let path = args.charts.join(name);
        std::fs::create_dir_all(&args.charts)
            .and_then(|()| std::fs::write(&path, svg))
            .with_context(|| format!("cannot write {}", path.display()))?;
        print(path.display());
    }
    Ok(())
}

/// What can be drawn.
const DRAWN: &str = "charts are of attention over several sequence lengths, as of --grid full";

/// Why results make no charts.
fn obstacle(results: &Results) -> Option<&'static str> {
    let panels = [Dtype::F16, Dtype::Bf16].map(|dtype| panels(results, dtype));
    let mut panels = panels.iter().flatten().peekable();
    if panels.peek().is_none() {
        return Some("has nothing with as many queries as keys");
    }
    if !panels.all(|panel| panel.lines.values().any(|points| points.len() > 1)) {
        return Some("has not two lengths for each head dim and mask");
    }
    // There are more of them than colours.
    let mut kernels = results.measurements.iter().flat_map(|m| &m.kernels);
    let has_options = kernels.any(|kernel| kernel.name.contains(':'));
    has_options.then_some("has kernels with options")
}

/// The charts, by element type.
fn charts(results: &Results) -> Vec<(Dtype, String)> {
    let charts = [Dtype::F16, Dtype::Bf16].map(|dtype| {
        let panels = panels(results, dtype);
        (!panels.is_empty()).then(|| (dtype, chart(results, dtype, &panels)))
    });
    charts.into_iter().flatten().collect()
}

/// One head dim and mask.
#[derive(Debug, PartialEq)]
struct Panel {
    dim: usize,
    causal: bool,
    /// By name: points of length and TFLOP/s.
    lines: BTreeMap<String, Vec<(usize, f64)>>,
}

/// The panels of an element type: by head dim, full before causal.
fn panels(results: &Results, dtype: Dtype) -> Vec<Panel> {
    let mut shown: BTreeMap<(usize, bool, usize), &Measurement> = BTreeMap::new();
    for measurement in &results.measurements {
        let shape = &measurement.shape;
        if shape.dtype != dtype || shape.seqlen != shape.seqlen_kv() {
            continue;
        }
        let queries = |m: &Measurement| m.shape.batch * m.shape.heads;
        let entry = shown.entry((shape.dim, shape.causal, shape.seqlen));
        let best = entry.or_insert(measurement);
        if queries(measurement) > queries(best) {
            *best = measurement;
        }
    }
    let mut panels: Vec<Panel> = Vec::new();
    for ((dim, causal, seqlen), measurement) in shown {
        if panels
            .last()
            .is_none_or(|last| (last.dim, last.causal) != (dim, causal))
        {
            panels.push(Panel {
                dim,
                causal,
                lines: BTreeMap::new(),
            });
        }
        let panel = panels.last_mut().expect("pushed if there was none");
        for (name, tflops) in points(measurement) {
            panel.lines.entry(name).or_default().push((seqlen, tflops));
        }
    }
    panels
}

/// The name of the project's default kernel in the charts, whatever kernel that is.
const DEFAULT: &str = "this project";

/// Every contender's rate, by the name it goes by in all panels.
fn points(measurement: &Measurement) -> Vec<(String, f64)> {
    let shape = &measurement.shape;
    let kernels = measurement.kernels.iter().enumerate().map(|(i, timing)| {
        let name = match i {
            0 => DEFAULT.to_owned(),
            _ => family(&timing.name, shape.dtype),
        };
        (name, timing.speed)
    });
    let peers = measurement.peers.iter();
    let peers = peers.map(|timing| (timing.name.clone(), timing.speed));
    let points = kernels.chain(peers);
    points
        .filter_map(|(name, speed)| Some((name, speed?.tflops)))
        .collect()
}

/// What a kernel's name says beside dtype and mask, which the panel says already.
fn family(name: &str, dtype: Dtype) -> String {
    let prefix = format!("forward_{dtype}_");
    let name = name.strip_prefix(&prefix).unwrap_or(name);
    name.strip_suffix("_causal").unwrap_or(name).to_owned()
}

/// Everybody in the panels, the default kernel first, then the peers in their order.
fn legend(results: &Results, panels: &[Panel]) -> Vec<String> {
    let drawn: BTreeSet<_> = panels.iter().flat_map(|panel| panel.lines.keys()).collect();
    let known = [DEFAULT].into_iter().chain(results.peers());
    let mut names: Vec<_> = known.map(str::to_owned).collect();
    names.retain(|name| drawn.contains(name));
    let others = drawn.into_iter().filter(|name| !names.contains(name));
    let others: Vec<_> = others.cloned().collect();
    names.extend(others);
    names
}

/// Maps lengths and rates to a panel's pixels.
struct Axes {
    left: f64,
    top: f64,
    lengths: (f64, f64),
    max: f64,
}

impl Axes {
    fn x(&self, seqlen: usize) -> f64 {
        // Half a doubling of room at both ends.
        let (low, high) = (self.lengths.0 - 0.5, self.lengths.1 + 0.5);
        self.left + ((seqlen as f64).log2() - low) / (high - low) * PANEL.0
    }

    fn y(&self, tflops: f64) -> f64 {
        self.top + (1.0 - tflops / self.max) * PANEL.1
    }
}

fn chart(results: &Results, dtype: Dtype, panels: &[Panel]) -> String {
    let roofline = roofline::find(&results.device);
    let dims: BTreeSet<_> = panels.iter().map(|panel| panel.dim).collect();
    let lines = || {
        panels
            .iter()
            .flat_map(|panel| panel.lines.values().flatten())
    };
    let fastest = lines().map(|point| point.1).fold(0.0, f64::max);
    let max = 1.06 * fastest.max(roofline.map_or(0.0, |roofline| roofline.dense));
    let logarithms = || lines().map(|point| (point.0 as f64).log2());
    let lengths = (
        logarithms().fold(f64::INFINITY, f64::min),
        logarithms().fold(f64::NEG_INFINITY, f64::max),
    );
    let ticks: BTreeSet<_> = lines().map(|point| point.0).collect();
    let legend = legend(results, panels);

    let width = MARGIN_LEFT + 2.0 * PANEL.0 + GAP.0 + 20.0;
    let rows = dims.len() as f64;
    let height = HEADER + rows * (PANEL.1 + GAP.1) - GAP.1 + FOOTER;
    let mut svg = Svg::new(width, height);
    header(&mut svg, results, dtype, &legend);
    for panel in panels {
        let row = dims.range(..panel.dim).count() as f64;
        let column = f64::from(u8::from(panel.causal));
        let axes = Axes {
            left: MARGIN_LEFT + column * (PANEL.0 + GAP.0),
            top: HEADER + row * (PANEL.1 + GAP.1),
            lengths,
            max,
        };
        draw_axes(&mut svg, &axes, panel, &ticks);
        if row + 1.0 == rows {
            let below = (axes.left + PANEL.0 / 2.0, axes.top + PANEL.1 + 38.0);
            svg.text(below, 12.0, FAINT, Anchor::Middle, "sequence length");
        }
        if let Some(roofline) = roofline {
            draw_roofline(&mut svg, &axes, roofline);
        }
        // The project's own line comes last, on top.
        for (index, name) in legend.iter().enumerate().rev() {
            if let Some(points) = panel.lines.get(name) {
                draw_line(&mut svg, &axes, index, points);
            }
        }
    }
    svg.finish()
}

fn header(svg: &mut Svg, results: &Results, dtype: Dtype, legend: &[String]) {
    let day = results.date.split('T').next().unwrap_or_default();
    let title = format!("Attention forward, {dtype}, on {}", results.device);
    svg.text((MARGIN_LEFT, 34.0), 20.0, INK, Anchor::Start, &title);
    let mut subtitle = format!(
        "TFLOP/s over sequence length, median of {}; {day}",
        results.iters
    );
    if let Some(driver) = &results.driver {
        subtitle += &format!(", driver {driver}");
    }
    for name in ["torch", "cudnn"] {
        if let Some(version) = results.versions.get(name) {
            subtitle += &format!(", {name} {version}");
        }
    }
    svg.text((MARGIN_LEFT, 55.0), 12.0, FAINT, Anchor::Start, &subtitle);
    let y = 78.0;
    let mut x = MARGIN_LEFT;
    let mut entry = |name: &str, stroke: Stroke, radius: f64| {
        svg.polyline(&[(x, y), (x + 26.0, y)], stroke);
        if radius > 0.0 {
            svg.dot((x + 13.0, y), radius, stroke.color);
        }
        svg.text((x + 33.0, y + 4.5), 13.0, INK, Anchor::Start, name);
        // The width of the text is not known, but that of its letters on average.
        x += 33.0 + 7.6 * name.len() as f64 + 22.0;
    };
    for (index, name) in legend.iter().enumerate() {
        entry(name, stroke(index), radius(index));
    }
    if roofline::find(&results.device).is_some() {
        entry("ceiling of dense f16 products", CEILING, 0.0);
    }
}

fn draw_axes(svg: &mut Svg, axes: &Axes, panel: &Panel, ticks: &BTreeSet<usize>) {
    let mask = if panel.causal { "causal" } else { "full" };
    let title = format!("head dim {}, {mask}", panel.dim);
    let (left, right, bottom) = (axes.left, axes.left + PANEL.0, axes.top + PANEL.1);
    svg.text((left, axes.top - 8.0), 13.0, INK, Anchor::Start, &title);
    let thin = |color| Stroke {
        color,
        width: 1.0,
        dashes: "",
    };
    let step = step(axes.max);
    let mut rate = 0.0;
    while rate <= axes.max {
        let y = axes.y(rate);
        let line = if rate == 0.0 { FAINT } else { GRID };
        svg.polyline(&[(left, y), (right, y)], thin(line));
        let label = format!("{rate}");
        svg.text((left - 7.0, y + 4.0), 11.0, FAINT, Anchor::End, &label);
        rate += step;
    }
    for &seqlen in ticks {
        let x = axes.x(seqlen);
        svg.polyline(&[(x, bottom), (x, bottom + 4.0)], thin(FAINT));
        let label = seqlen.to_string();
        svg.text((x, bottom + 17.0), 11.0, FAINT, Anchor::Middle, &label);
    }
}

/// A round distance of ticks, four to ten of which reach the maximum.
fn step(max: f64) -> f64 {
    let decade = 10.0_f64.powf((max / 4.0).log10().floor());
    let steps = [5.0, 2.0, 1.0].map(|step| step * decade);
    steps
        .into_iter()
        .find(|step| max / step >= 4.0)
        .unwrap_or(decade)
}

fn draw_roofline(svg: &mut Svg, axes: &Axes, roofline: Roofline) {
    let mut ceiling = |tflops: f64, label: &str, below: f64| {
        let y = axes.y(tflops);
        svg.polyline(&[(axes.left, y), (axes.left + PANEL.0, y)], CEILING);
        let label = format!("{label} {tflops:.0}");
        let place = (axes.left + 4.0, y + below);
        svg.text(place, 10.5, FAINT, Anchor::Start, &label);
    };
    ceiling(roofline.dense, "peak", 13.0);
    if let Some(tflops) = roofline.mma_sync {
        ceiling(tflops, "mma.sync", -5.0);
    }
}

fn draw_line(svg: &mut Svg, axes: &Axes, index: usize, points: &[(usize, f64)]) {
    let points = points
        .iter()
        .map(|&(seqlen, tflops)| (axes.x(seqlen), axes.y(tflops)));
    let points: Vec<_> = points.collect();
    svg.polyline(&points, stroke(index));
    for point in points {
        svg.dot(point, radius(index), color(index));
    }
}

fn color(index: usize) -> &'static str {
    COLORS[index % COLORS.len()]
}

fn stroke(index: usize) -> Stroke<'static> {
    Stroke {
        color: color(index),
        width: if index == 0 { 3.2 } else { 1.8 },
        // Once the colours begin again, dashes tell the lines apart.
        dashes: if index < COLORS.len() { "" } else { "5 3" },
    }
}

fn radius(index: usize) -> f64 {
    if index == 0 { 5.0 } else { 3.8 }
}

#[cfg(test)]
mod tests {
    use super::{charts, family, obstacle, panels, run, step};
    use crate::args::Plot;
    use crate::grid::Grid;
    use crate::results::tests::{products, results};
    use crate::shape::Dtype;

    #[test]
    fn a_panel_for_each_head_dim_and_mask() {
        let results = results(&Grid::Full, |_| 0.5);
        let panels = panels(&results, Dtype::Bf16);
        let keys: Vec<_> = panels
            .iter()
            .map(|panel| (panel.dim, panel.causal))
            .collect();
        let dims = [64, 128, 256];
        assert_eq!(keys, dims.map(|dim| [(dim, false), (dim, true)]).concat());
        for panel in &panels {
            assert_eq!(panel.lines.len(), 2, "one peer serves nothing");
            let points = &panel.lines["this project"];
            let lengths: Vec<_> = points.iter().map(|point| point.0).collect();
            assert_eq!(lengths, [512, 1024, 2048, 4096, 8192, 16384]);
        }
        // At 8192, the shape with 2 * 16 heads, not those with 8 and 1: the test's times are all
        // the same, so the rate tells which.
        let flops = 4.0 * 32.0 * 8192.0_f64.powi(2) * 64.0;
        let (seqlen, tflops) = panels[0].lines["this project"][4];
        assert_eq!(seqlen, 8192);
        assert!((tflops - flops / 1e9).abs() < 1e-6, "{tflops}");
    }

    #[test]
    fn charts_name_all_they_show() {
        let charts = charts(&results(&Grid::Full, |_| 0.5));
        assert_eq!(charts.len(), 2);
        for (dtype, svg) in charts {
            for word in [
                "this project",
                "SDPA flash",
                "head dim 256, causal",
                "mma.sync 650",
                "16384",
                &format!("forward, {dtype}, on NVIDIA H200"),
            ] {
                assert!(svg.contains(word), "{word}");
            }
            assert!(!svg.contains("NaN") && !svg.contains("inf"));
            assert!(!svg.contains(">other<"), "it has no line");
        }
    }

    #[test]
    fn what_makes_no_curves_is_refused() {
        assert_eq!(obstacle(&results(&Grid::Full, |_| 0.5)), None);
        for (grid, expected) in [
            (Grid::Quick, "two lengths"),
            (Grid::Ladder, "two lengths"),
            (Grid::Decode, "as many queries as keys"),
        ] {
            let reason = obstacle(&results(&grid, |_| 0.5)).expect("no curves");
            assert!(reason.contains(expected), "{grid:?}: {reason}");
        }
        let mut ladder = results(&Grid::Full, |_| 0.5);
        let mut other = ladder.measurements[0].kernels[0].clone();
        other.name = "split-q:stages=1".to_owned();
        ladder.measurements[0].kernels.push(other);
        assert_eq!(obstacle(&ladder), Some("has kernels with options"));
        // A file that is named is refused, and of a folder none is taken.
        let folder = tempfile::tempdir().expect("a folder");
        let [results, charts] = ["results", "charts"].map(|name| folder.path().join(name));
        ladder.save(&results.join("ladder.json")).expect("written");
        products()
            .save(&results.join("gemm.json"))
            .expect("written");
        for file in [None, Some("ladder.json"), Some("gemm.json")] {
            let error = run(&Plot {
                file: file.map(|name| results.join(name)),
                results: results.clone(),
                charts: charts.clone(),
            });
            let error = format!("{:#}", error.expect_err("refused"));
            assert!(error.contains("--grid full"), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        assert!(!charts.exists());
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(step(1048.0), 200.0);
        assert_eq!(step(324.0), 50.0);
        assert_eq!(step(4.1), 1.0);
        assert_eq!(step(0.45), 0.1);
    }

    #[test]
    fn names_say_what_the_panel_does_not() {
        assert_eq!(family("forward_f16_d96_causal", Dtype::F16), "d96");
        assert_eq!(family("forward_bf16_d64_64x64", Dtype::Bf16), "d64_64x64");
    }
}
