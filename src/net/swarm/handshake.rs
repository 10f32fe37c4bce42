//! What both ends of a connection say before anything else: Noise XXpsk0 (Perrin, 2018) with a key
//! that comes of the cluster's secret, then frames sealed as those of bulk transfers. Who lacks the
//! key cannot make the first message, and is answered with a closed connection, whatever was sent;
//! who has it proves its identity inside. Messages have fixed lengths, so nothing that a stranger
//! says decides what is read or allocated.

use crate::sealed::{DirectionKeys, Sealed};
use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::{
    PeerId,
    identity::{Keypair, PublicKey, ed25519},
};
use ring::rand::{SecureRandom, SystemRandom};
use snow::{
    Builder, HandshakeState,
    params::{CipherChoice, DHChoice, HashChoice},
    resolvers::{CryptoResolver, RingResolver},
    types::{Cipher, Dh, Hash, Random},
};
use std::io;
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};
use zeroize::{Zeroize, Zeroizing};

const PATTERN: &str = "Noise_XXpsk0_25519_AESGCM_SHA256";
/// What is spoken inside is part of what both must agree on.
pub const PROLOGUE: &[u8] = b"nodectl swarm 1: yamux";
/// What an identity signs: its X25519 key, behind this.
const DOMAIN: &[u8] = b"nodectl: this X25519 key is mine\0";

const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 16;
const SIGNATURE_BYTES: usize = 64;
/// An ed25519 key, and its signature of the X25519 key.
pub const PROOF_BYTES: usize = KEY_BYTES + SIGNATURE_BYTES;
/// `psk, e`
pub const FIRST_BYTES: usize = KEY_BYTES + TAG_BYTES;
/// `e, ee, s, es`, proof
pub const SECOND_BYTES: usize = KEY_BYTES + KEY_BYTES + TAG_BYTES + PROOF_BYTES + TAG_BYTES;
/// `s, se`, proof
pub const THIRD_BYTES: usize = KEY_BYTES + TAG_BYTES + PROOF_BYTES + TAG_BYTES;
/// Read at once from a connection: most messages are small, and there is a buffer for each peer.
const READ_BYTES: usize = 16 << 10;

/// A connection after the handshake.
pub type Channel<S> = Compat<Sealed<Compat<S>>>;

/// This node's part in every handshake.
#[derive(Clone)]
pub struct Handshake {
    prologue: Vec<u8>,
    /// X25519, new with each start.
    secret: Zeroizing<[u8; KEY_BYTES]>,
    proof: [u8; PROOF_BYTES],
}

impl Handshake {
    pub fn new(identity: &Keypair, prologue: &[u8]) -> io::Result<Self> {
        let mut curve = Curve25519::default();
        curve
            .generate(&mut KernelRandom)
            .map_err(io::Error::other)?;
        let public = identity
            .public()
            .try_into_ed25519()
            .map_err(io::Error::other)?
            .to_bytes();
        let signature = identity
            .sign(&claim(&curve.public))
            .map_err(io::Error::other)?;
        let mut proof = [0; PROOF_BYTES];
        proof[..KEY_BYTES].copy_from_slice(&public);
        let room = &mut proof[KEY_BYTES..];
        if signature.len() != room.len() {
            return Err(io::Error::other(format!(
                "an ed25519 signature of {} bytes",
                signature.len()
            )));
        }
        room.copy_from_slice(&signature);
        Ok(Self {
            prologue: prologue.to_vec(),
            secret: curve.secret,
            proof,
        })
    }

