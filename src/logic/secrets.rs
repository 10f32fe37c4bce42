//! Named secrets, merged from everyone. A join-semilattice: of two of one name the one that
//! precedes counts, in whatever order they came.
//!
//! Nodes that meet compare hashes over all that they know; who knows other ones sends them. What is
//! new is passed on to all. There are few of them, and all fit into a message.
//!
//! What is merged here is sealed with the key of the newest secret of the cluster that this node
//! has: what others tell is sealed anew, or left out, before it comes. When the secret changes,
//! each node seals anew what it knows, and all make the same bytes of it. So nothing has to be
//! told, and nothing looks like a later word of a user. What was told with a key that this node did
//! not have yet comes again when it compares.

use super::{
    State,
    io::{Asker, Effect, Note},
};
use nodectl_types::{
    Answer, KeptSecret, Message, NodeId, QueryError, WorkSpec, limits, query::SecretLine,
    roster::SecretText, secret::is_secret_name,
};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct Secrets {
    kept: BTreeMap<String, KeptSecret>,
    /// The changed secret of the cluster with whose key these were last sealed anew, in this life
    /// of the node.
    renewed_for: Option<SecretText>,
}

impl Secrets {
    /// True if that changed anything. A new name beyond the limit is not taken in.
    pub fn merge(&mut self, secret: KeptSecret) -> bool {
        let is_news = match self.kept.get(&secret.name) {
            Some(known) => secret.precedence() > known.precedence(),
            None => self.kept.len() < limits::MAX_SECRETS,
        };
        if is_news {
            self.kept.insert(secret.name.clone(), secret);
        }
        is_news
    }

    /// Takes the secrets as they are sealed now; what came since stays.
    fn replace(&mut self, were: &[KeptSecret], are: Vec<KeptSecret>) {
        for secret in were {
            if self.kept.get(&secret.name) == Some(secret) {
                self.kept.remove(&secret.name);
            }
        }
        for secret in are {
            self.merge(secret);
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.kept
            .get(name)
            .is_some_and(|secret| secret.sealed.is_some())
    }

    pub fn all(&self) -> Vec<KeptSecret> {
        self.kept.values().cloned().collect()
    }

    /// Equal where these are.
    pub fn digest(&self) -> [u8; 32] {
        let bytes = postcard::to_stdvec(&self.kept).expect("plain data always encodes");
        blake3::hash(&bytes).into()
    }

    fn lines(&self) -> Vec<SecretLine> {
        let present = self.kept.values().filter(|secret| secret.sealed.is_some());
        present
            .map(|secret| SecretLine {
                name: secret.name.clone(),
                changed_ms: secret.changed_ms,
            })
            .collect()
    }
}

impl State {
    /// What this node's last life kept.
    pub fn restore_secrets(&mut self, secrets: Vec<KeptSecret>) {
        for secret in secrets {
            self.secrets.merge(secret);
        }
    }

    /// A user's secret, sealed already; None drops it.
    pub(super) fn put_secret(&mut self, asker: Asker, name: String, sealed: Option<Vec<u8>>) {
        match self.change_secret(name, sealed) {
            Ok(()) => {
                let all = Note::Secrets(self.secrets.all());
                self.core.keep_then_answer(all, asker, Answer::Ok);
            }
            Err(error) => self.core.answer(asker, Err(error)),
        }
    }

    fn change_secret(&mut self, name: String, sealed: Option<Vec<u8>>) -> Result<(), QueryError> {
        if !is_secret_name(&name) {
            return Err(QueryError::Invalid(format!(
                "`{name}` cannot name a secret"
            )));
        }
        if sealed.is_none() && !self.secrets.has(&name) {
            return Err(QueryError::NoSecret(name));
        }
        let version = self
            .secrets
            .kept
            .get(&name)
            .map_or(0, |known| known.version)
            + 1;
        let secret = KeptSecret {
            name,
            version,
            changed_ms: self.core.now.wall_ms,
            sealed,
        };
        if !self.secrets.merge(secret.clone()) {
            let most = limits::MAX_SECRETS;
            return Err(QueryError::Storage(format!(
                "{most} names of secrets are remembered, dropped ones too: that is the most"
            )));
        }
        self.core.broadcast(&Message::Secrets(vec![secret]));
        Ok(())
    }

    pub(super) fn answer_secrets(&mut self, asker: Asker) {
        let lines = self.secrets.lines();
        self.core.answer(asker, Ok(Answer::Secrets(lines)));
    }

    /// A job whose tasks would not find what they ask for.
    pub(super) fn check_secrets(&self, work: &WorkSpec) -> Result<(), QueryError> {
        match work.secrets.iter().find(|name| !self.secrets.has(name)) {
            Some(name) => Err(QueryError::NoSecret(name.clone())),
            None => Ok(()),
        }
    }

