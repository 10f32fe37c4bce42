//! Who may connect, with which key. The newest secret's key opens for all but those who are banned
//! or wait for admission; the one before for those who were members when the secret was changed,
//! until the change is over; a code's for one node, which is handed the secret and nothing else.
//! What is decided comes from the node's loop; here it is kept, and connections are taken or
//! refused by it.

use super::{
    invite,
    kept::{self, KeptKeys, KeptSealingKey, OldKeys},
    secret::{Keys, Secret},
    swarm::shared::SAY_EVERY,
};
use nodectl_ports::{Event, NetEvent};
use nodectl_types::{NodeId, Roster, roster::SecretText};
use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    path::PathBuf,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::{Mutex, mpsc};
use zeroize::Zeroizing;

/// Codes that are good at one time.
const MAX_INVITES: usize = 8;
/// How long a code is good.
pub const INVITE_LIFE: Duration = Duration::from_secs(600);
/// Nodes that wait for admission and are remembered; and how long one is since it last came.
const MAX_WAITING: usize = 64;
const WAITING_TTL: Duration = Duration::from_secs(120);

/// Shared by everything that listens or dials.
pub struct Access {
    local: NodeId,
    data_dir: PathBuf,
    events: mpsc::Sender<Event>,
    held: RwLock<HeldKeys>,
    /// Rises with every change of what keys there are.
    changes: AtomicU64,
    /// Rosters are taken in one after the other.
    turn: Mutex<()>,
}

struct HeldKeys {
    newest: Keys,
    before: Vec<[u8; 32]>,
    old: Option<OldKeys>,
    sealing: Vec<KeptSealingKey>,
    roster: Roster,
    invites: Vec<Invite>,
    drawn: u64,
    waiting: BTreeMap<NodeId, (Option<IpAddr>, Instant)>,
    /// How members refused this node last.
    refused: Option<Refusal>,
    said: Option<Instant>,
}

/// A code that was given out.
struct Invite {
    number: u64,
    keys: OldKeys,
    until: Instant,
}

/// What a connection was opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorKey {
    Newest,
    Old,
    Invite(u64),
}

/// What becomes of a node that has a key.
pub enum Judged {
    Welcome,
    /// The node is handed the secret.
    Invited(Zeroizing<String>),
    Refused(Refusal),
}

/// Why a node that has a key is refused. The numbers travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    Banned = 1,
    Waits = 2,
    Replaced = 3,
}

impl Refusal {
    pub fn of(byte: u8) -> Option<Self> {
        [Self::Banned, Self::Waits, Self::Replaced]
            .into_iter()
            .find(|refusal| *refusal as u8 == byte)
    }

    /// To whom it happens.
    fn explain(self, local: NodeId) -> String {
        let id = local.short();
        match self {
            Self::Banned => format!("members refuse this node: it is banned\nhint: `nodectl unban {id}` on a member ends that"),
            Self::Waits => format!("this node waits to be admitted\nhint: on a member: nodectl admit {id}"),
            Self::Replaced => "the cluster's secret was changed while this node was away\nhint: `nodectl secret show` on a member \
                               prints the new one; then here `nodectl leave`, and `nodectl join`, with that one in place of the old"
                .into(),
        }
    }
}

impl Access {
    /// With what this data directory remembers.
    pub fn open(
        local: NodeId,
        data_dir: PathBuf,
        keys: Keys,
        events: mpsc::Sender<Event>,
    ) -> io::Result<Self> {
        let kept = kept::read(&data_dir)?;
        let is_other = |kept: &KeptKeys| kept.id != keys.id;
        if kept.as_ref().is_some_and(is_other) {
            tracing::warn!(
                "what was decided of nodes here belongs to another secret, and is put aside"
            );
            kept::put_aside(&data_dir)?;
        }
        let kept = kept.filter(|kept| !is_other(kept));
        let access = Self::new(local, data_dir, keys, events);
        if let Some(KeptKeys {
            before,
            old,
            sealing,
            roster,
            ..
        }) = kept
        {
            let mut held = access.change();
            (held.before, held.old, held.sealing, held.roster) = (before, old, sealing, roster);
        }
        Ok(access)
    }

    /// A cluster in which nothing was decided.
    pub fn new(local: NodeId, data_dir: PathBuf, keys: Keys, events: mpsc::Sender<Event>) -> Self {
        let held = HeldKeys {
            newest: keys,
            before: Vec::new(),
            old: None,
            sealing: Vec::new(),
            roster: Roster::default(),
            invites: Vec::new(),
            drawn: 0,
            waiting: BTreeMap::new(),
            refused: None,
            said: None,
        };
        Self {
            local,
            data_dir,
            events,
            held: RwLock::new(held),
            changes: AtomicU64::new(0),
            turn: Mutex::default(),
        }
    }

