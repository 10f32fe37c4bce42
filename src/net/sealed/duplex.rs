//! A duplex stream of sealed frames, for conversations: what is written goes out with the next
//! flush, as a frame of its own.

use super::frames::{FINAL, FRAME_BYTES, FrameCipher, HEADER_BYTES, TAG_BYTES, bad};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A frame holds at most this much, so that the other end can begin with it soon. Less than
/// `FRAME_BYTES`, which it accepts.
pub(super) const WRITE_BYTES: usize = 64 << 10;
/// Sealed bytes read at once.
const READ_BYTES: usize = 128 << 10;

/// The keys of both directions: what this end seals with, what it opens with.
pub struct DirectionKeys {
    pub out: [u8; 32],
    pub back: [u8; 32],
}

pub struct Sealed<S> {
    pub(super) stream: S,
    pub(super) sealer: FrameCipher,
    pub(super) opener: FrameCipher,
    /// Sealed frames to be written, from `written` on.
    pub(super) outgoing: Vec<u8>,
    pub(super) written: usize,
    pub(super) closing: bool,
    pub(super) incoming: SealedInput,
}

/// Bytes as they came: opened ones in `plain`, sealed ones from its end up to `end`.
pub(super) struct SealedInput {
    /// Asked of the stream at once, at least.
    at_once: usize,
    pub buffer: Vec<u8>,
    plain: std::ops::Range<usize>,
    /// Where the next frame begins, behind the tag of the last.
    pub next: usize,
    pub end: usize,
    /// The final frame has come.
    pub ended: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Sealed<S> {
    pub fn new(stream: S, keys: &DirectionKeys) -> Self {
        Self::reading(stream, keys, READ_BYTES)
    }

    /// With a buffer of so many bytes, which grows with the largest frame that comes.
    pub fn reading(stream: S, keys: &DirectionKeys, at_once: usize) -> Self {
        let incoming = SealedInput {
            at_once,
            buffer: Vec::new(),
            plain: 0..0,
            next: 0,
            end: 0,
            ended: false,
        };
        let (sealer, opener) = (FrameCipher::new(&keys.out), FrameCipher::new(&keys.back));
        Self {
            stream,
            sealer,
            opener,
            outgoing: Vec::new(),
            written: 0,
            closing: false,
            incoming,
        }
    }

    /// Sends an empty frame: it shows who is here.
    pub async fn greet(&mut self) -> io::Result<()> {
        self.seal(&[], false)?;
        tokio::io::AsyncWriteExt::flush(self).await
    }

    /// Waits for the first frame, which only the right peer can have sealed.
    pub async fn greeted(&mut self) -> io::Result<()> {
        std::future::poll_fn(|context| {
            loop {
                if self.incoming.open(&mut self.opener)? {
                    return Poll::Ready(Ok(()));
                }
                ready!(self.poll_fill(context))?;
            }
        })
        .await
    }

    fn seal(&mut self, plain: &[u8], last: bool) -> io::Result<()> {
        let start = self.outgoing.len();
        self.outgoing.extend_from_slice(&[0; HEADER_BYTES]);
        self.outgoing.extend_from_slice(plain);
        self.outgoing.extend_from_slice(&[0; TAG_BYTES]);
        self.sealer
            .seal(&mut self.outgoing[start..], plain.len(), last)
            .map(|_| ())
    }

    fn poll_outgoing(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.outgoing.len() {
            let count = ready!(
                Pin::new(&mut self.stream).poll_write(context, &self.outgoing[self.written..])
            )?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
        }
        self.outgoing.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    /// Reads more sealed bytes.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let space = self.incoming.space()?;
        let mut space = ReadBuf::new(space);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut space))?;
        let count = space.filled().len();
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        self.incoming.end += count;
        Poll::Ready(Ok(()))
    }
}

impl SealedInput {
    /// Room for more behind `end`, for the rest of the next frame at least.
    pub fn space(&mut self) -> io::Result<&mut [u8]> {
        if self.next > 0 {
            self.buffer.copy_within(self.next..self.end, 0);
            self.end -= self.next;
            (self.next, self.plain) = (0, 0..0);
        }
        let wanted = self.at_once.max(self.frame_bytes()?.unwrap_or(0));
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        Ok(&mut self.buffer[self.end..])
    }

    /// The length of the next frame, if its header is here.
    fn frame_bytes(&self) -> io::Result<Option<usize>> {
        Ok(self
            .begun()?
            .map(|length| HEADER_BYTES + length + TAG_BYTES))
    }

    /// How much the next frame has in it, if its header is here.
    pub fn begun(&self) -> io::Result<Option<usize>> {
        let Some(header) = self.buffer[self.next..self.end].first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = (u32::from_le_bytes(*header) & !FINAL) as usize;
        if length > FRAME_BYTES {
            return Err(bad("a frame larger than any"));
        }
        Ok(Some(length))
    }

