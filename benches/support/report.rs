//! Plain lines: what was measured, its bar, the ratio of the two, and the reference. With
//! `BENCH_RECORD=FILE` each is also a line of JSON in that file.

use std::{fs, io::Write, time::Duration};

/// Says what is measured and on what.
pub fn title(name: &str) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<&str> = load.split(' ').take(3).collect();
    println!("{name} ({cores} cores, load average {})", load.join(" "));
    println!(
        "  {:<52} {:>12} {:>12} {:>7}  reference",
        "", "measured", "bar", "ratio"
    );
}

/// One measured value beside its bar, of which it should be at most the whole.
pub fn bar(what: &str, measured: f64, most: f64, unit: &str, reference: &str) {
    let verdict = if measured <= most { "" } else { "  MISSED" };
    let show = |value: f64| format!("{} {unit}", rounded(value));
    record(what, measured, unit, Some(most), reference);
    println!(
        "  {what:<52} {:>12} {:>12} {:>7.2}  {reference}{verdict}",
        show(measured),
        show(most),
        measured / most.max(1e-9)
    );
}

/// A value that has no bar of its own.
pub fn value(what: &str, measured: f64, unit: &str, reference: &str) {
    record(what, measured, unit, None, reference);
    println!(
        "  {what:<52} {:>12} {:>12} {:>7}  {reference}",
        format!("{} {unit}", rounded(measured)),
        "",
        ""
    );
}

/// Adds a line to the record, if one is kept.
fn record(what: &str, measured: f64, unit: &str, bar: Option<f64>, reference: &str) {
    let Some(path) = std::env::var_os("BENCH_RECORD") else {
        return;
    };
    let line = serde_json::json!({
        "what": what, "value": measured, "unit": unit, "bar": bar, "reference": reference,
    });
    let mut file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .expect("the record can be written");
    writeln!(file, "{line}").expect("there is room");
}

/// Three significant digits.
fn rounded(value: f64) -> String {
    let digits = if value == 0.0 {
        0
    } else {
        (2 - value.abs().log10().floor() as i32).clamp(0, 4) as usize
    };
    format!("{value:.digits$}")
}

/// The sample that `percent` of all are at most (nearest rank), in milliseconds.
pub fn percentile(samples: &[Duration], percent: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent)
        .div_ceil(100)
        .clamp(1, sorted.len());
    ms(sorted[rank - 1])
}

pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Mean and standard deviation.
pub fn spread(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / (count - 1.0).max(1.0);
    (mean, variance.sqrt())
}
