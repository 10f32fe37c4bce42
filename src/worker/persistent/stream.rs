//! A worker's stream on its way to its pool. Counts what the worker is sent: a pool begins by
//! telling it what it is. Where the process ends by itself, the last frame says how (`ENDED`),
//! unless the end cut another frame in two.

use nodectl_ports::PeerStream;
use nodectl_wire::frames::HEADER_BYTES;
use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
    sync::oneshot,
};

pub struct WorkerStream {
    stream: UnixStream,
    written: Arc<AtomicU64>,
    frames: FrameCursor,
    end: StreamEnd,
}

/// What comes behind what the process wrote.
enum StreamEnd {
    /// The process still writes. Whoever knows how it ended waits to hear that its stream has.
    Open(oneshot::Sender<()>, oneshot::Receiver<Vec<u8>>),
    Awaited(oneshot::Receiver<Vec<u8>>),
    /// A frame, of which so many bytes have been read.
    Told(Vec<u8>, usize),
    Over,
}

/// What `WorkerStream` is told through.
pub struct EndTeller {
    /// Ends when the stream has.
    pub closed: oneshot::Receiver<()>,
    /// The last frame, if there is to be one.
    pub last: oneshot::Sender<Vec<u8>>,
}

impl WorkerStream {
    /// `written` counts the bytes that the worker is sent.
    pub fn new(stream: UnixStream, written: Arc<AtomicU64>) -> (Self, EndTeller) {
        let (closes, closed) = oneshot::channel();
        let (last, ends) = oneshot::channel();
        let stream = Self {
            stream,
            written,
            frames: FrameCursor::default(),
            end: StreamEnd::Open(closes, ends),
        };
        (stream, EndTeller { closed, last })
    }

    /// The process writes no more.
    fn close(&mut self) {
        let whole = self.frames.is_between();
        let end = std::mem::replace(&mut self.end, StreamEnd::Over);
        if let StreamEnd::Open(closes, ends) = end {
            let _ = closes.send(());
            if whole {
                self.end = StreamEnd::Awaited(ends);
            }
        }
    }
}

/// To a pool of this node it is as one of another.
impl PeerStream for WorkerStream {}

impl AsyncRead for WorkerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        while buffer.remaining() > 0 && buffer.filled().len() == before {
            match &mut this.end {
                StreamEnd::Open(..) => {
                    ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
                    let new = &buffer.filled()[before..];
                    this.frames.pass(new);
                    if new.is_empty() {
                        this.close();
                    }
                }
                StreamEnd::Awaited(ends) => {
                    let told = ready!(Pin::new(ends).poll(context));
                    this.end = told.map_or(StreamEnd::Over, |frame| StreamEnd::Told(frame, 0));
                }
                StreamEnd::Told(frame, at) if *at < frame.len() => {
                    let count = buffer.remaining().min(frame.len() - *at);
                    buffer.put_slice(&frame[*at..*at + count]);
                    *at += count;
                }
                StreamEnd::Told(..) | StreamEnd::Over => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WorkerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.written.fetch_add(count as u64, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Where in the frames a stream is.
#[derive(Default)]
struct FrameCursor {
    header: [u8; HEADER_BYTES],
    /// Bytes of it that have come.
    come: usize,
    /// Bytes of payload still to come.
    left: usize,
}

impl FrameCursor {
    fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let count = self.left.min(bytes.len());
                self.left -= count;
                bytes = &bytes[count..];
                continue;
            }
            let count = (HEADER_BYTES - self.come).min(bytes.len());
            self.header[self.come..self.come + count].copy_from_slice(&bytes[..count]);
            self.come += count;
            bytes = &bytes[count..];
            if self.come == HEADER_BYTES {
                let length = [4, 5, 6, 7].map(|at| self.header[at]);
                (self.come, self.left) = (0, u32::from_le_bytes(length) as usize);
            }
        }
    }

    fn is_between(&self) -> bool {
        self.come == 0 && self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_wire::frames::{FromWorker, Header};
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn frame(payload: &[u8]) -> Vec<u8> {
        let header = Header::new(FromWorker::Done, 7, payload.len());
        [header.encode().as_slice(), payload].concat()
    }

    /// What a pool reads of a worker that wrote this and ended, and whose node tells that.
    async fn read(written: &[u8], last: Option<&[u8]>) -> Vec<u8> {
        let (mut process, ours) = UnixStream::pair().unwrap();
        let (mut stream, teller) = WorkerStream::new(ours, Arc::default());
        process.write_all(written).await.unwrap();
        drop(process);
        let tells = async {
            teller.closed.await.unwrap();
            match last {
                Some(last) => drop(teller.last.send(last.to_vec())),
                None => drop(teller.last),
            }
        };
        let mut all = Vec::new();
        let (read, ()) = tokio::join!(stream.read_to_end(&mut all), tells);
        read.unwrap();
        all
    }

    #[tokio::test]
    async fn the_last_frame_says_how_the_process_ended() {
        let (one, last) = (frame(b"result"), frame(b"killed"));
        let whole = [one.clone(), last.clone()].concat();
        assert_eq!(read(&one, Some(&last)).await, whole);
        assert_eq!(read(&one, None).await, one);
        assert_eq!(read(b"", Some(&last)).await, last);
        for cut in [1, HEADER_BYTES, one.len() - 1] {
            assert_eq!(read(&one[..cut], Some(&last)).await, &one[..cut]);
        }
    }

    proptest! {
        #[test]
        fn the_cursor_knows_where_frames_end(
            payloads in prop::collection::vec(0usize..40, 0..6),
            cuts in prop::collection::vec(1usize..30, 1..60),
        ) {
            let mut ends = vec![0];
            let mut bytes = Vec::new();
            for length in payloads {
                bytes.extend(frame(&vec![1; length]));
                ends.push(bytes.len());
            }
            let mut cursor = FrameCursor::default();
            let mut at = 0;
            for cut in cuts.into_iter().cycle() {
                prop_assert_eq!(cursor.is_between(), ends.contains(&at));
                if at == bytes.len() {
                    break;
                }
                let next = (at + cut).min(bytes.len());
                cursor.pass(&bytes[at..next]);
                at = next;
            }
        }
    }
}
