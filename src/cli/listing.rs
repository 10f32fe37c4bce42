//! Listings that are shown again and again: `--watch`.

use super::{
    args::{JobsArgs, WatchArgs},
    exit::{CliError, print},
};
use nodectl_wire::api::{JobLine, PhaseName};
use rustix::termios::tcgetwinsize;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, IsTerminal},
    time::Duration,
};

/// Prints what `make` gives: once, or every so many seconds anew until Ctrl-C.
pub async fn show(
    repeat: WatchArgs,
    mut make: impl AsyncFnMut() -> Result<String, CliError>,
) -> Result<(), CliError> {
    let Some(period) = repeat.watch else {
        return print(&make().await?);
    };
    let stdout = io::stdout();
    let mut is_first = true;
    loop {
        let text = make().await?;
        if stdout.is_terminal() {
            let rows = tcgetwinsize(&stdout).map_or(24, |size| usize::from(size.ws_row));
            print(&repainted(&text, rows, std::mem::take(&mut is_first)))?;
        } else {
            print(&text)?;
        }
        tokio::time::sleep(Duration::from_secs_f64(period)).await;
    }
}

/// A text over what was shown before, as far as it fits. ECMA-48: cursor home, erase to the end of
/// the line, erase to the end of the screen; the whole screen at first.
fn repainted(text: &str, rows: usize, is_first: bool) -> String {
    let fits = rows.saturating_sub(1).max(1);
    let hidden = text.lines().count().saturating_sub(fits);
    let shown = if hidden == 0 { fits } else { fits - 1 };
    let lines = text.lines().take(shown).map(str::to_string);
    let rest = (hidden > 0).then(|| format!("… {} more lines", hidden + 1));
    let erased: String = lines.chain(rest).map(|line| line + "\x1b[K\n").collect();
    let begin = if is_first { "\x1b[2J\x1b[H" } else { "\x1b[H" };
    format!("{begin}{erased}\x1b[J")
}

/// The jobs that are wanted, newest first.
pub fn jobs(jobs: Vec<JobLine>, args: &JobsArgs) -> Vec<JobLine> {
    let mut jobs = if args.steps {
        jobs
    } else {
        without_steps(jobs)
    };
    newest_first(&mut jobs);
    jobs.retain(|job| {
        let is_named = |wanted: &String| job.name.contains(wanted.as_str());
        (!args.open || !job.phase.is_ended())
            && args.name.as_ref().is_none_or(is_named)
            && args.user.as_ref().is_none_or(|user| job.user == *user)
    });
    jobs.truncate(args.number.unwrap_or(usize::MAX));
    jobs
}

/// The jobs that users wrote, newest first.
pub fn of_users(jobs: Vec<JobLine>) -> Vec<JobLine> {
    let mut jobs = without_steps(jobs);
    newest_first(&mut jobs);
    jobs
}

fn newest_first(jobs: &mut [JobLine]) {
    jobs.sort_by(|a, b| (b.submitted_ms, &b.id).cmp(&(a.submitted_ms, &a.id)));
}

/// The jobs that users wrote: of one that waits for its own steps, while one of these runs, it is
/// said that it runs. Steps of a job that is not listed stay.
fn without_steps(mut jobs: Vec<JobLine>) -> Vec<JobLine> {
    let places: BTreeMap<String, usize> = jobs.iter().map(|job| job.id.clone()).zip(0..).collect();
    let mut hidden = BTreeSet::new();
    for whole in 0..jobs.len() {
        let steps = steps_before(whole, &jobs, &places);
        let is_at_work = |step: &usize| jobs[*step].phase == PhaseName::Running;
        if jobs[whole].phase == PhaseName::Waiting && steps.iter().any(is_at_work) {
            jobs[whole].phase = PhaseName::Running;
        }
        hidden.extend(steps);
    }
    let with_places = jobs.into_iter().zip(0..);
    with_places
        .filter(|(_, place)| !hidden.contains(place))
        .map(|(job, _)| job)
        .collect()
}

