//! How nodes agree on who votes first on the entries of a log, or on the rows of an open job: one
//! decision of Paxos for each (Lamport, "The part-time parliament", 1998).

use super::{JobId, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A try of one node to have the first voters agreed on. A later ballot outbids an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ballot {
    pub round: u32,
    /// The node that tries; None only in the ballot below all others.
    pub node: Option<NodeId>,
    /// A random number of the claim for which it tries: no two lives of a node have one ballot.
    pub claim: u32,
}

/// What a node has said about the first voters of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beginning {
    /// The latest ballot that the node takes part in; it does nothing more for earlier ones.
    pub promised: Ballot,
    /// The voters that it accepted last, at most `limits::JOB_REPLICAS`, and in which ballot.
    pub accepted: Option<(Ballot, Vec<NodeId>)>,
}

/// What a node has said about the first voters of jobs: on its disk before it is said.
pub type Beginnings = BTreeMap<JobId, Beginning>;

impl Beginning {
    /// Takes part in a ballot, unless the node has promised to take part in a later one. Returns
    /// whether it does.
    pub fn promise(&mut self, ballot: Ballot) -> bool {
        let takes_part = ballot >= self.promised;
        self.promised = self.promised.max(ballot);
        takes_part
    }

    /// Accepts the voters that a ballot proposes, unless the node takes part in a later one.
    /// Returns whether it does.
    pub fn accept(&mut self, ballot: Ballot, voters: Vec<NodeId>) -> bool {
        let takes_part = self.promise(ballot);
        if takes_part {
            self.accepted = Some((ballot, voters));
        }
        takes_part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ACCEPTORS: usize = 5;

    /// One who proposes itself: what it has heard in its ballot.
    #[derive(Clone, Default)]
    struct Proposal {
        ballot: Ballot,
        promises: BTreeMap<usize, Beginning>,
        proposed: Option<Vec<NodeId>>,
        accepts: std::collections::BTreeSet<usize>,
    }

    fn is_majority(count: usize) -> bool {
        2 * count > ACCEPTORS
    }

    impl Proposal {
        fn begin(&mut self, me: u8, round: u32) {
            let node = Some(NodeId([me; 32]));
            *self = Self {
                ballot: Ballot {
                    round,
                    node,
                    claim: 1,
                },
                ..Self::default()
            };
        }

        /// Asks one acceptor for what is next, and hears its answer; returns what is chosen.
        fn ask(&mut self, me: u8, at: usize, acceptor: &mut Beginning) -> Option<Vec<NodeId>> {
            match self.proposed.clone() {
                None if acceptor.promise(self.ballot) => {
                    self.promises.insert(at, acceptor.clone());
                    if is_majority(self.promises.len()) {
                        let accepted = self.promises.values().filter_map(|it| it.accepted.clone());
                        let latest = accepted.max_by_key(|(ballot, _)| *ballot);
                        let own = vec![NodeId([me; 32])];
                        self.proposed = Some(latest.map_or(own, |(_, voters)| voters));
                    }
                }
                Some(voters) if acceptor.accept(self.ballot, voters.clone()) => {
                    self.accepts.insert(at);
                    return is_majority(self.accepts.len()).then_some(voters);
                }
                None | Some(_) => {}
            }
            None
        }
    }

    proptest! {
        /// Whoever asks whom in what order, and begins anew when: what is chosen is one thing.
        #[test]
        fn one_thing_is_chosen(steps in prop::collection::vec(
            (0u8..3, 0usize..ACCEPTORS, 0u32..8), 1..400)
        ) {
            let mut acceptors = vec![Beginning::default(); ACCEPTORS];
            let mut proposers = vec![Proposal::default(); 3];
            let mut chosen = None;
            let mut round = 0;
            for (me, at, dice) in steps {
                let proposer = &mut proposers[usize::from(me)];
                if dice == 0 || proposer.ballot == Ballot::default() {
                    round += u32::from(dice % 2 == 0);
                    if round > proposer.ballot.round || proposer.ballot == Ballot::default() {
                        proposer.begin(me, round);
                    }
                }
                if let Some(voters) = proposer.ask(me, at, &mut acceptors[at]) {
                    let first = chosen.get_or_insert(voters.clone());
                    prop_assert_eq!(first, &voters);
                }
            }
        }

        #[test]
        fn nothing_is_taken_back(ballots in prop::collection::vec((0u32..9, 0u8..3, any::<bool>()), 1..60)) {
            let mut acceptor = Beginning::default();
            for (round, node, accepts) in ballots {
                let before = acceptor.clone();
                let ballot = Ballot { round, node: Some(NodeId([node; 32])), claim: 1 };
                let takes_part = match accepts {
                    true => acceptor.accept(ballot, vec![NodeId([node; 32])]),
                    false => acceptor.promise(ballot),
                };
                prop_assert_eq!(takes_part, ballot >= before.promised);
                prop_assert!(acceptor.promised >= before.promised);
                let of = |it: &Beginning| it.accepted.as_ref().map(|(ballot, _)| *ballot);
                prop_assert!(of(&acceptor) >= of(&before));
                prop_assert!(takes_part || acceptor == before);
            }
        }
    }
}
