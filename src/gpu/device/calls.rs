//! The calls that wait for a device's thread, and what their callers wait on. Bounded: who fills
//! the queue waits.

use super::{
    DeviceError, DeviceFailure, HostBuffer, HostSource, memory::DeviceBuffer,
    recording::DeviceRecording,
};
use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc, Condvar, Mutex,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

/// How many calls may wait.
const MAX_WAITING: usize = 1024;
/// How long a caller waits for room among them. A device that takes nothing for so long hangs.
const ROOM_LIMIT: Duration = Duration::from_secs(600);

/// How often such a caller looks whether the device is still there.
const LOOK_UP: Duration = Duration::from_millis(100);

/// What the device's thread is asked to do.
pub(super) enum DeviceCall {
    Zero {
        buffer: DeviceBuffer,
    },
    Upload {
        to: DeviceBuffer,
        offset: u64,
        source: HostSource,
        reply: Reply<()>,
    },
    Run {
        recording: DeviceRecording,
        reply: Reply<()>,
    },
    Download {
        from: DeviceBuffer,
        range: Range<u64>,
        reply: Reply<Vec<u8>>,
    },
    DownloadInto {
        from: DeviceBuffer,
        offset: u64,
        into: HostBuffer,
        reply: Reply<HostBuffer>,
    },
    /// Answers when all earlier calls have ended and what only they used is free.
    Settle {
        reply: Reply<()>,
    },
}

/// The calls in the order in which they take effect.
#[derive(Default)]
pub(super) struct Calls {
    state: Mutex<CallState>,
    room: Condvar,
    work: Condvar,
}

#[derive(Default)]
struct CallState {
    waiting: VecDeque<DeviceCall>,
    closed: bool,
}

impl Calls {
    /// Adds a call, which is dropped when the device has ended.
    pub(super) fn push(&self, call: DeviceCall, failure: &DeviceFailure) {
        let end = Instant::now() + ROOM_LIMIT;
        let mut state = self
            .state
            .lock()
            .expect("no code panics while it holds this lock");
        while state.waiting.len() >= MAX_WAITING && !state.closed {
            if Instant::now() >= end {
                failure.set(DeviceError::timed_out(ROOM_LIMIT, "it takes no more work"));
            }
            if failure.get().is_some() {
                return;
            }
            state = self
                .room
                .wait_timeout(state, LOOK_UP)
                .expect("no code panics while it holds this lock")
                .0;
        }
        if !state.closed {
            state.waiting.push_back(call);
            self.work.notify_one();
        }
    }

    /// Everything that waits, at least one; `None` after `close` when all was taken.
    pub(super) fn take(&self) -> Option<VecDeque<DeviceCall>> {
        let mut state = self
            .state
            .lock()
            .expect("no code panics while it holds this lock");
        while state.waiting.is_empty() {
            if state.closed {
                return None;
            }
            state = self
                .work
                .wait(state)
                .expect("no code panics while it holds this lock");
        }
        self.room.notify_all();
        Some(std::mem::take(&mut state.waiting))
    }

    /// Nobody will take calls any more: those that wait are dropped, which their callers notice.
    pub(super) fn abandon(&self) {
        self.close();
        let dropped = std::mem::take(
            &mut self
                .state
                .lock()
                .expect("no code panics while it holds this lock")
                .waiting,
        );
        drop(dropped);
    }

    /// No more calls; those that wait are still taken.
    pub(super) fn close(&self) {
        self.state
            .lock()
            .expect("no code panics while it holds this lock")
            .closed = true;
        self.room.notify_all();
        self.work.notify_all();
    }
}

/// Where the result of a call goes.
pub(super) type Reply<T> = SyncSender<Result<T, DeviceError>>;

/// A call that was made and has not been waited for. Dropping it changes nothing about the call.
#[must_use = "errors of the call are known only to who waits for it"]
pub struct PendingCall<T> {
    result: Receiver<Result<T, DeviceError>>,
    failure: Arc<DeviceFailure>,
    what: String,
}

impl<T> PendingCall<T> {
    pub(super) fn new(what: String, failure: &Arc<DeviceFailure>) -> (Self, Reply<T>) {
        let (reply, result) = sync_channel(1);
        (
            Self {
                result,
                failure: failure.clone(),
                what,
            },
            reply,
        )
    }

    /// A call that failed before it reached the device.
    pub(super) fn failed(error: DeviceError, failure: &Arc<DeviceFailure>) -> Self {
        let (pending, reply) = Self::new(String::new(), failure);
        let _ = reply.send(Err(error));
        pending
    }

    /// Waits until the call has taken effect, for at most `limit`.
    ///
    /// # Errors
    /// `TimedOut` after `limit`: the device is unusable from then on, and the process should end,
    /// since nothing can take back what the GPU was given. `Lost` when the driver gave up.
    /// `Invalid` for what the call itself got wrong.
    pub fn wait(self, limit: Duration) -> Result<T, DeviceError> {
        match self.result.recv_timeout(limit) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                let error = DeviceError::timed_out(limit, &self.what);
                self.failure.set(error.clone());
                Err(error)
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(self.failure.get().unwrap_or_else(DeviceFailure::ended))
            }
        }
    }
}
