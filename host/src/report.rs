//! What the command prints on standard output.

use crate::counters::Summary;
use crate::measure::median;
use attention::Device;
use attention::check::Comparison;
use attention::emulator::Counters;
use attention::gemm::{MULTISTAGE, SIMPLE};
use attention::kernel;
use comfy_table::{CellAlignment, Table, presets};
use kernels::catalog::{Dtype, Family, Forward, Gemm, KERNELS};
use ladder::Rung;
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::time::Duration;

/// What a kernel computed: displayed, the line above the table; serialised, fields of a `--json` line.
pub trait Call: Display + Serialize {
    /// Headings of the columns after the kernel's name.
    const COLUMNS: &[&str];

    /// The numbers in these columns.
    fn cells(&self) -> Vec<String>;

    /// Floating-point operations.
    fn flops(&self) -> f64;
}

/// What the check of a result found.
#[derive(Clone, Copy)]
pub struct Checked {
    /// Rows compared.
    pub rows: usize,
    /// The element with the largest error.
    pub worst: Comparison,
    /// Whether all were within tolerance.
    pub passed: bool,
}

/// Time and correctness of one kernel; serialised, a `--json` line.
#[derive(Serialize)]
pub struct Outcome<C> {
    device: String,
    kernel: String,
    #[serde(flatten)]
    call: C,
    median_ms: f64,
    min_ms: f64,
    /// `None` on the emulator, whose time says nothing about the kernel.
    tflops: Option<f64>,
    max_abs_err: Option<f64>,
    tolerance: Option<f64>,
    passed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<Vec<Summary>>,
    /// Rows compared.
    #[serde(skip)]
    rows: Option<usize>,
}

