//! Connects a job's node with the others that train it: asks the node who the members are, lets
//! `pserver_logic::search` decide, and carries that out.

use super::{
    connection, dedicated,
    event::{PeerEvent, QUEUE, ServiceEvent},
    jobs::{JobThread, TrainingJobs},
    peers::{self, Bundle},
};
use nodectl_pserver_logic::search::{Expected, NodeSearch, PeerSeen, SearchEffect, SearchInput};
use nodectl_types::{Answer, JobId, JobQuery, NodeId, Query, StreamToken, Time};
use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{sync::mpsc, time::Instant};

/// The period in which the cluster's members are asked for, while a job trains.
const PERIOD: Duration = Duration::from_millis(250);
/// The period in which the node is asked whether a job has ended that nobody works at.
const ENDED: Duration = Duration::from_secs(2);

/// Connects with every member that has the job too, as long as it trains here.
pub async fn look_for_peers(jobs: Arc<TrainingJobs>, token: StreamToken, job: JobThread) {
    let begun = Instant::now();
    let now = || Time(begun.elapsed().as_micros() as u64);
    let (inputs, mut inbox) = mpsc::channel(QUEUE);
    let calls = SearchCalls {
        jobs,
        token,
        job,
        inputs,
    };
    let (jobs, job) = (&calls.jobs, &calls.job);
    let mut search = NodeSearch::new(jobs.me, now());
    let mut asked_for_end: Option<Instant> = None;
    loop {
        // A full queue is time passing.
        let _ = job.events.try_send(ServiceEvent::Tick);
        let is_idle = job.flags.is_idle.load(Ordering::Relaxed);
        if is_idle && asked_for_end.is_none_or(|asked| asked.elapsed() >= ENDED) {
            asked_for_end = Some(Instant::now());
            if is_over(jobs, job).await {
                let _ = job.events.send(ServiceEvent::Unneeded).await;
            }
        }
        if job.flags.waits.load(Ordering::Relaxed)
            && let Some(expected) = expect(jobs, job, &mut search, now()).await
        {
            let _ = job.events.send(expected).await;
        }
        if let Some(members) = members(jobs, job).await {
            for effect in search.step(now(), SearchInput::Members(members)) {
                calls.carry_out(effect).await;
            }
        }
        let input = tokio::select! {
            () = tokio::time::sleep(PERIOD) => continue,
            Some(input) = inbox.recv() => input,
            () = job.called.notified() => SearchInput::Called,
            () = job.events.closed() => return,
            () = jobs.stopped.cancelled() => return,
        };
        search.step(now(), input);
    }
}

/// All other members. None while the node does not answer.
async fn members(jobs: &TrainingJobs, job: &JobThread) -> Option<Vec<PeerSeen>> {
    let Ok(Answer::Nodes(members)) = jobs.node.ask(Query::Nodes).await else {
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
    jobs: &TrainingJobs,
    job: &JobThread,
    search: &mut NodeSearch,
    now: Time,
) -> Option<ServiceEvent> {
    let id = job.tensors.job.parse().ok()?;
    let Ok(Answer::Job(detail)) = jobs.node.ask(Query::Job(id, JobQuery::Detail)).await else {
        return None;
    };
    let divided = job.tensors.settings.divided;
    Some(match search.expect(now, divided, &detail.progress) {
        Expected::Nobody => ServiceEvent::Over,
        Expected::Workers { enough } => ServiceEvent::Unfinished { enough },
    })
}

/// Whether a job that the cluster knows has ended, or was forgotten.
async fn is_over(jobs: &TrainingJobs, job: &JobThread) -> bool {
    let Ok(id) = job.tensors.job.parse::<JobId>() else {
        return false;
    };
    let Ok(Answer::Jobs(heads)) = jobs.node.ask(Query::Jobs).await else {
        return false;
    };
    heads
        .iter()
        .find(|head| head.job == id)
        .is_none_or(|head| head.phase.is_ended())
}

/// What calls need, and where they say how they ended.
#[derive(Clone)]
struct SearchCalls {
    jobs: Arc<TrainingJobs>,
    token: StreamToken,
    job: JobThread,
    inputs: mpsc::Sender<SearchInput>,
}

impl SearchCalls {
    async fn carry_out(&self, effect: SearchEffect) {
        let (peer, event) = match effect {
            SearchEffect::Others(others) => {
                let _ = self.job.events.send(ServiceEvent::Others(others)).await;
                return;
            }
            SearchEffect::Lost(peer) => (peer, PeerEvent::Lost),
            SearchEffect::Gone(peer) => (peer, PeerEvent::Gone),
            SearchEffect::Refuses(peer) => (peer, PeerEvent::Refuses),
            SearchEffect::Call { peer, invites } => {
                let calls = self.clone();
                tokio::spawn(async move {
                    calls.call(peer, invites).await;
                    let _ = calls.inputs.send(SearchInput::Ended(peer)).await;
                });
                return;
            }
        };
        self.tell(peer, event).await;
    }

    async fn tell(&self, peer: NodeId, event: PeerEvent) {
        let _ = self
            .job
            .events
            .send(ServiceEvent::Peer { peer, event })
            .await;
    }

    /// Calls a peer, and serves the connection to its end.
    async fn call(&self, peer: NodeId, invites: bool) {
        let connection = self.jobs.next_life();
        match self.open(peer, invites, connection).await {
            Ok(bundle) => {
                let (events, limit) = (self.job.events.clone(), self.job.limit_bytes);
                let settings = &self.job.tensors.settings;
                connection::serve(peer, connection, bundle, events, settings, limit).await;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.tell(peer, PeerEvent::Gone).await;
                let _ = self.inputs.send(SearchInput::Absent(peer)).await;
            }
            Err(_) => {}
        }
    }

    async fn open(&self, peer: NodeId, invites: bool, connection: u64) -> io::Result<Bundle> {
        let (streams, _) = self.jobs.network.get().ok_or(io::ErrorKind::NotConnected)?;
        if invites {
            let mut stream = streams.open(peer, dedicated::invitation()).await?;
            dedicated::invite(&mut stream, &self.job.tensors).await?;
            let _ = self.inputs.send(SearchInput::Accepted(peer)).await;
        }
        let settings = &self.job.tensors.settings;
        peers::call(streams.as_ref(), peer, self.token, connection, settings).await
    }
}
