//! Ops on the processor: every core that the engine was given, SIMD as far as the compiler finds
//! it. What each op computes is in the op's own file.
//!
//! | file | owns |
//! |---|---|
//! | `memory` | the engine's memory and how ops borrow from it |
//! | `product` | matrix products of slices |
//! | `direct` | matrix products without copies of the matrices, where that is faster |
//! | `simd` | loops compiled for AVX2, too |
//! | `math` | exp and what is made of it, in a form that compilers vectorize |

#[cfg(target_arch = "x86_64")]
mod direct;
pub mod math;
mod memory;
mod product;
mod simd;
#[cfg(test)]
mod tests;

use super::{
    access::DisjointAccess,
    buffer::{Buffer, BufferView},
    engine::{Engine, EngineError, Pending, Program, check_inside},
    op::{Op, checked},
};
use bytes::Bytes;
pub use memory::CpuMemory;
use memory::MemoryBlock;
pub(super) use product::{Product, product};
use rayon::{ThreadPool, ThreadPoolBuilder};
pub(super) use simd::simd;
use std::{
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Runs ops on `threads` threads of its own; calls return when they are done. The same ops give the
/// same bits with any number of threads.
pub struct Cpu {
    id: u64,
    pool: ThreadPool,
    /// Held while memory is touched.
    busy: Mutex<()>,
}

impl Cpu {
    /// `threads`: at least one. Fails when the system has no more threads.
    pub fn new(threads: usize) -> Result<Self, EngineError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let builder = ThreadPoolBuilder::new()
            .num_threads(threads.max(1))
            .thread_name(|index| format!("ops-{index}"));
        let pool = builder
            .build()
            .map_err(|error| EngineError::Threads(error.to_string()))?;
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            pool,
            busy: Mutex::new(()),
        })
    }

    /// Runs `work`, the only one that touches the engine's memory until it ends.
    fn alone<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        // A panic in an op leaves numbers half written, nothing worse.
        let _busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        self.pool.install(work)
    }

    fn check_range(&self, buffer: &Buffer, range: &Range<u64>) -> Result<(), EngineError> {
        if !memory::is_owned(self.id, buffer) {
            return Err(EngineError::Foreign);
        }
        check_inside(buffer, range)
    }
}

/// What an engine on the processor is called that has so many threads.
pub fn processor_name(threads: usize) -> String {
    let word = if threads == 1 { "thread" } else { "threads" };
    format!("CPU, {threads} {word}")
}

/// Ops with what each may borrow.
type PreparedOps = Vec<(Op, DisjointAccess)>;

impl Engine for Cpu {
    fn name(&self) -> String {
        processor_name(self.pool.current_num_threads())
    }

    fn buffer(&self, bytes: u64) -> Result<Buffer, EngineError> {
        let block = MemoryBlock::new(bytes, self.id).ok_or(EngineError::OutOfMemory { bytes })?;
        Ok(Buffer::new(block, bytes))
    }

    fn record(&self, ops: &[Op]) -> Result<Program, EngineError> {
        let accesses = checked(ops)?;
        let is_ours = |view: &BufferView| memory::is_owned(self.id, &view.buffer);
        if !accesses.iter().all(|access| access.views().all(is_ours)) {
            return Err(EngineError::Foreign);
        }
        let prepared: PreparedOps = ops.iter().cloned().zip(accesses).collect();
        Ok(Program::new(prepared))
    }

    fn upload(&self, to: &Buffer, offset: u64, bytes: Bytes) -> Pending<()> {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        let result = self.check_range(to, &range);
        Pending::ready(result.map(|()| {
            // SAFETY: nothing else touches the engine's memory, see `alone`.
            self.alone(|| unsafe { memory::copy_in(self.id, to, range, &bytes) });
        }))
    }

    fn run(&self, program: &Program) -> Pending<()> {
        let run = |(op, access): &(Op, DisjointAccess)| {
            // SAFETY: nothing else touches the engine's memory, see `alone`: ops run one by one.
            let memory = unsafe { CpuMemory::new(self.id, access) };
            op.operation().cpu(&memory);
        };
        let run = |ops: &PreparedOps| self.alone(|| ops.iter().for_each(run));
        Pending::ready(program.prepared::<PreparedOps>().map(run))
    }

    fn download(&self, from: &Buffer, range: Range<u64>) -> Pending<Vec<u8>> {
        let result = self.check_range(from, &range);
        // SAFETY: nothing else touches the engine's memory, see `alone`.
        let copy = || unsafe { memory::copy_out(self.id, from, range) };
        Pending::ready(result.map(|()| self.alone(copy)))
    }
}
