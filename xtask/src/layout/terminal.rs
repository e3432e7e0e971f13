//! A drawing as text, with colours if the terminal has them.

use super::color::{Color, INK};
use super::drawing::{Drawing, Note, Panel, chars};
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

/// Texts beside each other, each with its background.
type Line = Vec<(String, Option<Color>)>;

/// Columns of the widest line.
fn widest<'a>(lines: impl IntoIterator<Item = &'a Line>) -> usize {
    let width = |line: &Line| line.iter().map(|(text, _)| chars(text)).sum();
    lines.into_iter().map(width).max().unwrap_or(0)
}

const GAP: usize = 4;

/// The drawing as lines of text. Panels of a row stand beside each other where `width` allows.
pub fn render(drawing: &Drawing, palette: Palette, width: usize) -> String {
    let mut lines = vec![vec![(drawing.title.clone(), None)]];
    let mut notes = Some(drawing.notes.iter().map(note).collect());
    for row in &drawing.rows {
        // Lines from `top` on, up to the column `right`, are the row's.
        let (mut top, mut right) = (lines.len(), 0);
        for block in notes.take().into_iter().chain(row.iter().map(panel)) {
            let block: Vec<Line> = block;
            if right == 0 || right + GAP + widest(&block) > width {
                lines.push(Line::new());
                (top, right) = (lines.len(), 0);
            }
            let left = if right > 0 { right + GAP } else { 0 };
            lines.resize(lines.len().max(top + block.len()), Line::new());
            for (line, part) in lines[top..].iter_mut().zip(block) {
                let space = " ".repeat(left - widest([&*line]));
                line.push((space, None));
                line.extend(part);
            }
            right = widest(&lines[top..]);
        }
    }
    let painted = lines.iter().map(|line| {
        let parts = line.iter().map(|(text, color)| palette.paint(text, *color));
        format!("{}\n", parts.collect::<String>().trim_end())
    });
    painted.collect()
}

fn note(note: &Note) -> Line {
    let swatches = note.swatches.iter();
    let mut line: Line = swatches
        .map(|(color, text)| (format!(" {text} "), Some(*color)))
        .collect();
    let space = if line.is_empty() { "" } else { " " };
    line.push((format!("{space}{}", note.text), None));
    line
}

fn panel(panel: &Panel) -> Vec<Line> {
    let label_width = panel.label_chars();
    let [upper, lower] = panel.cell_chars();
    let cell = upper.max(lower).max(panel.column_chars()) + 2;
    // A label, and a part for each column.
    let line = |label: &str, parts: &mut dyn Iterator<Item = (&str, Option<Color>)>| {
        let mut line = vec![(format!("{label:>label_width$}"), None)];
        for (_, labels) in panel.columns.groups() {
            line.push((" ".to_owned(), None));
            let parts = parts.take(labels.len());
            line.extend(parts.map(|(text, color)| (format!("{text:^cell$}"), color)));
        }
        line
    };
    let mut lines = vec![vec![(panel.title.clone(), None)]];
    if panel.has_column_titles() {
        let mut titles = " ".repeat(label_width);
        for (title, labels) in panel.columns.groups() {
            titles += &format!(" {title:^width$}", width = cell * labels.len());
        }
        lines.push(vec![(titles, None)]);
    }
    let mut labels = panel.columns.labels.iter().map(|label| (&**label, None));
    lines.push(line(&panel.corner, &mut labels));
    for (row, (label, cells)) in panel.rows.labels.iter().zip(&panel.cells).enumerate() {
        if row > 0 && row.is_multiple_of(panel.rows.size) {
            lines.push(Line::new());
        }
        let cells = |at: usize| cells.iter().map(move |cell| (&*cell.lines[at], cell.color));
        lines.push(line(label, &mut cells(0)));
        if lower > 0 {
            lines.push(line("", &mut cells(1)));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::drawing::{Axis, Cell};
    use super::*;

    fn panel(name: &str) -> Panel {
        let rows = Axis::new(0..2).every(1);
        let columns = Axis::new(0..3).every(2).titled(["two", ""]);
        Panel::new(name, "r \\ c", rows, columns, |row, column| {
            match (row, column) {
                (1, 2) => Cell::default(),
                _ => Cell::new(10 * row + column, "x", Color::lane(row)),
            }
        })
    }

    fn drawing() -> Drawing {
        Drawing::new("Title", "")
            .legend("bank", vec![(Color::hue(0), "0".to_owned())])
            .below(panel("left"))
            .beside(panel("right"))
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
