//! Promises about what runs: a result that was told is not computed again, a cancelled job does not
//! run on, and what runs and is wanted is let run.

use super::{
    HistoryVerdict,
    jobs::tasks_of,
    model::{LoggedJob, LoggedRun, MARGIN, Model, text},
    story,
};
use std::collections::BTreeMap;

/// An order may be on its way for so long when what it is for is over.
const ON_ITS_WAY: u64 = 5_000;

pub fn check(model: &Model, verdict: &mut HistoryVerdict) {
    for job in model.jobs.values() {
        beyond_need(model, job, verdict);
        computed_again(model, job, verdict);
        after_cancel(model, job, verdict);
        needless_stops(model, job, verdict);
    }
}

fn starts<'m>(job: &'m LoggedJob<'m>) -> impl Iterator<Item = &'m LoggedRun<'m>> {
    job.runs.iter().filter(|run| run.event == "start")
}

/// Faults and failures cost executions; how many is worth a number.
fn beyond_need(_: &Model, job: &LoggedJob, verdict: &mut HistoryVerdict) {
    let mut of_task: BTreeMap<u64, u64> = BTreeMap::new();
    starts(job).for_each(|run| *of_task.entry(run.task).or_default() += 1);
    *verdict
        .counts
        .entry("executions beyond one a task")
        .or_default() += of_task.values().map(|count| count - 1).sum::<u64>();
}

/// A result that was told is computed again only by those who could not know: after a partition, by
/// a node that was away, or when two nodes were away at once.
fn computed_again(model: &Model, job: &LoggedJob, verdict: &mut HistoryVerdict) {
    let mut told: BTreeMap<u64, u64> = BTreeMap::new();
    for one in model
        .told(job)
        .iter()
        .filter(|one| one.row["status"] == "done")
    {
        told.entry(one.row["task"].as_u64().unwrap_or(u64::MAX))
            .or_insert(one.at);
    }
    let mut again = Vec::new();
    for run in starts(job) {
        let Some(since) = told
            .get(&run.task)
            .filter(|since| run.at > **since + ON_ITS_WAY)
        else {
            continue;
        };
        verdict.count("executions after the result was told");
        let away = model.away_between(*since, run.at);
        let excused =
            model.parted_between(*since, run.at) || away.len() > 1 || away.contains(run.node);
        if !excused {
            again.push(run);
        }
    }
    if let Some(first) = again.first() {
        let text = format!(
            "{} results of {} that were told are computed again, such as of task {}",
            again.len(),
            job.name,
            first.task
        );
        verdict.add(
            "computed once",
            text,
            story::of_task(model, job, Some(first.task), first.at),
        );
    }
}

/// Nothing of a cancelled job begins once that was answered.
fn after_cancel(model: &Model, job: &LoggedJob, verdict: &mut HistoryVerdict) {
    for (_, call) in model
        .calls_of(job, "cancel")
        .filter(|(_, call)| call.is_answered())
    {
        let Some((since, _)) = call.answer else {
            continue;
        };
        let concerns = |run: &&LoggedRun| {
            let tasks = call.line["tasks"].as_array();
            tasks.is_none_or(|tasks| tasks.iter().any(|task| *task == run.task))
        };
        let could_not_know = |run: &LoggedRun| {
            let away = model.away_between(since, run.at);
            model.parted_between(since, run.at) || away.contains(run.node) || away.len() > 1
        };
        let late = starts(job)
            .filter(concerns)
            .find(|run| run.at > since + ON_ITS_WAY && !could_not_know(run));
        if let Some(run) = late {
            let text = format!(
                "task {} of {} begins on {} although it was cancelled",
                run.task, job.name, run.node
            );
            verdict.add(
                "cancelled",
                text,
                story::of_task(model, job, Some(run.task), run.at),
            );
            return;
        }
    }
}

