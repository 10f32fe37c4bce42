//! Finds out whether a process still listens, by plain TCP. A refusal by the kernel where it was reached before is proof that it
//! is gone; silence proves nothing, and an answer only that somebody lives.

use super::shared::{Input, Shared};
use crate::{ports::NetEvent, types::NodeId};
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{io::AsyncReadExt, net::TcpStream};

const TIMEOUT: Duration = Duration::from_secs(1);
/// A node that lives greets whoever connects (pnet sends its nonce first). Who does not for this long is busy.
const GREETING: Duration = Duration::from_millis(200);
/// A process that is being killed may close its connections before its listener: asked so often, so far apart, its kernel
/// refuses in the end.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Listens,
    Refused,
    Silent,
    /// It took the connection and closed it without a word.
    HungUp,
}

/// `PeerRefused` follows if nobody listens at `addr`; a connection is tried if somebody does, or might.
pub fn start(shared: Arc<Shared>, peer: NodeId, addr: Option<SocketAddr>) {
    tokio::spawn(async move {
        let refused = match addr {
            Some(addr) => ask(addr).await == Answer::Refused,
            None => false,
        };
        // It may have come back in the meantime.
        if shared.session(peer).is_some() {
            return;
        }
        if refused {
            shared.tell(NetEvent::PeerRefused { peer }).await;
        } else {
            let _ = shared.driver.send(Input::Connect { peer, addrs: Vec::new() }).await;
        }
    });
}

/// A peer that connected to us says that it listens there. If somebody does, a refusal will be proof one day: no wall
/// and no address translator lies between.
pub fn confirm(shared: Arc<Shared>, peer: NodeId, addr: SocketAddr) {
    tokio::spawn(async move {
        if ask(addr).await == Answer::Listens {
            let _ = shared.driver.send(Input::Listens { peer, addr }).await;
        }
    });
}

async fn ask(addr: SocketAddr) -> Answer {
    for _ in 0..TRIES {
        match ask_once(addr).await {
            Answer::HungUp => tokio::time::sleep(PAUSE).await,
            answer => return answer,
        }
    }
    Answer::HungUp
}

async fn ask_once(addr: SocketAddr) -> Answer {
    let mut stream = match tokio::time::timeout(TIMEOUT, TcpStream::connect(addr)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => return Answer::Refused,
        Ok(Err(_)) | Err(_) => return Answer::Silent,
    };
    match tokio::time::timeout(GREETING, stream.read(&mut [0])).await {
        Ok(Ok(0) | Err(_)) => Answer::HungUp,
        Ok(Ok(_)) | Err(_) => Answer::Listens,
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
        assert_eq!(ask(addr).await, Answer::Listens);
        drop(listener);
        assert_eq!(ask(addr).await, Answer::Refused);
    }

    #[tokio::test]
    async fn a_listener_that_is_closed_while_it_is_asked_has_refused() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let dying = async {
            let (connection, _) = listener.accept().await.unwrap();
            drop((connection, listener));
        };
        assert_eq!(tokio::join!(ask(addr), dying).0, Answer::Refused);
    }
}
