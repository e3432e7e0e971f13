//! A drawing as text, with colours if the terminal has them.

use super::color::{Color, INK};
use super::drawing::{Drawing, Group, Note, Panel, Slot, chars};
use std::io::IsTerminal;

/// The colours of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Palette {
    /// No colours.
    None,
    /// 256 colours, which nearly every terminal has.
    Cube,
    /// Exact colours.
    Exact,
}

impl Palette {
    /// The palette of standard output.
    pub fn of_stdout() -> Self {
        let variable = |name| std::env::var(name).unwrap_or_default();
        let terminal = std::io::stdout().is_terminal();
        Self::choose(terminal, &variable("NO_COLOR"), &variable("COLORTERM"))
    }

    /// Files and pipes have no colours, nor has a terminal with `NO_COLOR` set.
    fn choose(terminal: bool, no_color: &str, colorterm: &str) -> Self {
        match colorterm {
            _ if !terminal || !no_color.is_empty() => Palette::None,
            "truecolor" | "24bit" => Palette::Exact,
            _ => Palette::Cube,
        }
    }

    /// Dark text on a colour.
    fn paint(self, text: &str, color: Option<Color>) -> String {
        let (Some(color), true) = (color, self != Palette::None) else {
            return text.to_owned();
        };
        let code = |Color([red, green, blue]): Color| match self {
            Palette::Exact => format!("2;{red};{green};{blue}"),
            _ => {
                // A cube of 6 levels: 0, then 95 to 255 in steps of 40.
                let level = |part: u8| u16::from(part.saturating_sub(35)) / 40;
                format!(
                    "5;{}",
                    16 + 36 * level(red) + 6 * level(green) + level(blue)
                )
            }
        };
        format!("\x1b[38;{};48;{}m{text}\x1b[0m", code(INK), code(color))
    }
}

/// Columns of the terminal; unlimited for files and pipes.
pub fn width() -> usize {
    comfy_table::Table::new()
        .width()
        .map_or(usize::MAX, usize::from)
}

/// A line, and how many columns it takes.
#[derive(Clone, Default)]
struct Line {
    text: String,
    width: usize,
}

impl Line {
    fn push(&mut self, text: &str) {
        self.text += text;
        self.width += chars(text);
    }

    fn paint(&mut self, text: &str, color: Option<Color>, palette: Palette) {
        self.text += &palette.paint(text, color);
        self.width += chars(text);
    }

    /// Spaces up to a column.
    fn pad(&mut self, width: usize) {
        self.push(&" ".repeat(width.saturating_sub(self.width)));
    }
}

const GAP: usize = 4;

/// The drawing as lines of text. Panels of a row stand beside each other where `width` allows.
pub fn render(drawing: &Drawing, palette: Palette, width: usize) -> String {
    let mut text = format!("{}\n", drawing.title);
    for row in &drawing.rows {
        let mut beside: Vec<Line> = Vec::new();
        for slot in row {
            let lines = match slot {
                Slot::Notes(notes) => notes.iter().map(|n| note(n, palette)).collect(),
                Slot::Panel(panel) => self::panel(panel, palette),
            };
            let widest = |lines: &[Line]| lines.iter().map(|line| line.width).max().unwrap_or(0);
            let left = widest(&beside);
            if left > 0 && left.saturating_add(GAP + widest(&lines)) > width {
                flush(&mut text, &mut beside);
            }
            append(&mut beside, lines);
        }
        flush(&mut text, &mut beside);
    }
    text
}

/// Appends lines to the right of others.
fn append(beside: &mut Vec<Line>, lines: Vec<Line>) {
    let left = beside.iter().map(|line| line.width).max();
    let left = left.map_or(0, |width| width + GAP);
    beside.resize(beside.len().max(lines.len()), Line::default());
    for (whole, line) in beside.iter_mut().zip(lines) {
        whole.pad(left);
        whole.text += &line.text;
        whole.width += line.width;
    }
}

/// Writes an empty line, then the lines.
fn flush(text: &mut String, lines: &mut Vec<Line>) {
    for line in std::iter::once(Line::default()).chain(lines.drain(..)) {
        *text += line.text.trim_end();
        text.push('\n');
    }
}

fn note(note: &Note, palette: Palette) -> Line {
    let mut line = Line::default();
    for (color, text) in &note.swatches {
        line.paint(&format!(" {text} "), Some(*color), palette);
    }
    if !note.swatches.is_empty() {
        line.push(" ");
    }
    line.push(&note.text);
    line
}

