//! The decoders of bytes from outside, for fuzzing: each must end without a panic and without allocating more than its
//! bound, whatever it is given. Public for the fuzz targets alone, which are a crate of their own.

use super::{
    bulk::{
        offer::{Answer, Want},
        seal,
    },
    discovery::beacon::{Beacon, Cipher, Heard, MAX_BYTES},
    swarm::hello::{Frame, Hello},
};
use futures::{executor::block_on, io::Cursor};

/// A packet on the beacon's port: as it is, and as somebody with the secret could have sealed it.
pub fn beacon(bytes: &[u8]) {
    let cipher = Cipher::new(&[0; 32]);
    let (heard, _) = cipher.open(bytes);
    assert!(!matches!(heard, Heard::Ours(_)), "opened without having been sealed");
    if let Ok((claimed, _)) = postcard::take_from_bytes::<Beacon>(bytes) {
        let sealed = cipher.seal(&claimed);
        assert!(sealed.len() <= MAX_BYTES, "{} bytes", sealed.len());
    }
}

/// What a peer writes to the control channel, messages included.
pub fn control(bytes: &[u8]) {
    let mut reader = Cursor::new(bytes);
    let _ = block_on(Hello::read(&mut reader));
    while let Ok(Some(frame)) = block_on(Frame::read(&mut reader)) {
        if let Frame::Message(body) = frame {
            let _ = crate::wire::control::decode(&body);
        }
    }
}

/// A question for a blob, an answer, and frames.
pub fn bulk(bytes: &[u8]) {
    let _ = block_on(Want::read(&mut Cursor::new(bytes)));
    let _ = block_on(Answer::read(&mut Cursor::new(bytes)));
    let _ = seal::receive(&mut &bytes[..], bytes.len() as u64, &[0; 32], |_| Ok(()));
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
        }
    }
}
