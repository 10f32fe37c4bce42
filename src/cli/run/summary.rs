//! What to say at the end of a run.

use crate::{
    exit::{CliError, Exit},
    output::{RunSummary, compute_line, failures_text, indented},
    shown::ShownLog,
};
use futures::TryStreamExt;
use nodectl_http::{Client, client::LogRequest};
use nodectl_ports::say;
use nodectl_types::{
    text,
    units::{counted, format_duration},
};
use nodectl_wire::api::PhaseName;
use std::time::Duration;

/// Of the line about the best task.
const BEST_CHARS: usize = 160;

/// A remark for people, on stderr.
pub fn tell(ends: &[RunSummary]) {
    say::open(format_args!("{}", of_all(ends)));
}

/// Steps on the way to a job are told of where they went wrong; else the job has their rate.
fn of_all(ends: &[RunSummary]) -> String {
    let (mut said, mut rate) = (String::new(), None);
    for end in ends {
        if end.is_step() && end.phase == PhaseName::Done {
            rate = end.compute.or(rate);
            continue;
        }
        let compute = end.compute.or(rate.take());
        said += &text(&RunSummary {
            compute,
            ..end.clone()
        });
    }
    said
}

fn text(end: &RunSummary) -> String {
    let beside = |count: u32, what: &str| {
        if count > 0 {
            format!(", {count} {what}")
        } else {
            String::new()
        }
    };
    let failed = beside(end.failed, "failed") + &beside(end.stopped, "stopped");
    let taken = match end.taken_over {
        0 => String::new(),
        taken => format!(" ({taken} by earlier runs)"),
    };
    let results = match end.is_step() {
        // They are for the jobs after it.
        true => String::new(),
        false => format!("; results in {}", end.directory.display()),
    };
    let mut said = format!(
        "{} ({}) {}: {} of {} done{taken}{failed} in {}{results}\n",
        end.name,
        end.job,
        end.phase.word(),
        end.done,
        counted(end.tasks, "task"),
        format_duration(Duration::try_from_secs_f64(end.wall_seconds).unwrap_or_default())
    );
    said += &end
        .compute
        .as_ref()
        .map(|rate| format!("  {}\n", compute_line(rate)))
        .unwrap_or_default();
    said += &end
        .reason
        .as_deref()
        .map(|reason| indented(once(reason), "  "))
        .unwrap_or_default();
    if let Some(best) = &end.best {
        said += &format!("  best: {}\n", text::shortened(best, BEST_CHARS));
    }
    said += &failures_text(&end.job, &end.failures);
    if lacks_a_file(end) {
        said += "hint: a job sees the files that travel with it: data = [\"FILE\"] in a job file, --files FILE\n";
    }
    // What raised an exception does so again.
    if end.phase == PhaseName::Failed && end.failures.iter().any(|group| group.traceback.is_none())
    {
        said += &format!(
            "hint: `nodectl retry {} --failed` runs the failed tasks again\n",
            end.job
        );
    }
    if end.phase == PhaseName::Failed && end.reason.is_some() {
        said += &format!(
            "hint: once that is mended, `nodectl retry {} --failed` goes on with it\n",
            end.job
        );
    }
    if end.missing_files > 0 {
        let fetch = format!(
            "nodectl results {} --into {}",
            end.job,
            end.directory.display()
        );
        said += &format!(
            "{} could not be fetched; `{fetch}` tries again\n",
            counted(end.missing_files, "file")
        );
    }
    said
}

/// A reason without the lines that its first one ends with.
fn once(reason: &str) -> &str {
    match reason.split_once('\n') {
        Some((first, more)) if first.ends_with(more.trim_end()) => first,
        _ => reason,
    }
}

/// Whether Python did not find a file.
fn lacks_a_file(end: &RunSummary) -> bool {
    let reasons = end.failures.iter().map(|group| &group.reason);
    let mut said = reasons.chain(&end.reason);
    said.any(|reason| reason.contains("FileNotFoundError"))
}

/// The stdout of jobs that are one task: what they print is their result.
pub async fn print_single_tasks(client: &Client, ends: &[RunSummary]) -> Result<(), CliError> {
    for end in ends
        .iter()
        .filter(|end| end.tasks == 1 && end.phase == PhaseName::Done && !end.is_step())
    {
        let mut log = client
            .log(&end.job, end.first_in_job, LogRequest::default())
            .await?;
        let mut shown = ShownLog::new(false);
        while let Some(bytes) = log.try_next().await? {
            shown.print(&bytes)?;
        }
    }
    Ok(())
}

