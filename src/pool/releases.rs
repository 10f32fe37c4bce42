//! What a client needs no more and workers kept for it on their nodes: waits here for a ready
//! worker of the node, which lets it go.

use bytes::Bytes;
use nodectl_types::NodeId;
use std::collections::{BTreeMap, VecDeque};

/// Of all that waits. What comes then is not passed on: it goes with the pool.
pub const MOST_BYTES: usize = 4 << 20;

#[derive(Default)]
pub struct Releases {
    waiting: BTreeMap<NodeId, VecDeque<Bytes>>,
    bytes: usize,
}

impl Releases {
    /// The payload of a `RELEASE` of the client's. None if there is no node in it.
    pub fn take_in(&mut self, payload: &Bytes) -> Option<()> {
        let node = NodeId(*payload.first_chunk()?);
        let rest = payload.slice(node.0.len()..);
        if self.bytes + rest.len() <= MOST_BYTES {
            self.bytes += rest.len();
            self.waiting.entry(node).or_default().push_back(rest);
        }
        Some(())
    }

    pub fn nodes(&self) -> Vec<NodeId> {
        self.waiting.keys().copied().collect()
    }

    /// All that waits for a worker of this node.
    pub fn of(&mut self, node: NodeId) -> VecDeque<Bytes> {
        let taken = self.waiting.remove(&node).unwrap_or_default();
        self.bytes -= taken.iter().map(Bytes::len).sum::<usize>();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(node: u8, rest: &[u8]) -> Bytes {
        [&[node; 32], rest].concat().into()
    }

    #[test]
    fn what_waits_is_bounded_and_goes_to_its_node() {
        let mut releases = Releases::default();
        assert_eq!(releases.take_in(&Bytes::from_static(b"short")), None);
        let long = vec![7; MOST_BYTES / 2];
        for (node, rest) in [(1, &b"a"[..]), (2, b"b"), (1, &long), (2, &long), (1, b"c")] {
            assert_eq!(releases.take_in(&message(node, rest)), Some(()));
        }
        assert_eq!(releases.nodes(), [NodeId([1; 32]), NodeId([2; 32])]);
        assert_eq!(releases.of(NodeId([1; 32])), [&b"a"[..], &long, b"c"]);
        assert_eq!(releases.of(NodeId([1; 32])), [&b""[..]; 0]);
        assert_eq!(releases.of(NodeId([2; 32])), [&b"b"[..]]);
        assert_eq!(releases.bytes, 0);
    }
}
