//! The command's standard output.

use crate::args::Run;
use crate::counters::Summary;
use crate::measure::median;
use crate::progress::Progress;
use comfy_table::{CellAlignment, Table, presets};
use ferroattn::Device;
use ferroattn::check::Comparison;
use ferroattn::gemm::{HOPPER, MULTISTAGE, SIMPLE};
use ferroattn::kernel;
use kernels::catalog::{Backward, BackwardMain, Dtype, Family, Forward, Gemm, KERNELS, Kernel};
use ladder::Rung;
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::time::Duration;

/// The call of a kernel: displayed, the line above the table; serialised, fields of a `--json` line.
pub trait Call: Display + Serialize {
    /// Headings and numbers of the columns after the kernel's name.
    fn columns(&self) -> Vec<(&str, String)> {
        Vec::new()
    }

    /// Floating-point operations.
    fn flops(&self) -> f64;
}

/// The findings of a result's check.
pub struct Checked {
    /// Rows compared.
    pub rows: usize,
    /// The element with the largest error.
    pub worst: Comparison,
    /// The failure, if there is one.
    pub failure: Option<String>,
}

/// Time and correctness of one kernel; serialised, a `--json` line.
#[derive(Serialize)]
struct Outcome<C> {
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
    /// Headings and cells of its row in the table.
    fn row(&self) -> Vec<(&str, String)> {
        let error =
            |error: Option<f64>| error.map_or("-".to_owned(), |error| format!("{error:.2e}"));
        let rows = self.rows.map_or("-".to_owned(), |rows| rows.to_string());
        let check = match self.passed {
            Some(true) => "pass",
            Some(false) => "FAIL",
            None => "off",
        };
        let mut row = vec![("kernel", self.kernel.clone())];
        row.extend(self.call.columns());
        row.push(("median ms", format!("{:.3}", self.median_ms)));
        row.push(("min ms", format!("{:.3}", self.min_ms)));
        row.extend(self.tflops.map(|rate| ("TFLOP/s", format!("{rate:.3}"))));
        row.push(("max error", error(self.max_abs_err)));
        row.push(("tolerance", error(self.tolerance)));
        row.push(("rows", rows));
        row.push(("check", check.to_owned()));
        row
    }
}

/// The outcomes of one problem: printed as JSON one by one, or as a table at the end.
pub struct Report<'a, C> {
    run: &'a Run,
    device: &'a Device,
    progress: &'a Progress,
    outcomes: Vec<Outcome<C>>,
}

impl<'a, C: Call> Report<'a, C> {
    pub fn new(run: &'a Run, device: &'a Device, progress: &'a Progress) -> Self {
        Report {
            run,
            device,
            progress,
            outcomes: Vec::new(),
        }
    }

    pub fn progress(&self) -> &'a Progress {
        self.progress
    }

    /// Adds a kernel's outcome; `false` if the check found its result wrong.
    ///
    /// # Panics
    /// If `times` is empty.
    pub fn add(
        &mut self,
        kernel: &str,
        call: C,
        times: &[Duration],
        checked: Option<Checked>,
    ) -> io::Result<bool> {
        let checked = checked.as_ref();
        let failure = checked.and_then(|checked| checked.failure.as_ref());
        let median = median(times).as_secs_f64();
        let min = times.iter().min().expect("at least one timed call");
        let outcome = Outcome {
            device: self.device.name().to_owned(),
            kernel: kernel.to_owned(),
            median_ms: median * 1e3,
            min_ms: min.as_secs_f64() * 1e3,
            tflops: (!self.device.is_emulator()).then(|| call.flops() / median / 1e12),
            max_abs_err: checked.map(|checked| checked.worst.max_abs_err),
            tolerance: checked.map(|checked| checked.worst.tolerance),
            passed: checked.map(|_| failure.is_none()),
            counters: self.run.counters.then(|| {
                let launches = self.device.counters().into_iter();
                let summary = |(kernel, counters)| Summary { kernel, counters };
                launches.map(summary).collect()
            }),
            rows: checked.map(|checked| checked.rows),
            call,
        };
        self.progress.bar.suspend(|| {
            if self.run.json {
                print(serde_json::to_string(&outcome)?)?;
            }
            if let Some(failure) = failure {
                eprintln!("{kernel} is wrong: {failure}");
            }
            io::Result::Ok(())
        })?;
        self.outcomes.push(outcome);
        Ok(failure.is_none())
    }

    /// Prints the table if there was no JSON; `false` if the check found a result wrong.
    pub fn finish(self) -> io::Result<bool> {
        self.progress.bar.finish_and_clear();
        if !self.run.json {
            print_outcomes(&self.outcomes)?;
        }
        let mut outcomes = self.outcomes.iter();
        Ok(outcomes.all(|outcome| outcome.passed != Some(false)))
    }
}

