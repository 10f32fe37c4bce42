//! Finds out whether a process still listens, by plain TCP. A refusal by the kernel at every address is proof that it is
//! gone; silence proves nothing, and an answer only that somebody lives.

use super::shared::{Input, Shared};
use crate::{ports::NetEvent, types::NodeId};
use futures::future::join_all;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Listens,
    Refused,
    Silent,
}

/// `PeerRefused` follows if nobody listens; a connection is tried if somebody does, or might.
pub fn start(shared: Arc<Shared>, peer: NodeId, addrs: Vec<SocketAddr>) {
    tokio::spawn(async move {
        let answers = join_all(addrs.iter().map(|addr| ask(*addr))).await;
        // It may have come back in the meantime.
        if shared.session(peer).is_some() {
            return;
        }
        if is_refusal(&answers) {
            shared.tell(NetEvent::PeerRefused { peer }).await;
        } else {
            let _ = shared.driver.send(Input::Connect { peer, addrs: Vec::new() }).await;
        }
    });
}

fn is_refusal(answers: &[Answer]) -> bool {
    !answers.is_empty() && answers.iter().all(|answer| *answer == Answer::Refused)
}

async fn ask(addr: SocketAddr) -> Answer {
    match tokio::time::timeout(TIMEOUT, TcpStream::connect(addr)).await {
        Ok(Ok(_)) => Answer::Listens,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Answer::Refused,
        Ok(Err(_)) | Err(_) => Answer::Silent,
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

    #[test]
    fn only_refusals_alone_are_proof() {
        assert!(is_refusal(&[Answer::Refused, Answer::Refused]));
        assert!(!is_refusal(&[Answer::Refused, Answer::Silent]));
        assert!(!is_refusal(&[Answer::Refused, Answer::Listens]));
        assert!(!is_refusal(&[]));
    }
}
