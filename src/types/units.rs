//! Counts, bytes and durations as people write and read them.

use std::{fmt::Display, time::Duration};

/// A quantity that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct BadQuantity {
    pub text: String,
    pub expected: &'static str,
}

const BYTE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Reads `8 GiB`, `512MB`, `1024`. Units are case-insensitive; `KB` is `kB`; none means bytes.
pub fn parse_bytes(text: &str) -> Result<u64, BadQuantity> {
    let bad = || BadQuantity {
        text: text.to_string(),
        expected: "a size such as `8 GiB`, `500 MB` or `1024`",
    };
    let trimmed = text.trim();
    let digits = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let number: f64 = number.parse().map_err(|_| bad())?;
    let unit = unit.trim();
    let factor = if unit.is_empty() {
        1
    } else {
        BYTE_UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
            .ok_or_else(bad)?
            .1
    };
    let bytes = number * factor as f64;
    if bytes.is_finite() && (0.0..9e18).contains(&bytes) {
        Ok(bytes as u64)
    } else {
        Err(bad())
    }
}

/// `7.8 GiB`, `512 B`.
pub fn format_bytes(bytes: u64) -> String {
    for (name, factor) in &BYTE_UNITS[..4] {
        if bytes >= *factor {
            let value = bytes as f64 / *factor as f64;
            return if value >= 100.0 {
                format!("{value:.0} {name}")
            } else {
                format!("{value:.1} {name}")
            };
        }
    }
    format!("{bytes} B")
}

/// A count with what is counted, whose name is given for one: `1 task`, `0 GPUs`, `0.5 GPUs`,
/// `2 processes`, `3 entries`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, one: &str) -> String {
    if count == N::from(1) {
        return format!("1 {one}");
    }
    match one.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{count} {stem}ies"),
        _ if one.ends_with('s') => format!("{count} {one}es"),
        _ => format!("{count} {one}s"),
    }
}

/// Reads `90s`, `2h 30m`, `500ms`.
pub fn parse_duration(text: &str) -> Result<Duration, BadQuantity> {
    let bad = || BadQuantity {
        text: text.to_string(),
        expected: "a duration such as `90s`, `2h 30m` or `500ms`",
    };
    humantime::parse_duration(text.trim()).map_err(|_| bad())
}

/// `2h 05m`, `3m 20s`, `1.25 s`, `12 ms`: two significant parts at most.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 if duration.as_millis() < 1 => format!("{:.2} ms", duration.as_secs_f64() * 1e3),
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_all_else_plural() {
        assert_eq!(counted(1u32, "task"), "1 task");
        assert_eq!(counted(0usize, "task"), "0 tasks");
        assert_eq!(counted(12u64, "process"), "12 processes");
        assert_eq!(counted(3u32, "entry"), "3 entries");
        assert_eq!(counted(2u32, "key"), "2 keys");
        assert_eq!(counted(1.0, "GPU"), "1 GPU");
        assert_eq!(counted(0.5, "GPU"), "0.5 GPUs");
    }
}
