//! The main figures of a report of ncu, NVIDIA's profiler, from its pages as CSV.

use crate::table;
use anyhow::{Context, Result, ensure};
use csv::StringRecord;
use kernel_builder::sass;
use std::collections::BTreeMap;

/// The figures of a kernel: our name, and ncu's.
pub const METRICS: &[(&str, &str)] = &[
    ("time", "gpu__time_duration.sum"),
    ("clock", "sm__cycles_elapsed.avg.per_second"),
    ("blocks", "launch__grid_size"),
    ("threads of a block", "launch__block_size"),
    (
        "shared memory of a block",
        "launch__shared_mem_per_block_dynamic",
    ),
    ("registers", "launch__registers_per_thread"),
    ("local loads", "sass__inst_executed_local_loads"),
    ("local stores", "sass__inst_executed_local_stores"),
    (
        "occupancy, possible",
        "sm__maximum_warps_per_active_cycle_pct",
    ),
    (
        "occupancy, reached",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
    ),
    (
        "tensor pipe busy",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    ),
    (
        "issue slots busy",
        "smsp__issue_active.avg.pct_of_peak_sustained_active",
    ),
    ("L2 traffic", "lts__t_bytes.sum"),
    ("L2 hits", "lts__t_sector_hit_rate.pct"),
    ("DRAM read", "dram__bytes_read.sum"),
    ("DRAM written", "dram__bytes_write.sum"),
];

/// The beginning and end of ncu's names for the reasons why warps wait.
const STALL: [&str; 2] = [
    "smsp__average_warps_issue_stalled_",
    "_per_issue_active.ratio",
];

/// How many of the reasons are printed, the most frequent first.
const REASONS: usize = 8;

/// The figures and stall reasons of every kernel, from the page `raw`: a row of names, a row of units, and a
/// row for each kernel.
pub fn summary(raw: &str) -> Result<String> {
    let records = records(raw)?;
    let is_header = |record: &StringRecord| record.get(0) == Some("ID");
    let mut records = records.iter().skip_while(|record| !is_header(record));
    let (names, units) = records.next().zip(records.next()).context("no kernel")?;
    let mut text = String::new();
    for values in records {
        let columns = names.iter().zip(units.iter().zip(values));
        let columns: BTreeMap<_, _> = columns.collect();
        text += &format!("{}\n", kernel(&columns));
    }
    ensure!(!text.is_empty(), "ncu's report has no kernel");
    Ok(text)
}

/// One kernel's units and values, by ncu's names.
fn kernel(columns: &BTreeMap<&str, (&str, &str)>) -> String {
    let mut table = table::empty(&["figure", "value", "unit"], [1]);
    for &(label, metric) in METRICS {
        let (unit, value) = columns.get(metric).copied().unwrap_or(("", "-"));
        let shown = number(value).map_or(value.to_owned(), short);
        table.add_row([label, &shown, unit.split('/').next().unwrap_or_default()]);
    }
    let stalls = columns.iter().filter_map(|(name, (_, value))| {
        let reason = name.strip_prefix(STALL[0])?.strip_suffix(STALL[1])?;
        Some((reason, number(value)?))
    });
    let mut stalls: Vec<_> = stalls.collect();
    let total: f64 = stalls.iter().map(|(_, warps)| warps).sum();
    stalls.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (reason, warps) in stalls.into_iter().take(REASONS) {
        let label = match reason {
            "selected" => "warps that issue".to_owned(),
            reason => format!("stalled: {}", reason.replace('_', " ")),
        };
        table.add_row([&label, &short(100.0 * warps / total), "%"]);
    }
    let name = columns.get("Kernel Name").map_or("", |(_, name)| name);
    format!("{name}\n{table}")
}

