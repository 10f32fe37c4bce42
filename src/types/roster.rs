//! What the cluster has decided about who belongs to it: nodes that are banned or admitted, whether
//! nodes have to be admitted, and the change from one secret to the next. A join-semilattice like
//! heads: any order of merging gives the same roster.

use super::{NodeId, limits};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// All of it, as every node keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Of two, the greater counts.
    pub admission: Admission,
    /// What was said last of each node.
    pub words: BTreeMap<NodeId, Word>,
    /// The newest change of the secret, if there ever was one.
    pub rotation: Option<Rotation>,
}

/// Whether nodes have to be admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Admission {
    /// How often it was decided.
    pub version: u32,
    pub approve: bool,
}

/// What was said last of a node. Of two words the greater counts: the later one, and of two at once
/// the stricter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Word {
    pub version: u32,
    pub standing: Standing,
    /// What the node was called then.
    pub name: String,
    /// By the clock of whoever said it, in milliseconds since 1970; for people.
    pub at_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Standing {
    /// As if nothing had been said.
    Unknown,
    Admitted,
    Banned,
}

/// A change of the secret. Nodes that are listed may come with the secret before until the change
/// is over; of two changes the one with the greater (number, secret) counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rotation {
    /// 1 for the cluster's first.
    pub number: u32,
    pub secret: SecretText,
    /// Who was a member, or had been, when it began.
    pub listed: BTreeSet<NodeId>,
    /// The listed nodes that keep the new secret.
    pub changed: BTreeSet<NodeId>,
    /// Somebody said that it is over.
    pub finished: bool,
    pub at_ms: u64,
}

/// A secret on its way between members: never printed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SecretText(pub String);

/// A user's decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    Judge {
        node: NodeId,
        standing: Standing,
    },
    /// Whether nodes have to be admitted. All that are members now are.
    Admission {
        approve: bool,
    },
    Rotate {
        secret: SecretText,
    },
    /// The old secret is worth nothing from now on, whoever has not changed.
    Finish,
}

impl Roster {
    /// Takes in what another node knows; true if that is news.
    pub fn merge(&mut self, other: Self) -> bool {
        let before = self.clone();
        self.admission = self.admission.max(other.admission);
        for (node, word) in other.words {
            self.put(node, word);
        }
        self.rotation = match (self.rotation.take(), other.rotation) {
            (Some(ours), Some(theirs)) => Some(ours.join(theirs)),
            (ours, theirs) => ours.or(theirs),
        };
        *self != before
    }

    /// False where there is no room for one more.
    pub fn put(&mut self, node: NodeId, word: Word) -> bool {
        if self.words.len() >= limits::MAX_WORDS && !self.words.contains_key(&node) {
            return false;
        }
        let known = self.words.entry(node).or_insert_with(|| word.clone());
        if word > *known {
            *known = word;
        }
        true
    }

    pub fn standing(&self, node: NodeId) -> Standing {
        self.words
            .get(&node)
            .map_or(Standing::Unknown, |word| word.standing)
    }

    pub fn is_banned(&self, node: NodeId) -> bool {
        self.standing(node) == Standing::Banned
    }

    /// Whether a node has to wait until somebody admits it.
    pub fn waits(&self, node: NodeId) -> bool {
        self.admission.approve && self.standing(node) == Standing::Unknown
    }

    /// Whether a node may come with the secret before.
    pub fn takes_old_secret_of(&self, node: NodeId) -> bool {
        let open = |rotation: &Rotation| rotation.listed.contains(&node) && self.is_under_way();
        !self.is_banned(node) && self.rotation.as_ref().is_some_and(open)
    }

    /// The secret is being changed.
    pub fn is_under_way(&self) -> bool {
        self.rotation
            .as_ref()
            .is_some_and(|rotation| !rotation.finished && self.missing().next().is_some())
    }

    /// Nodes that are listed and have not changed.
    pub fn missing(&self) -> impl Iterator<Item = NodeId> + '_ {
        let listed = self
            .rotation
            .iter()
            .flat_map(|rotation| rotation.listed.difference(&rotation.changed));
        listed.filter(|node| !self.is_banned(**node)).copied()
    }
}

impl Rotation {
    fn join(mut self, mut other: Self) -> Self {
        if (self.number, &self.secret) < (other.number, &other.secret) {
            std::mem::swap(&mut self, &mut other);
        }
        if (self.number, &self.secret) == (other.number, &other.secret) {
            self.listed.append(&mut other.listed);
            self.changed.append(&mut other.changed);
            self.finished |= other.finished;
            self.at_ms = self.at_ms.max(other.at_ms);
        }
        self
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node() -> impl Strategy<Value = NodeId> {
        (0u8..4).prop_map(|number| NodeId([number; 32]))
    }

    fn roster() -> impl Strategy<Value = Roster> {
        let standing = prop_oneof![
            Just(Standing::Unknown),
            Just(Standing::Admitted),
            Just(Standing::Banned)
        ];
        let word =
            (0u32..3, standing, "[ab]", 0u64..2).prop_map(|(version, standing, name, at_ms)| {
                Word {
                    version,
                    standing,
                    name,
                    at_ms,
                }
            });
        let nodes = || proptest::collection::btree_set(node(), 0..4);
        let rotation = (0u32..3, "[ab]", nodes(), nodes(), any::<bool>(), 0u64..2).prop_map(
            |(number, secret, listed, changed, finished, at_ms)| {
                let secret = SecretText(secret);
                Rotation {
                    number,
                    secret,
                    listed,
                    changed,
                    finished,
                    at_ms,
                }
            },
        );
        let admission =
            (0u32..3, any::<bool>()).prop_map(|(version, approve)| Admission { version, approve });
        (
            admission,
            proptest::collection::btree_map(node(), word, 0..4),
            proptest::option::of(rotation),
        )
            .prop_map(|(admission, words, rotation)| Roster {
                admission,
                words,
                rotation,
            })
    }

    fn joined(a: &Roster, b: &Roster) -> Roster {
        let mut joined = a.clone();
        joined.merge(b.clone());
        joined
    }

    proptest! {
        #[test]
        fn merging_is_a_join(a in roster(), b in roster(), c in roster()) {
            prop_assert_eq!(joined(&a, &b), joined(&b, &a));
            prop_assert_eq!(joined(&joined(&a, &b), &c), joined(&a, &joined(&b, &c)));
            let mut again = joined(&a, &b);
            prop_assert!(!again.merge(a) && !again.merge(b));
        }
    }

    #[test]
    fn the_old_secret_is_taken_of_those_who_are_listed_until_all_have_changed() {
        let nodes: Vec<_> = (0..4).map(|number| NodeId([number; 32])).collect();
        let mut roster = Roster {
            rotation: Some(Rotation {
                number: 1,
                secret: SecretText("new".into()),
                listed: nodes[..3].iter().copied().collect(),
                changed: BTreeSet::new(),
                finished: false,
                at_ms: 0,
            }),
            ..Roster::default()
        };
        assert!(roster.takes_old_secret_of(nodes[0]) && !roster.takes_old_secret_of(nodes[3]));
        roster.put(
            nodes[2],
            Word {
                version: 1,
                standing: Standing::Banned,
                name: "c".into(),
                at_ms: 0,
            },
        );
        assert!(!roster.takes_old_secret_of(nodes[2]));
        roster
            .rotation
            .as_mut()
            .unwrap()
            .changed
            .extend(&nodes[..2]);
        assert!(
            !roster.is_under_way() && !roster.takes_old_secret_of(nodes[0]),
            "nobody waits for who is banned"
        );
        assert!(!format!("{roster:?}").contains("new"));
    }
}