    pub fn roster(&self) -> Roster {
        self.held().roster.clone()
    }

    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Every key that a handshake may have, if only to be told why it is refused.
    pub fn locks(&self) -> Vec<(DoorKey, [u8; 32])> {
        self.keys(|keys| keys.swarm, |keys| *keys.swarm)
    }

    /// Every key that beacons may be sealed with.
    pub fn beacons(&self) -> Vec<(DoorKey, [u8; 32])> {
        self.keys(|keys| keys.beacon, |keys| *keys.beacon)
    }

    fn keys(
        &self,
        of: impl Fn(&OldKeys) -> [u8; 32],
        newest: impl Fn(&Keys) -> [u8; 32],
    ) -> Vec<(DoorKey, [u8; 32])> {
        let held = self.held();
        let now = Instant::now();
        let old = held.old.iter().map(|old| (DoorKey::Old, of(old)));
        let invites = held.invites.iter().filter(|invite| invite.until > now);
        let invites = invites.map(|invite| (DoorKey::Invite(invite.number), of(&invite.keys)));
        [(DoorKey::Newest, newest(&held.newest))]
            .into_iter()
            .chain(old)
            .chain(invites)
            .collect()
    }

    /// What named secrets are sealed with, then what they were sealed with before, the latest
    /// first.
    pub fn sealing_keys(&self) -> Vec<Zeroizing<[u8; 32]>> {
        let held = self.held();
        let before = held.sealing.iter().rev().map(|key| Zeroizing::new(key.0));
        [held.newest.named.clone()]
            .into_iter()
            .chain(before)
            .collect()
    }

    /// The keys to dial with, one after the other.
    pub fn to_dial(&self) -> Vec<(DoorKey, [u8; 32])> {
        let under_way = self.held().roster.is_under_way();
        let usable = |key: &DoorKey| *key == DoorKey::Newest || (*key == DoorKey::Old && under_way);
        self.locks()
            .into_iter()
            .filter(|(key, _)| usable(key))
            .collect()
    }

    /// A node has proved that it is who it is, and has that key.
    pub fn judge(&self, key: DoorKey, node: NodeId, from: Option<IpAddr>) -> Judged {
        let mut held = self.change();
        if held.roster.is_banned(node) {
            return Judged::Refused(Refusal::Banned);
        }
        match key {
            DoorKey::Old if !held.roster.takes_old_secret_of(node) => {
                return Judged::Refused(Refusal::Replaced);
            }
            DoorKey::Invite(number) => {
                // Another may have used it since.
                let Some(at) = held
                    .invites
                    .iter()
                    .position(|invite| invite.number == number)
                else {
                    return Judged::Refused(Refusal::Replaced);
                };
                held.invites.remove(at);
                self.changes.fetch_add(1, Ordering::AcqRel);
                tracing::info!("node {} has used an invitation", node.short());
                let _ = self
                    .events
                    .try_send(Event::Net(NetEvent::Invited { peer: node }));
                return Judged::Invited(held.newest.secret.clone());
            }
            DoorKey::Old | DoorKey::Newest => {}
        }
        if !held.roster.waits(node) {
            return Judged::Welcome;
        }
        let now = Instant::now();
        held.waiting
            .retain(|_, (_, at)| now.duration_since(*at) < WAITING_TTL);
        if held.waiting.len() < MAX_WAITING && held.waiting.insert(node, (from, now)).is_none() {
            let id = node.short();
            tracing::info!("node {id} waits to be admitted\nhint: nodectl admit {id}");
        }
        Judged::Refused(Refusal::Waits)
    }

    /// Whether a node that has the newest key would be refused.
    pub fn refuses(&self, node: NodeId) -> bool {
        let held = self.held();
        held.roster.is_banned(node) || held.roster.waits(node)
    }

    /// How members took this node.
    pub fn was_taken(&self, refusal: Option<Refusal>) {
        if refusal.is_none() && self.held().refused.is_none() {
            return;
        }
        let mut held = self.change();
        held.refused = refusal;
        let Some(refusal) =
            refusal.filter(|_| held.said.is_none_or(|at| at.elapsed() >= SAY_EVERY))
        else {
            return;
        };
        held.said = Some(Instant::now());
        tracing::warn!("{}", refusal.explain(self.local));
    }

    /// For `doctor`.
    pub fn refusal(&self) -> Option<String> {
        self.held()
            .refused
            .map(|refusal| refusal.explain(self.local))
    }

