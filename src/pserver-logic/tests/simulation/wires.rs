//! Connections between nodes: a stream for messages about no block, others for blocks, as
//! `params::peers` has them.

use super::*;

type NodePair = (NodeId, NodeId);

/// What is sent about blocks has streams of its own, by whether it is of a block's primary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BlockStream {
    Said,
    OfPrimary(Block),
    ForPrimary(Block),
}

struct WireFrame {
    /// So many messages about no block went before it.
    after: usize,
    message: ServerMessage,
    bytes: Bytes,
}

#[derive(Default)]
pub struct Wires {
    wires: BTreeMap<(NodeId, NodeId, BlockStream), VecDeque<WireFrame>>,
    /// How many messages about no block were sent, and how many of them have come.
    said: BTreeMap<(NodeId, NodeId), (usize, usize)>,
    /// Connections, and which ends have not noticed yet that they broke.
    links: BTreeMap<NodePair, BTreeSet<NodeId>>,
    /// Of these, those that a kernel closed when its process was killed.
    closed: BTreeSet<NodePair>,
    /// Directions in which nothing comes for a while.
    pub silent: BTreeSet<(NodeId, NodeId)>,
}

impl Wires {
    /// What is sent where no connection is, or a broken one, is lost.
    pub(super) fn send(&mut self, from: NodeId, to: NodeId, message: ServerMessage, bytes: Bytes) {
        if self
            .links
            .get(&pair(from, to))
            .is_none_or(|ends| !ends.is_empty())
        {
            return;
        }
        let lane = match message.block() {
            None => BlockStream::Said,
            Some(block) if message.is_of_primary() => BlockStream::OfPrimary(block % 2),
            Some(block) => BlockStream::ForPrimary(block % 3),
        };
        let said = self.said.entry((from, to)).or_default();
        let after = said.0;
        said.0 += usize::from(lane == BlockStream::Said);
        self.wires
            .entry((from, to, lane))
            .or_default()
            .push_back(WireFrame {
                after,
                message,
                bytes,
            });
    }

    /// One of the messages that may come next. Blocks that move stay on their way if so wanted.
    pub(super) fn next(
        &mut self,
        random: &mut StdRng,
        holds_blocks: bool,
        stalled: &BTreeSet<NodeId>,
    ) -> Option<(NodeId, NodeId, ServerMessage, Bytes)> {
        let is_held = |message: &ServerMessage| holds_blocks && is_state(message);
        let has_come = |from, to, after| {
            self.said
                .get(&(from, to))
                .is_some_and(|(_, heard)| *heard >= after)
        };
        let may_come = |(from, to, lane): &(NodeId, NodeId, BlockStream),
                        wire: &VecDeque<WireFrame>| {
            let first = wire.front()?;
            if stalled.contains(to) || self.silent.contains(&(*from, *to)) {
                return None;
            }
            let is_next = !is_held(&first.message)
                && (*lane == BlockStream::Said || has_come(*from, *to, first.after));
            is_next.then_some((*from, *to, *lane))
        };
        let full: Vec<_> = self
            .wires
            .iter()
            .filter_map(|(wire, frames)| may_come(wire, frames))
            .collect();
        let (from, to, lane) = pick(random, &full)?;
        let wire = self.wires.get_mut(&(from, to, lane))?;
        let WireFrame { message, bytes, .. } = wire.pop_front()?;
        if wire.is_empty() {
            self.wires.remove(&(from, to, lane));
        }
        if lane == BlockStream::Said {
            self.said.entry((from, to)).or_default().1 += 1;
        }
        Some((from, to, message, bytes))
    }

    /// Whether blocks are on their way to nodes that shall keep them.
    pub(super) fn has_states(&self) -> bool {
        let is_state = |frame: &WireFrame| is_state(&frame.message);
        self.wires
            .values()
            .any(|frames| frames.iter().any(is_state))
    }

    pub(super) fn is_up(&self, link: NodePair) -> bool {
        self.links.contains_key(&link)
    }

    pub(super) fn connect(&mut self, link: NodePair) {
        self.links.insert(link, BTreeSet::new());
        self.closed.remove(&link);
        self.silent.retain(|(from, to)| pair(*from, *to) != link);
        self.said.remove(&link);
        self.said.remove(&(link.1, link.0));
    }

    /// A connection breaks; these ends are still to notice.
    pub(super) fn break_link(&mut self, link: NodePair, ends: BTreeSet<NodeId>) {
        self.links.insert(link, ends);
    }

    pub(super) fn is_whole(&self, link: NodePair) -> bool {
        self.links.get(&link).is_some_and(BTreeSet::is_empty)
    }

    /// Connections that are whole.
    pub(super) fn whole(&self) -> Vec<NodePair> {
        self.links
            .iter()
            .filter(|(_, ends)| ends.is_empty())
            .map(|(link, _)| *link)
            .collect()
    }

    /// Whether an end has not noticed that the connection broke.
    pub(super) fn awaits(&self, link: NodePair, end: NodeId) -> bool {
        self.links
            .get(&link)
            .is_some_and(|ends| ends.contains(&end))
    }

    /// One of those that broke, and an end that has not noticed it.
    pub(super) fn broken(&self, random: &mut StdRng) -> Option<(NodePair, NodeId)> {
        let broken: Vec<_> = self
            .links
            .iter()
            .flat_map(|(link, ends)| ends.iter().map(|end| (*link, *end)))
            .collect();
        pick(random, &broken)
    }

    /// Where a kernel closed a connection, an end hears first what was said before.
    pub(super) fn last_words(
        &mut self,
        link: NodePair,
        end: NodeId,
    ) -> Vec<(NodeId, ServerMessage)> {
        let from = if link.0 == end { link.1 } else { link.0 };
        let was_closed = self.closed.contains(&link) && self.awaits(link, end);
        let said = was_closed.then(|| self.wires.remove(&(from, end, BlockStream::Said)));
        let said = said.flatten().into_iter().flatten();
        said.map(|frame| (from, frame.message)).collect()
    }

    /// An end notices: nothing more comes to it. Returns the other, and whether its kernel closed
    /// the connection.
    pub(super) fn notice(&mut self, link: NodePair, end: NodeId) -> (NodeId, bool) {
        let other = if link.0 == end { link.1 } else { link.0 };
        let ends = self.links.get_mut(&link).expect("it broke");
        ends.remove(&end);
        if ends.is_empty() {
            self.links.remove(&link);
        }
        self.wires
            .retain(|(from, to, _), _| (*from, *to) != (other, end));
        (other, self.closed.remove(&link))
    }

    /// A node is gone: others are still to notice, and that its kernel closed its connections, if
    /// it did.
    pub(super) fn kill(&mut self, dead: NodeId, closes: bool) {
        self.wires.retain(|(_, to, _), _| *to != dead);
        for (link, mut ends) in std::mem::take(&mut self.links) {
            if link.0 == dead || link.1 == dead {
                let other = if link.0 == dead { link.1 } else { link.0 };
                if !ends.is_empty() && !ends.contains(&other) {
                    continue;
                }
                // Behind a cut nothing is heard of it.
                if closes && ends.is_empty() && !self.silent.contains(&(dead, other)) {
                    self.closed.insert(link);
                }
                ends = BTreeSet::from([other]);
            }
            self.links.insert(link, ends);
        }
    }
}

/// Whether a block comes with it.
fn is_state(message: &ServerMessage) -> bool {
    matches!(
        message,
        ServerMessage::InView {
            message: ViewMessage::State { .. },
            ..
        }
    )
}
