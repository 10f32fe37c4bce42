//! Memory: buffers on the device, and the host's staging memory that transfers go through. Both are
//! pooled by size, since an allocation by the driver costs milliseconds, and both are given back
//! only when nothing uses them any more.

use super::{DeviceError, error::refused, info};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};
use vulkano::{
    DeviceSize, Validated, VulkanError,
    buffer::{
        AllocateBufferError, Buffer as VulkanBuffer, BufferCreateInfo, BufferUsage, Subbuffer,
    },
    device::{Device, DeviceOwned},
    memory::{
        DeviceAlignment, MemoryPropertyFlags,
        allocator::{
            AllocationCreateInfo, DeviceLayout, MemoryAllocatePreference, MemoryAllocatorError,
            MemoryTypeFilter, StandardMemoryAllocator,
        },
    },
    sync::Sharing,
};

/// The ways into the GPU, each in order by itself: the work of kernels, what comes and what goes.
pub(super) const LANES: usize = 3;
/// Memory of this size and more is the driver's own allocation, and goes back to it when dropped.
/// Smaller pieces share blocks that stay until the device ends.
const OWN_ALLOCATION_BYTES: u64 = 16 << 20;
/// The smallest piece. Multiples of it satisfy every alignment that the Vulkan specification allows
/// a device to ask for.
const SMALLEST_BYTES: u64 = 256;

/// Bytes of device memory. Clones name the same bytes. They go back to the pool when the last
/// clone, and the last recording or call that uses them, is gone.
#[derive(Clone)]
pub struct DeviceBuffer(pub(super) Arc<MemoryRegion>);

/// What a `DeviceBuffer` names.
pub(super) struct MemoryRegion {
    pub(super) memory: Subbuffer<[u8]>,
    pub(super) number: u64,
    bytes: u64,
    pool: Arc<MemoryPool>,
    /// The last submission of each lane that uses it. Only the device's thread writes them.
    pub(super) last_use: [AtomicU64; LANES],
}

impl DeviceBuffer {
    /// The size that was asked for.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Whether both name the same memory.
    pub fn is_same(&self, other: &DeviceBuffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn new(pool: &Arc<MemoryPool>, bytes: u64) -> Result<Self, DeviceError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let memory = pool.take(bytes)?;
        Ok(Self(Arc::new(MemoryRegion {
            memory,
            number,
            bytes,
            pool: pool.clone(),
            last_use: Default::default(),
        })))
    }

    /// The device that it is memory of.
    pub(super) fn device(&self) -> &Arc<Device> {
        self.0.memory.device()
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        self.pool.give(self.memory.clone());
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Buffer {{ number: {}, bytes: {} }}",
            self.0.number, self.0.bytes
        )
    }
}

/// Which memory a pool is of.
#[derive(Clone, Copy)]
pub(super) enum MemoryKind {
    Device,
    /// The host writes it, the device reads it.
    ToDevice,
    /// The device writes it, the host reads it: cached, since reading uncached memory is slower by
    /// orders of magnitude.
    FromDevice,
    /// Both write and read it, with nothing to flush between: coherent, and cached where there is
    /// such.
    Host,
}

/// Memory that was used before, by size.
pub(super) struct MemoryPool {
    allocator: Arc<StandardMemoryAllocator>,
    families: Vec<u32>,
    kind: MemoryKind,
    /// The largest piece that the device gives.
    largest: u64,
    /// How much of it may lie unused.
    keep_bytes: u64,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    by_size: BTreeMap<u64, Vec<Subbuffer<[u8]>>>,
    bytes: u64,
}

impl MemoryPool {
    pub(super) fn new(
        allocator: &Arc<StandardMemoryAllocator>,
        families: &[u32],
        kind: MemoryKind,
        largest: u64,
        keep_bytes: u64,
    ) -> Arc<Self> {
        let (allocator, families, free) = (allocator.clone(), families.to_vec(), Mutex::default());
        Arc::new(Self {
            allocator,
            families,
            kind,
            largest,
            keep_bytes,
            free,
        })
    }