    /// The end that dialed speaks first.
    pub async fn initiate<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        mut socket: S,
        psk: &[u8; KEY_BYTES],
    ) -> io::Result<(PeerId, Channel<S>)> {
        let mut state = self
            .builder(psk)?
            .build_initiator()
            .map_err(io::Error::other)?;
        say::<FIRST_BYTES>(&mut state, &[], &mut socket).await?;
        let proof = hear::<SECOND_BYTES, PROOF_BYTES>(&mut state, &mut socket).await?;
        let peer = identify(state.get_remote_static(), &proof)?;
        say::<THIRD_BYTES>(&mut state, &self.proof, &mut socket).await?;
        Ok((peer, seal(&mut state, socket)))
    }

    /// The end that listens says nothing before it has heard one of these keys. Tells which.
    pub async fn respond<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        mut socket: S,
        psks: &[[u8; KEY_BYTES]],
    ) -> io::Result<(usize, PeerId, Channel<S>)> {
        let mut first = [0; FIRST_BYTES];
        socket.read_exact(&mut first).await?;
        let mut known = None;
        for (which, psk) in psks.iter().enumerate() {
            let mut state = self
                .builder(psk)?
                .build_responder()
                .map_err(io::Error::other)?;
            if state.read_message(&first, &mut [0; FIRST_BYTES]).is_ok() {
                known = Some((which, state));
                break;
            }
        }
        let (which, mut state) = known.ok_or_else(|| stranger("does not have this secret"))?;
        say::<SECOND_BYTES>(&mut state, &self.proof, &mut socket).await?;
        let proof = hear::<THIRD_BYTES, PROOF_BYTES>(&mut state, &mut socket).await?;
        let peer = identify(state.get_remote_static(), &proof)?;
        Ok((which, peer, seal(&mut state, socket)))
    }

    fn builder<'a>(&'a self, psk: &'a [u8; KEY_BYTES]) -> io::Result<Builder<'a>> {
        let pattern = PATTERN.parse().map_err(io::Error::other)?;
        Builder::with_resolver(pattern, Box::new(Resolver))
            .psk(0, psk)
            .and_then(|builder| builder.prologue(&self.prologue))
            .and_then(|builder| builder.local_private_key(self.secret.as_ref()))
            .map_err(io::Error::other)
    }
}

async fn say<const BYTES: usize>(
    state: &mut HandshakeState,
    payload: &[u8],
    socket: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut message = [0; BYTES];
    let length = state
        .write_message(payload, &mut message)
        .map_err(io::Error::other)?;
    socket.write_all(&message[..length]).await?;
    socket.flush().await
}

async fn hear<const BYTES: usize, const PAYLOAD: usize>(
    state: &mut HandshakeState,
    socket: &mut (impl AsyncRead + Unpin),
) -> io::Result<[u8; PAYLOAD]> {
    let mut message = [0; BYTES];
    socket.read_exact(&mut message).await?;
    // Room for the tag too, which the cipher checks in place.
    let mut payload = Zeroizing::new([0; BYTES]);
    let length = state
        .read_message(&message, payload.as_mut())
        .map_err(|_| stranger("does not have this secret"))?;
    payload[..length]
        .try_into()
        .map_err(|_| stranger("says more or less than it should"))
}

/// Who the other end is: its identity has signed the key with which it shook hands.
pub fn identify(curve: Option<&[u8]>, proof: &[u8; PROOF_BYTES]) -> io::Result<PeerId> {
    let (key, signature) = proof.split_at(KEY_BYTES);
    let curve = curve.ok_or_else(|| stranger("has shown no key"))?;
    let key = ed25519::PublicKey::try_from_bytes(key).map_err(|_| stranger("has no identity"))?;
    if !key.verify(&claim(curve), signature) {
        return Err(stranger("shows the identity of another"));
    }
    Ok(PublicKey::from(key).to_peer_id())
}

fn claim(curve: &[u8]) -> Vec<u8> {
    [DOMAIN, curve].concat()
}

/// `convert::is_foreign` knows it by its kind.
fn stranger(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the other end {what}"))
}

/// From here on everything is sealed with the keys that came of the handshake, one for each
/// direction.
fn seal<S: AsyncRead + AsyncWrite + Unpin>(state: &mut HandshakeState, socket: S) -> Channel<S> {
    let (mut ours, mut theirs) = state.dangerously_get_raw_split();
    if !state.is_initiator() {
        std::mem::swap(&mut ours, &mut theirs);
    }
    let sealed = Sealed::reading(
        socket.compat(),
        &DirectionKeys {
            out: ours,
            back: theirs,
        },
        READ_BYTES,
    );
    ours.zeroize();
    theirs.zeroize();
    sealed.compat()
}

/// `ring` has all but the curve.
struct Resolver;

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(KernelRandom))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519)
            .then(|| Box::new(Curve25519::default()) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        RingResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

/// The kernel's randomness.
struct KernelRandom;

impl Random for KernelRandom {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), snow::Error> {
        SystemRandom::new()
            .fill(bytes)
            .map_err(|_| snow::Error::Rng)
    }
}

/// X25519 (RFC 7748).
#[derive(Default)]
struct Curve25519 {
    secret: Zeroizing<[u8; KEY_BYTES]>,
    public: [u8; KEY_BYTES],
}

