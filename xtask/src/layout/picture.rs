//! A drawing as SVG.

use super::color::{Color, INK};
use super::drawing::{Drawing, Note, Panel, Slot, chars};
use std::collections::BTreeMap;
use svg::node::element::{Group, Path, Rectangle, Text};
use svg::{Document, Node};

const FAINT: &str = "#5b6470";
const UNUSED: Color = Color([0xee; 3]);
const MARGIN: f64 = 24.0;
/// Between slots.
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

type Point = (f64, f64);

/// The document.
pub fn render(drawing: &Drawing) -> String {
    // Slots share columns. A slot that is alone in its row may be wider than its column.
    let mut widths: Vec<f64> = Vec::new();
    for row in drawing.rows.iter().filter(|row| row.len() > 1) {
        widths.resize(widths.len().max(row.len()), 0.0);
        for (width, slot) in widths.iter_mut().zip(row) {
            *width = width.max(size(slot).0);
        }
    }
    let columns = widths.iter().map(|width| width + GAP).sum::<f64>() - GAP;
    let alone = drawing.rows.iter().filter(|row| row.len() == 1);
    let alone = alone.map(|row| size(&row[0]).0).fold(0.0, f64::max);
    let width = columns.max(alone).max(text_width(&drawing.title, TITLE));
    let height = |row: &[Slot]| row.iter().map(|slot| size(slot).1).fold(0.0, f64::max);
    let rows = drawing.rows.iter().map(|row| height(row) + GAP);
    let header = MARGIN + TITLE + 18.0;
    let whole = header + rows.sum::<f64>() - GAP + MARGIN;

    let size = ((width + 2.0 * MARGIN).ceil(), whole.ceil());
    let background = Rectangle::new().set("width", "100%").set("height", "100%");
    let mut svg = Document::new()
        .set("viewBox", (0, 0, size.0, size.1))
        .set("width", size.0)
        .set("height", size.1)
        .set("font-family", "Helvetica, Arial, DejaVu Sans, sans-serif")
        .add(background.set("fill", "white"));
    let title = (MARGIN, MARGIN + TITLE - 4.0);
    svg.append(text(title, TITLE, &INK.hex(), &drawing.title));
    let mut top = header;
    for row in &drawing.rows {
        let mut left = MARGIN;
        for (index, slot) in row.iter().enumerate() {
            match slot {
                Slot::Notes(notes) => draw_notes(&mut svg, (left, top), notes),
                Slot::Panel(panel) => draw_panel(&mut svg, (left, top), panel),
            }
            left += widths.get(index).unwrap_or(&0.0) + GAP;
        }
        top += height(row) + GAP;
    }
    format!("{svg}\n")
}

/// Width and height of a slot.
fn size(slot: &Slot) -> Point {
    match slot {
        Slot::Notes(notes) => {
            let widths = notes
                .iter()
                .map(|note| swatches_width(note) + text_width(&note.text, NOTE));
            (
                widths.fold(0.0, f64::max),
                NOTE_HEIGHT * notes.len() as f64 - 6.0,
            )
        }
        Slot::Panel(panel) => {
            let grid = Grid::new((0.0, 0.0), panel);
            let (width, height) = grid.corner(panel.cells[0].len(), panel.cells.len());
            (width.max(text_width(&panel.title, PANEL_TITLE)), height)
        }
    }
}

/// About the width of a text, from an average letter's width.
fn text_width(text: &str, size: f64) -> f64 {
    0.52 * size * chars(text) as f64
}

fn swatch_width(text: &str) -> f64 {
    7.0 * chars(text) as f64 + 14.0
}

fn swatches_width(note: &Note) -> f64 {
    let swatches = note.swatches.iter();
    let width: f64 = swatches.map(|(_, text)| swatch_width(text)).sum();
    if width > 0.0 { width + 10.0 } else { 0.0 }
}

fn draw_notes(svg: &mut Document, (left, top): Point, notes: &[Note]) {
    for (index, note) in notes.iter().enumerate() {
        let y = top + NOTE_HEIGHT * index as f64;
        let mut x = left;
        for (color, text) in &note.swatches {
            let width = swatch_width(text);
            svg.append(rectangles(*color, [((x, y), (width - 1.0, 17.0))]));
            let middle = (x + width / 2.0, y + 12.5);
            svg.append(labels(LABEL, &INK.hex(), [(middle, text.as_str())]));
            x += width;
        }
        let place = (left + swatches_width(note), y + 13.0);
        svg.append(text(place, NOTE, &INK.hex(), &note.text));
    }
}

/// The places of a panel's cells.
struct Grid {
    left: f64,
    top: f64,
    cell: Point,
    /// Starts of columns and rows.
    x: Vec<f64>,
    y: Vec<f64>,
}