    /// At least `bytes`, with whatever was in it.
    pub(super) fn take(&self, bytes: u64) -> Result<Subbuffer<[u8]>, DeviceError> {
        let size = size_class(bytes);
        if let Some(memory) = self.reuse(size) {
            return Ok(memory);
        }
        let out_of_memory = || DeviceError::OutOfMemory {
            wanted: bytes,
            free: info::memory_free(self.physical()),
        };
        if size > self.largest {
            return Err(out_of_memory());
        }
        let first = self.allocate(size);
        let second = if matches!(first, Err(DeviceError::OutOfMemory { .. })) && self.forget() {
            self.allocate(size)
        } else {
            first
        };
        second.map_err(|error| {
            if error.is_final() {
                error
            } else {
                out_of_memory()
            }
        })
    }

    pub(super) fn give(&self, memory: Subbuffer<[u8]>) {
        let size = memory.size();
        let mut free = self
            .free
            .lock()
            .expect("no code panics while it holds this lock");
        if free.bytes + size <= self.keep_bytes {
            free.bytes += size;
            free.by_size.entry(size).or_default().push(memory);
        }
    }

    fn reuse(&self, size: u64) -> Option<Subbuffer<[u8]>> {
        let mut free = self
            .free
            .lock()
            .expect("no code panics while it holds this lock");
        let memory = free.by_size.get_mut(&size)?.pop()?;
        free.bytes -= size;
        Some(memory)
    }

    /// Drops what lies unused. Whether there was something.
    fn forget(&self) -> bool {
        let dropped = std::mem::take(
            &mut *self
                .free
                .lock()
                .expect("no code panics while it holds this lock"),
        );
        dropped.bytes > 0
    }

    fn allocate(&self, size: u64) -> Result<Subbuffer<[u8]>, DeviceError> {
        let transfer = BufferUsage::TRANSFER_SRC | BufferUsage::TRANSFER_DST;
        let (usage, memory_type_filter) = match self.kind {
            MemoryKind::Device => (
                transfer | BufferUsage::STORAGE_BUFFER | BufferUsage::UNIFORM_BUFFER,
                MemoryTypeFilter::PREFER_DEVICE,
            ),
            MemoryKind::ToDevice => (
                transfer,
                MemoryTypeFilter::PREFER_HOST.union(MemoryTypeFilter::HOST_SEQUENTIAL_WRITE),
            ),
            // Also where a device has no memory that both sees it and caches it.
            MemoryKind::FromDevice => (
                transfer,
                MemoryTypeFilter {
                    required_flags: MemoryPropertyFlags::HOST_VISIBLE,
                    preferred_flags: MemoryPropertyFlags::HOST_CACHED,
                    not_preferred_flags: MemoryPropertyFlags::DEVICE_LOCAL,
                },
            ),
            // Every device has memory that is visible and coherent.
            MemoryKind::Host => (
                transfer,
                MemoryTypeFilter {
                    required_flags: MemoryPropertyFlags::HOST_VISIBLE
                        | MemoryPropertyFlags::HOST_COHERENT,
                    preferred_flags: MemoryPropertyFlags::HOST_CACHED,
                    not_preferred_flags: MemoryPropertyFlags::DEVICE_LOCAL,
                },
            ),
        };
        let sharing = match self.families.as_slice() {
            [] | [_] => Sharing::Exclusive,
            several => Sharing::Concurrent(several.iter().copied().collect()),
        };
        let own = size >= OWN_ALLOCATION_BYTES;
        let allocate_preference = if own {
            MemoryAllocatePreference::AlwaysAllocate
        } else {
            MemoryAllocatePreference::Unknown
        };
        let alignment = DeviceAlignment::new(SMALLEST_BYTES).expect("a power of two");
        let layout =
            DeviceLayout::from_size_alignment(size as DeviceSize, alignment.as_devicesize())
                .ok_or(DeviceError::OutOfMemory {
                    wanted: size,
                    free: None,
                })?;
        let buffer = VulkanBuffer::new(
            self.allocator.clone(),
            BufferCreateInfo {
                usage,
                sharing,
                ..Default::default()
            },
            AllocationCreateInfo {
                memory_type_filter,
                allocate_preference,
                ..Default::default()
            },
            layout,
        );
        buffer.map(Subbuffer::new).map_err(not_allocated)
    }