    /// Whoever connects is told what is known here, by a hash.
    pub(super) fn compare_secrets(&mut self, peer: NodeId) {
        let digest = self.secrets.digest();
        self.core.send(peer, Message::SecretsDigest(digest));
    }

    pub(super) fn secrets_digest(&mut self, from: NodeId, digest: [u8; 32]) {
        if digest != self.secrets.digest() && !self.secrets.kept.is_empty() {
            let all = self.secrets.all();
            self.core.send(from, Message::Secrets(all));
        }
    }

    pub(super) fn secrets_told(&mut self, from: NodeId, secrets: Vec<KeptSecret>) {
        let news: Vec<_> = secrets
            .into_iter()
            .filter(|secret| self.secrets.merge(secret.clone()))
            .collect();
        if news.is_empty() {
            return;
        }
        self.keep_secrets();
        // Not everybody is connected to everybody.
        for peer in self.core.members.connected() {
            if peer != from {
                self.core.send(peer, Message::Secrets(news.clone()));
            }
        }
    }

    /// This node has another key now.
    pub(super) fn renew_secrets(&mut self, secret: &SecretText) {
        if self.secrets.renewed_for.as_ref() != Some(secret) {
            self.secrets.renewed_for = Some(secret.clone());
            self.core
                .effects
                .push(Effect::RenewSecrets(self.secrets.all()));
        }
    }

    /// What no key opens any more is forgotten, so that it stands in no other's way.
    pub(super) fn secrets_renewed(&mut self, were: &[KeptSecret], are: Vec<KeptSecret>) {
        if were != are {
            self.secrets.replace(were, are);
            self.keep_secrets();
        }
        // Also those that have only just come: what they said before could not be read.
        let peers = self.core.members.peers();
        let connected: Vec<_> = peers
            .filter(|(_, peer)| peer.connected)
            .map(|(id, _)| *id)
            .collect();
        connected
            .into_iter()
            .for_each(|peer| self.compare_secrets(peer));
    }

    fn keep_secrets(&mut self) {
        self.core.keep(Note::Secrets(self.secrets.all()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, version: u64, sealed: Option<&[u8]>) -> KeptSecret {
        KeptSecret {
            name: name.into(),
            version,
            changed_ms: 0,
            sealed: sealed.map(<[u8]>::to_vec),
        }
    }

    #[test]
    fn whatever_the_order_the_same_secrets_are_known() {
        let news = [
            secret("a", 1, Some(b"x")),
            secret("a", 2, None),
            secret("b", 1, Some(b"x")),
            secret("b", 1, Some(b"y")),
            secret("c", 7, Some(b"z")),
        ];
        let mut forward = Secrets::default();
        let mut backward = Secrets::default();
        news.iter()
            .for_each(|secret| assert!(forward.merge(secret.clone())));
        for secret in news.iter().rev() {
            backward.merge(secret.clone());
        }
        assert_eq!(
            (forward.digest(), forward.all()),
            (backward.digest(), backward.all())
        );
        assert!(
            !forward.merge(news[0].clone()),
            "what was dropped does not come back"
        );
        assert_eq!(
            forward
                .lines()
                .iter()
                .map(|line| line.name.as_str())
                .collect::<Vec<_>>(),
            ["b", "c"]
        );
        assert!(!forward.has("a") && forward.has("b"));
    }

    #[test]
    fn what_is_sealed_anew_replaces_what_it_was_and_nothing_that_came_since() {
        let mut secrets = Secrets::default();
        let were = [
            secret("a", 1, Some(b"z old")),
            secret("b", 1, Some(b"old")),
            secret("c", 1, Some(b"no key")),
        ];
        were.iter()
            .for_each(|secret| assert!(secrets.merge(secret.clone())));
        let put = secret("b", 2, Some(b"a newer value"));
        secrets.merge(put.clone());
        let renewed = secret("a", 1, Some(b"new"));
        secrets.replace(&were, vec![renewed.clone(), secret("b", 1, Some(b"new"))]);
        assert_eq!(
            secrets.all(),
            [renewed, put],
            "the bytes of `a` are lower than they were, and it counts all the same"
        );
    }

    #[test]
    fn there_are_no_more_names_than_may_be() {
        let mut secrets = Secrets::default();
        for number in 0..limits::MAX_SECRETS {
            assert!(secrets.merge(secret(&format!("a{number}"), 1, None)));
        }
        assert!(!secrets.merge(secret("b", 1, None)));
        assert!(secrets.merge(secret("a0", 2, Some(b"x"))));
    }
}
