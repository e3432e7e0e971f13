//! What the command prints on standard output.

use super::counters::Summary;
use super::measure::median;
use attention::check::Report;
use attention::emulator::Counters;
use attention::ladder::Rung;
use attention::{Dtype, Problem, kernel};
use comfy_table::{CellAlignment, Table, presets};
use kernels::table::{Family, KERNELS};
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::time::Duration;

/// What was run.
pub struct Call<'a> {
    pub device: &'a str,
    pub kernel: &'a str,
    pub splits: u32,
    pub dtype: Dtype,
}

/// Time and correctness of one kernel; serialised as a line of `--json`.
#[derive(Serialize)]
pub struct Outcome {
    device: String,
    kernel: String,
    splits: u32,
    dtype: &'static str,
    batch: usize,
    heads: usize,
    kv_heads: usize,
    seqlen_q: usize,
    seqlen_kv: usize,
    dim: usize,
    causal: bool,
    median_ms: f64,
    min_ms: f64,
    tflops: f64,
    max_abs_err: Option<f64>,
    tolerance: Option<f64>,
    passed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<Summary>,
    #[serde(skip)]
    report: Option<Report>,
}

impl Outcome {
    /// # Panics
    /// If `times` is empty.
    pub fn new(
        call: &Call,
        problem: &Problem,
        times: &[Duration],
        report: Option<Report>,
        counters: Option<Counters>,
    ) -> Self {
        let median = median(times);
        let min = times.iter().min().expect("at least one timed call");
        Outcome {
            device: call.device.to_owned(),
            kernel: call.kernel.to_owned(),
            splits: call.splits,
            dtype: call.dtype.name(),
            batch: problem.batch,
            heads: problem.heads,
            kv_heads: problem.kv_heads,
            seqlen_q: problem.seqlen_q,
            seqlen_kv: problem.seqlen_kv,
            dim: problem.dim,
            causal: problem.causal,
            median_ms: median.as_secs_f64() * 1e3,
            min_ms: min.as_secs_f64() * 1e3,
            tflops: problem.flops() / median.as_secs_f64() / 1e12,
            max_abs_err: report.map(|report| report.o.max_abs_err),
            tolerance: report.map(|report| report.o.tolerance),
            passed: report.map(|report| report.passed()),
            counters: counters.as_ref().map(Summary::new),
            report,
        }
    }

    /// What was wrong, if the check failed.
    pub fn failure(&self) -> Option<&Report> {
        self.report.as_ref().filter(|report| !report.passed())
    }
}

/// Prints one JSON object.
pub fn json_line(outcome: &Outcome) -> io::Result<()> {
    print(serde_json::to_string(outcome)?)
}

/// Prints the outcomes of one problem.
pub fn table(outcomes: &[Outcome]) -> io::Result<()> {
    let Some(first) = outcomes.first() else {
        return Ok(());
    };
    print(format_args!(
        "{}: batch {}, heads {}, kv_heads {}, seqlen {}, seqlen_kv {}, dim {}, {}{}",
        first.device,
        first.batch,
        first.heads,
        first.kv_heads,
        first.seqlen_q,
        first.seqlen_kv,
        first.dim,
        first.dtype,
        if first.causal { ", causal" } else { "" },
    ))?;
    let mut table = empty_table(
        &[
            "kernel",
            "splits",
            "median ms",
            "min ms",
            "TFLOP/s",
            "max error",
            "tolerance",
            "rows",
            "check",
        ],
        &[1, 2, 3, 4, 5, 6, 7],
    );
    for outcome in outcomes {
        let error =
            |error: Option<f64>| error.map_or("-".to_owned(), |error| format!("{error:.2e}"));
        table.add_row([
            outcome.kernel.clone(),
            outcome.splits.to_string(),
            format!("{:.3}", outcome.median_ms),
            format!("{:.3}", outcome.min_ms),
            format!("{:.3}", outcome.tflops),
            error(outcome.max_abs_err),
            error(outcome.tolerance),
            outcome
                .report
                .map_or("-".to_owned(), |report| report.rows.to_string()),
            match outcome.passed {
                Some(true) => "pass".to_owned(),
                Some(false) => "FAIL".to_owned(),
                None => "off".to_owned(),
            },
        ]);
    }
    print(table)?;
    for outcome in outcomes {
        if let Some(counters) = &outcome.counters {
            print(format_args!("\n{}\n{counters}", outcome.kernel))?;
        }
    }
    Ok(())
}

