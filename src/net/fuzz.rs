//! The decoders of bytes from outside, for fuzzing: each must end without a panic and without
//! allocating more than its bound, whatever it is given. Public for the fuzz targets alone, which
//! are a crate of their own.

use super::{
    Identity,
    bulk::offer::{OfferAnswer, Want},
    discovery::{
        beacon::{Beacon, Cipher, HeardPacket, MAX_BYTES},
        mdns, remembered,
    },
    sealed::{DirectionKeys, Sealed, frames, halves},
    swarm::{
        handshake::{self, Handshake, PROOF_BYTES},
        hello::{Hello, SessionFrame},
    },
};
use futures::{executor::block_on, io::Cursor};
use std::{io::Read, sync::OnceLock};
use tokio::io::{AsyncReadExt, AsyncWriteExt, join, sink};
use tokio_util::compat::TokioAsyncReadCompatExt;

/// A packet on the beacon's port: as it is, and as somebody with the secret could have sealed it.
pub fn beacon(bytes: &[u8]) {
    let cipher = Cipher::new(&[0; 32]);
    let (heard, _) = cipher.open(bytes);
    assert!(
        !matches!(heard, HeardPacket::Ours(_)),
        "opened without having been sealed"
    );
    if let Ok((claimed, _)) = postcard::take_from_bytes::<Beacon>(bytes) {
        let sealed = cipher.seal(&claimed);
        assert!(sealed.len() <= MAX_BYTES, "{} bytes", sealed.len());
    }
}

/// What a peer writes to the control channel, messages included.
pub fn control(bytes: &[u8]) {
    let mut reader = Cursor::new(bytes);
    let _ = block_on(Hello::read(&mut reader));
    while let Ok(Some(frame)) = block_on(SessionFrame::read(&mut reader)) {
        if let SessionFrame::Message(body) = frame {
            let _ = nodectl_wire::control::decode(&body);
        }
    }
}

/// A question for a blob, an answer, and frames.
pub fn bulk(bytes: &[u8]) {
    let _ = block_on(Want::read(&mut Cursor::new(bytes)));
    let _ = block_on(OfferAnswer::read(&mut Cursor::new(bytes)));
    let _ = frames::receive(&mut &bytes[..], bytes.len() as u64, &[0; 32], |_| Ok(()));
}

/// A packet on mDNS's port: as it is, and with its text in an announcement of ours.
pub fn mdns(bytes: &[u8]) {
    if let Some(found) = mdns::unwrap(bytes) {
        beacon(&found);
    }
    if bytes.len() <= MAX_BYTES {
        let text = [&b"nodectl1"[..], &bytes[..bytes.len().min(MAX_BYTES - 8)]].concat();
        assert_eq!(mdns::unwrap(&mdns::wrap(&text, 7)), Some(text));
    }
}

/// What a stranger says to an end that listens and to one that has dialed; and what a member says
/// of its identity.
pub fn handshake(bytes: &[u8]) {
    static OWN: OnceLock<Handshake> = OnceLock::new();
    let own = OWN.get_or_init(|| {
        Handshake::new(&Identity::ephemeral().keypair(), handshake::PROLOGUE)
            .expect("the kernel has randomness")
    });
    let says = || join(bytes, sink()).compat();
    let psks = [[5; 32], [6; 32]];
    let (heard, dialed) = (
        block_on(own.respond(says(), &psks)),
        block_on(own.initiate(says(), &psks[0])),
    );
    assert!(heard.is_err() && dialed.is_err(), "a stranger got in");
    if let Some((proof, curve)) = bytes.split_first_chunk::<PROOF_BYTES>() {
        let _ = handshake::identify(Some(curve), proof);
    }
}

/// A stream of sealed frames: as it came, then cut into pieces and sealed as a member could, for
/// both ways of reading.
pub fn sealed(bytes: &[u8]) {
    let keys = DirectionKeys {
        out: [1; 32],
        back: [1; 32],
    };
    let mut opened = Vec::new();
    assert!(
        block_on(Sealed::new(join(bytes, sink()), &keys).read_to_end(&mut opened)).is_err()
            || opened.is_empty()
    );
    let _ = halves::reading(bytes, &keys).read_to_end(&mut opened);
    assert!(opened.is_empty(), "opened without having been sealed");
    let lengths = bytes.iter().map(|byte| usize::from(*byte) * 7 + 1);
    let (mut wire, mut plain) = (Vec::new(), Vec::new());
    let mut sealing = Sealed::new(join(tokio::io::empty(), &mut wire), &keys);
    for length in lengths.take(64) {
        let piece: Vec<u8> = bytes.iter().copied().cycle().take(length).collect();
        block_on(async {
            sealing.write_all(&piece).await?;
            sealing.flush().await
        })
        .expect("into memory");
        plain.extend(piece);
    }
    block_on(sealing.shutdown()).expect("into memory");
    block_on(Sealed::reading(join(&wire[..], sink()), &keys, 64).read_to_end(&mut opened))
        .expect("sealed above");
    assert!(opened == plain);
    let (mut source, mut piece, mut read) = (halves::reading(&wire, &keys), vec![0; 1000], 0);
    while let count @ 1.. = source.read(&mut piece).expect("sealed above") {
        assert!(plain[read..].starts_with(&piece[..count]));
        read += count;
    }
    assert_eq!(read, plain.len());
}

/// The file of remembered peers.
pub fn remembered(bytes: &[u8]) {
    if let Ok(peers) = remembered::parse(bytes) {
        assert!(peers.len() <= 64);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            super::beacon(&bytes);
            super::control(&bytes);
            super::bulk(&bytes);
            super::mdns(&bytes);
            super::sealed(&bytes);
            super::handshake(&bytes);
            super::remembered(&bytes);
        }
    }
}
