//! `cargo xtask layout`: draws where elements lie and who computes what, by the kernels' own functions.

mod causal;
mod color;
mod descriptor;
mod drawing;
mod ldmatrix;
mod loops;
mod mma;
mod picture;
mod placement;
mod ring;
mod smem;
mod swizzle;
mod terminal;
mod warps;
mod wgmma;

use drawing::Drawing;
use std::io::Write;
use std::path::PathBuf;
use terminal::Palette;

/// The drawing to make, and its file.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    subject: Subject,
    /// Draw into this file, as SVG
    #[arg(long, global = true, value_name = "FILE")]
    #[arg(value_parser = |path: &str| std::path::absolute(path))]
    svg: Option<PathBuf>,
}

#[derive(clap::Subcommand)]
enum Subject {
    /// The lane and register that hold each element of A, B and C of mma.m16n8k16
    Mma,
    /// The lane that gives each address to ldmatrix.x4, and the lane that receives each element
    Ldmatrix(ldmatrix::Arguments),
    /// The place and the banks of each 16-byte chunk of a tile in shared memory
    #[command(allow_negative_numbers = true)]
    Swizzle(swizzle::Arguments),
    /// Bank conflicts of the kernels' accesses or of your own: without a swizzle, with padding, with the kernels'
    /// swizzle
    #[command(allow_negative_numbers = true)]
    Smem(smem::Arguments),
    /// The warp, lane and register that hold each element of wgmma's accumulators, and of A in registers
    Wgmma,
    /// The chunks that wgmma reads from a tile in shared memory, and the matrix descriptor that says so
    #[command(allow_negative_numbers = true)]
    Descriptor(descriptor::Arguments),
    /// The order in which fa1 and split-q go through query tiles and blocks of keys
    Loops,
    /// The warp of a block that computes each part of S and O
    Warps,
    /// The buffers of a ring over time
    Ring,
    /// Tiles under the causal mask, and the order of the blocks
    Causal(causal::Arguments),
}

/// Draws in the terminal, or into a file. Fails if the options do not fit together or the file cannot be written.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let drawing = draw(&arguments.subject)?;
    let text = match &arguments.svg {
        None => terminal::render(&drawing, Palette::of_stdout(), terminal::width()),
        Some(path) => {
            std::fs::write(path, picture::render(&drawing))
                .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
            format!("{}\n", path.display())
        }
    };
    // A closed pipe (`| head`) is no error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn draw(subject: &Subject) -> Result<Drawing, String> {
    match subject {
        Subject::Mma => Ok(mma::draw()),
        Subject::Ldmatrix(arguments) => Ok(ldmatrix::draw(arguments)),
        Subject::Swizzle(arguments) => swizzle::draw(arguments),
        Subject::Smem(arguments) => smem::draw(arguments),
        Subject::Wgmma => Ok(wgmma::draw()),
        Subject::Descriptor(arguments) => descriptor::draw(arguments),
        Subject::Loops => Ok(loops::draw()),
        Subject::Warps => Ok(warps::draw()),
        Subject::Ring => Ok(ring::draw()),
        Subject::Causal(arguments) => Ok(causal::draw(arguments)),
    }
}

