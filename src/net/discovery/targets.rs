//! `--peer HOST:PORT`: resolved and offered to the driver again and again, since names and machines
//! come up late.

use crate::swarm::shared::{DriverInput, SwarmShared};
use nodectl_ports::getent;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};

/// Quick at first, for nodes that start together; then the last for good.
const RETRY_MS: [u64; 6] = [100, 200, 500, 1000, 2000, 5000];

/// Starts a task for each.
pub fn start(shared: &Arc<SwarmShared>, peers: &[String]) {
    for (target, name) in peers.iter().cloned().enumerate() {
        shared.state().set_problem("--peer", None);
        tokio::spawn(offer(shared.clone(), target, name));
    }
}

/// Where `HOST:PORT` is.
pub async fn resolve(peer: &str) -> io::Result<Vec<SocketAddr>> {
    if getent::is_static() {
        let name = peer.to_string();
        let asked = tokio::task::spawn_blocking(move || getent::addresses(&name));
        if let Some(found) = asked.await.map_err(io::Error::other)? {
            return found;
        }
    }
    Ok(tokio::net::lookup_host(peer).await?.collect())
}

async fn offer(shared: Arc<SwarmShared>, target: usize, name: String) {
    let mut waits = RETRY_MS
        .iter()
        .chain(std::iter::repeat(&RETRY_MS[RETRY_MS.len() - 1]));
    loop {
        match resolve(&name).await {
            Ok(addrs) => {
                let input = DriverInput::DialTarget {
                    target,
                    name: name.clone(),
                    addrs,
                };
                if shared.driver.send(input).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                let problem = format!("`{name}` is no HOST:PORT that resolves: {error}");
                tracing::debug!("--peer {problem}");
                shared.state().set_problem("--peer", Some(problem));
            }
        }
        let wait = Duration::from_millis(*waits.next().expect("the chain repeats forever"));
        tokio::select! {
            () = shared.stopped.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}
