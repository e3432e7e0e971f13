//! Results as text.

use crate::results::{Measurement, Results, Timing};
use crate::stats;
use crate::subject::Subject;
use comfy_table::{CellAlignment, Table, presets};

/// An empty table; `numbers` are the columns that hold numbers.
pub fn empty(header: &[&str], numbers: impl IntoIterator<Item = usize>) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_header(header);
    for column in numbers {
        let column = table.column_mut(column).expect("a column of the header");
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The table of all shapes, and the summary of the ratios. GB/s count inputs and outputs; peers' columns are in
/// TFLOP/s.
pub fn render<S: Subject>(results: &Results<S>) -> String {
    let peers = results.peers();
    let mut header = S::COLUMNS.to_vec();
    header.extend(["kernel", "splits", "GB/s", "of a copy", "TFLOP/s"]);
    header.extend(&peers);
    if peers.contains(&S::BASELINE) {
        header.push(S::RATIO);
    }
    let rates = S::COLUMNS.len() + 1..header.len();
    let mut table = empty(&header, (0..S::NUMBERS).chain(rates));
    for measurement in &results.measurements {
        for kernel in &measurement.kernels {
            let mut row = row(measurement, kernel, &peers, results.copy_gbs);
            row.truncate(header.len());
            table.add_row(row);
        }
    }
    let driver = results.driver.as_deref().unwrap_or("unknown");
    let mut text = format!("{}, driver {driver}", results.device);
    for (name, version) in &results.versions {
        text += &format!(", {name} {version}");
    }
    if let Some(copy) = results.copy_gbs {
        text += &format!(", copies {copy:.0} GB/s");
    }
    text += &format!("\n{table}");
    if let Some(summary) = summary(results) {
        text += &format!("\n{summary}");
    }
    text
}

fn row<S: Subject>(
    measurement: &Measurement<S>,
    kernel: &Timing,
    peers: &[&str],
    copy_gbs: Option<f64>,
) -> Vec<String> {
    let rate = |tflops: Option<f64>| tflops.map_or("-".to_owned(), |rate| format!("{rate:.1}"));
    let gbs = measurement.gbs(kernel);
    let of_copy = gbs.zip(copy_gbs).map(|(gbs, copy)| gbs / copy);
    let mut row = measurement.shape.cells();
    row.extend([
        kernel.name.clone(),
        kernel.splits.map_or("-".to_owned(), |n| n.to_string()),
        gbs.map_or("-".to_owned(), |gbs| format!("{gbs:.0}")),
        of_copy.map_or("-".to_owned(), |part| format!("{:.0} %", 100.0 * part)),
        rate(kernel.speed.map(|speed| speed.tflops)),
    ]);
    row.extend(peers.iter().map(|peer| rate(measurement.peer(peer))));
    let ratio = measurement.ratio(kernel);
    row.push(ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}")));
    row
}

/// A line for each peer: geometric mean and minimum of the ratios of the default kernels to it; `None` without a ratio.
pub fn summary<S: Subject>(results: &Results<S>) -> Option<String> {
    let lines = results.peers().into_iter();
    let lines: Vec<_> = lines.filter_map(|peer| ratios(results, peer)).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn ratios<S: Subject>(results: &Results<S>, peer: &str) -> Option<String> {
    let ratios = results.measurements.iter().filter_map(|measurement| {
        let own = measurement.kernels.first()?.speed?.tflops;
        Some((own / measurement.peer(peer)?, measurement))
    });
    let ratios: Vec<_> = ratios.collect();
    let (minimum, slowest) = ratios.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let ratios: Vec<_> = ratios.iter().map(|(ratio, _)| *ratio).collect();
    let below = ratios.iter().filter(|&&ratio| ratio < 1.0).count();
    Some(format!(
        "ratio to {peer}: geometric mean {:.3}, minimum {minimum:.3} ({}), below 1.00: {below} of {} shapes",
        stats::geometric_mean(&ratios),
        slowest.shape,
        ratios.len(),
    ))
}

#[cfg(test)]
mod tests {
    use super::{render, summary};
    use crate::grid::Grid;
    use crate::results::tests::{products, results};

    #[test]
    fn the_summary_names_the_slowest() {
        let results = results(&Grid::Quick, |i| if i == 2 { 0.5 } else { 2.0 });
        assert_eq!(
            summary(&results).expect("ratios"),
            "ratio to SDPA flash: geometric mean 1.714, minimum 0.500 (B 4 H 16 N 4096 D 128 f16 \
             full), below 1.00: 1 of 9 shapes"
        );
    }

    #[test]
    fn the_table_has_a_column_for_each_contender() {
        let text = render(&results(&Grid::Quick, |_| 1.25));
        for word in [
            "SDPA flash",
            "other",
            "ratio to flash",
            "1.250",
            "forward_x",
            "-",
        ] {
            assert!(text.contains(word), "{word} is missing in\n{text}");
        }
        // 4 * 4 * 16 * 4096^2 * 64 operations in 1 and in 1.25 ms.
        assert!(
            text.contains(" 274.9 ") && text.contains(" 219.9 "),
            "{text}"
        );
    }

    #[test]
    fn bytes_are_compared_with_a_copy() {
        // 4 * 4 * 16 * 4096 * 64 elements of 2 bytes in 1 ms, where a copy has 4000 GB/s.
        let mut results = results(&Grid::Quick, |_| 1.25);
        let text = render(&results);
        for word in ["copies 4000 GB/s", " 134 ", " 3 % "] {
            assert!(text.contains(word), "{word} is missing in\n{text}");
        }
        results.copy_gbs = None;
        assert!(!render(&results).contains(" % "));
    }

    #[test]
    fn products_have_columns_of_their_own() {
        let text = render(&products());
        for word in [
            "ratio to cuBLAS",
            "14336",
            "gemm_x",
            "sums",
            " 1099.5 ",
            "1.000",
        ] {
            assert!(text.contains(word), "{word} is missing in\n{text}");
        }
    }

    #[test]
    fn no_peers_no_ratio() {
        let mut results = results(&Grid::Quick, |_| 1.25);
        for measurement in &mut results.measurements {
            measurement.peers.clear();
        }
        assert!(summary(&results).is_none());
        assert!(!render(&results).contains("ratio"));
    }
}