    fn physical(&self) -> &vulkano::device::physical::PhysicalDevice {
        self.allocator.device().physical_device()
    }
}

fn not_allocated(error: Validated<AllocateBufferError>) -> DeviceError {
    let refused = refused::<Validated<VulkanError>>("allocating memory");
    match error {
        Validated::ValidationError(why) => refused(Validated::ValidationError(why)),
        Validated::Error(
            AllocateBufferError::CreateBuffer(error) | AllocateBufferError::BindMemory(error),
        ) => refused(error.into()),
        Validated::Error(AllocateBufferError::AllocateMemory(
            MemoryAllocatorError::AllocateDeviceMemory(error),
        )) => refused(error),
        Validated::Error(AllocateBufferError::AllocateMemory(other)) => DeviceError::invalid(other),
    }
}

/// Four sizes an octave: at most a fifth is wasted, and pieces are found again.
fn size_class(bytes: u64) -> u64 {
    let bytes = bytes.max(SMALLEST_BYTES);
    let step = (bytes.div_ceil(2))
        .checked_next_power_of_two()
        .unwrap_or(1 << 63)
        / 4;
    bytes
        .checked_next_multiple_of(step.max(4))
        .unwrap_or(u64::MAX)
}

/// Host memory on its way to or from the device: a pool, and a bound on what is used at once.
pub(super) struct Staging {
    pool: Arc<MemoryPool>,
    limit: u64,
    used: Mutex<u64>,
    freed: Condvar,
}

/// A piece of staging memory; back in the pool when dropped.
pub(super) struct StagingPiece {
    pub(super) memory: Subbuffer<[u8]>,
    staging: Arc<Staging>,
}

impl Staging {
    pub(super) fn new(pool: Arc<MemoryPool>, limit: u64) -> Arc<Self> {
        Arc::new(Self {
            pool,
            limit,
            used: Mutex::new(0),
            freed: Condvar::new(),
        })
    }

    /// Whether `take` would have to wait.
    pub(super) fn is_full(&self, bytes: u64) -> bool {
        self.lacks(
            *self
                .used
                .lock()
                .expect("no code panics while it holds this lock"),
            size_class(bytes),
        )
    }

    /// Waits until what is used at once leaves room for `bytes`.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> Result<StagingPiece, DeviceError> {
        let size = size_class(bytes);
        let mut used = self
            .used
            .lock()
            .expect("no code panics while it holds this lock");
        while self.lacks(*used, size) {
            used = self
                .freed
                .wait(used)
                .expect("no code panics while it holds this lock");
        }
        let memory = self.pool.take(bytes)?;
        *used += memory.size();
        Ok(StagingPiece {
            memory,
            staging: self.clone(),
        })
    }

    /// One piece larger than the limit is let through alone.
    fn lacks(&self, used: u64, size: u64) -> bool {
        used > 0 && used + size > self.limit
    }
}

impl Drop for StagingPiece {
    fn drop(&mut self) {
        let mut used = self
            .staging
            .used
            .lock()
            .expect("no code panics while it holds this lock");
        *used -= self.memory.size();
        self.staging.pool.give(self.memory.clone());
        self.staging.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sizes_hold_what_was_asked_for_and_waste_little(bytes in 0u64..1 << 50) {
            let size = size_class(bytes);
            prop_assert!(size >= bytes && size >= SMALLEST_BYTES && size.is_multiple_of(4));
            prop_assert!(size <= SMALLEST_BYTES || size - bytes <= bytes / 4);
            prop_assert_eq!(size_class(size), size, "a size is its own class");
        }
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        assert!(size_class(u64::MAX) >= u64::MAX - 3);
        assert!(size_class(1 << 63) >= 1 << 63);
    }
}
