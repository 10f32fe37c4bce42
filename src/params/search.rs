//! Looks for the members that train the same job, and for what the cluster knows of it.

use super::{JobThread, ParamsShared, ServiceEvent, conversation, dedicated, peers};
use nodectl_ports::Streams;
use nodectl_types::{Answer, JobId, NodeId, PoolToken, Query, query::Progress};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

/// How often the cluster's members are looked at, while a job trains.
const LOOK: Duration = Duration::from_millis(250);

/// How long tasks wait for room before those that run begin without them.
const CROWDED: Duration = Duration::from_secs(5);

/// So long a node looks for the others of a job before it takes fewer workers for enough: they may have trained for long.
const MEET: Duration = Duration::from_secs(5);

/// How long a node without the job is left alone before it is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// What waiting workers should know of the job. Tasks that have ended are not waited for: of scripts none comes back that has succeeded,
/// and no worker at all that has failed for good. `crowded` is since when how many workers have run while others wait for room.
async fn news(
    shared: &ParamsShared,
    job: &JobThread,
    crowded: &mut Option<(u32, tokio::time::Instant)>,
) -> Option<ServiceEvent> {
    let id = job.tensors.job.parse().ok()?;
    let Ok(Answer::Job(detail)) = shared.node.ask(Query::Job { job: id }).await else {
        return None;
    };
    let Progress {
        tasks,
        done,
        failed,
        stopped,
        running,
        queued,
        ..
    } = detail.progress;
    if !job.tensors.settings.divided {
        let left = tasks.saturating_sub(done + failed + stopped);
        return Some(ServiceEvent::Unfinished {
            enough: (left < tasks).then_some(left),
        });
    }
    if done > 0 {
        return Some(ServiceEvent::Over);
    }
    let is_same = crowded.is_some_and(|(known, _)| known == running);
    // Those that a node prepares already are not without room.
    let waiting = tasks.saturating_sub(failed + stopped + running + queued);
    if waiting == 0 || !is_same {
        *crowded = (waiting > 0).then(|| (running, tokio::time::Instant::now()));
    }
    let full = crowded.filter(|(workers, since)| *workers > 0 && since.elapsed() >= CROWDED);
    let left = (failed + stopped > 0).then(|| tasks.saturating_sub(failed + stopped));
    Some(ServiceEvent::Unfinished {
        enough: full
            .map(|(workers, _)| workers)
            .into_iter()
            .chain(left)
            .min(),
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

/// Connects with every member that has the job too, as long as it trains here.
pub async fn look_for_peers(
    shared: Arc<ParamsShared>,
    streams: Arc<dyn Streams>,
    token: PoolToken,
    job: JobThread,
) {
    // Also those that are being called: a second connection would end the first.
    let connected: Arc<Mutex<BTreeSet<NodeId>>> = Arc::default();
    let invited: Arc<Mutex<BTreeSet<NodeId>>> = Arc::default();
    let mut asked: BTreeMap<NodeId, tokio::time::Instant> = BTreeMap::new();
    let mut known: BTreeSet<NodeId> = BTreeSet::new();
    let mut lost: BTreeSet<NodeId> = BTreeSet::new();
    let mut crowded = None;
    let begun = tokio::time::Instant::now();
    loop {
        // A full queue is time passing.
        let _ = job.events.try_send(ServiceEvent::Tick);
        if job.flags.is_idle.load(Ordering::Relaxed) && is_over(&shared, &job).await {
            let _ = job.events.send(ServiceEvent::Unneeded).await;
        }
        if job.flags.waits.load(Ordering::Relaxed)
            && let Some(event) = news(&shared, &job, &mut crowded).await
        {
            let event = match event {
                ServiceEvent::Unfinished { .. } if begun.elapsed() < MEET => {
                    ServiceEvent::Unfinished { enough: None }
                }
                event => event,
            };
            let _ = job.events.send(event).await;
        }
        let Ok(Answer::Nodes(members)) = shared.node.ask(Query::Nodes).await else {
            if job.events.is_closed() || shared.stopped.is_cancelled() {
                return;
            }
            tokio::time::sleep(LOOK).await;
            continue;
        };
        let others = || members.iter().filter(|line| line.alive && !line.this_node);
        let alive: BTreeSet<NodeId> = others().map(|line| line.info.id).collect();
        let servers = others()
            .filter(|line| dedicated::may_serve(&job.tensors) && dedicated::serves(&line.info));
        let servers: BTreeSet<NodeId> = servers.map(|line| line.info.id).collect();
        for peer in known.difference(&alive).copied().collect::<Vec<_>>() {
            let _ = job.events.send(ServiceEvent::PeerLost { peer }).await;
            known.remove(&peer);
            lost.insert(peer);
            asked.remove(&peer);
            invited
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&peer);
        }
        for peer in lost.iter().copied() {
            let _ = match members.iter().find(|line| line.info.id == peer) {
                // Whoever said goodbye is no member any more, nor is whoever a person says is dead.
                None => job.events.send(ServiceEvent::PeerGone { peer }).await,
                Some(line) if line.gone => {
                    job.events.send(ServiceEvent::PeerRefuses { peer }).await
                }
                Some(_) => Ok(()),
            };
        }
        lost.retain(|peer| {
            !alive.contains(peer) && members.iter().any(|line| line.info.id == *peer)
        });
        for peer in alive {
            let is_first = known.insert(peer);
            let is_connected = connected
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .contains(&peer);
            // The lower one calls; the higher one asks for that when it begins.
            let is_due = asked
                .get(&peer)
                .is_none_or(|asked| asked.elapsed() >= ASK_AGAIN);
            let is_invited = invited
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .contains(&peer);
            let (calls, invites) = (
                shared.me < peer && is_due,
                servers.contains(&peer) && !is_invited && is_due,
            );
            if is_connected || !(calls || invites || is_first) {
                continue;
            }
            asked.insert(peer, tokio::time::Instant::now());
            connected
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(peer);
            let (streams, job, shared) = (streams.clone(), job.clone(), shared.clone());
            let (connected, invited) = (connected.clone(), invited.clone());
            tokio::spawn(async move {
                let (connection, settings) = (shared.next_life(), &job.tensors.settings);
                let calling = async {
                    if invites {
                        let mut stream = streams.open(peer, dedicated::invitation()).await?;
                        dedicated::invite(&mut stream, &job.tensors).await?;
                        invited
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .insert(peer);
                    }
                    peers::call(streams.as_ref(), peer, token, connection, settings).await
                };
                match calling.await {
                    Ok(bundle) => {
                        conversation::converse(
                            peer,
                            connection,
                            bundle,
                            job.events,
                            settings,
                            job.limit_bytes,
                        )
                        .await;
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        let _ = job.events.send(ServiceEvent::PeerGone { peer }).await;
                    }
                    Err(_) => {}
                }
                connected
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .remove(&peer);
            });
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = job.called.notified() => asked.clear(),
            () = job.events.closed() => return,
            () = shared.stopped.cancelled() => return,
        }
    }
}
