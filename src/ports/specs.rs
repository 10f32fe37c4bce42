//! Bringing a job's specification that is too large for a message. The node's loop needs it, and so does the local API.

use super::{BlobFetcher, Blobs};
use crate::{
    types::{BlobHash, JobSpec, NodeId, limits::MAX_SPEC_BYTES},
    wire::control,
};
use std::{fs, path::Path, sync::Arc};

/// Brings, reads and checks a specification. The error says who refused it, or what is wrong with it.
pub async fn fetch(
    fetcher: &dyn BlobFetcher,
    blobs: &Arc<dyn Blobs>,
    hash: BlobHash,
    holders: Vec<NodeId>,
) -> Result<Arc<JobSpec>, String> {
    fetcher.fetch(hash, holders).await?;
    let blobs = blobs.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let path = blobs.path(hash).ok_or("it vanished from the store")?;
        read(&path).map(Arc::new)
    });
    reading.await.map_err(|error| error.to_string())?
}

fn read(path: &Path) -> Result<JobSpec, String> {
    let size = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > MAX_SPEC_BYTES as u64 {
        return Err(format!("a specification of {size} bytes"));
    }
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let spec = postcard::from_bytes(&bytes).map_err(|error| error.to_string())?;
    control::validate_spec(&spec).map_err(|error| error.to_string())?;
    Ok(spec)
}
