//! What a job that trains says while it does: the last line of its first worker's log, beside its
//! progress.

use super::{followed::Followed, progress::JobProgress};
use futures::TryStreamExt;
use nodectl_http::{
    Client,
    client::{ByteStream, LogRequest},
};
use nodectl_types::Builtin;
use std::convert::Infallible;

/// The longest line that is kept while its end has not come.
const LINE_BYTES: usize = 4096;

/// Shows lines as they come. Never ends: whoever follows the job knows when it is over.
pub async fn show(client: &Client, job: &Followed, progress: &JobProgress) -> Infallible {
    let request = LogRequest {
        follow: true,
        ..LogRequest::default()
    };
    if trains(client, job).await
        && let Ok(log) = client.log(&job.id, 0, request).await
    {
        show_log(log, progress).await;
    }
    std::future::pending().await
}

/// A log that breaks off is no reason to stop: the job is what counts.
async fn show_log(mut log: ByteStream, progress: &JobProgress) {
    let mut line = Vec::new();
    while let Ok(Some(bytes)) = log.try_next().await {
        for byte in bytes {
            match byte {
                b'\n' => progress.note(&String::from_utf8_lossy(&std::mem::take(&mut line))),
                byte if line.len() < LINE_BYTES => line.push(byte),
                _ => {}
            }
        }
    }
}

async fn trains(client: &Client, job: &Followed) -> bool {
    let job = client.job(&job.id).await;
    job.is_ok_and(|job| {
        job.work
            .worker
            .is_some_and(|worker| worker.ends_with(Builtin::Train.subcommand()))
    })
}
