//! What is kept as a blob and means something here: specifications that are not small, and lists of
//! files.

use super::{BlobFetcher, Blobs};
use nodectl_types::{
    BlobHash, JobSpec, Manifest, NodeId,
    limits::{MAX_SPEC_BYTES, RESTING_SPEC_BYTES},
    manifest::safe_path,
};
use nodectl_wire::control;
use std::sync::Arc;

/// The largest list of files: about 500,000.
const MAX_MANIFEST_BYTES: u64 = 64 << 20;

/// Brings, reads and checks a specification. The error says who refused it, or what is wrong with
/// it.
pub async fn fetch(
    fetcher: &dyn BlobFetcher,
    blobs: &Arc<dyn Blobs>,
    hash: BlobHash,
    holders: Vec<NodeId>,
) -> Result<Arc<JobSpec>, String> {
    fetcher.fetch(hash, holders).await?;
    let blobs = blobs.clone();
    let reading = tokio::task::spawn_blocking(move || read(&*blobs, hash).map(Arc::new));
    reading.await.map_err(|error| error.to_string())?
}

fn read(blobs: &dyn Blobs, hash: BlobHash) -> Result<JobSpec, String> {
    let bytes = blobs.read(hash, MAX_SPEC_BYTES as u64)?;
    let spec = postcard::from_bytes(&bytes).map_err(|error| error.to_string())?;
    control::validate_spec(&spec).map_err(|error| error.to_string())?;
    Ok(spec)
}

/// A specification that is not small is a blob, too: others bring it here where it is too large for
/// a message, and this node reads it again when a job no longer rests. Blocks.
pub fn share(blobs: &dyn Blobs, spec: &JobSpec) {
    let bytes = postcard::to_stdvec(spec).expect("plain data always encodes");
    let is_needed = bytes.len() > RESTING_SPEC_BYTES && !blobs.has(BlobHash::of(&bytes));
    if is_needed && let Err(error) = blobs.put_bytes(&bytes) {
        tracing::warn!("a specification cannot be kept as a blob: {error}");
    }
}

/// A list of files that is here. Blocks.
pub fn manifest(blobs: &dyn Blobs, hash: BlobHash) -> Result<Manifest, String> {
    let bytes = blobs.read(hash, MAX_MANIFEST_BYTES)?;
    let manifest: Manifest = postcard::from_bytes(&bytes).map_err(|error| error.to_string())?;
    match manifest.files.iter().find(|file| !safe_path(&file.path)) {
        Some(file) => Err(format!("`{}` would leave the task's directory", file.path)),
        None => Ok(manifest),
    }
}
