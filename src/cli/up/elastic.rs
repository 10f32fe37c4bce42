//! Elastic launches: as many of a scheduler's jobs as the tasks that wait deserve. This process
//! looks and decides; the node is only asked.

use super::{
    context::LaunchContext,
    queue::{OwnNode, TaskQueue},
    scheduler::{JobIs, LaunchJob, RequestKind, Scheduler},
    take_back,
};
use crate::{
    args::{RequestArgs, UpArgs},
    exit::{CliError, Exit},
    join,
};
use nodectl_launch::{
    elastic::{Bounds, Change, ObservedLoad, change},
    node::{LAUNCH_LABEL, MEMBER_LABEL},
    state::StartedProcess,
    timeline::Timeline,
};
use nodectl_ports::{say::tell, wall_ms};
use nodectl_types::units::counted;
use nodectl_wire::api::{LaunchLook, Node};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// What a node refuses for want of time before this part of its time is over, each would refuse.
const FRESH_PART: u32 = 10;
/// Of no use here: its launches are not on hosts.
const CONNECT: Duration = Duration::from_secs(10);
/// A launcher that has not ended by then has been heard.
const FIRST_SUBMISSION: Duration = Duration::from_secs(4);

/// Between what the launch stays, if it is elastic.
pub fn bounds(request: &RequestArgs) -> Option<Bounds> {
    let max = request.max?;
    Some(Bounds {
        min: request.min.unwrap_or(0).min(max),
        max,
        idle: request.idle,
    })
}

/// Runs until someone interrupts; then takes everything back.
pub async fn run(
    context: &LaunchContext,
    scheduler: &Scheduler,
    bounds: Bounds,
    args: &UpArgs,
) -> Result<Exit, CliError> {
    scheduler.keep(context, Some(StartedProcess::own()))?;
    let said = args.request.tasks_per_node.map(|tasks| tasks.max(1));
    let queue = TaskQueue::new(scheduler.offer(), said, scheduler.tasks_per_node());
    tell!(
        "{} to {}; Ctrl-C stops them",
        bounds.min,
        counted(bounds.max, "node")
    );
    let looping = look(context, scheduler, bounds, queue);
    match super::interruptible(looping).await? {
        // The first submission was refused: so would be the next.
        Some(error) => {
            super::give_up(context, args).await;
            Err(error)
        }
        None => {
            tell!("stopping all that was started");
            take_back(context, args.connect_timeout).await?;
            Ok(Exit::Interrupted)
        }
    }
}

