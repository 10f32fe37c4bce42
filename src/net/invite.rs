//! Invitations: a code in place of the secret, good for ten minutes and one node. The code is 120
//! random bits, so its keys need no stretching; whoever has it looks for the node that gave it out
//! by a beacon, shakes hands, is handed the secret, and is hung up on.

use super::{
    access::Refusal,
    config::NetConfig,
    discovery::{
        beacon::{self, Beacon, Cipher, HeardPacket},
        resolve,
        sockets::Sockets,
    },
    identity::Identity,
    interfaces::Interfaces,
    kept::OldKeys,
    secret::{Secret, expand},
    swarm::handshake::{Handshake, PROLOGUE},
};
use futures::{AsyncReadExt, AsyncWriteExt};
use nodectl_ports::wall_ms;
use nodectl_types::limits;
use std::{collections::HashMap, io, net::SocketAddr, time::Duration};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_util::compat::TokioAsyncReadCompatExt;
use zeroize::Zeroizing;

/// What the end that listens says first on a connection: welcome, a `Refusal`, or this.
pub const WELCOME: u8 = 0;
pub const INVITED: u8 = 4;

/// How long the node that gave the code out is looked for.
const PATIENCE: Duration = Duration::from_secs(20);
const ASK_EVERY: Duration = Duration::from_millis(500);
const ONE_CALL: Duration = Duration::from_secs(3);
/// Addresses that are tried at all.
const MAX_ADDRS: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum InviteError {
    #[error(
        "this is not an invitation: a character is wrong or missing\nhint: `nodectl invite` on a member makes one, of five groups"
    )]
    Mistyped,
    #[error(
        "no node answers to this invitation\nhint: it is valid for ten minutes, for one node, and for the cluster `{0}` \
         (NODECTL_CLUSTER__NAME); on another network, name the node that made it: --peer HOST:PORT"
    )]
    Nobody(String),
    #[error(
        "the node that made the invitation refuses this one: it is banned\nhint: nodectl unban, on a member"
    )]
    Refused,
    #[error(transparent)]
    Interfaces(#[from] super::config::NetError),
}

/// The keys of a code, for a cluster of that name.
pub fn keys(code: &Secret, cluster: &str) -> OldKeys {
    let key = |label: &[u8]| {
        expand(
            b"nodectl invitation",
            code.reveal().as_bytes(),
            &[label, cluster.as_bytes()],
        )
    };
    OldKeys {
        swarm: key(b"handshake of the swarm, "),
        beacon: key(b"discovery beacon, "),
    }
}

/// The secret, for a code.
pub async fn redeem(
    config: &NetConfig,
    identity: &Identity,
    code: &str,
    cluster: &str,
) -> Result<Zeroizing<String>, InviteError> {
    let code = code.trim().to_uppercase();
    let is_whole = Secret::is_generated(&code);
    let code = Secret::new(code)
        .ok()
        .filter(|_| is_whole)
        .ok_or(InviteError::Mistyped)?;
    let keys = keys(&code, cluster);
    let handshake =
        Handshake::new(&identity.keypair(), PROLOGUE).map_err(|_| InviteError::Mistyped)?;
    let interfaces = Interfaces::read(&config.interfaces)?;
    let cipher = Cipher::new(&keys.beacon);
    let mut sockets = if config.beacon_port == 0 {
        None
    } else {
        Sockets::open(config.beacon_port).ok()
    };
    if let Some(sockets) = &mut sockets {
        sockets.follow(&interfaces);
    }
    let beacon = cipher.seal(&question(config, identity));
    let mut called = Called::default();
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let mut found = addresses(&config.peers).await;
        match &sockets {
            Some(sockets) => {
                let _ = sockets.send_all(&beacon, &interfaces).await;
                let answered = timeout(ASK_EVERY, answer(sockets, &cipher)).await;
                found.extend(answered.unwrap_or_default());
            }
            None => tokio::time::sleep(ASK_EVERY).await,
        }
        for addr in found {
            if !called.is_due(addr) {
                continue;
            }
            match timeout(ONE_CALL, call(&handshake, &keys.swarm, addr)).await {
                Ok(Ok(secret)) => return Ok(secret),
                Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(InviteError::Refused);
                }
                Ok(Err(error)) => {
                    tracing::debug!("{addr} does not answer to the invitation: {error}")
                }
                Err(_) => tracing::debug!("{addr} does not answer to the invitation in time"),
            }
        }
    }
    Err(InviteError::Nobody(cluster.to_string()))
}

/// Where the peers are that the settings name.
async fn addresses(peers: &[String]) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for peer in peers {
        let known = resolve(peer).await;
        found.extend(known.into_iter().flatten().take(4));
    }
    found
}

/// The addresses of the next member that answers.
async fn answer(sockets: &Sockets, cipher: &Cipher) -> Vec<SocketAddr> {
    let mut buffer = [0; beacon::MAX_BYTES + 1];
    loop {
        let (length, from) = sockets.receive(&mut buffer).await;
        if let (HeardPacket::Ours(beacon), _) = cipher.open(&buffer[..length]) {
            let seen = SocketAddr::new(from.ip(), beacon.listen_port);
            return [seen].into_iter().chain(beacon.addrs).collect();
        }
    }
}

/// Addresses that were called, and when.
#[derive(Default)]
struct Called(HashMap<SocketAddr, Instant>);

impl Called {
    /// Whether an address is to be called now. Notes that it is.
    fn is_due(&mut self, addr: SocketAddr) -> bool {
        let is_due = self.0.get(&addr).is_none_or(|at| at.elapsed() >= ONE_CALL);
        let has_room = self.0.len() < MAX_ADDRS || self.0.contains_key(&addr);
        if is_due && has_room {
            self.0.insert(addr, Instant::now());
        }
        is_due && has_room
    }
}

/// Says that somebody with the code is here.
fn question(config: &NetConfig, identity: &Identity) -> Beacon {
    Beacon {
        versions: config.versions,
        node: identity.node_id(),
        listen_port: 0,
        answer: false,
        addrs: Vec::new(),
        name: config.node_name.clone(),
        software: config.software.clone(),
        sent_ms: wall_ms(),
    }
}

async fn call(
    handshake: &Handshake,
    psk: &[u8; 32],
    addr: SocketAddr,
) -> io::Result<Zeroizing<String>> {
    let socket = TcpStream::connect(addr).await?;
    let (_, mut channel) = handshake.initiate(socket.compat(), psk).await?;
    let mut head = [0; 1];
    channel.read_exact(&mut head).await?;
    match head[0] {
        INVITED => {}
        byte if byte == Refusal::Banned as u8 => return Err(io::ErrorKind::PermissionDenied.into()),
        _ => return Err(io::Error::other("it is used up")),
    }
    let mut length = [0; 2];
    channel.read_exact(&mut length).await?;
    let length = usize::from(u16::from_le_bytes(length));
    if length > limits::MAX_CLUSTER_SECRET_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = Zeroizing::new(vec![0; length]);
    channel.read_exact(&mut text).await?;
    let text = std::str::from_utf8(&text).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(Zeroizing::new(text.to_string()))
}

/// Hands the secret over, and hangs up.
pub async fn hand_over(
    channel: &mut (impl futures::AsyncWrite + Unpin),
    secret: &str,
) -> io::Result<()> {
    let length = u16::try_from(secret.len()).map_err(io::Error::other)?;
    let bytes = Zeroizing::new([&[INVITED][..], &length.to_le_bytes(), secret.as_bytes()].concat());
    channel.write_all(&bytes).await?;
    channel.close().await
}
