//! `run --resume`: the same training once more, from the newest checkpoint of a job that has ended.

use super::{checkpoint::hash_of, fetch::blob_bytes, session::follow_new};
use crate::{
    args::RunArgs,
    exit::{CliError, Exit},
    solo,
};
use nodectl_app::settings::Settings;
use nodectl_http::Client;
use nodectl_train::{self as train, PLAN_FILE, RESUMED};
use nodectl_types::{BlobHash, FileEntry, JobDraft, Manifest, WorkSpec};
use nodectl_wire::api::Stored;

pub async fn resume(resumed: &str, args: &RunArgs, settings: &Settings) -> Result<Exit, CliError> {
    let (client, stay) = solo::connect(settings, !args.detach).await?;
    let ended = submit_and_follow(&client, resumed, args).await;
    stay.end().await;
    ended
}

async fn submit_and_follow(
    client: &Client,
    resumed: &str,
    args: &RunArgs,
) -> Result<Exit, CliError> {
    let line = client.job(resumed).await?.line;
    if !line.phase.is_ended() {
        let hint = format!(
            "hint: it goes on by itself; `nodectl attach {}` follows it",
            line.id
        );
        return Err(CliError::Usage(format!(
            "job {} has not ended\n{hint}",
            line.id
        )));
    }
    let spec = client.spec(&line.id).await?;
    let stored = client.store_checkpoint(&line.id).await?;
    let work = resumed_work(client, &spec.work, &stored).await?;
    let job = JobDraft {
        work,
        ..spec.into()
    };
    follow_new(client, args, line.name, job).await
}

/// A job's work with the checkpoint among its files.
async fn resumed_work(
    client: &Client,
    work: &WorkSpec,
    stored: &Stored,
) -> Result<WorkSpec, CliError> {
    let usage = |error: String| CliError::Usage(error);
    let mut manifest = match work.inputs {
        Some(hash) => postcard::from_bytes(&blob_bytes(client, &hash.to_string(), None).await?)
            .map_err(|error| usage(error.to_string()))?,
        None => Manifest::default(),
    };
    let hash = hash_of(stored)?;
    manifest.files.retain(|file| file.path != RESUMED);
    manifest.files.push(FileEntry {
        path: RESUMED.into(),
        bytes: stored.bytes,
        hash,
        executable: false,
    });
    manifest
        .files
        .sort_by(|one, other| one.path.cmp(&other.path));
    let mut work = work.clone();
    if let Some(plan) = manifest
        .files
        .iter_mut()
        .find(|file| file.path == PLAN_FILE)
    {
        let bytes = train::resumed_plan(&blob_bytes(client, &plan.hash.to_string(), None).await?)
            .map_err(usage)?;
        (plan.hash, plan.bytes) = (BlobHash::of(&bytes), bytes.len() as u64);
        client.put_bytes(bytes.into()).await?;
    } else {
        train::resume_script(&mut work.env).map_err(usage)?;
    }
    let bytes = postcard::to_stdvec(&manifest).expect("plain data always encodes");
    work.inputs = Some(BlobHash::of(&bytes));
    client.put_bytes(bytes.into()).await?;
    Ok(work)
}