/// A head dim on the command line.
fn head_dim(text: &str) -> Result<u32, String> {
    let dim = text.parse().ok();
    let whole = |dim: &u32| dim.is_multiple_of(32) && (32..=256).contains(dim);
    dim.filter(whole)
        .ok_or_else(|| "take a multiple of 32 from 32 to 256".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use roxmltree::{Document, Node};

    #[derive(Parser)]
    struct Task {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// The drawing of `cargo xtask layout ARGUMENTS`.
    fn drawn(arguments: &str) -> Drawing {
        let words = ["layout"].into_iter().chain(arguments.split_whitespace());
        let task = Task::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
        draw(&task.arguments.subject).unwrap()
    }

    /// The drawings in the docs, all without options.
    const DRAWINGS: [&str; 9] = [
        "mma",
        "ldmatrix",
        "swizzle",
        "smem",
        "wgmma",
        "descriptor",
        "loops",
        "warps",
        "ring",
    ];

    #[test]
    fn the_drawings_of_the_docs_are_current() {
        for subject in DRAWINGS {
            let path = format!(
                "{}/../docs/layout/{subject}.svg",
                env!("CARGO_MANIFEST_DIR")
            );
            let kept = std::fs::read_to_string(&path);
            assert!(
                kept.is_ok_and(|kept| kept == picture::render(&drawn(subject))),
                "type: cargo xtask layout {subject} --svg docs/layout/{subject}.svg"
            );
        }
    }

    fn number(node: Node, name: &str) -> f64 {
        let value = node.attribute(name).unwrap_or_default();
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}: {value:?}"))
    }

    #[test]
    fn pictures_are_well_formed_and_hold_all_they_show() {
        for arguments in [
            "mma",
            "ldmatrix",
            "ldmatrix --trans",
            "ldmatrix --order chunks",
            "swizzle",
            "swizzle --swizzle pad --dim 96",
            "swizzle --swizzle none --dim 32 --rows 7",
            "swizzle --swizzle 3,3,4 --dim 128 --rows 1",
            "swizzle --dim 256 --rows 256",
            "smem",
            "smem --dim 160",
            "smem --access 4x16",
            "smem --access 1x4 --dim 96",
            "wgmma",
            "descriptor",
            "descriptor --dim 96 --rows 32 --slice 0",
            "descriptor --dim 256 --rows 64 --slice 3",
            "loops",
            "warps",
            "ring",
            "causal",
            "causal --seqlen 200 --seqlen-kv 2048",
            "causal --seqlen 2048 --seqlen-kv 1",
        ] {
            let drawing = drawn(arguments);
            let picture = picture::render(&drawing);
            let document = Document::parse(&picture).unwrap_or_else(|e| panic!("{arguments}: {e}"));
            let svg = document.root_element();
            assert_eq!(svg.tag_name().name(), "svg");
            let (width, height) = (number(svg, "width"), number(svg, "height"));
            let texts = svg.descendants().filter(|node| node.has_tag_name("text"));
            let mut shown: Vec<&str> = texts
                .map(|text| {
                    let (left, top) = place(text);
                    let (x, y) = (left + number(text, "x"), top + number(text, "y"));
                    let inside = 0.0 < x && x < width && 0.0 < y && y < height;
                    assert!(inside, "{arguments}: {x}, {y} of {width}, {height}");
                    text.text().unwrap_or_default().trim()
                })
                .collect();
            let panels = drawing.rows.iter().flatten();
            for cell in panels.flat_map(|panel| panel.cells.iter().flatten()) {
                for line in &cell.lines {
                    let place = shown.iter().position(|text| text == line);
                    let place = place.or(line.is_empty().then_some(usize::MAX));
                    let place = place.unwrap_or_else(|| panic!("{arguments}: no {line}"));
                    if place < shown.len() {
                        shown.swap_remove(place);
                    }
                }
            }
        }
    }

    /// Where the figure of an element starts.
    fn place(node: Node) -> (f64, f64) {
        let transform = node
            .ancestors()
            .find_map(|node| node.attribute("transform"));
        let place = transform.map_or("0 0", |text| {
            let place = text.strip_prefix("translate(");
            place.unwrap().strip_suffix(")").unwrap()
        });
        let (left, top) = place.split_once(' ').unwrap();
        (left.parse().unwrap(), top.parse().unwrap())
    }

    #[test]
    fn a_negative_number_is_no_option() {
        for arguments in [
            "swizzle --dim -64",
            "smem --dim -64",
            "swizzle --rows -1",
            "descriptor --slice -1",
        ] {
            let words = ["layout"].into_iter().chain(arguments.split(' '));
            let refused = Task::try_parse_from(words).err().expect("refused");
            let said = refused.to_string();
            assert!(said.contains("invalid value '-"), "{arguments}: {said}");
        }
    }

    #[test]
    fn head_dims_are_checked() {
        for text in ["32", "160", "256"] {
            assert_eq!(head_dim(text), Ok(text.parse().unwrap()));
        }
        for text in ["0", "16", "40", "288", "-64", "x", ""] {
            assert!(head_dim(text).unwrap_err().contains("from 32 to 256"));
        }
    }
}
