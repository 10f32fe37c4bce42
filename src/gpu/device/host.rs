//! Host memory that the device reads and writes where it lies. Pooled, so that its pages are made,
//! and made known to the device, once.

use super::{DeviceError, memory::MemoryPool};
use bytes::Bytes;
use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::Arc,
};
use vulkano::{
    buffer::Subbuffer,
    device::{Device, DeviceOwned},
};

/// Bytes of host memory that transfers need no copy of: `Device::upload` takes them as they are,
/// and `Device::download_into` writes them. At first they are whatever their memory was used for
/// before. They go back to the pool when dropped, after the last transfer that uses them.
///
/// Host buffers are no part of the staging memory that other transfers wait for, so whoever keeps
/// some holds up nobody. How many there are at once is bounded by whoever asks for them.
pub struct HostBuffer {
    memory: Subbuffer<[u8]>,
    bytes: usize,
    pool: Arc<MemoryPool>,
}

/// What is uploaded.
#[derive(Debug)]
pub enum HostSource {
    /// Copied to memory that the device reads, by the device's thread.
    Bytes(Bytes),
    /// Read by the device where it is.
    Host(HostBuffer),
}

impl HostBuffer {
    pub(super) fn new(pool: &Arc<MemoryPool>, bytes: usize) -> Result<Self, DeviceError> {
        let memory = pool.take(bytes as u64)?;
        let buffer = Self {
            memory,
            bytes,
            pool: pool.clone(),
        };
        // Memory that the host sees is mapped for as long as it lives.
        match buffer.memory.mapped_slice() {
            Ok(_) => Ok(buffer),
            Err(error) => Err(DeviceError::invalid(error)),
        }
    }

    /// Keeps the first bytes, at most `bytes`.
    pub fn truncate(&mut self, bytes: usize) {
        self.bytes = self.bytes.min(bytes);
    }

    pub(super) fn memory(&self) -> &Subbuffer<[u8]> {
        &self.memory
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        self.memory.device()
    }

    fn mapped(&self) -> NonNull<[u8]> {
        let mapped = self.memory.mapped_slice();
        mapped.expect("it was mapped when it was made, and stays so")
    }
}

impl Deref for HostBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is mapped, coherent and this buffer's alone. The device uses it only
        // while a transfer owns the buffer, and no transfer lends it to anyone.
        let all = unsafe { self.mapped().as_ref() };
        &all[..self.bytes]
    }
}

impl DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; there is one buffer for a piece of memory.
        let all = unsafe { self.mapped().as_mut() };
        &mut all[..self.bytes]
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        self.pool.give(self.memory.clone());
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer {{ bytes: {} }}", self.bytes)
    }
}

impl HostSource {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Host(buffer) => buffer.len(),
        }
    }
}

impl From<Bytes> for HostSource {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Vec<u8>> for HostSource {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl From<HostBuffer> for HostSource {
    fn from(buffer: HostBuffer) -> Self {
        Self::Host(buffer)
    }
}