/// What runs is stopped only when its task has a result, has failed as it should or is cancelled,
/// when its node ends, or when more than two attempts run.
fn needless_stops(model: &Model, job: &LoggedJob, verdict: &mut HistoryVerdict) {
    let mut needless = Vec::new();
    for stop in job.runs.iter().filter(|run| run.event == "stopped") {
        let of_task = || job.runs.iter().filter(|run| run.task == stop.task);
        // A task ends a moment after it has said so.
        let has_result = of_task().any(|run| run.event == "end" && run.at <= stop.at);
        let is_cancelled = model.calls_of(job, "cancel").any(|(_, call)| {
            let tasks = call.line["tasks"].as_array();
            call.at <= stop.at
                && tasks.is_none_or(|tasks| tasks.iter().any(|task| *task == stop.task))
        });
        let node_ended = model.faults.iter().any(|fault| {
            let ends = matches!(fault.kind, "kill" | "kill-all" | "damage" | "lost");
            ends && fault.nodes.contains(&stop.node)
                && fault.from <= stop.at + 1_000
                && stop.at <= fault.from + MARGIN
        });
        let exited = model.lines.iter().any(|line| {
            let at = line["at"].as_u64().unwrap_or(0);
            line["what"] == "exited"
                && text(&line["node"]) == stop.node
                && at.abs_diff(stop.at) <= MARGIN
        });
        if has_result
            || failed_as_it_should(model, job, stop)
            || is_cancelled
            || node_ended
            || exited
            || had_failed_for_good(model, job, stop)
        {
            continue;
        }
        let others = rivals(model, job, stop);
        if others > 1 {
            continue;
        }
        if others == 1 {
            verdict.count("older attempts stopped for younger ones");
        }
        needless.push(stop);
    }
    if let Some(first) = needless.first() {
        let text = format!(
            "{} running attempts of {} were stopped although their tasks had no result: such as of task {} on {}, of {} tasks",
            needless.len(),
            job.name,
            first.task,
            first.node,
            tasks_of(model, job).unwrap_or(0)
        );
        verdict.add(
            "let run",
            text,
            story::of_task(model, job, Some(first.task), first.at),
        );
    }
}

/// Another attempt of the task failed as it should, and nobody asked for a retry since: that ends
/// the task, also for a node that was away and ran it meanwhile.
fn failed_as_it_should(model: &Model, job: &LoggedJob, stop: &LoggedRun) -> bool {
    let of_task = job.runs.iter().filter(|run| run.task == stop.task);
    let failed = of_task.filter(|run| run.event == "gated" && run.at <= stop.at);
    let Some(last) = failed.map(|run| run.at).max() else {
        return false;
    };
    let is_since = |at: u64| (last..=stop.at).contains(&at);
    !model
        .calls_of(job, "retry")
        .any(|(_, call)| is_since(call.at))
}

/// The task was told to have failed for good, by a later attempt: this one was ordered before that,
/// and a node that had been away began it before it heard.
fn had_failed_for_good(model: &Model, job: &LoggedJob, stop: &LoggedRun) -> bool {
    model.told(job).iter().any(|one| {
        let is_of_it = one.row["task"] == stop.task && one.row["status"] == "failed";
        let is_later = number(text(&one.row["attempt"])) > number(stop.attempt);
        is_of_it && is_later && (one.at..=one.at + ON_ITS_WAY).contains(&stop.at)
    })
}

/// Of an attempt: `EPOCH.NUMBER` as it is told, `NUMBER@PID` as tasks note it.
fn number(attempt: &str) -> u64 {
    let number = attempt
        .split('@')
        .next()
        .and_then(|before| before.rsplit('.').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// How many other attempts of the task run when one is stopped.
fn rivals(model: &Model, job: &LoggedJob, stop: &LoggedRun) -> usize {
    let is_same = |one: &LoggedRun, other: &LoggedRun| {
        one.task == other.task && (one.attempt, one.node) == (other.attempt, other.node)
    };
    let others =
        starts(job).filter(|run| run.task == stop.task && !is_same(run, stop) && run.at <= stop.at);
    let goes_on = |run: &&LoggedRun| {
        let over = job
            .runs
            .iter()
            .any(|other| is_same(run, other) && other.event != "start" && other.at <= stop.at);
        let killed = model.faults.iter().any(|fault| {
            let ends = matches!(fault.kind, "kill" | "kill-all" | "damage" | "lost");
            ends && fault.nodes.contains(&run.node) && (run.at..=stop.at).contains(&fault.from)
        });
        !over && !killed
    };
    others.filter(goes_on).count()
}
