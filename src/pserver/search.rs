//! Connects a job's node with the others that train it: asks the node who the members are, lets
//! `pserver_logic::search` decide, and carries that out.

use super::{JobThread, ParamsShared, QUEUE, ServiceEvent, conversation, dedicated, peers};
use nodectl_ports::Streams;
use nodectl_pserver_logic::search::{Expected, PeerSeen, Search, SearchEffect, SearchInput};
use nodectl_types::{Answer, JobId, NodeId, PoolToken, Query, Time};
use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{sync::mpsc, time::Instant};

/// How often the cluster's members are looked at, while a job trains.
const LOOK: Duration = Duration::from_millis(250);
/// How often a job that nobody works at is asked for among all that the node knows.
const ENDED: Duration = Duration::from_secs(2);

/// Connects with every member that has the job too, as long as it trains here.
pub async fn look_for_peers(
    shared: Arc<ParamsShared>,
    streams: Arc<dyn Streams>,
    token: PoolToken,
    job: JobThread,
) {
    let begun = Instant::now();
    let now = || Time(begun.elapsed().as_micros() as u64);
    let (inputs, mut inbox) = mpsc::channel(QUEUE);
    let calls = Calls {
        shared,
        streams,
        token,
        job,
        inputs,
    };
    let (shared, job) = (&calls.shared, &calls.job);
    let mut search = Search::new(shared.me, now());
    let mut asked_for_end: Option<Instant> = None;
    loop {
        // A full queue is time passing.
        let _ = job.events.try_send(ServiceEvent::Tick);
        let is_idle = job.flags.is_idle.load(Ordering::Relaxed);
        if is_idle && asked_for_end.is_none_or(|asked| asked.elapsed() >= ENDED) {
            asked_for_end = Some(Instant::now());
            if is_over(shared, job).await {
                let _ = job.events.send(ServiceEvent::Unneeded).await;
            }
        }
        if job.flags.waits.load(Ordering::Relaxed)
            && let Some(expected) = expect(shared, job, &mut search, now()).await
        {
            let _ = job.events.send(expected).await;
        }
        if let Some(members) = members(shared, job).await {
            for effect in search.step(now(), SearchInput::Members(members)) {
                calls.carry_out(effect).await;
            }
        }
        let input = tokio::select! {
            () = tokio::time::sleep(LOOK) => continue,
            Some(input) = inbox.recv() => input,
            () = job.called.notified() => SearchInput::Called,
            () = job.events.closed() => return,
            () = shared.stopped.cancelled() => return,
        };
        search.step(now(), input);
    }
}

/// All other members. None while the node does not answer.
async fn members(shared: &ParamsShared, job: &JobThread) -> Option<Vec<PeerSeen>> {
    let Ok(Answer::Nodes(members)) = shared.node.ask(Query::Nodes).await else {
        return None;
    };
    let may_serve = dedicated::may_serve(&job.tensors);
    let others = members.iter().filter(|line| !line.this_node);
    let seen = others.map(|line| PeerSeen {
        peer: line.info.id,
        alive: line.alive,
        refuses: line.gone,
        serves: may_serve && dedicated::serves(&line.info),
    });
    Some(seen.collect())
}

/// What waiting workers should know of those still to come. None while nobody knows.
async fn expect(
    shared: &ParamsShared,
    job: &JobThread,
    search: &mut Search,
    now: Time,
) -> Option<ServiceEvent> {
    let id = job.tensors.job.parse().ok()?;
    let Ok(Answer::Job(detail)) = shared.node.ask(Query::Job { job: id }).await else {
        return None;
    };
    let divided = job.tensors.settings.divided;
    Some(match search.expect(now, divided, &detail.progress) {
        Expected::Nobody => ServiceEvent::Over,
        Expected::Workers { enough } => ServiceEvent::Unfinished { enough },
    })
}

/// Whether a job that the cluster knows has ended, or was forgotten.
async fn is_over(shared: &ParamsShared, job: &JobThread) -> bool {
    let Ok(id) = job.tensors.job.parse::<JobId>() else {
        return false;
    };
    let Ok(Answer::Jobs(heads)) = shared.node.ask(Query::Jobs).await else {
        return false;
    };
    heads
        .iter()
        .find(|head| head.job == id)
        .is_none_or(|head| head.phase.is_ended())
}

/// What calls need, and where they say how they ended.
#[derive(Clone)]
struct Calls {
    shared: Arc<ParamsShared>,
    streams: Arc<dyn Streams>,
    token: PoolToken,
    job: JobThread,
    inputs: mpsc::Sender<SearchInput>,
}

impl Calls {
    async fn carry_out(&self, effect: SearchEffect) {
        let event = match effect {
            SearchEffect::Lost(peer) => ServiceEvent::PeerLost { peer },
            SearchEffect::Gone(peer) => ServiceEvent::PeerGone { peer },
            SearchEffect::Refuses(peer) => ServiceEvent::PeerRefuses { peer },
            SearchEffect::Call { peer, invites } => {
                let calls = self.clone();
                tokio::spawn(async move {
                    calls.call(peer, invites).await;
                    let _ = calls.inputs.send(SearchInput::Ended(peer)).await;
                });
                return;
            }
        };
        let _ = self.job.events.send(event).await;
    }

    /// Calls a peer, and talks with it until the connection ends.
    async fn call(&self, peer: NodeId, invites: bool) {
        let (connection, settings) = (self.shared.next_life(), &self.job.tensors.settings);
        let calling = async {
            if invites {
                let mut stream = self.streams.open(peer, dedicated::invitation()).await?;
                dedicated::invite(&mut stream, &self.job.tensors).await?;
                let _ = self.inputs.send(SearchInput::Accepted(peer)).await;
            }
            peers::call(
                self.streams.as_ref(),
                peer,
                self.token,
                connection,
                settings,
            )
            .await
        };
        let events = self.job.events.clone();
        match calling.await {
            Ok(bundle) => {
                let limit = self.job.limit_bytes;
                conversation::converse(peer, connection, bundle, events, settings, limit).await;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let _ = events.send(ServiceEvent::PeerGone { peer }).await;
            }
            Err(_) => {}
        }
    }
}
