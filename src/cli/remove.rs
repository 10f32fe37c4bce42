//! `remove`: ended jobs are forgotten by all nodes.

use super::{
    args::RemoveArgs,
    exit::{CliError, Exit},
};
use nodectl_http::{Client, ClientError};
use nodectl_ports::{say::tell, wall_ms};
use nodectl_types::units::format_duration;
use nodectl_wire::api::JobLine;
use std::time::Duration;

pub async fn remove(client: &Client, args: &RemoveArgs) -> Result<Exit, CliError> {
    if !args.jobs.is_empty() {
        for job in &args.jobs {
            client.remove(job).await?;
        }
        tell!(
            "{} forgotten, with {} results",
            count(args.jobs.len()),
            if args.jobs.len() == 1 { "its" } else { "their" }
        );
        return Ok(Exit::Done);
    }
    let jobs = client.jobs().await?;
    let chosen: Vec<_> = jobs
        .iter()
        .filter(|job| is_chosen(job, args.older, wall_ms()))
        .collect();
    let mut removed = 0;
    let mut kept = Vec::new();
    for job in chosen {
        match client.remove(&job.id).await {
            Ok(_) => removed += 1,
            // Another job needs it, or it runs again by now.
            Err(ClientError::Refused {
                status: 409,
                problem,
            }) => kept.push(problem.error),
            Err(error) => return Err(error.into()),
        }
    }
    kept.iter().for_each(|why| tell!("kept: {why}"));
    match args.older {
        Some(age) => tell!(
            "{} forgotten that ended more than {} ago",
            count(removed),
            format_duration(age)
        ),
        None => tell!("{} forgotten", count(removed)),
    }
    Ok(Exit::Done)
}

fn is_chosen(job: &JobLine, older: Option<Duration>, now_ms: u64) -> bool {
    let age = Duration::from_millis(now_ms.saturating_sub(job.ended_ms.unwrap_or(now_ms)));
    job.phase.is_ended() && older.is_none_or(|least| age >= least)
}

fn count(jobs: usize) -> String {
    match jobs {
        1 => "1 job is".into(),
        jobs => format!("{jobs} jobs are"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::head;
    use nodectl_types::Phase;

    #[test]
    fn only_jobs_that_ended_long_enough_ago_are_chosen() {
        let mut ended = head(1, "job", 0);
        (ended.phase, ended.ended_ms) = (Phase::Failed, 60_000);
        let (ended, running) = (JobLine::from(&ended), JobLine::from(&head(2, "job", 0)));
        let minute = Some(Duration::from_secs(60));
        assert!(is_chosen(&ended, None, 60_001) && is_chosen(&ended, minute, 120_000));
        assert!(!is_chosen(&ended, minute, 119_999) && !is_chosen(&running, None, 120_000));
    }
}