impl Dh for Curve25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_BYTES
    }

    fn priv_len(&self) -> usize {
        KEY_BYTES
    }

    fn set(&mut self, secret: &[u8]) {
        self.secret.copy_from_slice(secret);
        self.public = x25519_dalek::x25519(*self.secret, x25519_dalek::X25519_BASEPOINT_BYTES);
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), snow::Error> {
        let mut secret = Zeroizing::new([0; KEY_BYTES]);
        random.try_fill_bytes(secret.as_mut())?;
        self.set(secret.as_ref());
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        self.secret.as_ref()
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
        let public = public.first_chunk().ok_or(snow::Error::Dh)?;
        let shared = Zeroizing::new(x25519_dalek::x25519(*self.secret, *public));
        // A point of small order: the result would be known to all.
        if shared.iter().all(|byte| *byte == 0) {
            return Err(snow::Error::Dh);
        }
        out[..KEY_BYTES].copy_from_slice(shared.as_ref());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Identity;
    use futures::{FutureExt, future::join};
    use proptest::prelude::*;
    use tokio::io::{DuplexStream, duplex};

    fn pipe() -> (Compat<DuplexStream>, Compat<DuplexStream>) {
        let (one, two) = duplex(4096);
        (one.compat(), two.compat())
    }

    const PSK: [u8; 32] = [1; 32];
    const OTHER: [u8; 32] = [2; 32];

    fn node(prologue: &[u8]) -> (Handshake, PeerId) {
        let keys = Identity::ephemeral().keypair();
        (
            Handshake::new(&keys, prologue).unwrap(),
            keys.public().to_peer_id(),
        )
    }

    #[tokio::test]
    async fn both_know_each_other_and_what_follows_is_sealed() {
        let ((one, first), (two, second)) = (node(PROLOGUE), node(PROLOGUE));
        let (here, there) = pipe();
        let (dialed, accepted) =
            join(one.initiate(here, &PSK), two.respond(there, &[OTHER, PSK])).await;
        let ((peer, mut out), (which, of, mut into)) = (dialed.unwrap(), accepted.unwrap());
        assert_eq!((peer, of, which), (second, first, 1));
        out.write_all(b"an order").await.unwrap();
        out.flush().await.unwrap();
        let mut heard = [0; 8];
        into.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"an order");
    }

    #[tokio::test]
    async fn another_key_and_another_prologue_are_strangers() {
        for (psk, prologue) in [(OTHER, PROLOGUE), (PSK, &b"nodectl swarm 0"[..])] {
            let (here, there) = pipe();
            let ((own, _), (other, _)) = (node(PROLOGUE), node(prologue));
            let (dialed, accepted) =
                join(other.initiate(here, &psk), own.respond(there, &[PSK])).await;
            assert_eq!(accepted.err().unwrap().kind(), io::ErrorKind::InvalidData);
            assert_eq!(
                dialed.err().unwrap().kind(),
                io::ErrorKind::UnexpectedEof,
                "it was answered"
            );
        }
    }

    /// A member that shows another's identity: signed, but for another key.
    #[tokio::test]
    async fn an_identity_cannot_be_borrowed() {
        let ((mut thief, _), (victim, _), (own, _)) =
            (node(PROLOGUE), node(PROLOGUE), node(PROLOGUE));
        thief.proof = victim.proof;
        let (here, there) = pipe();
        let (_, accepted) = join(thief.initiate(here, &PSK), own.respond(there, &[PSK])).await;
        assert!(
            accepted
                .err()
                .unwrap()
                .to_string()
                .contains("identity of another")
        );
    }

    #[test]
    fn points_of_small_order_are_refused() {
        let mut curve = Curve25519::default();
        curve.generate(&mut KernelRandom).unwrap();
        assert!(curve.dh(&[0; 32], &mut [0; 32]).is_err());
    }

    proptest! {
        #[test]
        fn nothing_that_a_stranger_says_is_answered(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let (own, _) = node(PROLOGUE);
            let mut stranger = futures::io::Cursor::new(bytes.clone());
            let ended = own.respond(&mut stranger, &[PSK, OTHER]).now_or_never();
            prop_assert!(ended.expect("a cursor never waits").is_err());
            prop_assert!(stranger.position() as usize <= FIRST_BYTES, "it read on or answered");
        }
    }
}
