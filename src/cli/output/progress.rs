//! How far a job is, in a line.

use super::model::ComputeRate;
use nodectl_types::units::format_duration;
use nodectl_wire::api::ProgressView;
use std::time::Duration;

/// `12/50 done, 3 running, 1 failed, 4.1/s, ETA 9.0 s`.
pub fn progress_line(progress: &ProgressView) -> String {
    let mut text = format!(
        "{}: {}/{} done",
        progress.phase.word(),
        progress.done,
        progress.tasks
    );
    for (count, what) in [
        (progress.running, "running"),
        (progress.failed, "failed"),
        (progress.stopped, "stopped"),
    ] {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    if !progress.phase.is_ended() {
        if progress.rate > 0.0 {
            text += &format!(", {}/s", rate(progress.rate));
        }
        if let Some(left) = progress.left_seconds.filter(|left| *left >= 1.0) {
            let left = Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX);
            text += &format!(", ETA {}", format_duration(left));
        }
    }
    text
}

/// Two digits, at least: of long tasks less than one ends in a second.
fn rate(rate: f64) -> String {
    match rate {
        rate if rate >= 10.0 => format!("{rate:.0}"),
        rate if rate >= 1.0 => format!("{rate:.1}"),
        rate if rate >= 0.001 => format!("{rate:.3}"),
        _ => "less than 0.001".into(),
    }
}

/// `2.50 G items/s on 2 GPUs, busy 93 % of the time`, or `123.0 frames/s`. What a processor did in
/// the place of a GPU is not told as a GPU's.
pub fn compute_line(rate: &ComputeRate) -> String {
    let prefixes = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")];
    let items = rate.items_per_second;
    let (size, prefix) = prefixes
        .into_iter()
        .find(|(size, _)| items >= *size)
        .unwrap_or((1.0, ""));
    if rate.gpus == 0 {
        return format!("{items:.1} frames/s");
    }
    let gpus = match (rate.software, rate.gpus) {
        (false, 1) => "a GPU".into(),
        (false, gpus) => format!("{gpus} GPUs"),
        (true, 1) => "a processor, without a GPU".into(),
        (true, devices) => format!("{devices} devices, not all of them GPUs"),
    };
    format!(
        "{:.2}{prefix} items/s on {gpus}, busy {:.0} % of the time",
        items / size,
        rate.gpu_busy * 100.0
    )
}
