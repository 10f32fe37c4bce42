//! `--peer HOST:PORT`: resolved and offered to the driver again and again, since names and machines
//! come up late.

use crate::swarm::shared::{DriverInput, SwarmShared};
use std::{sync::Arc, time::Duration};

/// Quick at first, for nodes that start together; then the last for good.
const RETRY_MS: [u64; 6] = [100, 200, 500, 1000, 2000, 5000];

/// Starts a task for each.
pub fn start(shared: &Arc<SwarmShared>, peers: &[String]) {
    for (target, name) in peers.iter().cloned().enumerate() {
        shared.state().set_problem("--peer", None);
        tokio::spawn(offer(shared.clone(), target, name));
    }
}

async fn offer(shared: Arc<SwarmShared>, target: usize, name: String) {
    let mut waits = RETRY_MS
        .iter()
        .chain(std::iter::repeat(&RETRY_MS[RETRY_MS.len() - 1]));
    loop {
        match tokio::net::lookup_host(&name).await {
            Ok(addrs) => {
                let input = DriverInput::DialTarget {
                    target,
                    name: name.clone(),
                    addrs: addrs.collect(),
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