/// The exit code of a run.
pub fn exit(ends: &[RunSummary]) -> Exit {
    let well = ends
        .iter()
        .all(|end| end.phase == PhaseName::Done && end.missing_files == 0);
    if well { Exit::Done } else { Exit::Failed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{ComputeRate, FailureGroup};

    #[test]
    fn a_failed_job_says_why_and_what_to_do() {
        let end = RunSummary {
            job: "00000000000000ab".into(),
            name: "sweep".into(),
            phase: PhaseName::Failed,
            reason: None,
            best: Some("task 4 (lr=0.1): loss 0.25".into()),
            tasks: 10,
            done: 7,
            failed: 3,
            stopped: 0,
            taken_over: 0,
            first_in_job: 0,
            wall_seconds: 2.5,
            directory: "out".into(),
            failures: vec![
                FailureGroup {
                    reason: "could not start: no program fit\nhint: install it".into(),
                    tasks: 2,
                    example: 4,
                    traceback: None,
                },
                FailureGroup {
                    reason: "ValueError: bad".into(),
                    tasks: 1,
                    example: 6,
                    traceback: Some(
                        "Traceback:\n  File \"a.py\", line 3, in run\nValueError: bad\n".into(),
                    ),
                },
            ],
            missing_files: 1,
            compute: Some(ComputeRate {
                items_per_second: 2.5e9,
                gpus: 2,
                software: false,
                gpu_busy: 0.934,
            }),
        };
        insta::assert_snapshot!(text(&end), @r#"
        sweep (00000000000000ab) failed: 7 of 10 tasks done, 3 failed in 2.5 s; results in out
          2.50 G items/s on 2 GPUs, busy 93 % of the time
          best: task 4 (lr=0.1): loss 0.25
          2 tasks: could not start: no program fit (nodectl logs --stderr 00000000000000ab 4)
              hint: install it
          1 task: ValueError: bad (nodectl logs --stderr 00000000000000ab 6)
              Traceback:
                File "a.py", line 3, in run
              ValueError: bad
        hint: `nodectl retry 00000000000000ab --failed` runs the failed tasks again
        1 file could not be fetched; `nodectl results 00000000000000ab --into out` tries again
        "#);
        assert_eq!(exit(&[end]), Exit::Failed);
    }

    #[test]
    fn steps_that_went_well_are_their_jobs() {
        let rate = ComputeRate {
            items_per_second: 120.0,
            gpus: 0,
            software: false,
            gpu_busy: 0.0,
        };
        let end = |name: &str, directory: &str, compute| RunSummary {
            job: "00000000000000ab".into(),
            name: name.into(),
            phase: PhaseName::Done,
            reason: None,
            best: None,
            tasks: 1,
            done: 1,
            failed: 0,
            stopped: 0,
            taken_over: 0,
            first_in_job: 0,
            wall_seconds: 2.5,
            directory: directory.into(),
            failures: Vec::new(),
            missing_files: 0,
            compute,
        };
        let step = end("lab6.frames", "", Some(rate));
        let mut ends = [
            step,
            end("lab6", "out/lab6", None),
            end("other", "out/other", None),
        ];
        insta::assert_snapshot!(of_all(&ends), @r"
        lab6 (00000000000000ab) done: 1 of 1 task done in 2.5 s; results in out/lab6
          120.0 frames/s
        other (00000000000000ab) done: 1 of 1 task done in 2.5 s; results in out/other
        ");
        ends[0].phase = PhaseName::Failed;
        let said = of_all(&ends);
        assert!(
            said.starts_with("lab6.frames (00000000000000ab) failed"),
            "{said}"
        );
    }

    #[test]
    fn nothing_is_said_twice() {
        let twice = "no worker could start: it has no class G\nit has no class G\n";
        assert_eq!(once(twice), "no worker could start: it has no class G");
        let long = "no worker could start: ValueError\nTraceback\nValueError";
        assert_eq!(once(long), long);
    }

    #[test]
    fn who_misses_a_file_is_told_how_files_travel() {
        let end = |reason: &str| RunSummary {
            job: "00000000000000ab".into(),
            name: "fit".into(),
            phase: PhaseName::Failed,
            reason: Some(reason.into()),
            best: None,
            tasks: 1,
            done: 0,
            failed: 1,
            stopped: 0,
            taken_over: 0,
            first_in_job: 0,
            wall_seconds: 2.5,
            directory: "out".into(),
            failures: Vec::new(),
            missing_files: 0,
            compute: None,
        };
        let told = text(&end(
            "no worker could start: FileNotFoundError: [Errno 2] 'data.csv'",
        ));
        assert!(
            told.contains("hint: a job sees the files that travel with it"),
            "{told}"
        );
        let told = text(&end("no worker could start: ValueError: bad"));
        assert!(!told.contains("hint: a job sees"), "{told}");
        assert!(
            told.contains("`nodectl retry 00000000000000ab --failed` goes on"),
            "{told}"
        );
    }
}
