//! The question and the answer that go over the swarm before a transfer. Fixed sizes; nothing is
//! allocated for them.

use futures::{AsyncRead, AsyncReadExt};
use nodectl_types::BlobHash;
use std::io;

pub const TICKET_BYTES: usize = 16;
const OFFER_BYTES: usize = 1 + 8 + TICKET_BYTES + 32 + 2;
/// Blobs larger than this are refused: 16 TiB.
pub const MAX_BLOB_BYTES: u64 = 1 << 44;
/// Sent by a requester that cannot connect directly.
pub const OVER_THE_SWARM: u8 = b'S';
/// Sent by one that asks the holder to connect to it; its port (u16, little-endian) follows. The
/// holder answers 1 when it has connected, or 0 when it could not.
pub const CALL_BACK: u8 = b'C';

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    pub hash: BlobHash,
    /// The requester has this many bytes already.
    pub offset: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfferAnswer {
    Missing,
    /// Too many transfers; another holder may be free.
    Busy,
    Offer(Offer),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Bytes of the whole blob.
    pub size: u64,
    pub ticket: [u8; TICKET_BYTES],
    /// Fresh for this transfer.
    pub key: [u8; 32],
    pub port: u16,
}

impl Want {
    pub fn encode(&self) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..32].copy_from_slice(&self.hash.0);
        bytes[32..].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let (mut hash, mut offset) = ([0; 32], [0; 8]);
        stream.read_exact(&mut hash).await?;
        stream.read_exact(&mut offset).await?;
        Ok(Self {
            hash: BlobHash(hash),
            offset: u64::from_le_bytes(offset),
        })
    }
}

impl OfferAnswer {
    pub fn encode(&self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        match self {
            Self::Missing => {}
            Self::Busy => bytes[0] = 1,
            Self::Offer(offer) => {
                bytes[0] = 2;
                bytes[1..9].copy_from_slice(&offer.size.to_le_bytes());
                bytes[9..25].copy_from_slice(&offer.ticket);
                bytes[25..57].copy_from_slice(&offer.key);
                bytes[57..].copy_from_slice(&offer.port.to_le_bytes());
            }
        }
        bytes
    }

    pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut kind = [0; 1];
        let (mut size, mut ticket, mut key, mut port) =
            ([0; 8], [0; TICKET_BYTES], [0; 32], [0; 2]);
        for part in [&mut kind[..], &mut size, &mut ticket, &mut key, &mut port] {
            stream.read_exact(part).await?;
        }
        let size = u64::from_le_bytes(size);
        match kind[0] {
            0 => Ok(Self::Missing),
            1 => Ok(Self::Busy),
            2 if size <= MAX_BLOB_BYTES => Ok(Self::Offer(Offer {
                size,
                ticket,
                key,
                port: u16::from_le_bytes(port),
            })),
            2 => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a blob of {size} bytes"),
            )),
            kind => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("an answer of kind {kind}"),
            )),
        }
    }
}

impl std::fmt::Debug for Offer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Offer {{ size: {}, port: {}, .. }}",
            self.size, self.port
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{executor::block_on, io::Cursor};

    #[test]
    fn both_survive_the_wire() {
        let want = Want {
            hash: BlobHash([3; 32]),
            offset: 77,
        };
        assert_eq!(
            block_on(Want::read(&mut Cursor::new(want.encode()))).unwrap(),
            want
        );
        let offer = Offer {
            size: 5,
            ticket: [1; 16],
            key: [2; 32],
            port: 99,
        };
        for answer in [
            OfferAnswer::Missing,
            OfferAnswer::Busy,
            OfferAnswer::Offer(offer),
        ] {
            assert_eq!(
                block_on(OfferAnswer::read(&mut Cursor::new(answer.encode()))).unwrap(),
                answer
            );
        }
    }

    #[test]
    fn an_absurd_size_is_refused() {
        let offer = Offer {
            size: MAX_BLOB_BYTES + 1,
            ticket: [1; 16],
            key: [2; 32],
            port: 99,
        };
        assert!(
            block_on(OfferAnswer::read(&mut Cursor::new(
                OfferAnswer::Offer(offer).encode()
            )))
            .is_err()
        );
        assert!(block_on(OfferAnswer::read(&mut Cursor::new([9; OFFER_BYTES]))).is_err());
    }
}
