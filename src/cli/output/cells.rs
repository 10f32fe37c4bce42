//! What a cell of a table says.

use nodectl_types::{text, units::format_duration};
use std::time::Duration;

/// Characters of a cell that may hold anything.
const CELL_CHARS: usize = 60;

/// A node's id as people see it: its beginning, which commands take for the whole.
pub fn short_id(id: &str) -> String {
    id.chars().take(8).collect()
}

/// How long ago something was, as people say it: `3 min ago`.
pub fn ago(then_ms: u64, now_ms: u64) -> String {
    let seconds = now_ms.saturating_sub(then_ms) / 1000;
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        86_400..172_800 => "1 day ago".into(),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

pub fn since(start_ms: u64, end_ms: u64) -> String {
    format_duration(Duration::from_millis(end_ms.saturating_sub(start_ms)))
}

pub fn cut(text: &str) -> String {
    text::shortened(text, CELL_CHARS).into_owned()
}
