//! The timeline of a block's roles: a row for each role, and two for the products of each consumer.

use super::{Area, COLORS, Chart, FAINT, GRID, INK, text};
use crate::timeline::{Phase, Timeline};
use anyhow::Result;
use kernels::abi::Event;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Blocks of keys that are drawn, of which half come before the end of a tile.
const DRAWN: usize = 12;
const WIDTH: i32 = 1200;
/// The first and the last pixel of time.
const SPAN: [i32; 2] = [120, WIDTH - 20];
/// The first pixel below title and legend.
const TOP: i32 = 118;
const ROW: i32 = 22;
/// Between roles.
const GAP: i32 = 14;

const WAIT: RGBColor = RGBColor(0xd5, 0xd9, 0xdf);

/// The colours of what roles do, and what the legend calls them.
const LEGEND: [(&str, RGBColor); 8] = [
    ("Q Kᵀ, issued to waited for", COLORS[0]),
    ("P V, issued to waited for", COLORS[1]),
    ("issues products", COLORS[6]),
    ("softmax", COLORS[2]),
    ("rounds P", COLORS[5]),
    ("stores O", COLORS[3]),
    ("starts loads", COLORS[4]),
    ("waits", WAIT),
];

/// The colour of what a role does until it passes a point.
fn color(event: Event) -> RGBColor {
    let place = match event {
        Event::ScoresIssued | Event::ProductIssued => 2,
        Event::Softmax => 3,
        Event::P => 4,
        Event::Stored => 5,
        Event::NeedsK | Event::NeedsV => 6,
        Event::LoadsK
        | Event::LoadsV
        | Event::Q
        | Event::K
        | Event::V
        | Event::Scores
        | Event::Product => 7,
    };
    LEGEND[place].1
}

/// Products on the tensor cores: from the point at which operands are there to the point at which the result is.
const PRODUCTS: [(&str, Event, Event); 2] = [
    ("Q Kᵀ", Event::K, Event::Scores),
    ("P V", Event::V, Event::Product),
];

/// The chart of a timeline.
pub fn chart(timeline: &Timeline) -> Result<Chart> {
    let [from, to] = window(timeline);
    let consumers = timeline.consumers();
    let roles = consumers as i32 * (3 * ROW + GAP) + ROW;
    let bottom = TOP + roles + GAP;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH as u32, (bottom + 50) as u32));
        let root = root.into_drawing_area();
        root.fill(&WHITE)?;
        head(&root, timeline)?;
        let x = |clock: u32| {
            let share = f64::from(clock - from) / f64::from(to - from);
            SPAN[0] + (share * f64::from(SPAN[1] - SPAN[0])).round() as i32
        };
        axis(&root, [from, to], bottom, &x)?;
        let bar = |top: i32, span: [u32; 2], color: RGBColor, label: &str| -> Result<()> {
            let [start, end] = span.map(|clock| x(clock.clamp(from, to)));
            if start < end {
                root.draw(&Rectangle::new(
                    [(start, top), (end, top + ROW - 3)],
                    color.filled(),
                ))?;
            }
            if end - start > 7 * label.len() as i32 {
                let middle = ((start + end) / 2, top + (ROW - 3) / 2);
                let centred = Pos::new(HPos::Center, VPos::Center);
                root.draw_text(label, &text(11, WHITE).pos(centred), middle)?;
            }
            Ok(())
        };
        let name = |top: i32, name: &str| {
            let right = Pos::new(HPos::Right, VPos::Center);
            root.draw_text(
                name,
                &text(12, INK).pos(right),
                (SPAN[0] - 8, top + (ROW - 3) / 2),
            )
        };
        let mut top = TOP;
        for role in 0..=consumers {
            if role < consumers {
                for (product, (title, start, end)) in PRODUCTS.into_iter().enumerate() {
                    name(top, title)?;
                    for (block, points) in timeline.clocks[role].iter().enumerate() {
                        let [start, end] = [start, end].map(|event| points[event as usize]);
                        if let (Some(start), Some(end)) = (start, end) {
                            let block = (timeline.first + block).to_string();
                            bar(top, [start, end], LEGEND[product].1, &block)?;
                        }
                    }
                    top += ROW;
                }
                name(top, &format!("consumer {role}"))?;
            } else {
                name(top, "producer")?;
            }
            for Phase {
                event, from, to, ..
            } in timeline.phases(role)
            {
                bar(top, [from, to], color(event), "")?;
            }
            top += ROW + GAP;
        }
        root.present()?;
    }
    Ok((format!("{} {}", timeline.device, timeline.kernel), svg))
}

/// The drawn clocks: all consumers' work on the drawn blocks.
fn window(timeline: &Timeline) -> [u32; 2] {
    let consumers = &timeline.clocks[..timeline.consumers()];
    let is_start = |block: &usize| consumers[0][*block][Event::Q as usize].is_some();
    let end = (DRAWN / 2..consumers[0].len()).find(is_start);
    let first = end.map_or(0, |block| block - DRAWN / 2);
    let points = consumers
        .iter()
        .flat_map(|role| role.iter().skip(first).take(DRAWN));
    let clocks = || {
        points.clone().flat_map(|points| {
            points[Event::K as usize..=Event::P as usize]
                .iter()
                .flatten()
        })
    };
    let [from, to] = [clocks().min(), clocks().max()].map(|clock| clock.copied().unwrap_or(0));
    [from, to.max(from + 1)]
}

/// Title, where and when, legend.
fn head(root: &Area, timeline: &Timeline) -> Result<()> {
    let kernel = timeline.kernel.trim_start_matches("timeline_");
    let title = format!("One block of {kernel} over time");
    root.draw_text(&title, &text(20, INK), (24, 14))?;
    let day = timeline.date.split('T').next().unwrap_or_default();
    let mut subtitle = format!("{}; {}; {day}", timeline.shape, timeline.device);
    if let Some(driver) = &timeline.driver {
        subtitle += &format!(", driver {driver}");
    }
    root.draw_text(&subtitle, &text(12, FAINT), (24, 42))?;
    let mut left = 24;
    for (name, color) in LEGEND {
        root.draw(&Rectangle::new(
            [(left, 68), (left + 14, 82)],
            color.filled(),
        ))?;
        root.draw_text(name, &text(12, INK), (left + 20, 69))?;
        left += 40 + (6.4 * name.chars().count() as f64) as i32;
    }
    Ok(())
}

/// Lines and numbers of clocks.
fn axis(root: &Area, [from, to]: [u32; 2], bottom: i32, x: &impl Fn(u32) -> i32) -> Result<()> {
    let step = if to - from > 6000 { 1000 } else { 500 };
    let mut clock = 0;
    while clock <= to - from {
        let at = x(from + clock);
        root.draw(&PathElement::new(vec![(at, TOP - 8), (at, bottom)], GRID))?;
        let label = text(11, FAINT).pos(Pos::new(HPos::Center, VPos::Top));
        root.draw_text(&clock.to_string(), &label, (at, bottom + 4))?;
        clock += step;
    }
    let label = text(12, FAINT).pos(Pos::new(HPos::Center, VPos::Top));
    root.draw_text(
        "clocks; the numbers in products are blocks of keys",
        &label,
        ((SPAN[0] + SPAN[1]) / 2, bottom + 22),
    )?;
    Ok(())
}
