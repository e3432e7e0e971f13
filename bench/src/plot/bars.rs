//! Bars of the ladder: TFLOP/s of each rung, a panel for each head dim.

use super::{Area, COLORS, Chart, DEFAULT, FAINT, GRID, INK, canvas, text};
use crate::results::{Measurement, Results};
use crate::shape::Shape;
use anyhow::{Context, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::BTreeMap;

/// Pixels that the longest name of a bar takes, and pixels beside all bars.
const NAME: u32 = 78;
const MARGINS: u32 = 64;

/// One head dim.
#[derive(Debug, PartialEq)]
struct Panel {
    shape: Shape,
    /// The rungs, the default kernel, the peers: name, colour and TFLOP/s.
    bars: Vec<(String, RGBColor, f64)>,
}

/// The chart, if there are results of the ladder.
pub fn chart(all: &[Results]) -> Result<Option<Chart>> {
    let Some(newest) = all
        .iter()
        .rfind(|results| results.measurements.iter().any(is_ladder))
    else {
        return Ok(None);
    };
    let panels = panels(all.iter().filter(|results| results.device == newest.device));
    let title = format!("The ladder, f16, on {}: TFLOP/s", newest.device);
    let bars = || panels.iter().flat_map(|panel| &panel.bars);
    let max = 1.15 * bars().map(|bar| bar.2).fold(0.0, f64::max);
    // The first head dim has every rung.
    let mut names: Vec<&str> = Vec::new();
    for (name, ..) in bars() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let width = (MARGINS + NAME * names.len() as u32).max(1000);
    let mut svg = String::new();
    {
        let size = (width, 200 * panels.len() as u32);
        let (root, body) = canvas(&mut svg, size, newest, &title)?;
        for (area, panel) in body.split_evenly((panels.len(), 1)).iter().zip(&panels) {
            draw(area, panel, &names, max)?;
        }
        root.present()?;
    }
    Ok(Some((format!("{} ladder", newest.device), svg)))
}

/// Whether kernels of the ladder were measured: the first rung is always among them.
fn is_ladder(measurement: &Measurement) -> bool {
    measurement
        .kernels
        .iter()
        .any(|kernel| kernel.name == "naive")
}

/// The newest measurements of each head dim, of results in the order of their dates.
fn panels<'a>(results: impl Iterator<Item = &'a Results> + Clone) -> Vec<Panel> {
    let measurements = results.flat_map(|results| &results.measurements);
    let ladders = measurements
        .clone()
        .filter(|measurement| is_ladder(measurement));
    let newest: BTreeMap<usize, _> = ladders.map(|m| (m.shape.dim, m)).collect();
    let panel = |ladder: &Measurement| {
        let shape = ladder.shape.resolved();
        let same = measurements
            .clone()
            .filter(|m| m.shape.resolved() == shape && !is_ladder(m));
        let default = same.last().and_then(|m| m.kernels.first()).into_iter();
        // Options stand behind a colon.
        let rungs = ladder
            .kernels
            .iter()
            .filter(|kernel| !kernel.name.contains(':'));
        let rungs = rungs.map(|kernel| (kernel.name.as_str(), COLORS[4], kernel));
        let default = default.map(|kernel| (DEFAULT, COLORS[0], kernel));
        let peers = ladder
            .peers
            .iter()
            .map(|peer| (peer.name.as_str(), GREY, peer));
        let bars = rungs.chain(default).chain(peers);
        let bars = bars.filter_map(|(name, color, timing)| {
            Some((name.to_owned(), color, timing.speed?.tflops))
        });
        Panel {
            shape: ladder.shape,
            bars: bars.collect(),
        }
    };
    newest.into_values().map(panel).collect()
}

const GREY: RGBColor = RGBColor(0xb6, 0xbc, 0xc6);

/// Draws a panel, in which every name has the place that it has in the others.
fn draw(area: &Area, Panel { shape, bars }: &Panel, names: &[&str], max: f64) -> Result<()> {
    let title = format!(
        "head dim {}: batch {}, {} heads, {} queries and keys",
        shape.dim, shape.batch, shape.heads, shape.seqlen
    );
    area.draw_text(&title, &text(14, INK), (48, 4))?;
    let mut chart = ChartBuilder::on(area);
    chart.margin_top(26).margin_right(14).margin_bottom(10);
    chart.x_label_area_size(24).y_label_area_size(48);
    let places = (0..names.len() - 1).into_segmented();
    let mut chart = chart.build_cartesian_2d(places, 0.0..max)?;
    let name = |at: &SegmentValue<usize>| match at {
        SegmentValue::CenterOf(i) if bars.iter().any(|bar| bar.0 == names[*i]) => names[*i].into(),
        _ => String::new(),
    };
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(FAINT);
    mesh.x_labels(names.len())
        .x_label_formatter(&name)
        .label_style(text(12, INK));
    mesh.y_labels(5)
        .y_label_formatter(&|rate| format!("{rate:.0}"))
        .draw()?;
    let style = text(12, INK).pos(Pos::new(HPos::Center, VPos::Bottom));
    for (name, color, rate) in bars {
        let i = names
            .iter()
            .position(|other| other == name)
            .context("a name without a place")?;
        let ends = [
            (SegmentValue::Exact(i), 0.0),
            (SegmentValue::Exact(i + 1), *rate),
        ];
        let mut bar = Rectangle::new(ends, color.filled());
        bar.set_margin(0, 0, 8, 8);
        let digits = usize::from(*rate < 100.0);
        let label = Text::new(
            format!("{rate:.digits$}"),
            (SegmentValue::CenterOf(i), *rate),
            style.clone(),
        );
        chart.draw_series([bar])?;
        chart.draw_series([label])?;
    }
    Ok(())
}
