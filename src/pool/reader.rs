//! Batches of whole frames from one stream.

use bytes::{Buf, Bytes, BytesMut};
use nodectl_wire::frames::{FrameKind, HEADER_BYTES, Header};
use std::{io, marker::PhantomData};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Read at once at most, unless one frame is larger.
pub const READ_BYTES: usize = 256 << 10;
/// With less room than this a new buffer is begun.
const ROOM_BYTES: usize = 32 << 10;

/// Reads frames of the kinds `K`.
pub struct PoolReader<R, K> {
    source: R,
    buffer: BytesMut,
    kinds: PhantomData<K>,
}

impl<R: AsyncRead + Unpin, K: FrameKind> PoolReader<R, K> {
    pub fn new(source: R) -> Self {
        Self {
            source,
            buffer: BytesMut::new(),
            kinds: PhantomData,
        }
    }

    /// The whole frames that have come, one at least. None at the end of the stream; an error if
    /// that is inside a frame, or at bytes that are no frame.
    pub async fn batch(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let (whole, wanted) = measure::<K>(&self.buffer)?;
            if whole > 0 {
                return Ok(Some(self.buffer.split_to(whole).freeze()));
            }
            if self.buffer.capacity() - self.buffer.len() < ROOM_BYTES.min(wanted) {
                self.buffer.reserve(wanted.max(READ_BYTES));
            }
            if self.source.read_buf(&mut self.buffer).await? == 0 {
                let cut = !self.buffer.is_empty();
                return if cut {
                    Err(io::ErrorKind::UnexpectedEof.into())
                } else {
                    Ok(None)
                };
            }
        }
    }
}

/// How many bytes of whole frames the buffer begins with, and how many the next one lacks at least.
fn measure<K: FrameKind>(buffer: &[u8]) -> io::Result<(usize, usize)> {
    let mut whole = 0;
    loop {
        let Some(header) = buffer[whole..].first_chunk::<HEADER_BYTES>() else {
            return Ok((whole, ROOM_BYTES));
        };
        let header = Header::<K>::decode(header)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let end = whole + HEADER_BYTES + header.length as usize;
        if end > buffer.len() {
            return Ok((whole, (end - buffer.len()).max(ROOM_BYTES)));
        }
        whole = end;
    }
}

/// One of a batch's frames.
pub struct Frame<K> {
    pub header: Header<K>,
    /// Header and payload.
    pub whole: Bytes,
}

impl<K> Frame<K> {
    pub fn payload(&self) -> Bytes {
        self.whole.slice(HEADER_BYTES..)
    }
}

/// The frames of a batch.
pub fn frames<K: FrameKind>(mut batch: Bytes) -> impl Iterator<Item = Frame<K>> {
    std::iter::from_fn(move || {
        let header = batch.first_chunk::<HEADER_BYTES>()?;
        let header = Header::decode(header).expect("the reader has checked it");
        let whole = batch.slice(..HEADER_BYTES + header.length as usize);
        batch.advance(whole.len());
        Some(Frame { header, whole })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_wire::frames::{FromClient, MAX_CHUNK_BYTES, encode};

    #[tokio::test]
    async fn frames_come_whole_however_they_were_cut() {
        for (piece, largest) in [
            (1, 1000),
            (7, 40_000),
            (4096, 300_000),
            (1 << 20, 2 * MAX_CHUNK_BYTES),
            (16 << 20, 5),
        ] {
            let mut bytes = Vec::new();
            for (id, length) in [0, 1, largest, 17, largest + 3].iter().enumerate() {
                encode(
                    FromClient::Run,
                    id as u64,
                    &vec![id as u8; *length],
                    &mut bytes,
                );
            }
            let (mut writer, source) = tokio::io::duplex(piece);
            let sent = bytes.clone();
            let writing = async move {
                tokio::io::AsyncWriteExt::write_all(&mut writer, &sent)
                    .await
                    .unwrap();
                drop(writer);
            };
            let reading = async {
                let mut reader = PoolReader::<_, FromClient>::new(source);
                let mut read = Vec::new();
                while let Some(batch) = reader.batch().await.unwrap() {
                    frames::<FromClient>(batch)
                        .for_each(|frame| read.extend_from_slice(&frame.whole));
                }
                read
            };
            let (_, read) = tokio::join!(writing, reading);
            assert!(read == bytes, "in pieces of {piece}");
        }
    }

    #[tokio::test]
    async fn nonsense_and_a_cut_are_errors() {
        let nonsense = PoolReader::<_, FromClient>::new(&[9u8; 40][..]);
        assert!({ nonsense }.batch().await.is_err());
        let mut bytes = Vec::new();
        encode(FromClient::Run, 1, b"abc", &mut bytes);
        let error = PoolReader::<_, FromClient>::new(&bytes[..bytes.len() - 1])
            .batch()
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
