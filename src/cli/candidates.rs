//! Names that a shell proposes when a user presses Tab: jobs, nodes and secrets come from the node
//! that runs here. Who waits for a key wants no answer rather than a late one.

use super::place;
use clap_complete::CompletionCandidate;
use nodectl_app::settings::Flags;
use nodectl_http::{Client, ClientError};
use nodectl_types::units::counted;
use nodectl_wire::api::{JobLine, PhaseName};
use std::{collections::BTreeMap, ffi::OsString, path::PathBuf, time::Duration};

/// How long a node may take to answer.
const ANSWER: Duration = Duration::from_millis(50);

/// `last`, and the jobs that the node knows: by name, or by id where several have one name.
pub fn jobs() -> Vec<CompletionCandidate> {
    jobs_that(|_| true)
}

/// `last`, and the jobs that the node knows, as far as they can be cancelled.
pub fn unfinished_jobs() -> Vec<CompletionCandidate> {
    jobs_that(|job| !job.phase.is_ended())
}

/// `last`, and the jobs that the node knows, as far as they can be removed, or continued.
pub fn ended_jobs() -> Vec<CompletionCandidate> {
    jobs_that(|job| job.phase.is_ended())
}

/// `last`, and the jobs that the node knows, as far as they have failed tasks to try again.
pub fn failed_jobs() -> Vec<CompletionCandidate> {
    jobs_that(|job| job.phase == PhaseName::Failed || job.failed > 0)
}

/// `last`, and the jobs that the node knows, as far as more tasks can be added to them.
pub fn open_jobs() -> Vec<CompletionCandidate> {
    jobs_that(|job| job.open == Some(true))
}

fn jobs_that(fit: impl Fn(&JobLine) -> bool) -> Vec<CompletionCandidate> {
    candidates_for_jobs(&ask(async |client| client.jobs().await), fit)
}

/// Names are shared with jobs that do not fit, too, and `last` is the last of all.
fn candidates_for_jobs(
    jobs: &[JobLine],
    fit: impl Fn(&JobLine) -> bool,
) -> Vec<CompletionCandidate> {
    let mut of_name: BTreeMap<&str, usize> = BTreeMap::new();
    for job in jobs {
        *of_name.entry(&job.name).or_default() += 1;
    }
    let about = |job: &JobLine| format!("{}, {}", job.phase.word(), counted(job.tasks, "task"));
    let last = jobs.first().filter(|job| fit(job));
    let last = last.map(|job| candidate("last", about(job)));
    let named = jobs.iter().filter(|job| fit(job)).map(|job| {
        if of_name.get(job.name.as_str()) == Some(&1) {
            candidate(&job.name, about(job))
        } else {
            candidate(&job.id, format!("{}, {}", job.name, about(job)))
        }
    });
    last.into_iter().chain(named).collect()
}

/// The names of nodes.
pub fn nodes() -> Vec<CompletionCandidate> {
    let nodes = ask(async |client| client.nodes().await);
    let line = |node: &nodectl_wire::api::Node| {
        candidate(&node.name, counted(node.resources.cpus, "core"))
    };
    nodes.iter().map(line).collect()
}

/// The names of secrets.
pub fn secrets() -> Vec<CompletionCandidate> {
    let secrets = ask(async |client| client.secrets().await);
    secrets
        .into_iter()
        .map(|secret| CompletionCandidate::new(secret.name))
        .collect()
}

/// What `init` can write.
pub fn templates() -> Vec<CompletionCandidate> {
    nodectl_workloads::templates::kinds()
        .iter()
        .map(|template| candidate(template.kind, template.summary.into()))
        .collect()
}

fn candidate(value: &str, about: String) -> CompletionCandidate {
    CompletionCandidate::new(value).help(Some(about.into()))
}

/// What the node says; nothing where none answers in time.
fn ask<T>(question: impl AsyncFnOnce(&Client) -> Result<Vec<T>, ClientError>) -> Vec<T> {
    let asked = || {
        let named = data_dir(std::env::args_os());
        let (settings, _) = place::settings(Flags::default(), named.as_deref()).ok()?;
        let client = Client::new(place::socket(&settings));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .ok()?;
        runtime.block_on(async {
            let answered = tokio::time::timeout(ANSWER, question(&client)).await;
            answered.ok()?.ok()
        })
    };
    asked().unwrap_or_default()
}

/// The directory that the line names which is being typed.
fn data_dir(args: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let mut args = args.skip_while(|arg| arg != "--").skip(1);
    while let Some(arg) = args.next() {
        if arg == "--data-dir" {
            return args.next().map(PathBuf::from);
        }
        if let Some(dir) = arg.to_str().and_then(|arg| arg.strip_prefix("--data-dir=")) {
            return Some(dir.into());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str, name: &str) -> JobLine {
        let line = serde_json::json!({
            "id": id, "name": name, "phase": "done", "cancelled": false, "tasks": 1, "done": 1,
            "failed": 0, "stopped": 0, "submitter": "", "submitted_ms": 0, "epoch": 1,
            "replicas": [],
        });
        serde_json::from_value(line).expect("all that a job has")
    }

    #[test]
    fn jobs_are_proposed_by_name_and_by_id_where_names_are_shared() {
        let jobs = [
            job("00000000000000a1", "areas"),
            job("00000000000000b2", "sweep"),
            job("00000000000000c3", "areas"),
        ];
        assert_eq!(
            proposed(&jobs, |_| true),
            ["last", &jobs[0].id, "sweep", &jobs[2].id]
        );
        assert!(proposed(&[], |_| true).is_empty());
    }

    #[test]
    fn only_jobs_are_proposed_that_the_command_can_be_for() {
        let mut jobs = [
            job("00000000000000a1", "areas"),
            job("00000000000000b2", "sweep"),
            job("00000000000000c3", "areas"),
        ];
        jobs[2].phase = PhaseName::Running;
        assert_eq!(
            proposed(&jobs, |job| !job.phase.is_ended()),
            [jobs[2].id.as_str()]
        );
        assert_eq!(
            proposed(&jobs, |job| job.phase.is_ended()),
            ["last", &jobs[0].id, "sweep"]
        );
    }

    fn proposed(jobs: &[JobLine], fit: impl Fn(&JobLine) -> bool) -> Vec<String> {
        let proposed = candidates_for_jobs(jobs, fit);
        let value = |candidate: &CompletionCandidate| {
            let value = candidate.get_value().to_str().expect("text");
            value.to_string()
        };
        proposed.iter().map(value).collect()
    }

    #[test]
    fn the_directory_is_the_one_on_the_line() {
        let line = |text: &str| {
            let args: Vec<OsString> = text.split(' ').map(Into::into).collect();
            data_dir(args.into_iter())
        };
        assert_eq!(
            line("nodectl -- nodectl --data-dir /d job"),
            Some("/d".into())
        );
        assert_eq!(
            line("nodectl -- nodectl job --data-dir=/d"),
            Some("/d".into())
        );
        assert_eq!(line("nodectl --data-dir /other -- nodectl job"), None);
    }
}