/// Prints every kernel.
pub fn list_kernels() -> io::Result<()> {
    let mut table = empty_table(
        &[
            "kernel",
            "target",
            "dtype",
            "dim up to",
            "causal",
            "Br",
            "Bc",
            "warps",
            "stages",
            "shared bytes",
        ],
        &[3, 5, 6, 7, 8, 9],
    );
    for kernel in KERNELS {
        table.add_row([
            kernel.name.to_owned(),
            kernel.arch.name().to_owned(),
            match kernel.family {
                Family::Pack => "any",
                _ => kernel.dtype.name(),
            }
            .to_owned(),
            match kernel.family {
                Family::Gemm { .. } => "-".to_owned(),
                _ => kernel.head_dim.to_string(),
            },
            match kernel.family {
                Family::Forward { causal: true } => "yes",
                Family::Forward { causal: false } => "no",
                Family::Packed | Family::Decode | Family::Ladder(_) => "both",
                Family::Combine | Family::Pack | Family::Gemm { .. } => "-",
            }
            .to_owned(),
            kernel.tile.q_rows.to_string(),
            kernel.tile.keys.to_string(),
            kernel.tile.warps.to_string(),
            kernel.tile.stages.to_string(),
            kernel.shared_bytes().to_string(),
        ]);
    }
    table.add_row([kernel::CPU, "CPU", "any", "1024", "any"]);
    print(table)?;
    list_ladder()
}

/// Prints the kernels of the ladder.
fn list_ladder() -> io::Result<()> {
    let header = ["ladder", "dim up to", "options", "what it shows"];
    let mut table = empty_table(&header, &[1]);
    for rung in Rung::ALL {
        table.add_row([
            rung.name(),
            &rung.max_dim().to_string(),
            if rung.has_options() { "all" } else { "none" },
            rung.lesson(),
        ]);
    }
    print(table)?;
    print("options: --stages, --swizzle, --acc, --o-store; all take f16 and bf16, causal or not")
}

pub fn empty_table(header: &[&str], numbers: &[usize]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_header(header);
    for &column in numbers {
        let column = table.column_mut(column).expect("a column of the header");
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Prints a line. A reader that has gone (`| head`) is no reason to stop: the exit status counts.
pub fn print(line: impl Display) -> io::Result<()> {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, Outcome};
    use attention::check::{Comparison, Report};
    use attention::{Dtype, Problem};
    use serde_json::{Value, json};
    use std::time::Duration;

    fn outcome(max_abs_err: f64) -> Outcome {
        let problem = Problem::new([1, 1, 1000, 8], [1, 1, 500, 8], [1, 1, 500, 8], false, None);
        let right = Comparison {
            max_abs_err: 0.0,
            tolerance: 1.0,
            worst: [0; 4],
            found: 0.0,
            expected: 0.0,
        };
        let report = Report {
            rows: 1,
            o: Comparison {
                max_abs_err,
                ..right
            },
            lse: right,
        };
        let times = [1, 2, 6].map(Duration::from_millis);
        let problem = problem.expect("a valid problem");
        let call = Call {
            device: "CPU",
            kernel: "cpu",
            splits: 1,
            dtype: Dtype::F16,
        };
        Outcome::new(&call, &problem, &times, Some(report), None)
    }

    fn json(outcome: &Outcome) -> Value {
        serde_json::to_value(outcome).expect("serialisable")
    }

    #[test]
    fn a_wrong_result_is_a_failure() {
        assert!(outcome(0.5).failure().is_none());
        assert_eq!(json(&outcome(0.5))["passed"], true);
        for error in [1.5, f64::INFINITY] {
            assert!(outcome(error).failure().is_some());
            assert_eq!(json(&outcome(error))["passed"], false);
        }
        assert_eq!(json(&outcome(f64::INFINITY))["max_abs_err"], Value::Null);
    }

    #[test]
    fn the_rate_is_that_of_the_median() {
        let json = json(&outcome(0.0));
        assert_eq!(
            (&json["median_ms"], &json["min_ms"]),
            (&json!(2.0), &json!(1.0))
        );
        // 4 * 1000 * 500 * 8 operations in 2 ms.
        let tflops = json["tflops"].as_f64().expect("a number");
        assert!((tflops - 0.008).abs() < 1e-9, "{tflops}");
    }
}
