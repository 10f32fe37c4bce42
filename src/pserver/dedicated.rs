//! Nodes that serve parameters and run no workers of the job: members with the label
//! `parameter_servers`, as `ps` lines of cluster files and `psd-run` make them. A node whose worker
//! begins a job invites them; they keep the blocks then, and the workers' nodes keep none, unless
//! all such members are gone.

use super::{jobs::TrainingJobs, registration};
use nodectl_ports::{NodeHandle, PeerStream};
use nodectl_types::{Answer, JobId, NodeInfo, Query, StreamToken};
use nodectl_wire::api::params::{MAX_REGISTER_BYTES, Register};
use std::{io, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

/// How many parameter servers a node is to be, in decimal digits; 0 as if it had no such label.
pub const LABEL: &str = "parameter_servers";
/// The invited node says this: it takes part.
const ACCEPTED: u8 = b'A';
const LIMIT: Duration = Duration::from_secs(10);

/// Names streams that invite.
pub fn invitation() -> StreamToken {
    let hash = blake3::hash(b"nodectl invitation to serve parameters");
    hash.as_bytes()[..16]
        .try_into()
        .expect("a hash has 32 bytes")
}

pub fn serves(info: &NodeInfo) -> bool {
    info.labels
        .get(LABEL)
        .is_some_and(|count| count.parse::<u32>().is_ok_and(|count| count > 0))
}

/// A checkpoint of another job to go on from is among the job's own, unless the cluster does not
/// know it: then it lies in workers' directories, where other nodes do not see it.
pub fn may_serve(register: &Register) -> bool {
    register.resume_from.is_none() || register.job.parse::<JobId>().is_ok()
}

/// The weight of a node for a job that its own worker begins: none where others are there to serve.
pub fn weight_of_workers_node(jobs: &TrainingJobs, register: &Register) -> u32 {
    let Some((_, runtime)) = jobs.network.get().filter(|_| may_serve(register)) else {
        return jobs.weight;
    };
    let Ok(Answer::Nodes(members)) = runtime.block_on(jobs.node.ask(Query::Nodes)) else {
        return jobs.weight;
    };
    let others = members
        .iter()
        .any(|line| line.alive && !line.this_node && serves(&line.info));
    let this = members
        .iter()
        .any(|line| line.this_node && serves(&line.info));
    if others && !this { 0 } else { jobs.weight }
}

/// Tells a node what is trained, so that it takes part. `stream` was opened for `invitation()`.
pub async fn invite(stream: &mut Box<dyn PeerStream>, register: &Register) -> io::Result<()> {
    let encoded = serde_json::to_vec(register)?;
    let telling = async {
        stream.write_u32_le(encoded.len() as u32).await?;
        stream.write_all(&encoded).await?;
        stream.flush().await?;
        stream.read_u8().await
    };
    match timeout(LIMIT, telling)
        .await
        .map_err(|_| io::ErrorKind::TimedOut)??
    {
        ACCEPTED => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The other end: this node begins to serve.
pub(super) async fn invited(
    jobs: &Arc<TrainingJobs>,
    mut stream: Box<dyn PeerStream>,
) -> io::Result<()> {
    if !is_server(&jobs.node).await {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "this node serves parameters of its own workers only",
        ));
    }
    let reading = async {
        let bytes = stream.read_u32_le().await? as usize;
        if bytes > MAX_REGISTER_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a larger registration than any",
            ));
        }
        let mut encoded = Vec::new();
        (&mut stream)
            .take(bytes as u64)
            .read_to_end(&mut encoded)
            .await?;
        Ok(encoded)
    };
    let encoded = timeout(LIMIT, reading)
        .await
        .map_err(|_| io::ErrorKind::TimedOut)??;
    let register: Register = serde_json::from_slice(&encoded)?;
    let layout = registration::layout(&register)?;
    jobs.join(&register, &layout, jobs.weight)?;
    tracing::info!(
        "serves the parameters of job {}: {} tensors, {} blocks",
        register.job,
        register.tensors.len(),
        layout.blocks()
    );
    stream.write_u8(ACCEPTED).await?;
    stream.flush().await?;
    stream.shutdown().await
}

async fn is_server(node: &NodeHandle) -> bool {
    let Ok(Answer::Nodes(members)) = node.ask(Query::Nodes).await else {
        return false;
    };
    members
        .iter()
        .any(|line| line.this_node && serves(&line.info))
}
