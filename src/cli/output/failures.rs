//! Why tasks failed, for people.

use super::model::FailureGroup;
use nodectl_types::text;
use nodectl_wire::api::FailureView;

/// Characters of a line that a failed task said.
const LINE_CHARS: usize = 200;
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

/// Why a task failed, with the last line that it said, which mostly tells more than its exit
/// status.
pub fn failure_text(failure: &FailureView, stderr: &str) -> String {
    let last = stderr
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty());
    let Some(line) = last.filter(|_| failure.traceback.is_none()) else {
        return failure.message.clone();
    };
    let (why, hint) = text::split_hint(&failure.message);
    let hint = hint.map(|hint| format!("\nhint: {hint}"));
    let line = text::shortened(line, LINE_CHARS);
    format!("{why}: {line}{}", hint.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_with_the_last_line_that_its_task_said() {
        let failure = |traceback: Option<&str>| FailureView {
            kind: nodectl_wire::api::FailureKind::Exit,
            message: "exit status 1".into(),
            code: Some(1),
            traceback: traceback.map(str::to_string),
        };
        let said = "Traceback:\nModuleNotFoundError: No module named 'numpy'\n\n";
        assert_eq!(
            failure_text(&failure(None), said),
            "exit status 1: ModuleNotFoundError: No module named 'numpy'"
        );
        assert_eq!(failure_text(&failure(None), " \n"), "exit status 1");
        assert_eq!(failure_text(&failure(Some("it")), said), "exit status 1");
    }
}
