//! Finds out whether a process still listens, by plain TCP. Where it was reached before, a kernel's
//! refusal says that it is gone; silence says nothing, and an answer only that somebody lives.
//!
//! A refusal may be a wall's, or forged by somebody on the way, so one alone is no proof. It is
//! where this machine's own kernel refuses, or where another member, asked over its own connection,
//! was refused too and none says that it is connected to the node. Where there is nobody to ask it
//! is proof only if the far end closed the connection before: a cut that begins with silence is
//! none.

use super::{
    hello::Opinion,
    shared::{DriverInput, SwarmShared},
};
use nodectl_ports::NetEvent;
use nodectl_types::NodeId;
use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

const TIMEOUT: Duration = Duration::from_secs(1);
/// A node says nothing to strangers. Who keeps a connection for so long without a word is one that
/// listens.
const SILENCE: Duration = Duration::from_millis(200);
/// A process that is being killed may close its connections before its listener: asked so often, so
/// far apart, its kernel refuses in the end.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(5);
/// A process that is being killed on a busy machine may close its listener much later than its
/// connections, and other members may notice its end later than this node: who is neither proven to
/// be gone nor back is asked again, for so long.
const PERSISTENCE: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Members asked about one node.
const ASKED: usize = 3;
/// For all their answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// A member that is connected to a node waits so long for the end of that, before it says that the
/// node is here: of a process that was killed all hear at the same time, more or less.
const SAME_TIME: Duration = Duration::from_millis(500);
/// Questions of others that are looked into at once.
const MAX_QUESTIONS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeAnswer {
    Listens,
    Refused,
    Silent,
    /// The machine took the connection and closed it without a word.
    HungUp,
}

/// What other members say of nodes that this one asked about.
pub struct Witnesses {
    waiting: Mutex<HashMap<NodeId, mpsc::Sender<(NodeId, Opinion)>>>,
    questions: Arc<Semaphore>,
}

impl Default for Witnesses {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            questions: Arc::new(Semaphore::new(MAX_QUESTIONS)),
        }
    }
}