    /// Nodes that came lately and have to be admitted.
    pub fn waiting(&self) -> Vec<(NodeId, Option<IpAddr>)> {
        let held = self.held();
        let lately = held
            .waiting
            .iter()
            .filter(|(_, (_, at))| at.elapsed() < WAITING_TTL);
        lately
            .filter(|(node, _)| held.roster.waits(**node))
            .map(|(node, (from, _))| (*node, *from))
            .collect()
    }

    /// A code with which one node may come for the secret.
    pub fn invite(&self) -> Result<String, String> {
        let code = Secret::generate();
        let now = Instant::now();
        let mut held = self.change();
        held.invites.retain(|invite| invite.until > now);
        if held.invites.len() >= MAX_INVITES {
            let minutes = INVITE_LIFE.as_secs() / 60;
            return Err(format!(
                "{MAX_INVITES} invitations wait to be used\nhint: each is good for {minutes} minutes"
            ));
        }
        held.drawn += 1;
        let keys = invite::keys(&code, &held.newest.cluster);
        let invite = Invite {
            number: held.drawn,
            keys,
            until: now + INVITE_LIFE,
        };
        held.invites.push(invite);
        self.changes.fetch_add(1, Ordering::AcqRel);
        Ok(code.reveal().to_string())
    }

    /// Takes in what was decided, and keeps it. Gives the changed secret that is kept now, if there
    /// is one. The error says why this is not on the disk.
    pub async fn adopt(self: Arc<Self>, news: Roster) -> Result<Option<SecretText>, String> {
        let _turn = self.turn.lock().await;
        // Two may come in the wrong order.
        let (mut roster, newest, cluster) = {
            let held = self.held();
            (
                held.roster.clone(),
                held.newest.secret.clone(),
                held.newest.cluster.clone(),
            )
        };
        roster.merge(news);
        let text = roster
            .rotation
            .as_ref()
            .map(|rotation| rotation.secret.clone());
        if let Some(text) = text.filter(|text| text.0.trim() != *newest) {
            match Secret::of_cluster(&text.0).derive(cluster).await {
                Ok(keys) => self.change().replace(keys),
                Err(error) => {
                    let why = format!("the cluster's new secret is of no use here: {error}");
                    tracing::error!("{why}");
                    return Err(why);
                }
            }
        }
        self.change().roster = roster;
        self.changes.fetch_add(1, Ordering::AcqRel);
        let this = self.clone();
        let written =
            tokio::task::spawn_blocking(move || kept::write(&this.data_dir, &this.to_keep())).await;
        match written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => Ok(self.kept_change()),
            Err(error) => {
                tracing::error!(
                    "what was decided of nodes is forgotten with this start: it cannot be kept: {error}"
                );
                Err(error.to_string())
            }
        }
    }

    /// The secret of the newest change, if this node has it.
    pub fn kept_change(&self) -> Option<SecretText> {
        let held = self.held();
        let rotation = held.roster.rotation.as_ref();
        rotation
            .map(|rotation| &rotation.secret)
            .filter(|secret| secret.0.trim() == *held.newest.secret)
            .cloned()
    }

    fn to_keep(&self) -> KeptKeys {
        let held = self.held();
        let (before, old, sealing) = (held.before.clone(), held.old.clone(), held.sealing.clone());
        KeptKeys {
            id: held.newest.id,
            before,
            old,
            sealing,
            roster: held.roster.clone(),
        }
    }

    fn held(&self) -> RwLockReadGuard<'_, HeldKeys> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, HeldKeys> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldKeys {
    fn replace(&mut self, keys: Keys) {
        let old = std::mem::replace(&mut self.newest, keys);
        self.old = Some(OldKeys {
            swarm: *old.swarm,
            beacon: *old.beacon,
        });
        self.before.push(old.id);
        let surplus = self.before.len().saturating_sub(kept::MAX_BEFORE);
        self.before.drain(..surplus);
        self.sealing.push(KeptSealingKey(*old.named));
        let surplus = self.sealing.len().saturating_sub(kept::MAX_SEALING);
        self.sealing.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::cluster::keys;
    use nodectl_types::{
        Standing,
        roster::{Rotation, Word},
    };

    fn node(number: u8) -> NodeId {
        NodeId([number; 32])
    }

    fn access(directory: &tempfile::TempDir) -> (Arc<Access>, mpsc::Receiver<Event>) {
        let (events, heard) = mpsc::channel(8);
        (
            Arc::new(Access::open(node(1), directory.path().into(), keys(), events).unwrap()),
            heard,
        )
    }

    fn refusal(judged: Judged) -> Option<Refusal> {
        match judged {
            Judged::Refused(refusal) => Some(refusal),
            Judged::Welcome | Judged::Invited(_) => None,
        }
    }

    fn word(standing: Standing) -> Word {
        Word {
            version: 1,
            standing,
            name: "n".into(),
            at_ms: 0,
        }
    }

    #[tokio::test]
    async fn who_is_banned_or_waits_is_refused_also_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let (first, _heard) = access(&directory);
        let mut roster = Roster::default();
        roster.put(node(2), word(Standing::Banned));
        roster.put(node(3), word(Standing::Admitted));
        (roster.admission.version, roster.admission.approve) = (1, true);
        assert_eq!(first.adopt(roster).await, Ok(None));
        let (again, _heard) = access(&directory);
        let judge = |number| refusal(again.judge(DoorKey::Newest, node(number), None));
        assert_eq!(
            [judge(2), judge(3), judge(4)],
            [Some(Refusal::Banned), None, Some(Refusal::Waits)]
        );
        assert_eq!(again.waiting(), [(node(4), None)]);
        assert!(again.refuses(node(2)) && again.refuses(node(4)) && !again.refuses(node(3)));
    }

    #[tokio::test]
    async fn the_old_key_opens_for_those_who_are_listed_until_the_change_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let (first, _heard) = access(&directory);
        let old = first.locks()[0].1;
        let rotation = Rotation {
            number: 1,
            secret: SecretText("granite lantern, orbit walnut, fjord".into()),
            listed: [node(1), node(2)].into(),
            changed: [node(1)].into(),
            finished: false,
            at_ms: 0,
        };
        let mut roster = Roster {
            rotation: Some(rotation),
            ..Roster::default()
        };
        let secret = roster.rotation.as_ref().unwrap().secret.clone();
        assert_eq!(first.clone().adopt(roster.clone()).await, Ok(Some(secret)));
        let locks = first.locks();
        assert!(locks[0].1 != old && locks[1] == (DoorKey::Old, old) && first.to_dial().len() == 2);
        assert_eq!(refusal(first.judge(DoorKey::Old, node(2), None)), None);
        assert_eq!(
            refusal(first.judge(DoorKey::Old, node(3), None)),
            Some(Refusal::Replaced)
        );
        roster.rotation.as_mut().unwrap().finished = true;
        first.clone().adopt(roster).await.unwrap();
        assert_eq!(
            refusal(first.judge(DoorKey::Old, node(2), None)),
            Some(Refusal::Replaced)
        );
        assert_eq!(
            (first.to_dial().len(), first.locks().len()),
            (1, 2),
            "who comes with the old one is told"
        );
    }

    #[tokio::test]
    async fn what_was_sealed_before_a_change_can_be_opened_after_it_and_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let (first, _heard) = access(&directory);
        let mut known = first.sealing_keys();
        assert_eq!(known, [keys().named]);
        let mut newest = String::new();
        for number in 1..=2 {
            newest = format!("granite lantern, orbit walnut, fjord {number}");
            let (listed, changed) = ([node(1)].into(), [].into());
            let secret = SecretText(newest.clone());
            let rotation = Rotation {
                number,
                secret,
                listed,
                changed,
                finished: true,
                at_ms: 0,
            };
            first
                .clone()
                .adopt(Roster {
                    rotation: Some(rotation),
                    ..Roster::default()
                })
                .await
                .unwrap();
            known.insert(0, first.sealing_keys()[0].clone());
            assert_eq!(first.sealing_keys(), known);
        }
        let keys = Secret::of_cluster(&newest)
            .derive_blocking(&keys().cluster)
            .unwrap();
        let (events, _heard) = mpsc::channel(8);
        let again = Access::open(node(1), directory.path().into(), keys, events).unwrap();
        assert_eq!(again.sealing_keys(), known);
    }

    #[test]
    fn a_code_is_good_for_one_node() {
        let directory = tempfile::tempdir().unwrap();
        let (access, mut heard) = access(&directory);
        access.invite().unwrap();
        let (key, _) = access.locks()[1];
        let Judged::Invited(secret) = access.judge(key, node(2), None) else {
            panic!("refused")
        };
        assert_eq!(*secret, *keys().secret);
        assert!(
            matches!(heard.try_recv(), Ok(Event::Net(NetEvent::Invited { peer })) if peer == node(2))
        );
        assert!(access.locks().len() == 1 && refusal(access.judge(key, node(3), None)).is_some());
        for _ in 0..MAX_INVITES {
            access.invite().unwrap();
        }
        assert!(access.invite().unwrap_err().contains("hint: "));
    }
}