impl Grid {
    fn new((left, top): Point, panel: &Panel) -> Self {
        let width = |chars: usize, size: f64| 0.62 * size * chars as f64 + 8.0;
        let widths = [
            width(panel.text_chars(), CELL),
            width(panel.detail_chars(), DETAIL),
            width(panel.column_chars(), LABEL),
        ];
        let width = widths.into_iter().fold(30.0, f64::max).round();
        let details = panel.detail_chars() > 0;
        let cell = (width, if details { 32.0 } else { 24.0 });
        let edges = |groups: &[super::drawing::Group], size: f64| {
            let mut edges = Vec::new();
            let mut at = 0.0;
            for group in groups {
                for _ in &group.labels {
                    edges.push(at);
                    at += size;
                }
                at += GROUP_GAP;
            }
            edges
        };
        let titles = if panel.has_column_titles() { 16.0 } else { 0.0 };
        Grid {
            left: left + (6.2 * panel.label_chars() as f64 + 10.0).round(),
            top: top + 20.0 + titles + 16.0,
            cell,
            x: edges(&panel.columns, cell.0),
            y: edges(&panel.rows, cell.1),
        }
    }

    /// The upper left of a cell.
    fn place(&self, column: usize, row: usize) -> Point {
        (self.left + self.x[column], self.top + self.y[row])
    }

    /// The lower right of the cell before `column` and `row`.
    fn corner(&self, column: usize, row: usize) -> Point {
        let (x, y) = self.place(column - 1, row - 1);
        (x + self.cell.0, y + self.cell.1)
    }
}

fn draw_panel(svg: &mut Document, (left, top): Point, panel: &Panel) {
    let grid = Grid::new((left, top), panel);
    let middle = grid.cell.0 / 2.0;
    let ink = INK.hex();
    let title = (left, top + 12.0);
    svg.append(text(title, PANEL_TITLE, &ink, &panel.title));

    let mut colors: BTreeMap<Color, Vec<(Point, Point)>> = BTreeMap::new();
    let (mut texts, mut details) = (Vec::new(), Vec::new());
    let (text_y, detail_y) = match panel.detail_chars() > 0 {
        true => (15.0, 26.5),
        false => (16.0, 0.0),
    };
    for (row, cells) in panel.cells.iter().enumerate() {
        for (column, cell) in cells.iter().enumerate() {
            let (x, y) = grid.place(column, row);
            // Leaves a white line between cells.
            let (width, height) = (grid.cell.0 - 1.0, grid.cell.1 - 1.0);
            let rectangle = ((x, y), (width, height));
            let Some(color) = cell.color else {
                let color = UNUSED;
                colors.entry(color).or_default().push(rectangle);
                continue;
            };
            colors.entry(color).or_default().push(rectangle);
            texts.push(((x + middle, y + text_y), cell.text.as_str()));
            if !cell.detail.is_empty() {
                details.push(((x + middle, y + detail_y), cell.detail.as_str()));
            }
        }
    }
    for (color, places) in colors {
        svg.append(rectangles(color, places));
    }
    svg.append(labels(CELL, &ink, texts));
    svg.append(labels(DETAIL, &ink, details));

    let mut names = Vec::new();
    let mut column = 0;
    for group in &panel.columns {
        let first = grid.place(column, 0).0;
        for label in &group.labels {
            let x = grid.place(column, 0).0 + middle;
            names.push(((x, grid.top - 5.0), label.as_str()));
            column += 1;
        }
        let last = grid.corner(column, 1).0;
        if !group.title.is_empty() {
            let place = ((first + last) / 2.0, grid.top - 21.0);
            names.push((place, group.title.as_str()));
        }
    }
    svg.append(labels(LABEL, FAINT, names));
    let names = panel.rows.iter().flat_map(|group| &group.labels);
    for (row, name) in names.enumerate() {
        let y = grid.place(0, row).1 + grid.cell.1 / 2.0 + 4.0;
        svg.append(text((grid.left - 7.0, y), LABEL, FAINT, name).set("text-anchor", "end"));
    }
    let corner = (grid.left - 7.0, grid.top - 5.0);
    svg.append(text(corner, LABEL, FAINT, &panel.corner).set("text-anchor", "end"));
}

/// A line of text that starts at a place.
fn text((x, y): Point, size: f64, color: &str, line: &str) -> Text {
    let text = Text::new(line).set("x", x).set("y", y);
    text.set("font-size", size).set("fill", color)
}

/// Lines of text of one style, each with its middle at its place.
fn labels<'a>(size: f64, color: &str, lines: impl IntoIterator<Item = (Point, &'a str)>) -> Group {
    let group = Group::new().set("font-size", size).set("fill", color);
    let lines = lines.into_iter();
    lines.fold(
        group.set("text-anchor", "middle"),
        |group, ((x, y), line)| group.add(Text::new(line).set("x", x).set("y", y)),
    )
}

/// Rectangles of one colour, each an upper left corner and a size.
fn rectangles(color: Color, rectangles: impl IntoIterator<Item = (Point, Point)>) -> Path {
    let rectangles = rectangles.into_iter();
    let path: String = rectangles
        .map(|((x, y), (width, height))| format!("M{x} {y}h{width}v{height}h-{width}z"))
        .collect();
    Path::new().set("fill", color.hex()).set("d", path)
}