/// Where the steps on the way to a job are; none to one that is a step itself.
fn steps_before(
    whole: usize,
    jobs: &[JobLine],
    places: &BTreeMap<String, usize>,
) -> BTreeSet<usize> {
    let mut steps = BTreeSet::new();
    let mut ahead = if jobs[whole].is_step {
        vec![]
    } else {
        vec![whole]
    };
    while let Some(job) = ahead.pop() {
        let before = jobs[job].after.iter().filter_map(|id| places.get(id));
        ahead.extend(before.filter(|step| jobs[**step].is_step && steps.insert(**step)));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::head;
    use clap::Parser;
    use nodectl_types::{JobId, Phase};

    #[derive(Parser)]
    struct ListingLine {
        #[command(flatten)]
        args: JobsArgs,
    }

    #[test]
    fn every_listing_can_be_watched() {
        let takes = |line: &str| {
            let words = line.split(' ');
            crate::grammar::command()
                .try_get_matches_from(words)
                .is_ok()
        };
        for listing in [
            "nodes",
            "jobs",
            "status",
            "devices",
            "events",
            "audit -n 5",
            "secret list",
            "job last",
            "job last --tasks",
            "results last",
            "results last --sort -value -n 3",
        ] {
            for watch in ["--watch", "--watch=0.5"] {
                let line = format!("nodectl {listing} {watch}");
                assert!(takes(&line), "{line}");
                assert!(!takes(&format!("{line} --json")), "{line} --json");
            }
        }
        assert!(!takes("nodectl results last --watch --csv"));
    }

    #[test]
    fn a_repainted_text_leaves_nothing_of_the_one_before_and_fits() {
        assert_eq!(
            repainted("a\nb\n", 24, false),
            "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J"
        );
        assert!(repainted("a\n", 24, true).starts_with("\x1b[2J"));
        let long = repainted(&"x\n".repeat(10), 5, false);
        assert_eq!(long.lines().count(), 5, "four lines, and the end");
        assert!(long.contains("… 7 more lines"));
    }

    #[test]
    fn steps_are_told_as_the_job_they_lead_to() {
        let step = |job: u64, after: &[u64], phase| {
            let mut step = head(job, "heat.round", 10_000 + job);
            step.is_step = true;
            step.after = after.iter().map(|job| JobId(*job)).collect();
            step.phase = phase;
            step
        };
        let mut heat = head(3, "heat", 20_000);
        (heat.after, heat.phase) = (vec![JobId(2)], Phase::Waiting);
        let first = step(1, &[], Phase::Done);
        let heads = [
            first,
            step(2, &[1], Phase::Running),
            heat,
            step(9, &[], Phase::Done),
        ];
        let shown = |line: &[&str]| {
            let args = ListingLine::parse_from(["jobs"].iter().chain(line)).args;
            let chosen = jobs(heads.iter().map(JobLine::from).collect(), &args);
            let told = chosen.iter().map(|job| (job.id.clone(), job.phase));
            told.collect::<Vec<_>>()
        };
        let id = |job: u64| JobId(job).to_string();
        let whole = (id(3), PhaseName::Running);
        assert_eq!(shown(&[]), [whole.clone(), (id(9), PhaseName::Done)]);
        assert_eq!(shown(&["--open"]), [whole]);
        assert_eq!(shown(&["--steps"]).len(), 4);
    }

    #[test]
    fn the_newest_job_is_first_and_filters_hold() {
        let mut ended = head(2, "fit-b", 50_000);
        ended.phase = Phase::Done;
        let lines = [head(1, "fit-a", 40_000), ended, head(3, "other", 60_000)];
        let ids = |line: &[&str]| {
            let args = ListingLine::parse_from(["jobs"].iter().chain(line)).args;
            let chosen = jobs(lines.iter().map(JobLine::from).collect(), &args);
            let numbers = chosen.iter().map(|job| u64::from_str_radix(&job.id, 16));
            numbers
                .collect::<Result<Vec<_>, _>>()
                .expect("hexadecimal ids")
        };
        assert_eq!(ids(&[]), [3, 2, 1]);
        assert_eq!(ids(&["--open"]), [3, 1]);
        assert_eq!(ids(&["-n", "1"]), [3]);
        assert_eq!(ids(&["--name", "fit"]), [2, 1]);
        assert_eq!(ids(&["--user", "nobody"]), [0u64; 0]);
    }
}