fn panel(panel: &Panel, palette: Palette) -> Vec<Line> {
    let label = panel.label_chars() + 1;
    let cell = panel.text_chars().max(panel.detail_chars());
    let cell = cell.max(panel.column_chars()) + 2;
    let mut lines = vec![Line::default()];
    lines[0].push(&panel.title);
    if panel.has_column_titles() {
        lines.push(columns(panel, "", label, |group, line| {
            let title = format!("{:^width$}", group.title, width = cell * group.labels.len());
            line.push(&title);
        }));
    }
    lines.push(columns(panel, &panel.corner, label, |group, line| {
        for label in &group.labels {
            line.push(&format!("{label:^cell$}"));
        }
    }));
    let mut cells = panel.cells.iter();
    for (index, rows) in panel.rows.iter().enumerate() {
        if index > 0 {
            lines.push(Line::default());
        }
        for (name, row) in rows.labels.iter().zip(&mut cells) {
            let mut draw = |name: &str, detail: bool| {
                let mut row = row.iter();
                lines.push(columns(panel, name, label, |group, line| {
                    for part in row.by_ref().take(group.labels.len()) {
                        let text = if detail { &part.detail } else { &part.text };
                        line.paint(&format!("{text:^cell$}"), part.color, palette);
                    }
                }));
            };
            draw(name, false);
            if panel.detail_chars() > 0 {
                draw("", true);
            }
        }
    }
    lines
}

/// A line of a panel: a label, then each group of columns by `draw`.
fn columns(
    panel: &Panel,
    name: &str,
    label: usize,
    mut draw: impl FnMut(&Group, &mut Line),
) -> Line {
    let mut line = Line::default();
    line.push(&format!("{name:>width$} ", width = label - 1));
    for (index, group) in panel.columns.iter().enumerate() {
        if index > 0 {
            line.push(" ");
        }
        draw(group, &mut line);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::super::drawing::Cell;
    use super::*;

    fn panel(name: &str) -> Panel {
        let columns = Group::titled(Group::numbers(3, 2), ["two", ""]);
        Panel::new(
            name,
            "r \\ c",
            Group::numbers(2, 1),
            columns,
            |row, column| match (row, column) {
                (1, 2) => Cell::unused(),
                _ => Cell::new(10 * row + column, "x", Color::lane(row)),
            },
        )
    }

    fn drawing() -> Drawing {
        let note = Note {
            swatches: vec![(Color::hue(0), "0".to_owned())],
            text: "bank".to_owned(),
        };
        Drawing {
            title: "Title".to_owned(),
            rows: vec![
                vec![Slot::Notes(vec![note])],
                vec![Slot::Panel(panel("left")), Slot::Panel(panel("right"))],
            ],
        }
    }

    const WIDE: &str = "\
Title

 0  bank

left                   right
        two                    two
r \\ c  0   1    2      r \\ c  0   1    2
    0  0   1    2          0  0   1    2
       x   x    x             x   x    x

    1  10  11              1  10  11
       x   x                  x   x
";

    #[test]
    fn panels_stand_beside_each_other() {
        assert_eq!(render(&drawing(), Palette::None, usize::MAX), WIDE);
        let widest = WIDE.lines().map(chars).max().unwrap();
        // The last column's cell ends in two spaces.
        assert_eq!(render(&drawing(), Palette::None, widest + 2), WIDE);
    }

    #[test]
    fn panels_that_do_not_fit_stand_below_each_other() {
        let text = render(&drawing(), Palette::None, 30);
        assert!(text.lines().all(|line| chars(line) <= 30), "{text}");
        assert_eq!(text.matches("right\n").count(), 1, "{text}");
    }

    #[test]
    fn colours_add_nothing_but_colours() {
        for palette in [Palette::Cube, Palette::Exact] {
            let painted = render(&drawing(), palette, usize::MAX);
            assert!(painted.contains("\x1b[38;"), "{painted}");
            let mut parts = painted.split('\x1b');
            let mut plain = parts.next().unwrap().to_owned();
            parts.for_each(|part| plain += part.split_once('m').unwrap().1);
            let lines = |text: &str| -> Vec<String> {
                text.lines()
                    .map(|line| line.trim_end().to_owned())
                    .collect()
            };
            assert_eq!(lines(&plain), lines(WIDE));
        }
    }

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        let choose = Palette::choose;
        assert_eq!(choose(false, "", "truecolor"), Palette::None);
        assert_eq!(choose(true, "1", "truecolor"), Palette::None);
        assert_eq!(choose(true, "", "truecolor"), Palette::Exact);
        assert_eq!(choose(true, "", ""), Palette::Cube);
    }

    #[test]
    fn the_cube_tells_colours_apart() {
        let distinct = |colors: &[Color]| {
            let painted = colors.iter().map(|c| Palette::Cube.paint("", Some(*c)));
            painted.collect::<std::collections::HashSet<_>>().len() == colors.len()
        };
        assert!(distinct(&[1, 2, 4, 8].map(|ways| Color::conflict(ways, 1))));
        assert!(distinct(&[0, 1, 2, 3, 4, 5, 6, 7].map(Color::hue)));
        // Paler shades of a hue may look alike there; the first shades differ.
        assert!(distinct(&[0, 4, 8, 12, 16, 20, 24, 28].map(Color::lane)));
    }

    #[test]
    fn the_cube_has_white_and_grey() {
        let paint = |color| Palette::Cube.paint("x", Some(Color(color)));
        assert!(paint([255; 3]).contains("48;5;231m"));
        assert!(paint([0; 3]).contains("48;5;16m"));
        assert!(paint([135, 95, 175]).contains("48;5;97m"));
    }
}
