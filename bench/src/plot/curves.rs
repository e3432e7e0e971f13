//! Curves of a grid: TFLOP/s over the sequence length, a panel for each head dim and mask.

use super::{Area, COLORS, Chart, DEFAULT, FAINT, GRID, INK, above, canvas, text};
use crate::choice::ANY_ORDER;
use crate::results::{Measurement, Results};
use crate::roofline::{self, Roofline};
use crate::shape::{Dtype, Pass};
use anyhow::Result;
use plotters::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Why results make no curves.
pub fn obstacle(results: &Results) -> Option<&'static str> {
    let panels: Vec<_> = KINDS.iter().map(|&kind| panels(results, kind)).collect();
    let mut panels = panels.iter().flatten().peekable();
    if panels.peek().is_none() {
        return Some("has nothing with as many queries as keys");
    }
    if !panels.all(|panel| panel.lines.values().any(|points| points.len() > 1)) {
        return Some("has not two lengths for each head dim and mask");
    }
    if results.measurements.iter().any(|m| m.shape.has_options()) {
        return Some("has calls with options");
    }
    // There are more of them than colours.
    let mut kernels = results.measurements.iter().flat_map(|m| &m.kernels);
    let has_options = kernels.any(|kernel| kernel.name.trim_end_matches(ANY_ORDER).contains(':'));
    has_options.then_some("has kernels with options")
}

/// Whether results hold curves of a pass.
pub fn shows(results: &Results, pass: Pass) -> bool {
    let mut measurements = results.measurements.iter();
    obstacle(results).is_none() && measurements.any(|m| m.shape.pass == pass)
}

/// A chart for each element type of a pass.
pub fn charts(results: &Results, pass: Pass) -> Result<Vec<Chart>> {
    let mut charts = Vec::new();
    for kind in KINDS.into_iter().filter(|kind| kind.pass == pass) {
        let panels = panels(results, kind);
        if !panels.is_empty() {
            let name = match pass {
                Pass::Forward => format!("{} {}", results.device, kind.dtype),
                Pass::Backward => format!("{} {pass} {}", results.device, kind.dtype),
            };
            charts.push((name, chart(results, kind, &panels)?));
        }
    }
    Ok(charts)
}

/// The properties that the shapes of one chart have in common.
#[derive(Clone, Copy)]
struct Kind {
    pass: Pass,
    dtype: Dtype,
}

impl Kind {
    const fn new(pass: Pass, dtype: Dtype) -> Self {
        Kind { pass, dtype }
    }
}

const KINDS: [Kind; 4] = [
    Kind::new(Pass::Forward, Dtype::F16),
    Kind::new(Pass::Forward, Dtype::Bf16),
    Kind::new(Pass::Backward, Dtype::F16),
    Kind::new(Pass::Backward, Dtype::Bf16),
];

/// One head dim and mask.
#[derive(Debug, PartialEq)]
struct Panel {
    dim: usize,
    causal: bool,
    /// Points of length and TFLOP/s, by name.
    lines: BTreeMap<String, Vec<(f64, f64)>>,
}

/// The panels of a chart, by head dim, full before causal. Where shapes share a length, the one
/// with the most heads is shown.
fn panels(results: &Results, Kind { pass, dtype }: Kind) -> Vec<Panel> {
    let mut shown: BTreeMap<(usize, bool, usize), &Measurement> = BTreeMap::new();
    for measurement in &results.measurements {
        let shape = &measurement.shape;
        let is_kind = (shape.pass, shape.dtype) == (pass, dtype);
        if !is_kind || shape.seqlen != shape.seqlen_kv() {
            continue;
        }
        let heads = |m: &Measurement| m.shape.batch * m.shape.heads;
        let entry = shown.entry((shape.dim, shape.causal, shape.seqlen));
        let most = entry.or_insert(measurement);
        if heads(measurement) > heads(most) {
            *most = measurement;
        }
    }
    let mut panels: Vec<Panel> = Vec::new();
    for ((dim, causal, seqlen), measurement) in shown {
        let is_new = |last: &Panel| (last.dim, last.causal) != (dim, causal);
        if panels.last().is_none_or(is_new) {
            let lines = BTreeMap::new();
            panels.push(Panel { dim, causal, lines });
        }
        let panel = panels.last_mut().expect("pushed if there was none");
        for (name, tflops) in points(measurement) {
            let line = panel.lines.entry(name).or_default();
            line.push((seqlen as f64, tflops));
        }
    }
    panels
}

