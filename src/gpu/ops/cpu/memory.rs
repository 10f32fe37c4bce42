//! Memory of the CPU engine, and the one place where ops borrow from it without the compiler's
//! checks: what an op borrows is checked against what its access has proved.

use super::super::{
    access::DisjointAccess,
    buffer::{Buffer, BufferView},
};
use bytemuck::{Pod, Zeroable, allocation::try_zeroed_slice_box};
use std::{
    cell::{Cell, UnsafeCell},
    ops::Range,
};

/// A cache line: buffers begin on one, so that SIMD loads are aligned.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// Zeroed memory of one engine.
pub struct MemoryBlock {
    lines: UnsafeCell<Box<[CacheLine]>>,
    /// The engine whose lock guards the lines.
    engine: u64,
}

// SAFETY: the lines are touched by `CpuMemory`, `copy_in` and `copy_out` only, whose callers
// promise that nothing else touches the engine's memory meanwhile.
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

/// Whether the buffer is of this engine.
pub fn is_owned(engine: u64, buffer: &Buffer) -> bool {
    buffer
        .memory::<MemoryBlock>()
        .is_some_and(|block| block.engine == engine)
}

/// Writes bytes into a buffer of the engine.
///
/// # Safety
/// Nothing else touches the engine's memory meanwhile.
pub unsafe fn copy_in(engine: u64, buffer: &Buffer, range: Range<u64>, bytes: &[u8]) {
    let (start, len) = locate(engine, buffer, range);
    // SAFETY: inside the block, see `locate`; the caller promises that nobody else borrows it.
    unsafe { std::slice::from_raw_parts_mut(start, len) }.copy_from_slice(bytes);
}

/// The bytes of a buffer of the engine.
///
/// # Safety
/// Nothing else touches the engine's memory meanwhile.
pub unsafe fn copy_out(engine: u64, buffer: &Buffer, range: Range<u64>) -> Vec<u8> {
    let (start, len) = locate(engine, buffer, range);
    // SAFETY: inside the block, see `locate`; the caller promises that nobody else borrows it.
    unsafe { std::slice::from_raw_parts(start, len) }.to_vec()
}

/// The memory of one op while it runs: the views that its access names.
pub struct CpuMemory<'a> {
    engine: u64,
    access: &'a DisjointAccess,
    /// Which of the views that are written have been lent, a bit for each.
    lent: Cell<u32>,
}

impl<'a> CpuMemory<'a> {
    /// # Safety
    /// Nothing else touches the engine's memory while this exists.
    pub unsafe fn new(engine: u64, access: &'a DisjointAccess) -> Self {
        Self {
            engine,
            access,
            lent: Cell::new(0),
        }
    }

    /// The numbers of a view that the op only reads.
    pub fn read<T: Pod>(&self, view: &BufferView) -> &[T] {
        assert!(
            self.access.is_only_read(view),
            "an op reads what its access() says that it reads"
        );
        let (start, len) = locate(self.engine, &view.buffer, view.range());
        // SAFETY: inside the block, see `locate`. Of this op nothing that is lent for writing
        // overlaps the view, see `is_only_read`; of the engine nothing else runs, see `new`.
        bytemuck::cast_slice(unsafe { std::slice::from_raw_parts(start, len) })
    }

    /// The numbers of a view that the op writes. Each view is lent once.
    #[expect(
        clippy::mut_from_ref,
        reason = "each view is lent once, and `DisjointAccess` proves that they do not overlap"
    )]
    pub fn write<T: Pod>(&self, view: &BufferView) -> &mut [T] {
        self.lend(view);
        let (start, len) = locate(self.engine, &view.buffer, view.range());
        // SAFETY: inside the block, see `locate`. The view was not lent before, see `lend`; it
        // overlaps no other view that is written, nor one that `read` lends, see `DisjointAccess`;
        // of the engine nothing else runs, see `new`.
        bytemuck::cast_slice_mut(unsafe { std::slice::from_raw_parts_mut(start, len) })
    }

    fn lend(&self, view: &BufferView) {
        let lent = self.lent.get();
        let mut written = self.access.written(view);
        let number = written.find(|number| lent & (1 << number) == 0);
        let number = number.expect("an op writes what its access() says, and borrows it once");
        self.lent.set(lent | (1 << number));
    }
}

/// The first byte and the number of bytes.
fn locate(engine: u64, buffer: &Buffer, range: Range<u64>) -> (*mut u8, usize) {
    let block = buffer
        .memory::<MemoryBlock>()
        .filter(|block| block.engine == engine);
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

#[cfg(test)]
mod tests {
    use super::{
        super::super::{Cpu, ElementKind, Engine, access::OpAccess},
        *,
    };
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn panics<R>(borrow: impl FnOnce() -> R) -> bool {
        catch_unwind(AssertUnwindSafe(borrow)).is_err()
    }

    #[test]
    fn what_is_written_is_lent_once_and_read_by_nobody() {
        let cpu = Cpu::new(1).expect("there are threads");
        let all = cpu.buffer(40).expect("there is memory").f32s();
        let (input, output, other) = (all.part(0, 4), all.part(4, 4), all.part(8, 2));
        let access = OpAccess::default()
            .read("input", &input, ElementKind::F32, 4)
            .and_then(|access| access.write("output", &output, ElementKind::F32, 4))
            .and_then(OpAccess::check)
            .expect("they lie side by side");
        // SAFETY: nothing else uses this engine.
        let memory = unsafe { CpuMemory::new(cpu.id, &access) };
        let written = memory.write::<f32>(&output);
        written.copy_from_slice(&[1.0; 4]);
        assert_eq!(memory.read::<f32>(&input), [0.0; 4]);
        assert_eq!(written, [1.0; 4]);
        assert!(panics(|| memory.write::<f32>(&output)), "twice");
        assert!(panics(|| memory.write::<f32>(&input)), "what is read");
        assert!(panics(|| memory.read::<f32>(&output)), "what is written");
        assert!(panics(|| memory.read::<f32>(&other)), "what is not named");
        assert!(panics(|| memory.write::<f32>(&all)), "more than is named");
    }

    #[test]
    fn what_is_computed_in_place_is_borrowed_as_output_only() {
        let cpu = Cpu::new(1).expect("there are threads");
        let view = cpu.buffer(16).expect("there is memory").f32s();
        let access = OpAccess::default()
            .read_in_place("x", &view, ElementKind::F32, 4)
            .and_then(|access| access.write("y", &view, ElementKind::F32, 4))
            .and_then(OpAccess::check)
            .expect("in place");
        // SAFETY: nothing else uses this engine.
        let memory = unsafe { CpuMemory::new(cpu.id, &access) };
        assert!(panics(|| memory.read::<f32>(&view)));
        assert_eq!(memory.write::<f32>(&view), [0.0; 4]);
    }
}
