//! Who belongs to the cluster: what users decide, told to all at once and compared now and then,
//! like heads. The network keeps it on disk and closes the door by it; here it is merged, and
//! decided upon.

use super::{
    State,
    io::{Asker, Note},
};
use nodectl_types::{
    Answer, Decision, Message, NodeId, QueryError, Roster, Standing, limits,
    roster::{Rotation, SecretText, Word},
};
use std::collections::BTreeSet;

impl State {
    /// What this node's disk remembers.
    pub fn restore_roster(&mut self, roster: Roster) {
        self.roster.merge(roster);
    }

    /// A user asks, and may have decided something.
    pub(super) fn decide(&mut self, asker: Asker, decision: Option<Decision>) {
        // The secret may be in it: each node tells its own users.
        if matches!(asker, Asker::Remote(..)) {
            let refused = QueryError::Refused(
                "only a node's own users are told who belongs to the cluster".into(),
            );
            return self.core.answer(asker, Err(refused));
        }
        let decided = match decision {
            None => {
                let answer = Answer::Roster(Box::new(self.roster.clone()));
                return self.core.answer(asker, Ok(answer));
            }
            Some(Decision::Judge { node, standing }) => self.judge(node, standing),
            Some(Decision::Admission { approve }) => self.set_admission(approve),
            Some(Decision::Rotate { secret }) => self.rotate(secret),
            Some(Decision::Finish) => self.finish(),
        };
        match decided {
            Ok(()) => {
                self.tell_roster();
                let roster = Box::new(self.roster.clone());
                let answer = Answer::Roster(roster.clone());
                self.core
                    .keep_then_answer(Note::Roster(roster), asker, answer);
            }
            Err(error) => self.core.answer(asker, Err(error)),
        }
    }

    fn judge(&mut self, node: NodeId, standing: Standing) -> Result<(), QueryError> {
        if node == self.core.me && standing == Standing::Banned {
            let hint =
                "hint: ban it from another node; `nodectl leave` takes it out of the cluster";
            return Err(QueryError::Refused(format!(
                "a node does not ban itself\n{hint}"
            )));
        }
        let known = self.roster.words.get(&node);
        let version = known.map_or(0, |word| word.version).saturating_add(1);
        let name = match (self.core.members.info(node), known) {
            (None, Some(word)) => word.name.clone(),
            _ => self.core.members.name(node),
        };
        let word = Word {
            version,
            standing,
            name,
            at_ms: self.core.now.wall_ms,
        };
        if !self.roster.put(node, word) {
            let most = limits::MAX_WORDS;
            return Err(QueryError::Refused(format!(
                "something was decided of {most} nodes, which is the most"
            )));
        }
        if standing == Standing::Banned {
            self.shut_out(node);
        }
        Ok(())
    }

    fn set_admission(&mut self, approve: bool) -> Result<(), QueryError> {
        if approve {
            for node in self.core.members.alive() {
                if self.roster.standing(node) == Standing::Unknown {
                    self.judge(node, Standing::Admitted)?;
                }
            }
        }
        self.roster.admission.version = self.roster.admission.version.saturating_add(1);
        self.roster.admission.approve = approve;
        Ok(())
    }

    fn rotate(&mut self, secret: SecretText) -> Result<(), QueryError> {
        if self.roster.is_under_way() {
            let names = self.names(self.roster.missing());
            let hint = "hint: wait for them, or end the change without them: nodectl secret rotate --finish";
            return Err(QueryError::Refused(format!(
                "the secret is being changed: not yet on {names}\n{hint}"
            )));
        }
        let known = self
            .core
            .members
            .peers()
            .map(|(node, _)| *node)
            .chain([self.core.me]);
        let belongs = |node: &NodeId| !self.roster.is_banned(*node) && !self.roster.waits(*node);
        let listed: BTreeSet<_> = known.filter(belongs).take(limits::MAX_WORDS).collect();
        let number = self
            .roster
            .rotation
            .as_ref()
            .map_or(0, |rotation| rotation.number)
            .saturating_add(1);
        let (changed, at_ms) = (BTreeSet::new(), self.core.now.wall_ms);
        self.roster.rotation = Some(Rotation {
            number,
            secret,
            listed,
            changed,
            finished: false,
            at_ms,
        });
        self.core.notice(format!(
            "the cluster's secret is changed, for the {number}. time"
        ));
        Ok(())
    }

    fn finish(&mut self) -> Result<(), QueryError> {
        match &mut self.roster.rotation {
            Some(rotation) => rotation.finished = true,
            None => return Err(QueryError::Refused("the secret was never changed".into())),
        }
        Ok(())
    }

    /// This node keeps the new secret, and comes with it from now on.
    pub(super) fn secret_kept(&mut self, secret: &SecretText) {
        let me = self.core.me;
        let Some(rotation) = self
            .roster
            .rotation
            .as_mut()
            .filter(|rotation| rotation.secret == *secret)
        else {
            return;
        };
        if rotation.changed.insert(me) {
            self.tell_roster();
            self.keep_roster();
        }
        self.renew_secrets(secret);
    }

    /// Whoever was invited is admitted with it.
    pub(super) fn invited(&mut self, node: NodeId) {
        if self.roster.standing(node) == Standing::Unknown
            && self.judge(node, Standing::Admitted).is_ok()
        {
            self.tell_roster();
            self.keep_roster();
        }
    }

    pub(super) fn hear_roster(&mut self, from: NodeId, roster: Roster) {
        let before: Vec<_> = self.banned().collect();
        let known = roster.clone();
        if self.roster.merge(roster) {
            let news: Vec<_> = self
                .banned()
                .filter(|node| !before.contains(node))
                .collect();
            news.into_iter().for_each(|node| self.shut_out(node));
            self.keep_roster();
        }
        if self.roster != known {
            self.show_roster(from);
        }
    }

    /// A cluster in which nothing was decided says nothing of it.
    pub(super) fn show_roster(&mut self, peer: NodeId) {
        if self.roster != Roster::default() {
            self.core
                .send(peer, Message::Roster(Box::new(self.roster.clone())));
        }
    }

    /// Something was decided here: all are told.
    fn tell_roster(&mut self) {
        if self.roster != Roster::default() {
            self.core
                .broadcast(&Message::Roster(Box::new(self.roster.clone())));
        }
    }

    fn keep_roster(&mut self) {
        let roster = Box::new(self.roster.clone());
        self.core.keep(Note::Roster(roster));
    }

    /// Has a node count as gone at once; nobody looks for it.
    fn shut_out(&mut self, node: NodeId) {
        if node == self.core.me {
            self.core
                .notice("this node is banned from the cluster".into());
            return;
        }
        let name = self.core.members.name(node);
        self.core
            .notice(format!("{name} ({}) is banned", node.short()));
        self.peer_gone(node, true);
    }

    fn banned(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.roster
            .words
            .keys()
            .copied()
            .filter(|node| self.roster.is_banned(*node))
    }

    fn names(&self, nodes: impl Iterator<Item = NodeId>) -> String {
        nodes
            .map(|node| self.core.members.name(node))
            .collect::<Vec<_>>()
            .join(", ")
    }
}
