//! `bench plot`: charts of results, as SVG, and tables of rates in Markdown.

mod bars;
mod curves;
mod folder;
mod rates;
mod timeline;

use crate::args::Plot;
use crate::results::{Results, slug};
use crate::shape::Pass;
use crate::terminal::print;
use crate::timeline::Timeline;
use anyhow::{Context, Result, bail, ensure};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const FAINT: RGBColor = RGBColor(0x6b, 0x72, 0x80);
const GRID: RGBColor = RGBColor(0xe5, 0xe7, 0xeb);
/// The project first; colour-blind readers tell these apart, too (Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x00, 0x00),
];

/// The legend's name of the kernel that the library takes by itself.
const DEFAULT: &str = "this project";

/// A chart: the end of its file's name, and the SVG.
type Chart = (String, String);

/// Draws the given results, or the results of the folder: curves of the newest full grid of each pass, bars of the
/// ladder, timelines.
///
/// # Errors
/// If no results can be drawn, or a file cannot be read or written.
pub fn run(args: &Plot) -> Result<()> {
    let timelines = match &args.file {
        Some(file) => Timeline::load(file).into_iter().collect(),
        None => folder::timelines(&args.results)?,
    };
    let all = match &args.file {
        Some(_) if !timelines.is_empty() => Vec::new(),
        Some(file) => {
            let products = folder::has_products(file);
            ensure!(!products, "{} has matrix products; {DRAWN}", file.display());
            vec![Results::load(file)?]
        }
        None => folder::all(&args.results)?,
    };
    let charts = charts(&all, &timelines)?;
    if let ([], Some(file), [only]) = (&charts[..], &args.file, &all[..]) {
        let reason = curves::obstacle(only).unwrap_or("is empty");
        bail!("{} {reason}; {DRAWN}", file.display());
    }
    ensure!(!charts.is_empty(), "nothing to draw: {DRAWN}");
    std::fs::create_dir_all(&args.charts)
        .with_context(|| format!("cannot write {}", args.charts.display()))?;
    for (name, svg) in charts {
        let path = args.charts.join(name).with_extension("svg");
        std::fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
        print(path.display());
    }
    // A single file has not all that a table shows.
    let tables = if args.file.is_none() {
        &args.tables[..]
    } else {
        &[]
    };
    for path in tables {
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let filled = rates::fill(&text, &all).with_context(|| path.display().to_string())?;
        std::fs::write(path, filled).with_context(|| format!("cannot write {}", path.display()))?;
        print(path.display());
    }
    Ok(())
}

const DRAWN: &str = "charts are of several sequence lengths, as of --grid full or backward, of the ladder, or timelines";

/// Every chart of these results, which are in the order of their dates, and of timelines.
fn charts(all: &[Results], timelines: &[Timeline]) -> Result<Vec<Chart>> {
    let mut charts = Vec::new();
    for pass in [Pass::Forward, Pass::Backward] {
        if let Some(newest) = all.iter().rfind(|results| curves::shows(results, pass)) {
            charts.extend(curves::charts(newest, pass)?);
        }
    }
    charts.extend(bars::chart(all)?);
    for timeline in timelines {
        charts.push(timeline::chart(timeline)?);
    }
    for (name, _) in &mut charts {
        *name = slug(name);
    }
    Ok(charts)
}

/// Text of a size in pixels.
fn text(size: u32, color: RGBColor) -> TextStyle<'static> {
    ("Helvetica, Arial, DejaVu Sans, sans-serif", size)
        .into_font()
        .color(&color)
}

/// Text that stands above its position.
fn above(size: u32, color: RGBColor) -> TextStyle<'static> {
    text(size, color).pos(Pos::new(HPos::Left, VPos::Bottom))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A white picture with a title, and the area for panels of this size below it. The line at 72 is free for
/// a legend.
fn canvas<'a>(
    svg: &'a mut String,
    (width, height): (u32, u32),
    results: &Results,
    title: &str,
) -> Result<(Area<'a>, Area<'a>)> {
    let root = SVGBackend::with_string(svg, (width, height + 96)).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw_text(title, &text(20, INK), (48, 14))?;
    let day = results.date.split('T').next().unwrap_or_default();
    let mut subtitle = format!("median of {}; {day}", results.iters);
    if let Some(driver) = &results.driver {
        subtitle += &format!(", driver {driver}");
    }
    for name in ["torch", "cudnn"] {
        if let Some(version) = results.versions.get(name) {
            subtitle += &format!(", {name} {version}");
        }
    }
    root.draw_text(&subtitle, &text(12, FAINT), (48, 42))?;
    let (_, body) = root.split_vertically(90);
    Ok((root, body))
}

#[cfg(test)]
mod tests {
    use super::folder::{all, timelines};
    use super::{charts, rates, run};
    use crate::args::Plot;
    use crate::grid::Grid;
    use crate::results::tests::{products, results};
    use crate::results::{Results, Timing, slug};
    use std::path::Path;