    /// Moves the frame that has begun, as far as it is here: contents to `out`, which is as long as
    /// they are, bytes of the tag to the buffer's start. Returns the header and how many bytes were
    /// moved to each.
    pub fn move_to(&mut self, out: &mut [u8]) -> ([u8; HEADER_BYTES], usize, usize) {
        let header = *self.buffer[self.next..]
            .first_chunk()
            .expect("it has begun");
        let rest = self.next + HEADER_BYTES..self.end;
        let of_contents = rest.len().min(out.len());
        out[..of_contents].copy_from_slice(&self.buffer[rest.start..rest.start + of_contents]);
        self.buffer
            .copy_within(rest.start + of_contents..rest.end, 0);
        (header, of_contents, rest.len() - of_contents)
    }

    /// Opened bytes that are here, at most so many.
    pub fn take(&mut self, most: usize) -> &[u8] {
        let start = self.plain.start;
        self.plain.start += self.plain.len().min(most);
        &self.buffer[start..self.plain.start]
    }

    /// Opens the next frame, if it is whole.
    pub fn open(&mut self, opener: &mut FrameCipher) -> io::Result<bool> {
        let Some(bytes) = self
            .frame_bytes()?
            .filter(|bytes| self.next + bytes <= self.end)
        else {
            return Ok(false);
        };
        let start = self.next + HEADER_BYTES;
        let header = *self.buffer[self.next..]
            .first_chunk::<HEADER_BYTES>()
            .expect("frame_bytes() saw it");
        let length = opener
            .open(header, &mut self.buffer[start..self.next + bytes])?
            .len();
        self.ended = u32::from_le_bytes(header) & FINAL != 0;
        self.plain = start..start + length;
        self.next += bytes;
        Ok(true)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Sealed<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let plain = this.incoming.take(out.remaining());
            out.put_slice(plain);
            if !plain.is_empty() || this.incoming.ended || out.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            if !this.incoming.open(&mut this.opener)? {
                ready!(this.poll_fill(context))?;
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Sealed<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        // Several writes share a system call, but no more than two frames wait.
        if this.outgoing.len() >= WRITE_BYTES {
            ready!(this.poll_outgoing(context))?;
        }
        let count = bytes.len().min(WRITE_BYTES);
        this.seal(&bytes[..count], false)?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_outgoing(context))?;
        Pin::new(&mut this.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !std::mem::replace(&mut this.closing, true) {
            this.seal(&[], true)?;
        }
        ready!(this.poll_outgoing(context))?;
        Pin::new(&mut this.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};

    const HERE: DirectionKeys = DirectionKeys {
        out: [1; 32],
        back: [2; 32],
    };
    const THERE: DirectionKeys = DirectionKeys {
        out: [2; 32],
        back: [1; 32],
    };

    #[tokio::test]
    async fn bytes_arrive_in_order_both_ways_and_the_end_is_told() {
        for pipe in [1, 100, 1 << 20] {
            let (one, two) = duplex(pipe);
            let (one, two) = (Sealed::new(one, &HERE), Sealed::new(two, &THERE));
            let bytes: Vec<u8> = (0..30_000 + pipe).map(|i| (i >> 3) as u8).collect();
            let (sent, expected) = (bytes.clone(), bytes.clone());
            let echo = tokio::spawn(async move {
                let (mut source, mut sink) = split(two);
                tokio::io::copy(&mut source, &mut sink).await.unwrap();
                sink.shutdown().await.unwrap();
            });
            let (mut source, mut sink) = split(one);
            let sending = tokio::spawn(async move {
                sink.write_all(&sent).await.unwrap();
                sink.shutdown().await.unwrap();
            });
            let mut back = Vec::new();
            source.read_to_end(&mut back).await.unwrap();
            assert!(back == expected, "through {pipe}");
            sending.await.unwrap();
            echo.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_flushed_byte_does_not_wait_for_more() {
        let (one, two) = duplex(1 << 10);
        let (mut one, mut two) = (Sealed::new(one, &HERE), Sealed::new(two, &THERE));
        one.greet().await.unwrap();
        two.greeted().await.unwrap();
        for byte in 0..50 {
            one.write_u8(byte).await.unwrap();
            one.flush().await.unwrap();
            assert_eq!(two.read_u8().await.unwrap(), byte);
        }
    }

    #[tokio::test]
    async fn a_cut_and_another_key_are_errors() {
        let (one, two) = duplex(1 << 10);
        let (mut one, mut two) = (Sealed::new(one, &HERE), Sealed::new(two, &THERE));
        one.write_all(b"abc").await.unwrap();
        one.flush().await.unwrap();
        drop(one);
        let mut back = Vec::new();
        assert_eq!(
            two.read_to_end(&mut back).await.unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert_eq!(back, b"abc");
        let (one, two) = duplex(1 << 10);
        let (mut one, mut two) = (Sealed::new(one, &HERE), Sealed::new(two, &HERE));
        one.greet().await.unwrap();
        assert_eq!(
            two.greeted().await.unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
