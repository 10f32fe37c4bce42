//! A cable between two sessions, in memory: bytes come in pieces of any size, as late as the other
//! side polls, and after so many of them it breaks. Without a clock, so that a seed replays a run.

use futures::{AsyncRead, AsyncWrite};
use rand::{RngExt, rngs::StdRng};
use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
};

/// How a cable breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Both ends are told.
    Reset,
    /// What is written in one direction is lost, and nobody is told.
    Silence,
}

/// One direction.
struct Direction {
    bytes: VecDeque<u8>,
    /// Bytes that may be on their way; what was lost in silence stays among them.
    room: usize,
    lost: usize,
    closed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

struct CableState {
    random: StdRng,
    directions: [Direction; 2],
    reset: bool,
    /// After so many bytes more, in both directions together.
    breaks: Option<(usize, Break)>,
    broken: Option<Break>,
}

/// One end: reads from one direction, writes to the other.
pub struct CableEnd {
    cable: Arc<Mutex<CableState>>,
    reads: usize,
}

/// A cable with both its ends, and a hold on it.
pub struct Cable(Arc<Mutex<CableState>>);

impl Cable {
    pub fn new(
        room: usize,
        breaks: Option<(usize, Break)>,
        random: StdRng,
    ) -> (Self, CableEnd, CableEnd) {
        let direction = || Direction {
            bytes: VecDeque::new(),
            room,
            lost: 0,
            closed: false,
            reader: None,
            writer: None,
        };
        let cable = Arc::new(Mutex::new(CableState {
            random,
            directions: [direction(), direction()],
            reset: false,
            breaks,
            broken: None,
        }));
        let end = |reads| CableEnd {
            cable: cable.clone(),
            reads,
        };
        (Self(cable.clone()), end(0), end(1))
    }

    /// How it broke, if it did.
    pub fn broken(&self) -> Option<Break> {
        self.0.lock().unwrap().broken
    }
}

impl CableState {
    fn reset(&mut self) {
        self.reset = true;
        self.wake();
    }

    fn wake(&mut self) {
        for direction in &mut self.directions {
            let wakers = [direction.reader.take(), direction.writer.take()];
            wakers.into_iter().flatten().for_each(Waker::wake);
        }
    }

    /// Of `count` bytes in a row any number, at least one.
    fn piece(&mut self, count: usize) -> usize {
        if self.random.random_bool(0.3) {
            self.random.random_range(1..=count.min(8))
        } else {
            self.random.random_range(1..=count)
        }
    }

    /// Whether this poll comes to nothing, to be made again.
    fn is_late(&mut self) -> bool {
        self.random.random_bool(0.2)
    }

    /// Counts bytes that are written; true if they are the last before the cable breaks.
    fn wear(&mut self, count: usize) -> Option<Break> {
        let (left, kind) = self.breaks.as_mut()?;
        *left = left.saturating_sub(count);
        if *left > 0 {
            return None;
        }
        let kind = *kind;
        self.breaks = None;
        self.broken = Some(kind);
        Some(kind)
    }
}

impl CableEnd {
    fn cable(&self) -> MutexGuard<'_, CableState> {
        self.cable.lock().unwrap()
    }
}

impl Drop for CableEnd {
    fn drop(&mut self) {
        let writes = 1 - self.reads;
        let mut cable = self.cable();
        if cable.broken != Some(Break::Silence) {
            cable.directions[writes].closed = true;
            cable.directions[self.reads].room = usize::MAX;
            cable.wake();
        }
    }
}

fn reset() -> Poll<io::Result<usize>> {
    Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
}

fn again(context: &Context<'_>) -> Poll<io::Result<usize>> {
    context.waker().wake_by_ref();
    Poll::Pending
}

impl AsyncRead for CableEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut cable = self.cable();
        if cable.reset {
            return reset();
        }
        if cable.is_late() {
            return again(context);
        }
        let waiting = cable.directions[self.reads].bytes.len();
        if waiting == 0 {
            let direction = &mut cable.directions[self.reads];
            if direction.closed {
                return Poll::Ready(Ok(0));
            }
            direction.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = cable.piece(waiting.min(buffer.len()));
        let direction = &mut cable.directions[self.reads];
        for (to, from) in buffer.iter_mut().zip(direction.bytes.drain(..count)) {
            *to = from;
        }
        if let Some(writer) = direction.writer.take() {
            writer.wake();
        }
        Poll::Ready(Ok(count))
    }
}

impl AsyncWrite for CableEnd {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let writes = 1 - self.reads;
        let mut cable = self.cable();
        if cable.reset {
            return reset();
        }
        if cable.is_late() {
            return again(context);
        }
        let direction = &mut cable.directions[writes];
        let room = direction
            .room
            .saturating_sub(direction.bytes.len() + direction.lost);
        if room == 0 {
            direction.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = cable.piece(room.min(bytes.len()));
        if cable.wear(count) == Some(Break::Reset) {
            cable.reset();
            return reset();
        }
        let silent = cable.broken == Some(Break::Silence);
        let direction = &mut cable.directions[writes];
        if silent {
            direction.lost += count;
        } else {
            direction.bytes.extend(&bytes[..count]);
            if let Some(reader) = direction.reader.take() {
                reader.wake();
            }
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut cable = self.cable();
        if cable.broken != Some(Break::Silence) {
            cable.directions[1 - self.reads].closed = true;
            cable.wake();
        }
        Poll::Ready(Ok(()))
    }
}
