//! A drawing for terminals and SVG: notes that explain, and grids of coloured cells.

use super::color::Color;

/// The drawing of one command.
pub struct Drawing {
    /// The subject of the drawing.
    pub title: String,
    /// The explanation, at the left of the first row.
    pub notes: Vec<Note>,
    /// Rows from top to bottom, each from left to right. The first may be empty.
    pub rows: Vec<Vec<Panel>>,
}

impl Drawing {
    /// A drawing that explains itself by the lines of `notes`.
    pub fn new(title: impl Into<String>, notes: &str) -> Self {
        let note = |text: &str| Note {
            swatches: Vec::new(),
            text: text.to_owned(),
        };
        Drawing {
            title: title.into(),
            notes: notes.lines().map(note).collect(),
            rows: vec![Vec::new()],
        }
    }

    /// Adds a note of coloured words.
    pub fn legend(mut self, text: &str, swatches: Vec<(Color, String)>) -> Self {
        let text = text.to_owned();
        self.notes.push(Note { swatches, text });
        self
    }

    /// Adds the colours of lanes; the later of four lanes are paler.
    pub fn legend_of_lanes(self) -> Self {
        let lanes = (0..8).map(|g| (Color::lane(4 * g), four(g)));
        self.legend("lanes", lanes.collect())
    }

    /// Adds a panel to the last row.
    pub fn beside(mut self, panel: Panel) -> Self {
        self.rows.last_mut().expect("a row").push(panel);
        self
    }

    /// Adds a panel in a new row.
    pub fn below(mut self, panel: Panel) -> Self {
        self.rows.push(vec![panel]);
        self
    }
}

/// The `group`th four numbers: lanes, or banks.
pub fn four(group: u32) -> String {
    format!("{}-{}", 4 * group, 4 * group + 3)
}

/// A line of explanation: a legend's coloured words, then plain ones.
pub struct Note {
    /// Colours, and what they stand for.
    pub swatches: Vec<(Color, String)>,
    /// The words of the line.
    pub text: String,
}

/// Rows or columns, in groups apart from each other.
pub struct Axis {
    /// One label for each row or column.
    pub labels: Vec<String>,
    /// Neighbours of a group; the last may have fewer.
    pub size: usize,
    titles: Vec<String>,
}

impl Axis {
    /// One group.
    pub fn new(labels: impl IntoIterator<Item = impl ToString>) -> Self {
        let labels: Vec<_> = labels.into_iter().map(|label| label.to_string()).collect();
        Axis {
            size: labels.len(),
            labels,
            titles: vec![String::new()],
        }
    }

    /// Groups of `size` neighbours.
    pub fn every(self, size: usize) -> Self {
        Axis { size, ..self }
    }

    /// Titles above the groups, which take turns at them.
    pub fn titled<const N: usize>(self, titles: [&str; N]) -> Self {
        let titles = titles.map(str::to_owned).into();
        Axis { titles, ..self }
    }

    /// Title and labels of each group.
    pub fn groups(&self) -> impl Iterator<Item = (&String, &[String])> {
        let groups = self.labels.chunks(self.size);
        self.titles.iter().cycle().zip(groups)
    }
}

/// A cell of a grid; the default is an unused one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// The upper and the lower line.
    pub lines: [String; 2],
    /// `None` for an unused cell.
    pub color: Option<Color>,
}

impl Cell {
    /// A used cell.
    pub fn new(upper: impl ToString, lower: impl ToString, color: Color) -> Self {
        Cell {
            lines: [upper.to_string(), lower.to_string()],
            color: Some(color),
        }
    }
}

/// A grid of cells.
pub struct Panel {
    /// The subject of the panel.
    pub title: String,
    /// The label of its corner: what its rows and columns count.
    pub corner: String,
    /// From top to bottom.
    pub rows: Axis,
    /// From left to right.
    pub columns: Axis,
    /// One cell for each row and column.
    pub cells: Vec<Vec<Cell>>,
}

impl Panel {
    /// `cell(row, column)` makes the cells.
    pub fn new(
        title: impl Into<String>,
        corner: &str,
        rows: Axis,
        columns: Axis,
        cell: impl Fn(u32, u32) -> Cell,
    ) -> Self {
        let [height, width] = [&rows, &columns].map(|axis| axis.labels.len() as u32);
        let row = |r| (0..width).map(|c| cell(r, c)).collect();
        Panel {
            title: title.into(),
            corner: corner.to_owned(),
            cells: (0..height).map(row).collect(),
            rows,
            columns,
        }
    }

    /// Characters of the widest row label.
    pub fn label_chars(&self) -> usize {
        widest(self.rows.labels.iter().chain([&self.corner]))
    }

    /// Characters of the widest upper and lower line of cells; no cell may have a lower one.
    pub fn cell_chars(&self) -> [usize; 2] {
        let cells = self.cells.iter().flatten();
        [0, 1].map(|line| widest(cells.clone().map(|cell| &cell.lines[line])))
    }

    /// Characters of the widest column label, or of a title's share for one column if wider.
    pub fn column_chars(&self) -> usize {
        let share = |(title, labels): (&String, &[String])| chars(title).div_ceil(labels.len());
        let shares = self.columns.groups().map(share);
        widest(&self.columns.labels).max(shares.max().unwrap_or(0))
    }

    /// Whether its groups of columns have titles.
    pub fn has_column_titles(&self) -> bool {
        self.columns.groups().any(|(title, _)| !title.is_empty())
    }
}

/// Characters of a text, each one column wide.
pub fn chars(text: &str) -> usize {
    text.chars().count()
}

fn widest<'a>(texts: impl IntoIterator<Item = &'a String>) -> usize {
    let texts = texts.into_iter();
    texts.map(|text| chars(text)).max().unwrap_or(0)
}
