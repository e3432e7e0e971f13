//! Tables of TFLOP/s in Markdown, written between two marks: `<!-- rates -->` or, of one length, `<!-- rates at 4096 -->`,
//! and `<!-- end of rates -->`.

use crate::plot::curves;
use crate::results::{Measurement, Results};
use crate::shape::{BASELINE, Dtype, Pass, Shape};
use crate::stats;
use anyhow::{Context, Result};

const END: &str = "<!-- end of rates -->";
/// Peers, and their names in tables.
const PEERS: [(&str, &str); 2] = [(BASELINE, "FlashAttention-2"), ("SDPA cuDNN", "cuDNN")];

/// The text with its tables of the newest full grids, of results in the order of their dates.
///
/// # Errors
/// If a mark has no end, or there is no full grid of a pass.
pub fn fill(text: &str, all: &[Results]) -> Result<String> {
    let mut filled = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        filled += &format!("{line}\n");
        if let Some(seqlen) = mark(line) {
            let rest = lines.by_ref().find(|line| *line == END);
            rest.with_context(|| format!("{line} has no {END}"))?;
            filled += &format!("{}\n{END}\n", table(all, seqlen)?);
        }
    }
    Ok(filled)
}

/// Whether a line begins a table, and of which length.
fn mark(line: &str) -> Option<Option<usize>> {
    let inside = line.strip_prefix("<!-- rates")?.strip_suffix(" -->")?;
    match inside {
        "" => Some(None),
        _ => inside.strip_prefix(" at ")?.parse().ok().map(Some),
    }
}

/// Rates in f16, of one length or all: a row for each shape of the forward pass, beside it the backward pass.
fn table(all: &[Results], seqlen: Option<usize>) -> Result<String> {
    let newest = |pass| {
        let mut results = all.iter().rev();
        let newest = results.find(|results| curves::shows(results, pass));
        newest.with_context(|| format!("there is no full grid of the {pass} pass"))
    };
    let [forward, backward] = [newest(Pass::Forward)?, newest(Pass::Backward)?];
    let peers = PEERS.map(|(_, name)| name).join(" | ");
    let mut lines = vec![
        caption(forward, backward),
        String::new(),
        format!("| B, H, N, D | mask | forward | {peers} | backward | any order | {peers} |"),
        format!("|{}", "---|".repeat(9)),
    ];
    for measurement in &forward.measurements {
        let shape = &measurement.shape;
        if shape.dtype == Dtype::F16 && seqlen.is_none_or(|seqlen| seqlen == shape.seqlen) {
            lines.push(row(measurement, gradient(backward, shape)));
        }
    }
    let summaries = [(forward, 0), (backward, 0), (backward, 1)];
    let [forward, backward, any] = summaries.map(|(results, kernel)| ratios(results, kernel));
    lines.push(String::new());
    lines.push(format!(
        "Ratio over all shapes of f16 and bf16, geometric mean (least): forward {forward}; backward {backward}; in any order \
         {any}."
    ));
    Ok(lines.join("\n"))
}

/// Where and when the rates were measured.
fn caption(forward: &Results, backward: &Results) -> String {
    let pass = |results: &Results, pass| {
        let day = results.date.split('T').next().unwrap_or_default();
        format!("{pass} {day}, median of {}", results.iters)
    };
    let version = |name: &str| forward.versions.get(name).cloned();
    let cudnn = version("cudnn").map(|number| dotted(&number));
    format!(
        "TFLOP/s in f16 on an {}, driver {} ({}; {}). Peers by PyTorch {}, cuDNN {}.",
        forward.device,
        forward.driver.as_deref().unwrap_or("unknown"),
        pass(forward, Pass::Forward),
        pass(backward, Pass::Backward),
        version("torch").as_deref().unwrap_or("unknown"),
        cudnn.as_deref().unwrap_or("unknown"),
    )
}

/// cuDNN's number of a version, 91900, with dots.
fn dotted(number: &str) -> String {
    match number.parse::<u32>() {
        Ok(n) => format!("{}.{}.{}", n / 10_000, n / 100 % 100, n % 100),
        Err(_) => number.to_owned(),
    }
}

