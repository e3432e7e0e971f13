//! A drawing for terminals and SVG: grids of coloured cells, and notes that explain them.

use super::color::Color;

/// The drawing of one command.
pub struct Drawing {
    /// What it shows.
    pub title: String,
    /// Rows from top to bottom, each from left to right.
    pub rows: Vec<Vec<Slot>>,
}

/// One place of a drawing.
pub enum Slot {
    /// Lines of explanation.
    Notes(Vec<Note>),
    /// A grid.
    Panel(Panel),
}

/// A line of explanation: coloured words, then plain ones.
pub struct Note {
    /// A legend's entries.
    pub swatches: Vec<(Color, String)>,
    /// What it says.
    pub text: String,
}

impl Note {
    /// Plain words.
    pub fn text(text: impl Into<String>) -> Self {
        Note {
            swatches: Vec::new(),
            text: text.into(),
        }
    }

    /// Plain lines.
    pub fn lines(lines: impl IntoIterator<Item = impl Into<String>>) -> Vec<Self> {
        lines.into_iter().map(Note::text).collect()
    }

    /// The colours of lanes; the later of four lanes are paler.
    pub fn lanes() -> Self {
        let quad = |g: u32| (Color::lane(4 * g), format!("{}-{}", 4 * g, 4 * g + 3));
        Note {
            swatches: (0..8).map(quad).collect(),
            text: "lanes".to_owned(),
        }
    }

    /// The colours of groups of banks.
    pub fn banks() -> Self {
        Note {
            swatches: (0..8).map(|g| (Color::hue(g), banks(g))).collect(),
            text: "banks".to_owned(),
        }
    }
}

/// The four banks that a 16-byte chunk lies in.
pub fn banks(group: u32) -> String {
    format!("{}-{}", 4 * group, 4 * group + 3)
}

/// A grid of cells.
pub struct Panel {
    /// What it shows.
    pub title: String,
    /// What its rows and columns count.
    pub corner: String,
    /// From top to bottom.
    pub rows: Vec<Group>,
    /// From left to right.
    pub columns: Vec<Group>,
    /// One cell for each row and column.
    pub cells: Vec<Vec<Cell>>,
}

/// Neighbouring rows or columns, apart from the next group.
pub struct Group {
    /// Shown above columns.
    pub title: String,
    /// One label for each row or column.
    pub labels: Vec<String>,
}

impl Group {
    /// Neighbours with a title, or `""`.
    pub fn new(title: &str, labels: impl IntoIterator<Item = impl ToString>) -> Self {
        Group {
            title: title.to_owned(),
            labels: labels.into_iter().map(|label| label.to_string()).collect(),
        }
    }

    /// The numbers `0..count` in groups of `size`, without titles.
    pub fn numbers(count: u32, size: u32) -> Vec<Self> {
        let firsts = (0..count).step_by(size as usize);
        let groups = firsts.map(|first| Group::new("", first..(first + size).min(count)));
        groups.collect()
    }

    /// Gives groups their titles.
    pub fn titled<const N: usize>(mut groups: Vec<Self>, titles: [&str; N]) -> Vec<Self> {
        for (group, title) in groups.iter_mut().zip(titles) {
            group.title = title.to_owned();
        }
        groups
    }
}

/// A cell of a grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The upper line.
    pub text: String,
    /// The lower line.
    pub detail: String,
    /// `None` for an unused cell.
    pub color: Option<Color>,
}

impl Cell {
    /// A used cell.
    pub fn new(text: impl ToString, detail: impl ToString, color: Color) -> Self {
        Cell {
            text: text.to_string(),
            detail: detail.to_string(),
            color: Some(color),
        }
    }

    /// An unused cell.
    pub fn unused() -> Self {
        Cell {
            text: String::new(),
            detail: String::new(),
            color: None,
        }
    }
}

impl Panel {
    /// `cell(row, column)` makes the cells.
    pub fn new(
        title: impl Into<String>,
        corner: &str,
        rows: Vec<Group>,
        columns: Vec<Group>,
        cell: impl Fn(u32, u32) -> Cell,
    ) -> Self {
        let count = |groups: &[Group]| groups.iter().map(|g| g.labels.len() as u32).sum::<u32>();
        let (height, width) = (count(&rows), count(&columns));
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
        let labels = self.rows.iter().flat_map(|group| &group.labels);
        let labels = labels.chain([&self.corner]).map(|label| chars(label));
        labels.max().unwrap_or(0)
    }

    /// Characters of the widest upper line.
    pub fn text_chars(&self) -> usize {
        let cells = self.cells.iter().flatten();
        cells.map(|cell| chars(&cell.text)).max().unwrap_or(0)
    }

    /// Characters of the widest lower line; 0 if there are none.
    pub fn detail_chars(&self) -> usize {
        let cells = self.cells.iter().flatten();
        cells.map(|cell| chars(&cell.detail)).max().unwrap_or(0)
    }

    /// Characters of the widest column label, or of a title's share for one column if wider.
    pub fn column_chars(&self) -> usize {
        let groups = self.columns.iter();
        let widths = groups.flat_map(|group| {
            let title = chars(&group.title).div_ceil(group.labels.len());
            group.labels.iter().map(|label| chars(label)).chain([title])
        });
        widths.max().unwrap_or(0)
    }

    /// Whether its groups of columns have titles.
    pub fn has_column_titles(&self) -> bool {
        self.columns.iter().any(|group| !group.title.is_empty())
    }
}

/// Characters of a text, each one column wide.
pub fn chars(text: &str) -> usize {
    text.chars().count()
}
