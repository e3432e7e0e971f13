//! A drawing as SVG.

use super::color::{Color, INK};
use super::drawing::{self, Drawing, Note, Panel, chars};
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
    let columns = edges(&panel.columns, left, cell_width);
    let rows = edges(&panel.rows, top, cell_height);

    let mut areas: BTreeMap<Color, String> = BTreeMap::new();
    let (mut uppers, mut lowers) = (Vec::new(), Vec::new());
    for (cells, &y) in panel.cells.iter().zip(rows.iter().flatten()) {
        for (cell, &x) in cells.iter().zip(columns.iter().flatten()) {
            // Leaves a white line between cells.
            let area = rectangle(x, y, cell_width - 1.0, cell_height - 1.0);
            *areas.entry(cell.color.unwrap_or(UNUSED)).or_default() += &area;
            let middle = x + cell_width / 2.0;
            uppers.push((middle, y + upper_y, &*cell.lines[0]));
            lowers.push((middle, y + 26.5, &*cell.lines[1]));
        }
    }
    let mut names = Vec::new();
    for (group, edges) in panel.columns.iter().zip(&columns) {
        let middles = edges.iter().map(|x| x + cell_width / 2.0);
        let labels = middles.zip(&group.labels);
        names.extend(labels.map(|(x, label)| (x, top - 5.0, &**label)));
        let middle = (edges[0] + edges[edges.len() - 1] + cell_width) / 2.0;
        names.push((middle, top - 21.0, &*group.title));
    }
    let labels = panel.rows.iter().flat_map(|group| &group.labels);
    let labels = rows.iter().flatten().zip(labels);
    let mut row_names = vec![(left - 7.0, top - 5.0, &*panel.corner)];
    row_names.extend(labels.map(|(y, label)| (left - 7.0, y + cell_height / 2.0 + 4.0, &**label)));

    let title = (0.0, 12.0, &*panel.title);
    let mut group = texts(PANEL_TITLE, INK, "start", [title]);
    for (color, rectangles) in areas {
        group.append(area(color, rectangles));
    }
    group.append(texts(CELL, INK, "middle", uppers));
    group.append(texts(DETAIL, INK, "middle", lowers));
    group.append(texts(LABEL, FAINT, "middle", names));
    group.append(texts(LABEL, FAINT, "end", row_names));
    let end = |edges: &[Vec<f64>]| edges.iter().flatten().fold(0.0, |_, edge| *edge);
    Figure {
        group,
        width: text_width(&panel.title, PANEL_TITLE).max(end(&columns) + cell_width),
        height: end(&rows) + cell_height,
    }
}

/// Where each row or column of each group starts.
fn edges(groups: &[drawing::Group], start: f64, size: f64) -> Vec<Vec<f64>> {
    let mut next = start - GROUP_GAP;
    let mut edges = |group: &drawing::Group| {
        let first = next + GROUP_GAP;
        next = first + size * group.labels.len() as f64;
        let labels = 0..group.labels.len();
        labels.map(|label| first + size * label as f64).collect()
    };
    groups.iter().map(&mut edges).collect()
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
