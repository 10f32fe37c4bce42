//! The metric of a sweep's running task: lines `nodectl-metric: {"step": 3, "loss": 0.5}` on its
//! stdout, read while it grows. Bounded: of what came since the last look, at most `READ_BYTES` are
//! read and `limits::METRIC_POINTS` values told.

use super::protocol::STDOUT_FILE;
use nodectl_types::{MetricPoint, limits::METRIC_POINTS};
use serde_json::Value;
use std::{
    fs::OpenOptions,
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    time::Duration,
};

/// How often a running task's stdout is looked at.
pub const PERIOD: Duration = Duration::from_millis(300);

/// What a line begins with that reports it.
pub const MARK: &str = "nodectl-metric:";
const READ_BYTES: u64 = 256 << 10;
/// The longest line that can be one.
const LINE_BYTES: usize = 16 << 10;

/// Reads one attempt's metric.
#[derive(Debug)]
pub struct Meter {
    metric: String,
    offset: u64,
    /// The beginning of a line whose end has not been written.
    rest: Vec<u8>,
}

impl Meter {
    pub fn new(metric: &str) -> Self {
        Self {
            metric: metric.to_string(),
            offset: 0,
            rest: Vec::new(),
        }
    }

    /// The values that the task in `dir` has reported since the last call. A task that made
    /// something else of its stdout reports nothing.
    pub fn read(&mut self, dir: &Path) -> Vec<MetricPoint> {
        self.read_lines(&dir.join(STDOUT_FILE)).unwrap_or_default()
    }

    fn read_lines(&mut self, path: &Path) -> io::Result<Vec<MetricPoint>> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(path)?;
        let length = file.metadata()?.len();
        if length > self.offset + READ_BYTES {
            // Too much to look at all of it: the latest says most.
            self.offset = length - READ_BYTES;
            self.rest.clear();
        }
        let mut bytes = vec![0; length.saturating_sub(self.offset) as usize];
        let count = file.read_at(&mut bytes, self.offset)?;
        self.offset += count as u64;
        Ok(thinned(self.take(&bytes[..count])))
    }

    /// Cuts into lines what follows what was taken before.
    fn take(&mut self, bytes: &[u8]) -> Vec<MetricPoint> {
        self.rest.extend_from_slice(bytes);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            if self.rest.len() > LINE_BYTES {
                self.rest.clear();
            }
            return Vec::new();
        };
        let tail = self.rest.split_off(end + 1);
        let lines = std::mem::replace(&mut self.rest, tail);
        lines
            .split(|byte| *byte == b'\n')
            .filter_map(|line| self.point(line))
            .collect()
    }

    fn point(&self, line: &[u8]) -> Option<MetricPoint> {
        let text = std::str::from_utf8(line.strip_prefix(MARK.as_bytes())?).ok()?;
        let value: Value = serde_json::from_str(text)
            .or_else(|_| serde_json::from_str(&without_infinities(text)))
            .ok()?;
        let step = value.get("step")?;
        let step = step.as_u64().or_else(|| {
            step.as_f64()
                .filter(|step| *step >= 0.0)
                .map(|step| step as u64)
        })?;
        let value = match value.get(&self.metric)? {
            Value::Null => f64::NAN,
            number => number.as_f64()?,
        };
        Some(MetricPoint { step, value })
    }
}

/// Python writes numbers that JSON lacks; a task that has diverged should not go on for that.
fn without_infinities(text: &str) -> String {
    text.replace("-Infinity", "null")
        .replace("Infinity", "null")
        .replace("NaN", "null")
}

/// Evenly, the last one always among them.
fn thinned(points: Vec<MetricPoint>) -> Vec<MetricPoint> {
    let every = points.len().div_ceil(METRIC_POINTS).max(1);
    let count = points.len();
    let kept = points
        .into_iter()
        .enumerate()
        .filter(|(index, _)| (count - 1 - index).is_multiple_of(every));
    kept.map(|(_, point)| point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_read_as_they_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(STDOUT_FILE);
        let mut meter = Meter::new("loss");
        assert!(meter.read(dir.path()).is_empty(), "not begun to write");
        let point = |step, value| MetricPoint { step, value };
        std::fs::write(
            &path,
            "hello\nnodectl-metric: {\"step\": 1, \"loss\": 0.5}\nnodectl-metric: {\"step\"",
        )
        .unwrap();
        assert_eq!(meter.read(dir.path()), [point(1, 0.5)]);
        let more = ": 2, \"loss\": 1}\nnodectl-metric: {\"loss\": 3}\nnodectl-metric: {\"step\": 4, \"loss\": \"x\"}\n";
        let text = std::fs::read_to_string(&path).unwrap() + more;
        std::fs::write(&path, text).unwrap();
        assert_eq!(meter.read(dir.path()), [point(2, 1.0)]);
        assert!(meter.read(dir.path()).is_empty());
    }

    #[test]
    fn what_diverged_is_a_value() {
        let mut meter = Meter::new("loss");
        for text in ["NaN", "-Infinity", "null"] {
            let line = format!("nodectl-metric: {{\"step\": 9.0, \"loss\": {text}}}\n");
            let points = meter.take(line.as_bytes());
            assert!(
                points.len() == 1 && points[0].step == 9 && points[0].value.is_nan(),
                "{text}: {points:?}"
            );
        }
    }

    #[test]
    fn a_flood_is_thinned_out_and_ends_with_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let text: String = (0..50_000)
            .map(|step| format!("nodectl-metric: {{\"step\":{step},\"loss\":1}}\n"))
            .collect();
        std::fs::write(dir.path().join(STDOUT_FILE), &text).unwrap();
        let mut meter = Meter::new("loss");
        let points = meter.read(dir.path());
        assert!(
            (METRIC_POINTS / 2..=METRIC_POINTS).contains(&points.len()),
            "{}",
            points.len()
        );
        assert_eq!(points.last().map(|point| point.step), Some(49_999));
        assert_eq!(meter.offset, text.len() as u64);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_do_harm_and_pieces_make_no_difference(bytes: Vec<u8>, cut in any::<prop::sample::Index>()) {
            let all = [b"nodectl-metric: ".as_slice(), &bytes, b"\nnodectl-metric: {\"step\":1,\"loss\":2}\n"].concat();
            let whole = Meter::new("loss").take(&all);
            let (first, second) = all.split_at(cut.index(all.len()));
            let mut meter = Meter::new("loss");
            let pieces = [meter.take(first), meter.take(second)].concat();
            prop_assert_eq!(pieces, whole);
        }
    }
}