impl<C: Call> Outcome<C> {
    /// # Panics
    /// If `times` is empty.
    pub fn new(
        device: &Device,
        kernel: &str,
        call: C,
        times: &[Duration],
        checked: Option<Checked>,
        counters: Option<Vec<(&'static str, Counters)>>,
    ) -> Self {
        let median = median(times).as_secs_f64();
        let min = times.iter().min().expect("at least one timed call");
        Outcome {
            device: device.name().to_owned(),
            kernel: kernel.to_owned(),
            median_ms: median * 1e3,
            min_ms: min.as_secs_f64() * 1e3,
            tflops: (!device.is_emulator()).then(|| call.flops() / median / 1e12),
            max_abs_err: checked.map(|checked| checked.worst.max_abs_err),
            tolerance: checked.map(|checked| checked.worst.tolerance),
            passed: checked.map(|checked| checked.passed),
            counters: counters.map(|launches| {
                let summary = |(kernel, counters)| Summary::new(kernel, &counters);
                launches.into_iter().map(summary).collect()
            }),
            rows: checked.map(|checked| checked.rows),
            call,
        }
    }

    /// Whether the check found the result wrong.
    pub fn is_wrong(&self) -> bool {
        self.passed == Some(false)
    }
}

/// Prints one JSON object.
pub fn json_line(outcome: &Outcome<impl Call>) -> io::Result<()> {
    print(serde_json::to_string(outcome)?)
}

/// Prints the outcomes of one problem.
pub fn table<C: Call>(outcomes: &[Outcome<C>]) -> io::Result<()> {
    let Some(first) = outcomes.first() else {
        return Ok(());
    };
    print(format_args!("{}: {}", first.device, first.call))?;
    let rate = first.tflops.map(|_| "TFLOP/s");
    let checked = ["max error", "tolerance", "rows", "check"];
    let header = [
        &["kernel"],
        C::COLUMNS,
        &["median ms", "min ms"],
        rate.as_slice(),
        &checked,
    ]
    .concat();
    let numbers: Vec<usize> = (1..header.len() - 1).collect();
    let mut table = empty_table(&header, &numbers);
    for outcome in outcomes {
        let error =
            |error: Option<f64>| error.map_or("-".to_owned(), |error| format!("{error:.2e}"));
        let mut row = vec![outcome.kernel.clone()];
        row.extend(outcome.call.cells());
        row.extend([
            format!("{:.3}", outcome.median_ms),
            format!("{:.3}", outcome.min_ms),
        ]);
        row.extend(outcome.tflops.map(|rate| format!("{rate:.3}")));
        row.extend([
            error(outcome.max_abs_err),
            error(outcome.tolerance),
            outcome.rows.map_or("-".to_owned(), |rows| rows.to_string()),
            match outcome.passed {
                Some(true) => "pass".to_owned(),
                Some(false) => "FAIL".to_owned(),
                None => "off".to_owned(),
            },
        ]);
        table.add_row(row);
    }
    print(table)?;
    for outcome in outcomes {
        let launches = outcome.counters.as_deref().unwrap_or_default();
        for (i, launch) in launches.iter().enumerate() {
            let (kernel, number, count) = (&outcome.kernel, i + 1, launches.len());
            print(format_args!(
                "\n{kernel}, launch {number} of {count}: {}\n{launch}",
                launch.kernel
            ))?;
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
    for kernel in KERNELS.iter() {
        let none = || ["-"; 5].map(str::to_owned);
        let [dim, causal, rows, columns, stages] = match kernel.family {
            Family::Forward(Forward {
                kind, dim, tile, ..
            }) => {
                let causal = match [false, true].map(|causal| kind.serves(causal)) {
                    [true, true] => "both",
                    [_, causal] if causal => "yes",
                    _ => "no",
                };
                let [rows, keys, stages] = [tile.q_rows, tile.keys, tile.stages];
                let [dim, rows, keys, stages] = [dim, rows, keys, stages].map(|n| n.to_string());
                [dim, causal.to_owned(), rows, keys, stages]
            }
            Family::Gemm(Gemm { tile, .. }) => {
                let sizes = [tile.rows, tile.columns, tile.stages].map(|n| n.to_string());
                let ([dim, causal, ..], [rows, columns, stages]) = (none(), sizes);
                [dim, causal, rows, columns, stages]
            }
            _ => none(),
        };
        table.add_row([
            kernel.name.to_owned(),
            kernel.target().name().to_owned(),
            kernel.dtype().map_or("any", Dtype::name).to_owned(),
            dim,
            causal,
            rows,
            columns,
            (kernel.threads() / 32).to_string(),
            stages,
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
    print("options: --stages, --swizzle, --acc, --o-store; all take f16 and bf16, causal or not")?;
    list_gemm()
}

/// Prints the families of kernels for matrix products.
fn list_gemm() -> io::Result<()> {
    let mut table = empty_table(&["gemm", "options", "what it shows"], &[]);
    for (name, options, lesson) in [
        (
            SIMPLE,
            "--acc",
            "operands straight from global memory to registers: no shared memory, no barrier",
        ),
        (
            MULTISTAGE,
            "--acc, --stages",
            "cp.async through a ring of swizzled tiles; of its kernels, the one whose tile suits best",
        ),
    ] {
        table.add_row([name, options, lesson]);
    }
    print(table)?;
    print("the subcommand gemm runs these: gemm --kernel NAME")
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

/// Prints a line. A reader that has gone (`| head`) is no error: the exit status still counts.
pub fn print(line: impl Display) -> io::Result<()> {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, Checked, Outcome};
    use attention::Device;
    use attention::check::Comparison;
    use serde::Serialize;
    use serde_json::{Value, json};
    use std::fmt;
    use std::time::Duration;

    #[derive(Serialize)]
    struct Sum {
        terms: usize,
    }

    impl fmt::Display for Sum {
        fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
            write!(f, "{} terms", self.terms)
        }
    }

    impl Call for Sum {
        const COLUMNS: &[&str] = &[];

        fn cells(&self) -> Vec<String> {
            Vec::new()
        }

        fn flops(&self) -> f64 {
            self.terms as f64
        }
    }

    fn outcome(max_abs_err: f64) -> Outcome<Sum> {
        let worst = Comparison {
            max_abs_err,
            tolerance: 1.0,
            worst: [0; 4],
            found: 0.0,
            expected: 0.0,
        };
        let checked = Checked {
            rows: 1,
            worst,
            passed: worst.passed(),
        };
        let times = [1, 2, 6].map(Duration::from_millis);
        let call = Sum { terms: 16_000_000 };
        Outcome::new(&Device::cpu(), "cpu", call, &times, Some(checked), None)
    }

    fn json(outcome: &Outcome<Sum>) -> Value {
        serde_json::to_value(outcome).expect("serialisable")
    }

    #[test]
    fn a_wrong_result_is_a_failure() {
        assert!(!outcome(0.5).is_wrong());
        assert_eq!(json(&outcome(0.5))["passed"], true);
        for error in [1.5, f64::INFINITY] {
            assert!(outcome(error).is_wrong());
            assert_eq!(json(&outcome(error))["passed"], false);
        }
        assert_eq!(json(&outcome(f64::INFINITY))["max_abs_err"], Value::Null);
    }

    #[test]
    fn the_rate_is_that_of_the_median() {
        let json = json(&outcome(0.0));
        assert_eq!(
            (&json["median_ms"], &json["min_ms"], &json["terms"]),
            (&json!(2.0), &json!(1.0), &json!(16_000_000))
        );
        // 16 million operations in 2 ms.
        let tflops = json["tflops"].as_f64().expect("a number");
        assert!((tflops - 0.008).abs() < 1e-9, "{tflops}");
    }
}
