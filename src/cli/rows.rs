//! `add` and `close`: tasks for open jobs.

use super::{
    args::{AddArgs, CloseArgs},
    exit::{CliError, Exit},
    signals,
};
use nodectl_http::{Client, ClientError};
use nodectl_jobfile::keys::load_rows;
use nodectl_ports::say::tell;
use nodectl_types::{Value, check::row_bytes, limits, spec::SPELLED, units::counted};
use nodectl_wire::api::{AddRequest, param_json};
use serde_json::{Value as Json, json};
use std::{
    pin::pin,
    time::{Duration, Instant},
};

/// How long a node, or the job's coordinator, may be away.
const AWAY: Duration = Duration::from_secs(60);
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Adds the rows of a file, in parts, each under a key of its own.
pub async fn add(client: &Client, args: AddArgs) -> Result<Exit, CliError> {
    let (columns, cells) = load_rows(&args.rows).map_err(CliError::Usage)?;
    let job = &args.name.job;
    // Under a key that was used before, rows may be tasks already: those with numbers below this.
    // Where that cannot be told now, all count as new.
    let before = match &args.key {
        Some(_) => client.job(job).await.map_or(0, |job| job.line.tasks),
        None => 0,
    };
    let key = args
        .key
        .unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()));
    let parts = parts(&columns, &cells);
    let mut interrupted = pin!(signals::end()?);
    if parts.len() > 1 {
        // Whoever is killed says nothing any more.
        let count = counted(parts.iter().map(Vec::len).sum::<usize>(), "task");
        tell!("adding {count}; if this is cut off, the same with --key {key} adds the rest");
    }
    let (mut added, mut known) = (0, 0);
    for (part, rows) in parts.into_iter().enumerate() {
        let request = AddRequest {
            key: format!("{key}/{part}"),
            columns: columns.clone(),
            rows,
        };
        let answer = tokio::select! {
            answer = add_part(client, job, &request) => answer,
            () = &mut interrupted => {
                let added = counted(added, "task");
                tell!("{added} added for certain; the same with --key {key} adds what is missing");
                return Ok(Exit::Interrupted);
            }
        };
        match answer {
            Ok(tasks) => {
                let old = tasks.iter().filter(|task| **task < before).count();
                (added, known) = (added + tasks.len() - old, known + old);
            }
            Err(error) => {
                if added > 0 {
                    let added = counted(added, "task");
                    tell!("{added} added; with --key {key} what was added is not added again");
                }
                return Err(error.into());
            }
        }
    }
    let told = told(job, &key, added, known);
    tell!("{told}; `nodectl close {job}` when there are no more");
    Ok(Exit::Done)
}

/// What became of the rows: that they were tasks before is said with the key that tells so.
fn told(job: &str, key: &str, added: usize, known: usize) -> String {
    let count = match added {
        0 if known > 0 => "no task".to_string(),
        added => counted(added, "task"),
    };
    let already = format!("{known} had been added already under the key {key}");
    match (added, known) {
        (_, 0) => format!("{count} added to job {job}"),
        (0, _) => format!("{count} added to job {job}: {already}"),
        _ => format!("{count} added to job {job}, {already}"),
    }
}

/// Asks until the answer is clear: under its key it is added once.
async fn add_part(
    client: &Client,
    job: &str,
    request: &AddRequest,
) -> Result<Vec<u32>, ClientError> {
    let begin = Instant::now();
    loop {
        match client.add(job, request).await {
            Ok(added) => return Ok(added.tasks),
            Err(error) if error.is_unreachable() && begin.elapsed() < AWAY => {
                tokio::time::sleep(ASK_AGAIN).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// As many rows as fit into a request each.
fn parts(columns: &[String], cells: &[Value]) -> Vec<Vec<Vec<Json>>> {
    let (mut parts, mut bytes): (Vec<Vec<Vec<Json>>>, usize) = (Vec::new(), usize::MAX);
    for row in cells.chunks(columns.len().max(1)) {
        let params = columns.iter().cloned().zip(row.iter().cloned()).collect();
        let size = row_bytes(&params);
        let is_full = parts
            .last()
            .is_none_or(|part| part.len() == limits::MAX_ADDED);
        if is_full || bytes.saturating_add(size) > limits::MAX_ADDED_BYTES {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        let row = row.iter().map(spelled).collect();
        parts.last_mut().expect("just pushed").push(row);
    }
    parts
}

fn spelled(value: &Value) -> Json {
    match value {
        Value::Spelled(text) => json!({ SPELLED: text }),
        value => param_json(value),
    }
}

/// Has an open job end with the tasks that it has.
pub async fn close(client: &Client, args: CloseArgs) -> Result<Exit, CliError> {
    let job = &args.name.job;
    client.close(job).await?;
    tell!("job {job} is closed: it ends when all its tasks have ended");
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_is_not_said_to_be_added() {
        assert_eq!(told("fits", "k", 2, 0), "2 tasks added to job fits");
        assert_eq!(
            told("fits", "k", 0, 2),
            "no task added to job fits: 2 had been added already under the key k"
        );
        assert_eq!(
            told("fits", "k", 1, 2),
            "1 task added to job fits, 2 had been added already under the key k"
        );
    }

    #[test]
    fn rows_fit_into_requests_and_numbers_keep_their_spelling() {
        let columns = ["x".to_string()];
        let cells = vec![Value::spelled("1.10"); 2_500];
        let parts = parts(&columns, &cells);
        let counts: Vec<_> = parts.iter().map(Vec::len).collect();
        assert_eq!(counts, [1_000, 1_000, 500]);
        assert_eq!(parts[0][0], [json!({ "spelled": "1.10" })]);
        let long = vec![Value::Text("y".repeat(60_000).into()); 100];
        let parts = super::parts(&columns, &long);
        assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), 100);
        assert!(parts.iter().all(|part| part.len() <= 69), "more than 4 MiB");
    }
}
