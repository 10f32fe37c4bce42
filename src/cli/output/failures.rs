//! Why tasks failed, for people.

use super::model::FailureGroup;
use nodectl_types::text;

/// Failures that are shown with their traceback.
const TRACEBACKS: usize = 3;

/// Failures by reason, the most frequent first.
pub fn failures_text(job: &str, failures: &[FailureGroup]) -> String {
    let text = |(index, group): (usize, &FailureGroup)| {
        let plural = if group.tasks == 1 { "task" } else { "tasks" };
        let logs = format!("nodectl logs --stderr {job} {}", group.example);
        let (why, hint) = text::split_hint(&group.reason);
        let hint = hint.map(|hint| format!("      hint: {}\n", text::one_line(hint)));
        let line = format!(
            "  {} {plural}: {} ({logs})\n{}",
            group.tasks,
            text::one_line(why),
            hint.unwrap_or_default()
        );
        let traceback = group.traceback.as_deref().filter(|_| index < TRACEBACKS);
        line + &traceback
            .map(|traceback| indented(traceback, "      "))
            .unwrap_or_default()
    };
    failures.iter().enumerate().map(text).collect()
}

/// Lines of a text that a task wrote, set off by `margin`.
pub fn indented(text: &str, margin: &str) -> String {
    text.trim_end()
        .lines()
        .map(|line| format!("{margin}{}\n", text::one_line(line)))
        .collect()
}
