//! A fixed number of a scheduler's jobs: submitted at once, watched until each has become a node,
//! or ended before.

use super::{
    context::LaunchContext,
    scheduler::{JobIs, LaunchJob, Scheduler},
    table::{HostState, LaunchTable, Row},
};
use crate::exit::CliError;
use nodectl_launch::timeline::Timeline;
use nodectl_ports::{say::tell, wall_ms};
use nodectl_wire::api::LaunchLook;
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;

const LOOK_AGAIN: Duration = Duration::from_millis(300);
/// Schedulers are asked less often than this machine's node.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Submits, and waits until all jobs are nodes, or it is clear that they will not be.
pub async fn start_jobs(
    context: &LaunchContext,
    scheduler: &Scheduler,
    count: u32,
    timeout: Option<Duration>,
    table: &LaunchTable,
) -> Result<(), CliError> {
    scheduler.keep(context, None)?;
    let mut seen = BTreeSet::new();
    // Known from now on: one may end before anybody looks at the queue.
    for id in scheduler.submit(count).await? {
        add(scheduler, table, &id, &mut seen, count);
    }
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut asked: Option<Instant> = None;
    let mut timeline = Timeline::of(&context.launches, &context.launch)?;
    loop {
        if asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
            let jobs = scheduler.jobs().await?;
            asked = Some(Instant::now());
            note(scheduler, table, &jobs, &mut seen, count);
        }
        if let Ok(nodes) = context.client.nodes().await {
            table.see(&nodes, &context.launch);
        }
        let rows = table.rows();
        // For people who look later.
        if let Err(error) = timeline.note(look(&rows, count)) {
            tell!("warning: what the launch does is not written down: {error}");
        }
        if rows.len() >= count as usize && table.is_settled() {
            return Ok(());
        }
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            let late: Vec<Row> = rows.into_iter().filter(|row| !row.is_settled()).collect();
            for row in late {
                table.set(
                    &row.member,
                    HostState::Failed,
                    &format!("not within the time given; {}", row.note),
                );
            }
            return Ok(());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn look(rows: &[Row], count: u32) -> LaunchLook {
    let are = |state: HostState| rows.iter().filter(|row| row.state == state).count() as u32;
    let (running, failed) = (are(HostState::Joined), are(HostState::Failed));
    LaunchLook {
        at_ms: wall_ms(),
        asked: count,
        pending: count.saturating_sub(running + failed),
        running,
        ..LaunchLook::default()
    }
}

/// Brings the table up to what the scheduler says.
fn note(
    scheduler: &Scheduler,
    table: &LaunchTable,
    jobs: &[LaunchJob],
    seen: &mut BTreeSet<String>,
    count: u32,
) {
    for job in jobs {
        add(scheduler, table, &job.id, seen, count);
        for member in members(scheduler, &job.id, count) {
            match &job.state {
                JobIs::Waiting(why) => table.set(&member, HostState::Waiting, why),
                JobIs::Running(place) => {
                    table.set(&member, HostState::Started, &format!("on {place}"))
                }
                JobIs::Ending => {}
            }
        }
    }
    let gone = |row: &Row| {
        let id = if scheduler.is_together() {
            row.member.rsplit_once('.').map_or("", |(id, _)| id)
        } else {
            &row.member
        };
        !jobs
            .iter()
            .any(|job| job.id == id && job.state != JobIs::Ending)
    };
    for row in table
        .rows()
        .into_iter()
        .filter(|row| !row.is_settled() && gone(row))
    {
        let words = scheduler.last_words(&row.member);
        let words = if words.is_empty() {
            scheduler.silence()
        } else {
            format!("its job has ended: {words}")
        };
        table.set(&row.member, HostState::Failed, &words);
    }
}

/// Rows for a job that has none.
fn add(
    scheduler: &Scheduler,
    table: &LaunchTable,
    id: &str,
    seen: &mut BTreeSet<String>,
    count: u32,
) {
    if seen.insert(id.to_string()) {
        for member in members(scheduler, id, count) {
            table.add(Row::new(
                &member,
                format!("job {member}"),
                HostState::Waiting,
            ));
        }
    }
}

/// The nodes of a job.
fn members(scheduler: &Scheduler, id: &str, count: u32) -> Vec<String> {
    match scheduler.is_together() {
        true => (0..count).map(|node| format!("{id}.{node}")).collect(),
        false => vec![id.to_string()],
    }
}
