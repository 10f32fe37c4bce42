//! A training of a job file that goes on from another job's checkpoint.

use crate::exit::CliError;
use nodectl_http::Client;
use nodectl_jobfile::PlannedJob;
use nodectl_train as train;
use nodectl_types::BlobHash;
use nodectl_wire::api::Stored;

/// Has the training of a job file go on from the newest checkpoint of another job.
pub async fn go_on(
    client: &Client,
    resumed: &str,
    jobs: &mut [PlannedJob],
) -> Result<(), CliError> {
    let [job] = jobs else {
        return Err(CliError::Usage(
            "the file has several jobs: `--resume` is for one training".into(),
        ));
    };
    let stored = client.store_checkpoint(resumed).await?;
    train::resume_planned(job, (hash_of(&stored)?, stored.bytes)).map_err(CliError::Usage)
}

/// The hash of what a node has stored.
pub fn hash_of(stored: &Stored) -> Result<BlobHash, CliError> {
    stored
        .hash
        .parse()
        .map_err(|_| CliError::Usage(format!("the node gave no usable hash: {}", stored.hash)))
}
