//! What every engine does: memory, programs of ops, results that come later. Owns the trait and its
//! types; the engines are `cpu` and `vulkan`.

use super::{super::device::DeviceError, buffer::Buffer, op::Op};
use bytes::Bytes;
use std::{any::Any, ops::Range, time::Duration};

/// Runs ops on one device. Calls take effect in order, as if one after the other; what they return
/// is waited for.
pub trait Engine: Send + Sync {
    /// For people.
    fn name(&self) -> String;

    /// New memory, zeroed.
    fn buffer(&self, bytes: u64) -> Result<Buffer, EngineError>;

    /// Checks the ops and prepares to run them, one after the other, any number of times. Each sees
    /// what the ones before it wrote.
    fn record(&self, ops: &[Op]) -> Result<Program, EngineError>;

    fn upload(&self, to: &Buffer, offset: u64, bytes: Bytes) -> Pending<()>;

    fn run(&self, program: &Program) -> Pending<()>;

    fn download(&self, from: &Buffer, range: Range<u64>) -> Pending<Vec<u8>>;
}

/// Ops that an engine has checked and prepared. Keeps their buffers.
pub struct Program(Box<dyn Any + Send + Sync>);

impl Program {
    pub(super) fn new(prepared: impl Any + Send + Sync) -> Self {
        Self(Box::new(prepared))
    }

    pub(super) fn prepared<P: Any>(&self) -> Result<&P, EngineError> {
        self.0.downcast_ref().ok_or(EngineError::Foreign)
    }
}

/// The result of a call, once it has taken effect. Dropping it does not undo the call.
pub struct Pending<T>(Box<dyn FnOnce(Duration) -> Result<T, EngineError> + Send>);

impl<T: Send + 'static> Pending<T> {
    pub(super) fn new(
        wait: impl FnOnce(Duration) -> Result<T, EngineError> + Send + 'static,
    ) -> Self {
        Self(Box::new(wait))
    }

    pub(super) fn ready(result: Result<T, EngineError>) -> Self {
        Self::new(move |_| result)
    }

    pub fn wait(self, limit: Duration) -> Result<T, EngineError> {
        (self.0)(limit)
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// An op does not fit its views. Nothing was recorded.
    #[error("op {index} ({op}): {what}")]
    Op {
        index: usize,
        op: &'static str,
        what: String,
    },
    #[error("a buffer or program of another engine; hint: make it with the engine that uses it")]
    Foreign,
    #[error("bytes {range:?} are not inside a buffer of {bytes} bytes")]
    Outside { range: Range<u64>, bytes: u64 },
    #[error("no memory for a buffer of {bytes} bytes; hint: cut the work into smaller parts")]
    OutOfMemory { bytes: u64 },
    #[error("no threads for the CPU engine: {0}; hint: raise the limit on processes")]
    Threads(String),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Checks that a range of bytes lies inside of a buffer.
pub(super) fn check_inside(buffer: &Buffer, range: &Range<u64>) -> Result<(), EngineError> {
    if range.start <= range.end && range.end <= buffer.bytes() {
        return Ok(());
    }
    Err(EngineError::Outside {
        range: range.clone(),
        bytes: buffer.bytes(),
    })
}
