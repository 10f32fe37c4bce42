//! Memory of the CPU engine, and the one place where ops borrow from it without the compiler's
//! checks.

use super::super::buffer::{Buffer, BufferView};
use bytemuck::{Pod, Zeroable, allocation::try_zeroed_slice_box};
use std::{cell::UnsafeCell, ops::Range};

/// A cache line: buffers begin on one, so that SIMD loads are aligned.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// Zeroed memory of one engine.
pub struct MemoryBlock {
    lines: UnsafeCell<Box<[CacheLine]>>,
    /// Which engine's lock guards it.
    engine: u64,
}

// SAFETY: the lines are touched through `CpuMemory` only, of which there is one at a time in an
// engine.
unsafe impl Sync for MemoryBlock {}

impl MemoryBlock {
    /// `None`: the allocator has none.
    pub fn new(bytes: u64, engine: u64) -> Option<Self> {
        let lines = usize::try_from(bytes.div_ceil(64)).ok()?;
        Some(Self {
            lines: UnsafeCell::new(try_zeroed_slice_box(lines).ok()?),
            engine,
        })
    }
}

/// All buffers of one engine, while it holds its lock.
pub struct CpuMemory {
    engine: u64,
}

impl CpuMemory {
    /// # Safety
    /// There is no other of the same engine; slices that an op borrowed are gone before the next op
    /// begins; and each op's views have passed `Access::check`, so that what it borrows mutably
    /// overlaps nothing else that it borrows.
    pub unsafe fn new(engine: u64) -> Self {
        Self { engine }
    }

    /// Whether the buffer is of this engine.
    pub fn owns(engine: u64, buffer: &Buffer) -> bool {
        buffer
            .memory::<MemoryBlock>()
            .is_some_and(|block| block.engine == engine)
    }

    pub fn read<T: Pod>(&self, view: &BufferView) -> &[T] {
        bytemuck::cast_slice(self.bytes(&view.buffer, view.range()))
    }

    #[allow(clippy::mut_from_ref)]
    pub fn write<T: Pod>(&self, view: &BufferView) -> &mut [T] {
        bytemuck::cast_slice_mut(self.bytes_mut(&view.buffer, view.range()))
    }

    pub fn bytes(&self, buffer: &Buffer, range: Range<u64>) -> &[u8] {
        let (start, len) = self.locate(buffer, range);
        // SAFETY: inside the block, see `locate`; no op borrows it mutably at the same time, see
        // `new`.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    // Mutable from shared: the views of an op do not overlap, which `Access` has checked and the
    // compiler cannot see.
    #[allow(clippy::mut_from_ref)]
    pub fn bytes_mut(&self, buffer: &Buffer, range: Range<u64>) -> &mut [u8] {
        let (start, len) = self.locate(buffer, range);
        // SAFETY: inside the block, see `locate`; nothing else of the op overlaps it, see `new`.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// The first byte and the number of bytes.
    fn locate(&self, buffer: &Buffer, range: Range<u64>) -> (*mut u8, usize) {
        let block = buffer
            .memory::<MemoryBlock>()
            .filter(|block| block.engine == self.engine);
        let block = block.expect("record() has checked whose it is");
        assert!(
            range.start <= range.end && range.end <= buffer.bytes(),
            "record() has checked it"
        );
        // SAFETY: this reads where the box points, which never changes.
        let start = unsafe { (*block.lines.get()).as_mut_ptr() }.cast::<u8>();
        // SAFETY: the range is inside the buffer, the block at least as large.
        (
            unsafe { start.add(range.start as usize) },
            (range.end - range.start) as usize,
        )
    }
}
