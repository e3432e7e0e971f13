//! A drawing as SVG.

use super::color::{Color, INK};
use super::drawing::{Axis, Drawing, Note, Panel, chars};
use std::collections::BTreeMap;
use svg::node::element::{Group, Path, Rectangle, Text};
use svg::{Document, Node};

const FAINT: Color = Color([0x5b, 0x64, 0x70]);
const UNUSED: Color = Color([0xee; 3]);
const MARGIN: f64 = 24.0;
/// Between figures.
const GAP: f64 = 36.0;
/// Between groups of rows or columns.
const GROUP_GAP: f64 = 6.0;
const TITLE: f64 = 20.0;
const NOTE: f64 = 13.0;
const NOTE_HEIGHT: f64 = 21.0;
const PANEL_TITLE: f64 = 14.0;
/// Upper and lower lines of cells.
const CELL: f64 = 12.5;
const DETAIL: f64 = 10.0;
const LABEL: f64 = 11.0;

/// A part of the picture at the origin.
#[derive(Default)]
struct Figure {
    group: Group,
    width: f64,
    height: f64,
}

/// The document.
pub fn render(drawing: &Drawing) -> String {
    let panels = |row: &Vec<Panel>| row.iter().map(panel).collect();
    let mut rows: Vec<Vec<Figure>> = drawing.rows.iter().map(panels).collect();
    rows[0].insert(0, notes(&drawing.notes));
    // Figures share columns. One that is alone in its row may be wider than its column.
    let mut widths: Vec<f64> = Vec::new();
    for row in rows.iter().filter(|row| row.len() > 1) {
        widths.resize(widths.len().max(row.len()), 0.0);
        for (width, figure) in widths.iter_mut().zip(row) {
            *width = width.max(figure.width);
        }
    }
    let title = (MARGIN, MARGIN + TITLE - 4.0, &*drawing.title);
    let mut figures = vec![texts(TITLE, INK, "start", [title])];
    let mut right = MARGIN + text_width(&drawing.title, TITLE);
    let mut bottom = MARGIN + TITLE + 18.0 - GAP;
    for row in rows {
        let (mut left, top) = (MARGIN, bottom + GAP);
        for (index, figure) in row.into_iter().enumerate() {
            right = right.max(left + figure.width);
            bottom = bottom.max(top + figure.height);
            let place = format!("translate({left} {top})");
            figures.push(figure.group.set("transform", place));
            left += widths.get(index).unwrap_or(&0.0) + GAP;
        }
    }
    let (width, height) = ((right + MARGIN).ceil(), (bottom + MARGIN).ceil());
    let background = Rectangle::new().set("width", "100%").set("height", "100%");
    let svg = Document::new()
        .set("viewBox", (0, 0, width, height))
        .set("width", width)
        .set("height", height)
        .set("font-family", "Helvetica, Arial, DejaVu Sans, sans-serif")
        .add(background.set("fill", "white"));
    let svg = figures.into_iter().fold(svg, Document::add);
    format!("{svg}\n")
}

/// About the width of a text, from an average letter's width.
fn text_width(text: &str, size: f64) -> f64 {
    0.52 * size * chars(text) as f64
}

fn notes(notes: &[Note]) -> Figure {
    let mut figure = Figure::default();
    for note in notes {
        let (mut x, y) = (0.0, figure.height);
        for (color, word) in &note.swatches {
            let width = 7.0 * chars(word) as f64 + 14.0;
            let middle = (x + width / 2.0, y + 12.5, &**word);
            let swatch = area(*color, rectangle(x, y, width - 1.0, 17.0));
            figure.group.append(swatch);
            figure.group.append(texts(LABEL, INK, "middle", [middle]));
            x += width;
        }
        if x > 0.0 {
            x += 10.0;
        }
        let text = (x, y + 13.0, &*note.text);
        figure.group.append(texts(NOTE, INK, "start", [text]));
        figure.width = figure.width.max(x + text_width(&note.text, NOTE));
        figure.height += NOTE_HEIGHT;
    }
    figure.height -= 6.0;
    figure
}