async fn look(
    context: &LaunchContext,
    scheduler: &Scheduler,
    bounds: Bounds,
    mut queue: TaskQueue,
) -> CliError {
    let mut known = BTreeMap::new();
    let mut said = String::new();
    let mut has_submitted = false;
    let mut shortage = Shortage::default();
    let mut surplus = Surplus::default();
    let mut timeline = match Timeline::of(&context.launches, &context.launch) {
        Ok(timeline) => timeline,
        Err(error) => return error.into(),
    };
    loop {
        match seen(context, scheduler, &mut known, &mut queue).await {
            Ok((seen, jobs)) => {
                let mut change = change(bounds, &seen);
                change.submit = shortage.lasting(change.submit, seen.nodes.len());
                note(&mut timeline, &seen, &change);
                let now = format!(
                    "{}, {} coming, {} waiting",
                    counted(seen.nodes.len(), "node"),
                    seen.coming,
                    counted(seen.waiting(), "task")
                );
                if now != said {
                    tell!("{now}");
                    said = now;
                }
                if change.submit > 0 {
                    match scheduler.submit(change.submit).await {
                        Ok(_) => has_submitted = true,
                        Err(error) if has_submitted => tell!("warning: {error}"),
                        Err(error) => return error.into(),
                    }
                }
                if let Some(count) = surplus.lasting(change.surplus, Instant::now(), bounds.idle) {
                    withdraw(scheduler, count, &jobs).await;
                }
                if !change.release.is_empty() {
                    release(context, scheduler, &change.release, &jobs).await;
                }
            }
            Err(error) => {
                let now = format!("warning: {error}");
                if now != said {
                    tell!("{now}");
                    said = now;
                }
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// How many nodes were lacking at the last look.
#[derive(Default)]
struct Shortage(u32);

impl Shortage {
    /// How many were lacking at the last look, too: what waits for a moment goes to a node that is
    /// there. Where none is, all that are.
    fn lasting(&mut self, now_are: u32, nodes: usize) -> u32 {
        let before = std::mem::replace(&mut self.0, now_are);
        match nodes {
            0 => now_are,
            _ => now_are.min(before),
        }
    }
}

/// Allocations that nothing waits for, since when, and at least how many.
#[derive(Default)]
struct Surplus {
    least: u32,
    since: Option<Instant>,
}

impl Surplus {
    /// How many there have been for this long.
    fn lasting(&mut self, now_are: u32, now: Instant, long: Duration) -> Option<u32> {
        let since = *self.since.get_or_insert(now);
        self.least = match since == now {
            true => now_are,
            false => self.least.min(now_are),
        };
        if self.least == 0 {
            self.since = None;
            return None;
        }
        (now - since >= long).then(|| {
            self.since = None;
            self.least
        })
    }
}

/// Takes back what still waits in the scheduler's queue, the last first.
async fn withdraw(scheduler: &Scheduler, count: u32, jobs: &[LaunchJob]) {
    let waiting = jobs.iter().rev();
    let waiting = waiting.filter(|job| matches!(job.state, JobIs::Waiting(_)));
    let ids: Vec<_> = waiting
        .map(|job| job.id.clone())
        .take(count as usize)
        .collect();
    if ids.is_empty() {
        return;
    }
    tell!(
        "taking {} back: nothing waits for that any more",
        ids.join(", ")
    );
    if let Err(error) = scheduler.cancel(&ids).await {
        tell!("warning: {error}");
    }
}

/// For people who look later: nothing fails for a line that cannot be written.
fn note(timeline: &mut Timeline, seen: &ObservedLoad, change: &Change) {
    let running = seen.nodes.len() as u32;
    let released = change.release.len() as u32;
    let why = match (change.submit, released) {
        (0, 0) => String::new(),
        (0, _) => "no task waits, and they had nothing to do".to_string(),
        (_, 0) if seen.waiting() > 0 => format!("{} waiting", counted(seen.waiting(), "task")),
        _ => "the minimum of nodes is kept".to_string(),
    };
    let look = LaunchLook {
        at_ms: wall_ms(),
        asked: (running + seen.coming + change.submit).saturating_sub(released),
        pending: seen.coming + change.submit,
        running,
        waiting: seen.waiting(),
        submitted: change.submit,
        released,
        why,
        node_hours: 0.0,
    };
    if let Err(error) = timeline.note(look) {
        tell!("warning: what the launch does is not written down: {error}");
    }
}

/// Drained first: no task comes between the decision and the end.
async fn release(
    context: &LaunchContext,
    scheduler: &Scheduler,
    members: &[String],
    jobs: &[LaunchJob],
) {
    for member in members
        .iter()
        .filter(|member| jobs.iter().any(|job| job.id == **member))
    {
        tell!("stopping {member}: it has nothing to do");
        let node = context.client.nodes().await.ok().and_then(|nodes| {
            nodes.into_iter().find(|node| {
                node.labels.get(MEMBER_LABEL) == Some(member) && is_ours(node, context)
            })
        });
        if let Some(node) = node {
            let _ = context.client.drain(Some(&node.id), true).await;
        }
    }
    if let Err(error) = scheduler.cancel(members).await {
        tell!("warning: {error}");
    }
}

fn is_ours(node: &Node, context: &LaunchContext) -> bool {
    node.alive && node.labels.get(LAUNCH_LABEL) == Some(&context.launch)
}

/// Since when a node of the launch is here, and has had nothing to do.
struct Presence {
    here: Instant,
    idle: Instant,
}

async fn seen(
    context: &LaunchContext,
    scheduler: &Scheduler,
    known: &mut BTreeMap<String, Presence>,
    queue: &mut TaskQueue,
) -> Result<(ObservedLoad, Vec<LaunchJob>), CliError> {
    let client = &context.client;
    let (nodes, lines) = (client.nodes().await?, client.jobs().await?);
    let jobs = scheduler.jobs().await?;
    let now = Instant::now();
    let mut seen = ObservedLoad::default();
    let mut own = Vec::new();
    for node in nodes.iter().filter(|node| is_ours(node, context)) {
        let Some(member) = node.labels.get(MEMBER_LABEL) else {
            continue;
        };
        let new = Presence {
            here: now,
            idle: now,
        };
        let presence = known.entry(member.clone()).or_insert(new);
        let load = node.load.as_ref();
        let is_busy = load.is_none_or(|load| load.running + load.queued > 0);
        if is_busy {
            presence.idle = now;
        }
        let idle = (!is_busy).then(|| now - presence.idle);
        seen.nodes.push((member.clone(), idle));
        let is_fresh = |time| now - presence.here < time / FRESH_PART;
        own.push(OwnNode {
            node,
            idle,
            is_fresh: scheduler.time().is_some_and(is_fresh),
        });
    }
    known.retain(|member, _| seen.nodes.iter().any(|(here, _)| here == member));
    let is_node = |job: &LaunchJob| seen.nodes.iter().any(|(member, _)| *member == job.id);
    seen.coming = jobs
        .iter()
        .filter(|job| job.state != JobIs::Ending && !is_node(job))
        .count() as u32;
    seen.queue = queue.look(client, &nodes, &own, &lines).await?;
    Ok((seen, jobs))
}

/// Has the command go on in the background as it would here.
pub async fn in_background(context: &LaunchContext, kind: RequestKind) -> Result<Exit, CliError> {
    let log = context
        .launches
        .directory(&context.launch)?
        .join("launcher.log");
    let (file, begin) = join::open_log(&log)?;
    Scheduler::new(context, kind).await?.keep(context, None)?;
    let mut args = join::background_args(std::env::args_os());
    args.extend(["--resume".into(), context.launch.clone().into()]);
    let mut child = join::in_background(args, file, &context.secret)?;
    let deadline = Instant::now() + FIRST_SUBMISSION;
    while Instant::now() < deadline {
        let status = child
            .try_wait()
            .map_err(|source| CliError::file("waiting for", &log, source))?;
        if let Some(status) = status {
            let words = join::tail(&log, begin);
            take_back(context, CONNECT).await?;
            return Err(CliError::Node(anyhow::anyhow!(
                "the launcher ended at once ({status})\n{words}"
            )));
        }
        tokio::time::sleep(LOOK_AGAIN / 10).await;
    }
    tell!(
        "it goes on in the background (process {}); `nodectl down {}` stops it; its log: {}",
        child.id(),
        context.launch,
        log.display()
    );
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_many_for_a_while_is_taken_back() {
        let (begin, long) = (Instant::now(), Duration::from_secs(10));
        let mut surplus = Surplus::default();
        let mut at =
            |seconds, count| surplus.lasting(count, begin + Duration::from_secs(seconds), long);
        assert_eq!(at(0, 3), None);
        assert_eq!(at(5, 1), None);
        assert_eq!(at(9, 0), None, "for a moment none: it begins anew");
        assert_eq!(at(10, 2), None);
        assert_eq!(at(15, 3), None);
        assert_eq!(at(20, 4), Some(2));
        assert_eq!(at(21, 2), None);
    }

    #[test]
    fn what_waits_for_a_moment_has_no_node_asked_for() {
        let mut shortage = Shortage::default();
        assert_eq!(
            shortage.lasting(2, 0),
            2,
            "nobody is there who could take it"
        );
        assert_eq!(shortage.lasting(0, 2), 0);
        assert_eq!(shortage.lasting(1, 2), 0, "the next of a chain");
        assert_eq!(shortage.lasting(0, 2), 0);
        assert_eq!(shortage.lasting(3, 2), 0);
        assert_eq!(shortage.lasting(2, 2), 2, "it lasts");
    }
}
