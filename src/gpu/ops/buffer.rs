//! Memory that ops work on: buffers of an engine, and typed views into them. Owns no memory itself;
//! does no IO.

use std::{any::Any, fmt, ops::Range, sync::Arc};

/// Memory of one engine. Clones are the same memory; it is given back with the last of them.
#[derive(Clone)]
pub struct Buffer {
    memory: Arc<dyn Any + Send + Sync>,
    bytes: u64,
}

impl Buffer {
    pub(super) fn new(memory: impl Any + Send + Sync, bytes: u64) -> Self {
        Self {
            memory: Arc::new(memory),
            bytes,
        }
    }

    /// What the engine made it of; `None` if that was another kind of engine.
    pub(super) fn memory<M: Any>(&self) -> Option<&M> {
        self.memory.downcast_ref()
    }

    /// The size of the buffer as it was asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The whole buffer as numbers of 32 bits.
    pub fn f32s(&self) -> BufferView {
        self.view(ElementKind::F32, 0, self.bytes / 4)
    }

    /// The whole buffer as unsigned integers of 32 bits.
    pub fn u32s(&self) -> BufferView {
        self.view(ElementKind::U32, 0, self.bytes / 4)
    }

    /// The whole buffer as numbers of 16 bits.
    pub fn f16s(&self) -> BufferView {
        self.view(ElementKind::F16, 0, self.bytes / 2)
    }

    /// `len` elements from element `offset` on. Whether they are inside is checked when an op is
    /// recorded.
    pub fn view(&self, kind: ElementKind, offset: u64, len: u64) -> BufferView {
        BufferView {
            buffer: self.clone(),
            kind,
            offset,
            len,
        }
    }

    fn is(&self, other: &Buffer) -> bool {
        Arc::as_ptr(&self.memory).cast::<()>() == Arc::as_ptr(&other.memory).cast::<()>()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

/// What the elements of a view are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementKind {
    F32,
    /// IEEE 754 binary16.
    F16,
    U32,
}

impl ElementKind {
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::F16 => 2,
        }
    }
}

impl fmt::Display for ElementKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::U32 => "u32",
        })
    }
}

/// `len` elements of a kind in a buffer, side by side, from element `offset` on.
#[derive(Clone, Debug)]
pub struct BufferView {
    pub buffer: Buffer,
    pub kind: ElementKind,
    pub offset: u64,
    pub len: u64,
}

impl BufferView {
    /// `len` elements of this view, from its element `offset` on.
    pub fn part(&self, offset: u64, len: u64) -> BufferView {
        BufferView {
            offset: self.offset + offset,
            len,
            ..self.clone()
        }
    }

    /// Both as one view, where `next` begins in the same buffer where this one ends.
    pub fn joined(&self, next: &BufferView) -> Option<BufferView> {
        let follows = self.buffer.is(&next.buffer)
            && self.kind == next.kind
            && self.offset + self.len == next.offset;
        follows.then(|| BufferView {
            len: self.len + next.len,
            ..self.clone()
        })
    }

    /// Bytes within the buffer. Only for views that `Access` has checked.
    pub(super) fn range(&self) -> Range<u64> {
        self.offset * self.kind.bytes()..(self.offset + self.len) * self.kind.bytes()
    }

    pub(super) fn is_inside(&self) -> bool {
        let end = self
            .offset
            .checked_add(self.len)
            .and_then(|end| end.checked_mul(self.kind.bytes()));
        end.is_some_and(|end| end <= self.buffer.bytes)
    }

    pub(super) fn overlaps(&self, other: &BufferView) -> bool {
        let (ours, theirs) = (self.range(), other.range());
        self.len > 0
            && other.len > 0
            && self.buffer.is(&other.buffer)
            && ours.start < theirs.end
            && theirs.start < ours.end
    }

    pub(super) fn is_same(&self, other: &BufferView) -> bool {
        self.buffer.is(&other.buffer) && self.range() == other.range() && self.kind == other.kind
    }
}