fn panel(panel: &Panel) -> Figure {
    let width = |chars: usize, size: f64| 0.62 * size * chars as f64 + 8.0;
    let [upper, lower] = panel.cell_chars();
    let widths = [
        width(upper, CELL),
        width(lower, DETAIL),
        width(panel.column_chars(), LABEL),
    ];
    let cell_width = widths.into_iter().fold(30.0, f64::max).round();
    let (cell_height, upper_y) = if lower > 0 {
        (32.0, 15.0)
    } else {
        (24.0, 16.0)
    };
    let left = (6.2 * panel.label_chars() as f64 + 10.0).round();
    let top = if panel.has_column_titles() {
        52.0
    } else {
        36.0
    };
    let edge =
        |axis: &Axis, at: usize, size: f64| size * at as f64 + GROUP_GAP * (at / axis.size) as f64;
    let x = |column| left + edge(&panel.columns, column, cell_width);
    let y = |row| top + edge(&panel.rows, row, cell_height);

    let mut areas: BTreeMap<Color, String> = BTreeMap::new();
    let (mut uppers, mut lowers) = (Vec::new(), Vec::new());
    for (row, cells) in panel.cells.iter().enumerate() {
        for (column, cell) in cells.iter().enumerate() {
            let (x, y) = (x(column), y(row));
            // Leaves a white line between cells.
            let area = rectangle(x, y, cell_width - 1.0, cell_height - 1.0);
            *areas.entry(cell.color.unwrap_or(UNUSED)).or_default() += &area;
            let middle = x + cell_width / 2.0;
            uppers.push((middle, y + upper_y, &*cell.lines[0]));
            lowers.push((middle, y + 26.5, &*cell.lines[1]));
        }
    }
    let mut names = Vec::new();
    for (column, label) in panel.columns.labels.iter().enumerate() {
        names.push((x(column) + cell_width / 2.0, top - 5.0, &**label));
    }
    let mut last = 0;
    for (title, labels) in panel.columns.groups() {
        let first = last;
        last += labels.len();
        let middle = (x(first) + x(last - 1) + cell_width) / 2.0;
        names.push((middle, top - 21.0, &**title));
    }
    let mut row_names = vec![(left - 7.0, top - 5.0, &*panel.corner)];
    for (row, label) in panel.rows.labels.iter().enumerate() {
        row_names.push((left - 7.0, y(row) + cell_height / 2.0 + 4.0, &**label));
    }

    let title = (0.0, 12.0, &*panel.title);
    let mut group = texts(PANEL_TITLE, INK, "start", [title]);
    for (color, rectangles) in areas {
        group.append(area(color, rectangles));
    }
    group.append(texts(CELL, INK, "middle", uppers));
    group.append(texts(DETAIL, INK, "middle", lowers));
    group.append(texts(LABEL, FAINT, "middle", names));
    group.append(texts(LABEL, FAINT, "end", row_names));
    let right = x(panel.columns.labels.len() - 1) + cell_width;
    Figure {
        group,
        width: text_width(&panel.title, PANEL_TITLE).max(right),
        height: y(panel.rows.labels.len() - 1) + cell_height,
    }
}

/// Lines of text of one style, each at its place.
fn texts<'a>(
    size: f64,
    color: Color,
    anchor: &str,
    lines: impl IntoIterator<Item = (f64, f64, &'a str)>,
) -> Group {
    let group = Group::new().set("font-size", size).set("fill", color.hex());
    let lines = lines.into_iter().filter(|(_, _, line)| !line.is_empty());
    let lines = lines.map(|(x, y, line)| Text::new(line).set("x", x).set("y", y));
    lines.fold(group.set("text-anchor", anchor), Group::add)
}

/// An area of one colour, of rectangles.
fn area(color: Color, rectangles: String) -> Path {
    Path::new().set("fill", color.hex()).set("d", rectangles)
}

fn rectangle(x: f64, y: f64, width: f64, height: f64) -> String {
    format!("M{x} {y}h{width}v{height}h-{width}z")
}