    #[test]
    fn charts_of_the_repository_are_current() {
        let folder = Path::new("RESULTS");
        let timelines = timelines(folder).expect("readable");
        let all = all(folder).expect("results");
        let drawn = charts(&all, &timelines).expect("drawn");
        assert_eq!(
            drawn.len(),
            5 + timelines.len(),
            "two element types of two passes, the ladder, timelines"
        );
        for (name, svg) in drawn {
            let kept = std::fs::read_to_string(format!("charts/{name}.svg"));
            assert!(
                kept.is_ok_and(|kept| kept == svg),
                "{name}: type cargo xtask plot"
            );
        }
        for path in ["../README.md", "../docs/performance.md"] {
            let kept = std::fs::read_to_string(path).expect("a document");
            assert!(kept.contains("<!-- rates"), "{path} has no table");
            let filled = rates::fill(&kept, &all).expect("filled");
            assert!(kept == filled, "{path}: type cargo xtask plot");
        }
    }

    #[test]
    fn what_makes_no_chart_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let [results, charts] = ["results", "charts"].map(|name| folder.path().join(name));
        let quick = self::results(&Grid::Quick, |_| 0.5);
        quick.save(&results.join("quick.json")).expect("written");
        products()
            .save(&results.join("gemm.json"))
            .expect("written");
        for file in [None, Some("quick.json"), Some("gemm.json")] {
            let error = run(&Plot {
                file: file.map(|name| results.join(name)),
                results: results.clone(),
                charts: charts.clone(),
                tables: Vec::new(),
            });
            let error = format!("{:#}", error.expect_err("refused"));
            assert!(error.contains("--grid full"), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        assert!(!charts.exists());
    }

    #[test]
    fn a_chart_has_room_for_the_names_of_its_bars() {
        let mut tall = ladder();
        for measurement in &mut tall.measurements {
            let naive = measurement.kernels[0].clone();
            measurement.kernels.extend((0..12).map(|i| Timing {
                name: format!("rung-{i}"),
                ..naive.clone()
            }));
        }
        let width = |ladder| {
            let drawn = charts(&[ladder], &[]).expect("drawn");
            let (_, svg) = &drawn[0];
            let width = svg.split('"').nth(1).expect("the first attribute");
            width.parse::<u32>().expect("a width in pixels")
        };
        assert_eq!(width(ladder()), 1000);
        // naive, split-q, twelve rungs and a peer; the longest name takes 78 pixels.
        assert!(width(tall) >= 15 * 78);
    }

    #[test]
    fn the_ladder_stands_beside_the_default_kernel_of_its_shape() {
        let ladder = ladder();
        // The newest measurement, whose file writes the defaults out.
        let default = |date: &str, tflops: f64| {
            let mut default = results(&Grid::Ladder, |_| 0.5);
            default.date = date.to_owned();
            for measurement in &mut default.measurements {
                measurement.shape = measurement.shape.resolved();
                let speed = measurement.kernels[0].speed.as_mut();
                speed.expect("measured").tflops = tflops;
            }
            default
        };
        let all = [
            default("2026-11-20", 111.0),
            ladder,
            default("2026-11-22", 777.0),
        ];
        let drawn = charts(&all, &[]).expect("drawn");
        let (_, svg) = drawn.last().expect("bars");
        assert_eq!(svg.matches("\n777\n").count(), 5, "a bar for each head dim");
        assert!(!svg.contains("\n111\n"));
    }

    /// Results of rungs, of which one is measured with an option, too.
    fn ladder() -> Results {
        let mut ladder = results(&Grid::Ladder, |_| 0.5);
        for measurement in &mut ladder.measurements {
            let rung = |name: &str| {
                let mut rung = measurement.kernels[0].clone();
                name.clone_into(&mut rung.name);
                rung
            };
            measurement.kernels = ["naive", "split-q", "split-q:stages=1"].map(rung).into();
        }
        ladder
    }

    #[test]
    fn bars_are_of_rungs_without_options_and_of_peers() {
        let full = results(&Grid::Full, |_| 0.5);
        let drawn = charts(&[full.clone(), ladder()], &[]).expect("drawn");
        let (name, svg) = drawn.last().expect("bars");
        assert_eq!(*name, slug("NVIDIA H200 ladder"));
        for word in [
            "naive",
            "split-q",
            "SDPA flash",
            "this project",
            "head dim 1024",
        ] {
            assert!(svg.contains(word), "{word}");
        }
        assert!(!svg.contains("stages=1") && !svg.contains("NaN"));
        let backward = results(&Grid::Backward, |_| 0.5);
        let both = charts(&[full.clone(), backward], &[]).expect("drawn");
        let names: Vec<_> = both.iter().map(|(name, _)| name.as_str()).collect();
        let expected = ["f16", "bf16", "backward-f16", "backward-bf16"];
        assert_eq!(names, expected.map(|name| format!("nvidia-h200-{name}")));
        assert_eq!(
            charts(&[full], &[]).expect("drawn").len(),
            2,
            "no bars without a ladder"
        );
        assert_eq!(
            charts(&[ladder()], &[]).expect("drawn").len(),
            1,
            "no curves of a ladder"
        );
    }
}
