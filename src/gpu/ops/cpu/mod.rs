//! Ops on the processor: every core that the engine was given, SIMD as far as the compiler finds
//! it. What each op computes is in the op's own file.
//!
//! | file | owns |
//! |---|---|
//! | `memory` | the engine's memory and how ops borrow from it |
//! | `product` | matrix products of slices |
//! | `direct` | the same without copies of the matrices, where that is faster |
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
    buffer::Buffer,
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

    /// The engine's memory, for this thread alone until `work` ends.
    fn with_memory<R: Send>(&self, work: impl FnOnce(&CpuMemory) -> R + Send) -> R {
        // A panic in an op leaves numbers half written, nothing worse.
        let _busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the lock is held; the ops and copies below run one after the other, on views that
        // `record`, `upload` or `download` has checked.
        let memory = unsafe { CpuMemory::new(self.id) };
        self.pool.install(|| work(&memory))
    }

    fn check_range(&self, buffer: &Buffer, range: &Range<u64>) -> Result<(), EngineError> {
        if !CpuMemory::owns(self.id, buffer) {
            return Err(EngineError::Foreign);
        }
        check_inside(buffer, range)
    }
}

impl Engine for Cpu {
    fn name(&self) -> String {
        format!("CPU, {} threads", self.pool.current_num_threads())
    }

    fn buffer(&self, bytes: u64) -> Result<Buffer, EngineError> {
        let block = MemoryBlock::new(bytes, self.id).ok_or(EngineError::OutOfMemory { bytes })?;
        Ok(Buffer::new(block, bytes))
    }

    fn record(&self, ops: &[Op]) -> Result<Program, EngineError> {
        for access in checked(ops)? {
            if !access
                .views()
                .all(|view| CpuMemory::owns(self.id, &view.buffer))
            {
                return Err(EngineError::Foreign);
            }
        }
        Ok(Program::new(ops.to_vec()))
    }

    fn upload(&self, to: &Buffer, offset: u64, bytes: Bytes) -> Pending<()> {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        let result = self.check_range(to, &range);
        Pending::ready(result.map(|()| {
            self.with_memory(|memory| memory.bytes_mut(to, range).copy_from_slice(&bytes));
        }))
    }

    fn run(&self, program: &Program) -> Pending<()> {
        let run = |ops: &Vec<Op>| {
            self.with_memory(|memory| ops.iter().for_each(|op| op.operation().cpu(memory)))
        };
        Pending::ready(program.prepared::<Vec<Op>>().map(run))
    }

    fn download(&self, from: &Buffer, range: Range<u64>) -> Pending<Vec<u8>> {
        let copy = |memory: &CpuMemory| memory.bytes(from, range.clone()).to_vec();
        Pending::ready(
            self.check_range(from, &range)
                .map(|()| self.with_memory(copy)),
        )
    }
}