/// The backward pass of a shape.
fn gradient<'a>(backward: &'a Results, shape: &Shape) -> Option<&'a Measurement> {
    let wanted = Shape {
        pass: Pass::Backward,
        ..shape.resolved()
    };
    let mut measurements = backward.measurements.iter();
    measurements.find(|measurement| measurement.shape.resolved() == wanted)
}

fn row(forward: &Measurement, backward: Option<&Measurement>) -> String {
    let Shape {
        batch,
        heads,
        seqlen,
        dim,
        ..
    } = forward.shape;
    let whole = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.0}"));
    let own = |measurement: &Measurement, kernel: usize| {
        Some(measurement.kernels.get(kernel)?.speed?.tflops)
    };
    let mut cells = vec![
        format!("{batch}, {heads}, {seqlen}, {dim}"),
        forward.shape.mask(),
        whole(own(forward, 0)),
    ];
    cells.extend(PEERS.map(|(peer, _)| whole(forward.peer(peer))));
    cells.extend([0, 1].map(|kernel| whole(backward.and_then(|m| own(m, kernel)))));
    cells.extend(PEERS.map(|(peer, _)| whole(backward.and_then(|m| m.peer(peer)))));
    format!("| {} |", cells.join(" | "))
}

/// Ratios of the rates of each measurement's kernel of this index to those of the peers.
fn ratios(results: &Results, kernel: usize) -> String {
    let of = PEERS.map(|(peer, name)| {
        let ratios = results.measurements.iter().filter_map(|measurement| {
            let own = measurement.kernels.get(kernel)?.speed?.tflops;
            Some(own / measurement.peer(peer)?)
        });
        let ratios: Vec<_> = ratios.collect();
        let least = stats::minimum(&ratios);
        format!(
            "{:.2} ({least:.2}) to {name}",
            stats::geometric_mean(&ratios)
        )
    });
    of.join(", ")
}

#[cfg(test)]
mod tests {
    use super::{dotted, fill};
    use crate::grid::Grid;
    use crate::results::tests::results;

    #[test]
    fn tables_stand_between_marks() {
        let all = [Grid::Full, Grid::Backward].map(|grid| results(&grid, |_| 2.0));
        let text = "before\n<!-- rates at 4096 -->\nold\n<!-- end of rates -->\nafter\n";
        let filled = fill(text, &all).expect("filled");
        assert!(
            filled.starts_with("before\n<!-- rates at 4096 -->\nTFLOP/s in f16 on an NVIDIA H200")
        );
        assert!(filled.ends_with("\n<!-- end of rates -->\nafter\n") && !filled.contains("old"));
        let rows: Vec<_> = filled
            .lines()
            .filter(|line| line.starts_with("| 4, "))
            .collect();
        assert_eq!(rows.len(), 6, "three head dims, two masks: {filled}");
        // 4 B H N² D operations in a millisecond; the baseline takes two, another peer serves nothing.
        let full = "| 4, 16, 4096, 64 | full | 275 | 137 | - | 687 | - | 344 | - |";
        assert_eq!(rows[0], full);
        assert!(
            filled.contains("forward 2.00 (2.00) to FlashAttention-2"),
            "{filled}"
        );
        assert_eq!(fill(&filled, &all).expect("filled"), filled);
        let whole = fill(&text.replace(" at 4096", ""), &all).expect("filled");
        assert_eq!(
            whole
                .lines()
                .filter(|line| line.contains("| causal |"))
                .count(),
            20
        );
    }

    #[test]
    fn versions_have_dots() {
        assert_eq!(dotted("91900"), "9.19.0");
        assert_eq!(dotted("9.19"), "9.19");
    }

    #[test]
    fn what_has_no_table_is_kept_or_refused() {
        let all = [Grid::Full, Grid::Backward].map(|grid| results(&grid, |_| 2.0));
        let text = "<!-- rates at last -->\n<!-- end of rates -->\n";
        assert_eq!(fill(text, &all).expect("no mark"), text);
        assert!(fill("<!-- rates -->\n", &all).is_err(), "no end");
        let error =
            fill("<!-- rates -->\n<!-- end of rates -->\n", &all[..1]).expect_err("no gradients");
        assert!(error.to_string().contains("backward"), "{error}");
    }
}
