//! What waits to be written to one stream. Small frames gather in buffers, so that many share a
//! system call; large ones and spooled ones are passed on as they are.

use super::spool::Spool;
use bytes::Bytes;
use nodectl_wire::frames::{FrameKind, HEADER_BYTES, Header};
use std::{
    collections::VecDeque,
    io,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::Notify,
};
use tokio_util::sync::CancellationToken;

/// With more than this the sources are no longer read.
pub const FULL_BYTES: usize = 4 << 20;
/// How long a stream that is killed may take to end properly.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);
/// Larger payloads are not copied.
const SHARED_BYTES: usize = 16 << 10;
/// A buffer is closed at this size.
const BUFFER_BYTES: usize = 256 << 10;

enum OutboxPiece {
    Buffer(Vec<u8>),
    Shared(Bytes),
    Spooled(Arc<Spool>, Range<u64>),
}

#[derive(Default)]
struct WaitingPieces {
    pieces: VecDeque<OutboxPiece>,
    /// In memory, what is being written included.
    bytes: usize,
    finished: bool,
    /// Nothing is written any more.
    ended: bool,
}

#[derive(Default)]
pub struct PoolOutbox {
    waiting: Mutex<WaitingPieces>,
    filled: Notify,
    drained: Notify,
    killed: CancellationToken,
    ended: CancellationToken,
}

impl PoolOutbox {
    /// Adds a frame whose payload others hold too.
    pub fn frame<K: FrameKind>(&self, header: Header<K>, payload: &Bytes) {
        let mut waiting = self.lock();
        waiting.append(&header.encode());
        if payload.len() < SHARED_BYTES {
            waiting.append(payload);
        } else {
            waiting.share(payload.clone());
        }
    }

    /// Adds whole frames as they are.
    pub fn frames(&self, frames: Bytes) {
        let mut waiting = self.lock();
        if frames.len() < SHARED_BYTES {
            waiting.append(&frames)
        } else {
            waiting.share(frames)
        }
    }

    /// Adds spooled frames.
    pub fn spooled(&self, spool: &Arc<Spool>, range: Range<u64>) {
        if !range.is_empty() {
            self.lock()
                .pieces
                .push_back(OutboxPiece::Spooled(spool.clone(), range));
        }
    }

    /// Has what was added written.
    pub fn flush(&self) {
        self.filled.notify_one();
    }

    /// The stream ends when all is written.
    pub fn finish(&self) {
        self.lock().finished = true;
        self.flush();
    }

    /// The stream ends now.
    pub fn kill(&self) {
        self.end();
        self.killed.cancel();
    }

    pub async fn killed(&self) {
        self.killed.cancelled().await;
    }

    /// Returns when nothing is written any more.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    pub fn is_full(&self) -> bool {
        self.lock().bytes > FULL_BYTES
    }

    /// Returns when there is room for more.
    pub async fn room(&self) {
        loop {
            let mut drained = std::pin::pin!(self.drained.notified());
            drained.as_mut().enable();
            if !self.is_full() {
                return;
            }
            drained.await;
        }
    }

    /// Writes what is added until it is finished or killed.
    pub async fn write_to(&self, mut sink: impl AsyncWrite + Unpin) -> io::Result<()> {
        tokio::select! {
            result = self.write_all(&mut sink) => {
                self.end();
                result
            }
            () = self.killed() => {
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, sink.shutdown()).await;
                Ok(())
            }
        }
    }

    /// Nobody shall wait for room that never comes.
    fn end(&self) {
        self.lock().end();
        self.ended.cancel();
        self.drained.notify_waiters();
    }

    async fn write_all(&self, sink: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        loop {
            let (pieces, finished) = {
                let mut waiting = self.lock();
                (std::mem::take(&mut waiting.pieces), waiting.finished)
            };
            if pieces.is_empty() && finished {
                return sink.shutdown().await;
            }
            if pieces.is_empty() {
                self.filled.notified().await;
                continue;
            }
            for piece in pieces {
                let bytes = match piece {
                    OutboxPiece::Buffer(bytes) => write(sink, &bytes).await?,
                    OutboxPiece::Shared(bytes) => write(sink, &bytes).await?,
                    OutboxPiece::Spooled(spool, range) => {
                        spool.copy_to(range, sink).await?;
                        0
                    }
                };
                let mut waiting = self.lock();
                waiting.bytes = waiting.bytes.saturating_sub(bytes);
                if waiting.bytes < FULL_BYTES / 2 {
                    self.drained.notify_waiters();
                }
            }
            sink.flush().await?;
        }
    }

    fn lock(&self) -> MutexGuard<'_, WaitingPieces> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn write(sink: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<usize> {
    sink.write_all(bytes).await?;
    Ok(bytes.len())
}

impl WaitingPieces {
    fn end(&mut self) {
        self.pieces.clear();
        self.bytes = 0;
        self.ended = true;
    }

    fn append(&mut self, bytes: &[u8]) {
        if self.ended {
            return;
        }
        self.bytes += bytes.len();
        if let Some(OutboxPiece::Buffer(buffer)) = self.pieces.back_mut()
            && buffer.len() < BUFFER_BYTES
        {
            return buffer.extend_from_slice(bytes);
        }
        let mut buffer = Vec::with_capacity((4 * HEADER_BYTES).max(bytes.len()));
        buffer.extend_from_slice(bytes);
        self.pieces.push_back(OutboxPiece::Buffer(buffer));
    }

    fn share(&mut self, bytes: Bytes) {
        if self.ended {
            return;
        }
        self.bytes += bytes.len();
        self.pieces.push_back(OutboxPiece::Shared(bytes));
    }
}
