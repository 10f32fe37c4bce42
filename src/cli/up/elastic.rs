//! Elastic launches: as many of a scheduler's jobs as the tasks that wait deserve. This process
//! looks and decides; the node is only asked.

use super::{
    context::LaunchContext,
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
use nodectl_wire::api::{JobLine, LaunchLook, Node};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

const LOOK_AGAIN: Duration = Duration::from_secs(1);
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
    let per_node = args
        .request
        .tasks_per_node
        .unwrap_or_else(|| scheduler.tasks_per_node())
        .max(1);
    tell!(
        "{} to {} nodes, {per_node} tasks on each; Ctrl-C takes them back",
        bounds.min,
        bounds.max
    );
    let looping = look(context, scheduler, bounds, per_node);
    match super::interruptible(looping).await? {
        // The first submission was refused: so would be the next.
        Some(error) => {
            super::give_up(context, args).await;
            Err(error)
        }
        None => {
            tell!("taking everything back");
            take_back(context, args.connect_timeout).await?;
            Ok(Exit::Interrupted)
        }
    }
}

async fn look(
    context: &LaunchContext,
    scheduler: &Scheduler,
    bounds: Bounds,
    per_node: u32,
) -> CliError {
    let mut idle_since: BTreeMap<String, Instant> = BTreeMap::new();
    let mut waited_before = 0;
    let mut said = String::new();
    let mut has_submitted = false;
    let mut timeline = match Timeline::of(&context.launches, &context.launch) {
        Ok(timeline) => timeline,
        Err(error) => return error.into(),
    };
    loop {
        match seen(context, scheduler, &mut idle_since).await {
            Ok((mut seen, jobs)) => {
                // A job that was submitted just now has not started where it can.
                let waiting = std::mem::replace(&mut waited_before, seen.waiting);
                seen.waiting = seen.waiting.min(waiting);
                seen.per_node = per_node;
                let change = change(bounds, &seen);
                note(&mut timeline, &seen, &change);
                let now = format!(
                    "{} nodes, {} coming, {} tasks wait",
                    seen.nodes.len(),
                    seen.coming,
                    seen.waiting
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

/// For people who look later: nothing fails for a line that cannot be written.
fn note(timeline: &mut Timeline, seen: &ObservedLoad, change: &Change) {
    let running = seen.nodes.len() as u32;
    let released = change.release.len() as u32;
    let why = match (change.submit, released) {
        (0, 0) => String::new(),
        (0, _) => "no task waits, and they had nothing to do".to_string(),
        (_, 0) if seen.waiting > 0 => format!("{} tasks wait", seen.waiting),
        _ => "the least is to stay".to_string(),
    };
    let look = LaunchLook {
        at_ms: wall_ms(),
        asked: (running + seen.coming + change.submit).saturating_sub(released),
        pending: seen.coming + change.submit,
        running,
        waiting: seen.waiting,
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
        tell!("giving {member} back: nothing to do");
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

async fn seen(
    context: &LaunchContext,
    scheduler: &Scheduler,
    idle_since: &mut BTreeMap<String, Instant>,
) -> Result<(ObservedLoad, Vec<LaunchJob>), CliError> {
    let (nodes, lines) = (context.client.nodes().await?, context.client.jobs().await?);
    let jobs = scheduler.jobs().await?;
    let running: u64 = nodes
        .iter()
        .filter(|node| node.alive)
        .filter_map(|node| Some(u64::from(node.load.as_ref()?.running)))
        .sum();
    let mut seen = ObservedLoad {
        waiting: open_tasks(&lines).saturating_sub(running),
        ..ObservedLoad::default()
    };
    let now = Instant::now();
    for node in nodes.iter().filter(|node| is_ours(node, context)) {
        let Some(member) = node.labels.get(MEMBER_LABEL) else {
            continue;
        };
        let is_idle = node
            .load
            .as_ref()
            .is_some_and(|load| load.running + load.queued == 0);
        if !is_idle {
            idle_since.insert(member.clone(), now);
        }
        let since = *idle_since.entry(member.clone()).or_insert(now);
        seen.nodes.push((member.clone(), now - since));
    }
    idle_since.retain(|member, _| seen.nodes.iter().any(|(known, _)| known == member));
    let is_node = |job: &LaunchJob| seen.nodes.iter().any(|(member, _)| *member == job.id);
    seen.coming = jobs
        .iter()
        .filter(|job| job.state != JobIs::Ending && !is_node(job))
        .count() as u32;
    Ok((seen, jobs))
}

/// Tasks of jobs that have not ended, and that have not ended themselves. Workers of pools are not
/// counted: they take what there is.
fn open_tasks(lines: &[JobLine]) -> u64 {
    let open = lines
        .iter()
        .filter(|line| !line.phase.is_ended() && line.workers.is_none());
    open.map(|line| {
        u64::from(
            line.tasks
                .saturating_sub(line.done + line.failed + line.stopped),
        )
    })
    .sum()
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
