//! The peers that were connected, for the next start: `<data_dir>/peers.json`. A help, never
//! needed: a damaged file is told in the log and begun anew.

use crate::{
    identity::write_private,
    swarm::shared::{DriverInput, SwarmShared},
};
use nodectl_types::NodeId;
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::sync::mpsc;

const FILE: &str = "peers.json";
const VERSION: u32 = 1;
const MAX_PEERS: usize = 64;
const MAX_FILE_BYTES: u64 = 64 << 10;
/// Changes within this time are written together.
const SETTLE: Duration = Duration::from_secs(1);
const QUEUE: usize = 256;

#[derive(Serialize, Deserialize)]
struct PeersFile {
    version: u32,
    /// The most recently connected last.
    peers: Vec<RememberedPeer>,
}

#[derive(Clone, Serialize, Deserialize)]
struct RememberedPeer {
    node: String,
    addr: SocketAddr,
}

/// Takes notes; a task writes them.
#[derive(Clone)]
pub struct Remembered {
    notes: mpsc::Sender<(NodeId, SocketAddr)>,
}

impl Remembered {
    /// Reads the file, tells the driver of everybody in it, and keeps it from now on.
    pub fn start(shared: Arc<SwarmShared>, data_dir: &Path) -> Self {
        let path = data_dir.join(FILE);
        let peers = load(&path);
        let problem = match &peers {
            Ok(_) => None,
            Err(error) => {
                tracing::warn!("{} is of no use and begun anew: {error}", path.display());
                Some(error.to_string())
            }
        };
        shared.state().set_problem("remembered", problem);
        let (notes, received) = mpsc::channel(QUEUE);
        tokio::spawn(keep(shared, path, peers.unwrap_or_default(), received));
        Self { notes }
    }

    /// The peer was connected and listens there. Lost if many connect at once: then others are
    /// remembered.
    pub fn note(&self, peer: NodeId, addr: SocketAddr) {
        tracing::debug!(%peer, %addr, "it listens there");
        let _ = self.notes.try_send((peer, addr));
    }
}

async fn keep(
    shared: Arc<SwarmShared>,
    path: PathBuf,
    mut peers: Vec<(NodeId, SocketAddr)>,
    mut notes: mpsc::Receiver<(NodeId, SocketAddr)>,
) {
    for (peer, addr) in &peers {
        let _ = shared
            .driver
            .send(DriverInput::Found {
                peer: *peer,
                addrs: vec![*addr],
                way: "remembered",
            })
            .await;
    }
    // The swarm's end drops the other half; what is noted by then is written.
    while let Some(note) = notes.recv().await {
        let mut changed = take(&mut peers, note);
        let settled = tokio::time::sleep(SETTLE);
        tokio::pin!(settled);
        loop {
            tokio::select! {
                () = &mut settled => break,
                note = notes.recv() => match note {
                    Some(note) => changed |= take(&mut peers, note),
                    None => break,
                },
            }
        }
        if changed {
            save(path.clone(), &peers).await;
        }
    }
}

/// True if that changes the file.
fn take(peers: &mut Vec<(NodeId, SocketAddr)>, note: (NodeId, SocketAddr)) -> bool {
    if peers.last() == Some(&note) {
        return false;
    }
    peers.retain(|(peer, _)| *peer != note.0);
    peers.push(note);
    let excess = peers.len().saturating_sub(MAX_PEERS);
    peers.drain(..excess);
    true
}

async fn save(path: PathBuf, peers: &[(NodeId, SocketAddr)]) {
    let peer = |(node, addr): &(NodeId, SocketAddr)| RememberedPeer {
        node: node.to_string(),
        addr: *addr,
    };
    let file = PeersFile {
        version: VERSION,
        peers: peers.iter().map(peer).collect(),
    };
    let written = tokio::task::spawn_blocking(move || {
        let text = serde_json::to_string_pretty(&file).map_err(io::Error::other)?;
        write_private(&path, text.as_bytes())
    });
    match written.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!("cannot remember peers: {error}"),
        Err(error) => tracing::warn!("cannot remember peers: {error}"),
    }
}

fn load(path: &Path) -> io::Result<Vec<(NodeId, SocketAddr)>> {
    let bytes = match fs::metadata(path) {
        Ok(file) if file.len() > MAX_FILE_BYTES => return Err(io::Error::other("it is too large")),
        Ok(_) => fs::read(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    parse(&bytes)
}

pub fn parse(bytes: &[u8]) -> io::Result<Vec<(NodeId, SocketAddr)>> {
    let file: PeersFile = serde_json::from_slice(bytes)?;
    if file.version != VERSION {
        return Err(io::Error::other(format!(
            "it has version {}, not {VERSION}",
            file.version
        )));
    }
    let peer = |peer: &RememberedPeer| Some((peer.node.parse().ok()?, peer.addr));
    let mut peers: Vec<_> = file.peers.iter().filter_map(peer).collect();
    peers.truncate(MAX_PEERS);
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    #[tokio::test]
    async fn the_file_survives_and_keeps_the_last_64() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        assert!(load(&path).unwrap().is_empty());
        let mut peers = Vec::new();
        for index in 0..70 {
            assert!(take(&mut peers, (NodeId([index; 32]), addr(9))));
        }
        assert!(!take(&mut peers, (NodeId([69; 32]), addr(9))));
        assert!(take(&mut peers, (NodeId([69; 32]), addr(10))));
        save(path.clone(), &peers).await;
        let read = load(&path).unwrap();
        assert_eq!(read.len(), MAX_PEERS);
        assert_eq!(read, peers);
    }

    #[test]
    fn damage_is_an_error_not_a_crash() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        for text in ["", "{", "{\"version\": 9, \"peers\": []}"] {
            fs::write(&path, text).unwrap();
            assert!(load(&path).is_err(), "{text}");
        }
        fs::write(&path, vec![b' '; MAX_FILE_BYTES as usize + 1]).unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("too large"));
    }
}