/// Wavefronts of shared memory by kind of instruction, from the page `source`. Bank conflicts are the wavefronts
/// beyond what the bytes need.
pub fn shared_memory(source: &str) -> Result<String> {
    let records = records(source)?;
    let is_header = |record: &StringRecord| record.iter().any(|name| name == WAVEFRONTS);
    let header = records.iter().position(is_header);
    let header = header.context("ncu's report has no machine code")?;
    let column = |name: &str| {
        let column = records[header].iter().position(|column| column == name);
        column.with_context(|| format!("ncu's report has no {name}"))
    };
    let (code, executed) = (column("Source")?, column("Instructions Executed")?);
    let (wavefronts, ideal) = (column(WAVEFRONTS)?, column("L1 Wavefronts Shared Ideal")?);

    let mut sums: BTreeMap<&str, [f64; 3]> = BTreeMap::new();
    for record in &records[header + 1..] {
        let figure = |column: usize| record.get(column).and_then(number).unwrap_or(0.0);
        let Some(name) = record.get(code).and_then(sass::name) else {
            continue;
        };
        if figure(wavefronts) > 0.0 {
            let kind = name.split('.').next().unwrap_or(name);
            let sums = sums.entry(kind).or_default();
            for (sum, column) in sums.iter_mut().zip([executed, wavefronts, ideal]) {
                *sum += figure(column);
            }
        }
    }
    let header = [
        "shared memory",
        "warp-instr.",
        "wavefronts",
        "bank conflicts",
    ];
    let mut table = table::empty(&header, 1..4);
    for (kind, [executed, wavefronts, ideal]) in sums {
        let figures = [executed, wavefronts, wavefronts - ideal].map(short);
        let [executed, wavefronts, conflicts] = &figures;
        table.add_row([kind, executed, wavefronts, conflicts]);
    }
    Ok(table.to_string())
}

const WAVEFRONTS: &str = "L1 Wavefronts Shared";

fn records(text: &str) -> Result<Vec<StringRecord>> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(text.as_bytes());
    let records = reader.records().collect::<Result<_, _>>();
    records.context("not CSV of ncu")
}

/// ncu groups the digits of whole numbers.
fn number(text: &str) -> Option<f64> {
    text.replace(',', "").parse().ok()
}

fn short(number: f64) -> String {
    if number.fract() == 0.0 {
        format!("{number:.0}")
    } else {
        format!("{number:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::{shared_memory, summary};

    #[test]
    fn figures_and_stalls_of_each_kernel() {
        let raw = r#"==PROF== not a row
"ID","Kernel Name","gpu__time_duration.sum","launch__grid_size","smsp__average_warps_issue_stalled_wait_per_issue_active.ratio","smsp__average_warps_issue_stalled_selected_per_issue_active.ratio","launch__registers_per_thread"
"","","us","","inst","inst","register/thread"
"0","forward_x","825.568000","2,048","3.0","1.000000","245"
"1","combine_x","1.5","7","1.0","1.0","32"
"#;
        let text = summary(raw).expect("two kernels");
        let (first, second) = text.split_once("combine_x").expect("the second kernel");
        let has = |text: &str, row: [&str; 3]| {
            let mut lines = text.lines();
            lines.any(|line| row.iter().all(|word| line.contains(word)))
        };
        assert!(has(first, ["time", " 825.57 ", " us "]), "{text}");
        assert!(has(first, ["blocks", " 2048 ", ""]), "{text}");
        assert!(has(first, ["registers", " 245 ", " register "]), "{text}");
        assert!(has(first, ["stalled: wait", " 75 ", "%"]), "{text}");
        assert!(has(first, ["DRAM read", " - ", ""]), "{text}");
        assert!(has(second, ["warps that issue", " 50 ", "%"]), "{text}");
        assert!(summary("").is_err());
    }

    #[test]
    fn wavefronts_beyond_the_ideal_are_conflicts() {
        let source = r##""Kernel Name","forward_x"
"#","Source","Instructions Executed","L1 Wavefronts Shared","L1 Wavefronts Shared Ideal"
"0","      LDSM.16.M88.4 R4, [R2]","1,000","4,000","4,000"
"1","@P0   LDSM.16.MT88.4 R8, [R2]","1","4","4"
"2","      STS.128 [R2], R4","10","60","40"
"3","      HMMA.16816.F32 R4, R8, R2, R4","5","0","0"
"##;
        let text = shared_memory(source).expect("machine code");
        let row = |name: &str| {
            let line = text.lines().find(|line| line.contains(name));
            let words = line.into_iter().flat_map(str::split_whitespace);
            words
                .filter_map(|word| word.parse().ok())
                .collect::<Vec<u32>>()
        };
        assert_eq!(row("LDSM"), [1001, 4004, 0], "{text}");
        assert_eq!(row("STS"), [10, 60, 20], "{text}");
        assert!(!text.contains("HMMA"));
        assert!(shared_memory("nothing").is_err());
    }
}
