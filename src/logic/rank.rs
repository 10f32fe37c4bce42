//! Rendezvous hashing (Thaler and Ravishankar, 1998): who stands first for a job, without any
//! agreement.

use nodectl_types::{JobId, NodeId};

/// The weight of a node for a job. The highest live one coordinates.
pub fn weight(job: JobId, node: NodeId) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&job.0.to_le_bytes()).update(&node.0);
    let hash = hasher.finalize();
    u64::from_le_bytes(
        hash.as_bytes()[..8]
            .try_into()
            .expect("a hash has 32 bytes"),
    )
}

/// The nodes, highest weight first; equal weights (never seen) fall back to the id.
pub fn ranked(job: JobId, nodes: impl IntoIterator<Item = NodeId>) -> Vec<NodeId> {
    let mut weighted: Vec<_> = nodes
        .into_iter()
        .map(|node| (weight(job, node), node))
        .collect();
    weighted.sort_unstable_by(|a, b| b.cmp(a));
    weighted.into_iter().map(|(_, node)| node).collect()
}