/// Every contender's rate, by its name in all panels.
fn points(measurement: &Measurement) -> Vec<(String, f64)> {
    let dtype = measurement.shape.dtype;
    let kernels = measurement.kernels.iter().enumerate().map(|(i, timing)| {
        let name = match i {
            0 => DEFAULT.to_owned(),
            _ if timing.name.ends_with(ANY_ORDER) => "any order".to_owned(),
            _ => family(&timing.name, dtype),
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

/// A kernel's name without dtype and mask, which the panel names.
fn family(name: &str, dtype: Dtype) -> String {
    let prefixes = [Pass::Forward, Pass::Backward].map(|pass| format!("{pass}_{dtype}_"));
    let mut prefixes = prefixes.iter();
    let name = prefixes
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name);
    name.strip_suffix("_causal").unwrap_or(name).to_owned()
}

/// Every name in the panels: the default kernel, the peers in their order, other kernels.
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

fn chart(results: &Results, kind: Kind, panels: &[Panel]) -> Result<String> {
    let roofline = roofline::find(&results.device);
    let names = legend(results, panels);
    let points = || {
        panels
            .iter()
            .flat_map(|panel| panel.lines.values().flatten())
    };
    let lengths: BTreeSet<_> = points().map(|point| point.0 as u64).collect();
    let fastest = points().map(|point| point.1).fold(0.0, f64::max);
    let max = 1.06 * fastest.max(roofline.map_or(0.0, |roofline| roofline.dense));
    let dims: BTreeSet<_> = panels.iter().map(|panel| panel.dim).collect();
    let title = format!(
        "Attention {}, {}, on {}: TFLOP/s over sequence length",
        kind.pass, kind.dtype, results.device
    );
    let mut svg = String::new();
    {
        let (root, body) = canvas(&mut svg, (1000, 320 * dims.len() as u32), results, &title)?;
        let mut x = 48;
        for (i, name) in names.iter().enumerate() {
            root.draw(&PathElement::new([(x, 72), (x + 26, 72)], line(i)))?;
            root.draw(&dot((x + 13, 72), i))?;
            root.draw_text(name, &text(13, INK), (x + 33, 66))?;
            x += 60 + 8 * name.len() as i32;
        }
        let areas = body.split_evenly((dims.len(), 2));
        for panel in panels {
            let row = dims.range(..panel.dim).count();
            let area = &areas[2 * row + usize::from(panel.causal)];
            draw(area, panel, &names, &lengths, max, roofline)?;
        }
        root.present()?;
    }
    Ok(svg)
}

fn draw(
    area: &Area,
    panel: &Panel,
    names: &[String],
    lengths: &BTreeSet<u64>,
    max: f64,
    roofline: Option<Roofline>,
) -> Result<()> {
    let ticks: Vec<_> = lengths.iter().map(|&length| length as f64).collect();
    // Half a doubling of room at both ends.
    let ends = (
        ticks[0] / 2_f64.sqrt(),
        ticks[ticks.len() - 1] * 2_f64.sqrt(),
    );
    let mask = if panel.causal { "causal" } else { "full" };
    area.draw_text(
        &format!("head dim {}, {mask}", panel.dim),
        &text(14, INK),
        (48, 4),
    )?;
    let x = (ends.0..ends.1)
        .log_scale()
        .base(2.0)
        .with_key_points(ticks);
    let mut chart = ChartBuilder::on(area);
    chart.margin_top(26).margin_right(14).margin_bottom(8);
    let mut chart = chart
        .set_left_and_bottom_label_area_size(44)
        .build_cartesian_2d(x, 0.0..max)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(FAINT);
    mesh.label_style(text(12, FAINT));
    let whole = |number: &f64| format!("{number:.0}");
    mesh.y_labels(6)
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .draw()?;
    let ceilings = roofline.map(|r| [(Some(r.dense), "peak"), (r.mma_sync, "mma.sync")]);
    for (rate, name) in ceilings.into_iter().flatten() {
        let Some(rate) = rate else { continue };
        let line = [(ends.0, rate), (ends.1, rate)];
        chart.draw_series(DashedLineSeries::new(line, 6, 4, FAINT.into()))?;
        let place = (ends.0 * 1.03, rate + 0.01 * max);
        let label = Text::new(format!("{name} {rate:.0}"), place, above(11, FAINT));
        chart.plotting_area().draw(&label)?;
    }
    // The project's own line comes last, on top.
    for (i, name) in names.iter().enumerate().rev() {
        if let Some(points) = panel.lines.get(name) {
            chart.draw_series(LineSeries::new(points.iter().copied(), line(i)))?;
            chart.draw_series(points.iter().map(|&point| dot(point, i)))?;
        }
    }
    Ok(())
}

fn line(index: usize) -> ShapeStyle {
    COLORS[index % COLORS.len()].stroke_width(if index == 0 { 3 } else { 2 })
}

fn dot<C>(at: C, index: usize) -> Circle<C, i32> {
    let radius = if index == 0 { 5 } else { 4 };
    Circle::new(at, radius, COLORS[index % COLORS.len()].filled())
}

#[cfg(test)]
mod tests {
    use super::{Kind, charts, family, obstacle, panels};
    use crate::grid::Grid;
    use crate::results::tests::results;
    use crate::shape::{Dtype, Pass};

    #[test]
    fn a_panel_for_each_head_dim_and_mask() {
        let results = results(&Grid::Full, |_| 0.5);
        let kind = Kind::new(Pass::Forward, Dtype::Bf16);
        let panels = panels(&results, kind);
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
            assert_eq!(lengths, [512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0]);
        }
        // At 8192, the shape with 2 * 16 heads, not the shapes with 8 and 1: the test's times are all
        // the same, so the rate tells which.
        let flops = 4.0 * 32.0 * 8192.0_f64.powi(2) * 64.0;
        let (seqlen, tflops) = panels[0].lines["this project"][4];
        assert_eq!(seqlen, 8192.0);
        assert!((tflops - flops / 1e9).abs() < 1e-6, "{tflops}");
    }

    #[test]
    fn charts_name_all_they_show() {
        let drawn = [
            (Grid::Full, Pass::Forward),
            (Grid::Backward, Pass::Backward),
        ];
        let drawn = drawn.map(|(grid, pass)| {
            let charts = charts(&results(&grid, |_| 0.5), pass).expect("drawn");
            assert_eq!(charts.len(), 2);
            let titles =
                [Dtype::F16, Dtype::Bf16].map(|dtype| format!("{pass}, {dtype}, on NVIDIA H200"));
            charts.into_iter().zip(titles).collect::<Vec<_>>()
        });
        for ((_, svg), title) in drawn.concat() {
            for word in [
                "this project",
                "SDPA flash",
                "head dim 256, causal",
                "mma.sync 650",
                "16384",
                &title,
            ] {
                assert!(svg.contains(word), "{word}");
            }
            assert!(!svg.contains("NaN") && !svg.contains("inf"));
            assert!(!svg.contains("other"), "it has no line");
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
    }

    #[test]
    fn names_say_what_the_panel_does_not() {
        assert_eq!(family("forward_f16_d96_causal", Dtype::F16), "d96");
        assert_eq!(family("forward_bf16_d64_64x64", Dtype::Bf16), "d64_64x64");
        assert_eq!(family("backward_f16_d64", Dtype::F16), "d64");
    }
}