impl Witnesses {
    /// A member answers. Nobody may have asked it.
    pub fn told(&self, by: NodeId, of: NodeId, opinion: Opinion) {
        if let Some(waiting) = self.lock().get(&of) {
            let _ = waiting.try_send((by, opinion));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, mpsc::Sender<(NodeId, Opinion)>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `PeerRefused` follows if it is proven that nobody listens at `addr` any more; else a connection
/// is tried. `fell_silent` says that the last connection ended for want of any sign of life. Ends
/// early if what it returns is dropped.
pub fn start(
    shared: Arc<SwarmShared>,
    peer: NodeId,
    addr: Option<SocketAddr>,
    fell_silent: bool,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let begin = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let gone = match addr {
                Some(addr) => {
                    ask(addr).await == ProbeAnswer::Refused
                        && is_proof(&shared, peer, addr, fell_silent).await
                }
                None => false,
            };
            // It may have come back in the meantime.
            if shared.session(peer).is_some() {
                return;
            }
            if gone {
                return shared.tell(NetEvent::PeerRefused { peer }).await;
            }
            let _ = shared
                .driver
                .send(DriverInput::Connect {
                    peer,
                    addrs: Vec::new(),
                })
                .await;
            if addr.is_none() || begin.elapsed() > PERSISTENCE {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }))
}

/// Whether a refusal at `addr` is to be believed.
async fn is_proof(shared: &SwarmShared, peer: NodeId, addr: SocketAddr, fell_silent: bool) -> bool {
    if shared.interfaces().is_own(addr.ip()) {
        return true;
    }
    let (answers, mut answered) = mpsc::channel(ASKED);
    shared.witnesses.lock().insert(peer, answers);
    let mut asked = Vec::new();
    for (witness, handle) in shared.sessions() {
        if asked.len() < ASKED && witness != peer && handle.ask(peer) {
            asked.push(witness);
        }
    }
    let verdict = timeout(ANSWER_TIMEOUT, verdict(asked, &mut answered)).await;
    shared.witnesses.lock().remove(&peer);
    match verdict {
        Ok(Some(opinion)) => {
            tracing::debug!(?peer, "it refuses connections; others say: {opinion:?}");
            opinion == Opinion::Gone
        }
        Ok(None) => !fell_silent,
        Err(_) => false,
    }
}

/// The first opinion that decides; none if nobody was asked.
async fn verdict(
    mut asked: Vec<NodeId>,
    answered: &mut mpsc::Receiver<(NodeId, Opinion)>,
) -> Option<Opinion> {
    if asked.is_empty() {
        return None;
    }
    while !asked.is_empty() {
        let Some((by, opinion)) = answered.recv().await else {
            break;
        };
        let before = asked.len();
        asked.retain(|witness| *witness != by);
        if asked.len() < before && opinion != Opinion::Unknown {
            return Some(opinion);
        }
    }
    Some(Opinion::Unknown)
}

/// Answers `by`, who cannot reach `node`. `addr` is where this node has reached it.
pub fn bear_witness(shared: Arc<SwarmShared>, by: NodeId, node: NodeId, addr: Option<SocketAddr>) {
    let Ok(permit) = shared.witnesses.questions.clone().try_acquire_owned() else {
        return;
    };
    tokio::spawn(async move {
        let connected = match shared.session(node) {
            Some(session) => timeout(SAME_TIME, session.ended.cancelled()).await.is_err(),
            None => false,
        };
        let opinion = match addr {
            _ if connected => Opinion::Here,
            Some(addr) if ask(addr).await == ProbeAnswer::Refused => Opinion::Gone,
            _ => Opinion::Unknown,
        };
        if let Some(asker) = shared.session(by) {
            asker.tell(node, opinion);
        }
        drop(permit);
    });
}

/// A peer that connected to us says that it listens there. If somebody does, a refusal will mean
/// something one day: no wall and no address translator lies between.
pub fn confirm(shared: Arc<SwarmShared>, peer: NodeId, addr: SocketAddr) {
    tokio::spawn(async move {
        if ask(addr).await == ProbeAnswer::Listens {
            let _ = shared
                .driver
                .send(DriverInput::Listens { peer, addr })
                .await;
        }
    });
}

async fn ask(addr: SocketAddr) -> ProbeAnswer {
    for _ in 0..TRIES {
        match ask_once(addr).await {
            ProbeAnswer::HungUp => tokio::time::sleep(PAUSE).await,
            answer => return answer,
        }
    }
    ProbeAnswer::HungUp
}

async fn ask_once(addr: SocketAddr) -> ProbeAnswer {
    let mut stream = match timeout(TIMEOUT, TcpStream::connect(addr)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return ProbeAnswer::Refused;
        }
        Ok(Err(_)) | Err(_) => return ProbeAnswer::Silent,
    };
    match timeout(SILENCE, stream.read(&mut [0])).await {
        Ok(Ok(0) | Err(_)) => ProbeAnswer::HungUp,
        Ok(Ok(_)) | Err(_) => ProbeAnswer::Listens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[tokio::test]
    async fn a_closed_port_refuses_and_an_open_one_does_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        assert_eq!(ask(addr).await, ProbeAnswer::Listens);
        drop(listener);
        assert_eq!(ask(addr).await, ProbeAnswer::Refused);
    }

    #[tokio::test]
    async fn a_listener_that_is_closed_while_it_is_asked_has_refused() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let dying = async {
            let (connection, _) = listener.accept().await.unwrap();
            drop((connection, listener));
        };
        assert_eq!(tokio::join!(ask(addr), dying).0, ProbeAnswer::Refused);
    }

    #[tokio::test]
    async fn the_first_opinion_of_somebody_who_was_asked_decides() {
        let node = |number| NodeId([number; 32]);
        let said = |said: &[(u8, Opinion)]| {
            let (answers, answered) = mpsc::channel(8);
            said.iter()
                .for_each(|(by, opinion)| answers.try_send((node(*by), *opinion)).unwrap());
            answered
        };
        use Opinion::{Gone, Here, Unknown};
        let both = || vec![node(1), node(2)];
        assert_eq!(verdict(Vec::new(), &mut said(&[(1, Gone)])).await, None);
        assert_eq!(
            verdict(both(), &mut said(&[(1, Unknown), (2, Gone)])).await,
            Some(Gone)
        );
        assert_eq!(
            verdict(both(), &mut said(&[(1, Here), (2, Gone)])).await,
            Some(Here)
        );
        assert_eq!(
            verdict(both(), &mut said(&[(9, Gone), (1, Unknown), (2, Unknown)])).await,
            Some(Unknown)
        );
        assert_eq!(
            verdict(both(), &mut said(&[(1, Unknown), (1, Gone)])).await,
            Some(Unknown)
        );
    }
}