/// Prints the outcomes of one problem.
fn print_outcomes<C: Call>(outcomes: &[Outcome<C>]) -> io::Result<()> {
    let Some(first) = outcomes.first() else {
        return Ok(());
    };
    print(format_args!("{}: {}", first.device, first.call))?;
    let rows = outcomes.iter().map(Outcome::row);
    print(table(rows, 1..first.row().len() - 1))?;
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

/// Prints every kernel: the library's, the ladder's, and the families for matrix products.
pub fn list_kernels() -> io::Result<()> {
    let mut kernels = table(KERNELS.iter().map(kernel_row), [3, 5, 6, 7, 8, 9]);
    kernels.add_row([kernel::CPU, "CPU", "any", "1024", "any"]);
    print(kernels)?;

    let mut ladder = empty_table(
        &["ladder", "target", "dim up to", "options", "what it shows"],
        [2],
    );
    for rung in Rung::ALL {
        let options = if rung.has_options() { "all" } else { "none" };
        ladder.add_row([
            rung.name(),
            rung.target().name,
            &rung.max_dim().to_string(),
            options,
            rung.lesson(),
        ]);
    }
    print(ladder)?;
    print("options: --stages, --swizzle, --acc, --o-store; all take f16 and bf16, causal or not")?;

    let mut gemm = empty_table(&["gemm", "options", "what it shows"], []);
    gemm.add_row([
        SIMPLE,
        "--acc",
        "operands straight from global memory to registers: no shared memory, no barrier",
    ]);
    gemm.add_row([
        MULTISTAGE,
        "--acc, --stages",
        "cp.async through a ring of swizzled tiles; of its kernels, the one whose tile suits best",
    ]);
    gemm.add_row([
        HOPPER,
        "",
        "on compute capability 9.0: a producer loads by TMA, consumers multiply by wgmma",
    ]);
    print(gemm)?;
    print("the subcommand gemm runs these: gemm --kernel NAME")
}

/// Headings and cells of a kernel's row in the list.
fn kernel_row(kernel: &Kernel) -> [(&str, String); 10] {
    let (dim, causal, tile) = match kernel.family {
        Family::Forward(Forward {
            kind, dim, tile, ..
        }) => {
            let causal = match [false, true].map(|causal| kind.mask.serves(causal)) {
                [true, true] => "both",
                [_, causal] if causal => "yes",
                _ => "no",
            };
            let tile = [tile.q_rows, tile.keys, tile.stages];
            (Some(dim), causal, tile.map(Some))
        }
        Family::Backward(Backward::Main(BackwardMain { dim, tile, .. })) => {
            let tile = [Some(tile.queries), Some(tile.keys), None];
            (Some(dim), "both", tile)
        }
        Family::Gemm(Gemm { tile, .. }) => {
            let tile = [tile.rows, tile.columns, tile.stages];
            (None, "-", tile.map(Some))
        }
        _ => (None, "-", [None; 3]),
    };
    let number = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
    let [rows, columns, stages] = tile.map(number);
    let dtype = kernel.dtype().map_or("any", Dtype::name);
    [
        ("kernel", kernel.name.to_owned()),
        ("target", kernel.target.name.to_owned()),
        ("dtype", dtype.to_owned()),
        ("dim up to", number(dim)),
        ("causal", causal.to_owned()),
        ("Br", rows),
        ("Bc", columns),
        ("warps", (kernel.launch.threads / 32).to_string()),
        ("stages", stages),
        ("shared bytes", kernel.launch.shared_bytes.to_string()),
    ]
}

/// A table of rows of headings and cells; the columns `numbers` are aligned to the right.
pub fn table<'a, R: IntoIterator<Item = (&'a str, String)>>(
    rows: impl IntoIterator<Item = R>,
    numbers: impl IntoIterator<Item = usize>,
) -> Table {
    let rows = rows.into_iter().map(|row| row.into_iter().unzip());
    let (headers, cells): (Vec<Vec<_>>, Vec<Vec<_>>) = rows.unzip();
    let mut table = empty_table(headers.first().expect("a row"), numbers);
    table.add_rows(cells);
    table
}

/// A table whose columns `numbers` are aligned to the right.
fn empty_table(header: &[&str], numbers: impl IntoIterator<Item = usize>) -> Table {
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

/// Prints a line. A reader that has gone (`| head`) is no error: the exit status still counts.
pub fn print(line: impl Display) -> io::Result<()> {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, Checked, Progress, Report};
    use crate::args::Args;
    use clap::Parser;
    use ferroattn::Device;
    use ferroattn::check::Comparison;
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
        fn flops(&self) -> f64 {
            self.terms as f64
        }
    }

    /// A `--json` line for a result with this error, and whether it was taken for right.
    fn outcome(max_abs_err: f64) -> (Value, bool) {
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
            failure: (!worst.passed()).then(|| worst.to_string()),
        };
        let times = [1, 2, 6].map(Duration::from_millis);
        let call = Sum { terms: 16_000_000 };
        let (args, device, progress) = (
            Args::parse_from(["attention"]),
            Device::cpu(),
            Progress::start(),
        );
        let mut report = Report::new(&args.run, &device, &progress);
        let right = report.add("cpu", call, &times, Some(checked));
        let json = serde_json::to_value(&report.outcomes[0]).expect("serialisable");
        (json, right.expect("nothing to print"))
    }

    #[test]
    fn a_wrong_result_is_a_failure() {
        let (json, right) = outcome(0.5);
        assert!(right && json["passed"] == true);
        for error in [1.5, f64::INFINITY] {
            let (json, right) = outcome(error);
            assert!(!right && json["passed"] == false);
        }
        assert_eq!(outcome(f64::INFINITY).0["max_abs_err"], Value::Null);
    }

    #[test]
    fn the_rate_comes_from_the_median() {
        let (json, _) = outcome(0.0);
        assert_eq!(
            (&json["median_ms"], &json["min_ms"], &json["terms"]),
            (&json!(2.0), &json!(1.0), &json!(16_000_000))
        );
        // 16 million operations in 2 ms.
        let tflops = json["tflops"].as_f64().expect("a number");
        assert!((tflops - 0.008).abs() < 1e-9, "{tflops}");
    }
}
