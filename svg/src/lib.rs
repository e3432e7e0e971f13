//! A little SVG.

use std::fmt::{Display, Write};

/// A picture under construction; lengths are pixels, y grows downwards.
pub struct Svg {
    body: String,
    width: f64,
    height: f64,
}

/// Where a text's position lies in it.
#[derive(Clone, Copy, Debug)]
pub enum Anchor {
    /// At its left end.
    Start,
    /// In the middle.
    Middle,
    /// At its right end.
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// How a line looks.
#[derive(Clone, Copy, Debug)]
pub struct Stroke<'a> {
    /// As `#rrggbb`.
    pub color: &'a str,
    /// Its thickness.
    pub width: f64,
    /// Lengths of dashes and gaps; empty for a solid line.
    pub dashes: &'a str,
}

impl Svg {
    /// A white picture.
    #[must_use]
    pub fn new(width: f64, height: f64) -> Self {
        Svg {
            body: String::new(),
            width,
            height,
        }
    }

    /// Straight lines from point to point.
    pub fn polyline(&mut self, points: &[(f64, f64)], stroke: Stroke) {
        let points: Vec<_> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        self.element(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" \
             stroke-dasharray=\"{}\" stroke-linejoin=\"round\"/>",
            points.join(" "),
            stroke.color,
            stroke.width,
            stroke.dashes
        ));
    }

    /// A filled circle with a white rim.
    pub fn dot(&mut self, (x, y): (f64, f64), radius: f64, color: &str) {
        self.element(format_args!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{color}\" stroke=\"white\"/>"
        ));
    }

    /// One line of text.
    pub fn text(&mut self, (x, y): (f64, f64), size: f64, color: &str, anchor: Anchor, text: &str) {
        let anchor = anchor.name();
        self.element(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{color}\" \
             text-anchor=\"{anchor}\">{}</text>",
            escape(text)
        ));
    }

    /// Lines of text in one style, each centred at its position.
    pub fn labels<'a>(
        &mut self,
        size: f64,
        color: &str,
        labels: impl IntoIterator<Item = ((f64, f64), &'a str)>,
    ) {
        self.element(format_args!(
            "<g font-size=\"{size}\" fill=\"{color}\" text-anchor=\"middle\">"
        ));
        for ((x, y), text) in labels {
            self.element(format_args!(
                "<text x=\"{x}\" y=\"{y}\">{}</text>",
                escape(text)
            ));
        }
        self.element("</g>");
    }

    /// Filled rectangles of one colour, each a corner (left, top) and a size (width, height).
    pub fn rectangles(
        &mut self,
        color: &str,
        rectangles: impl IntoIterator<Item = ((f64, f64), (f64, f64))>,
    ) {
        let path: String = rectangles
            .into_iter()
            .map(|((x, y), (width, height))| format!("M{x} {y}h{width}v{height}h-{width}z"))
            .collect();
        self.element(format_args!("<path fill=\"{color}\" d=\"{path}\"/>"));
    }

    /// The document.
    #[must_use]
    pub fn finish(self) -> String {
        let Svg {
            body,
            width,
            height,
        } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" font-family=\"Helvetica, Arial, DejaVu Sans, \
             sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
        )
    }

    fn element(&mut self, element: impl Display) {
        writeln!(self.body, "{element}").expect("a string takes all that is written");
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn markup_in_text_is_escaped() {
        assert_eq!(escape("a<b & c>d"), "a&lt;b &amp; c&gt;d");
    }
}
