//! Memory that a worker's process and this one share: values and gradients, side by side.

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap},
};
use std::{io, ops::Range, os::fd::OwnedFd, ptr::NonNull};

/// Values of an arena from this size on are written past the cache, in which they would not stay
/// until the worker reads them: so memory that is overwritten wholly is not read before. From there
/// on huge pages are worth asking for, too.
const STREAMED_BYTES: usize = 32 << 20;

/// Values of `len` f32, then as many for gradients. The file cannot shrink: no access of it fails,
/// whatever the worker does.
///
/// The worker may write at any time what this process reads. It spoils nothing but its own training
/// with that: f32 have no invalid bits, and nothing is read twice.
pub struct Arena {
    file: OwnedFd,
    base: NonNull<f32>,
    len: usize,
}

// SAFETY: the mapping lives as long as the arena, and is only reached through its methods.
unsafe impl Send for Arena {}
// SAFETY: as above; who may write what at a time is settled by `pserver-logic`.
unsafe impl Sync for Arena {}

impl Arena {
    /// Memory for `len` parameters. Pages come with their first use.
    pub fn new(len: u64) -> io::Result<Self> {
        let bytes = len.checked_mul(8).filter(|bytes| *bytes <= memory_bytes()).ok_or_else(|| {
            let why = format!(
                "{len} parameters and their gradients do not fit into the {} MiB of this machine",
                memory_bytes() >> 20
            );
            io::Error::new(io::ErrorKind::OutOfMemory, why)
        })?;
        let file = memfd_create(
            "nodectl-pserver",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&file, bytes)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping of a file that is as long, at an address that the kernel chooses.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes as usize,
                protection,
                flags,
                &file,
                0,
            )
        }?;
        if bytes as usize >= STREAMED_BYTES {
            // SAFETY: advice on that mapping, which changes no contents. A system without them says
            // no.
            let _ = unsafe { madvise(base, bytes as usize, Advice::LinuxHugepage) };
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            file,
            base,
            len: len as usize,
        })
    }

    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    pub fn bytes(&self) -> u64 {
        self.len as u64 * 8
    }

    /// Values in a range of the arena.
    pub fn values(&self, range: Range<u64>) -> &[f32] {
        self.slice(0, range)
    }

    /// Gradients in a range of the arena.
    pub fn gradients(&self, range: Range<u64>) -> &[f32] {
        self.slice(self.len, range)
    }

    fn slice(&self, offset: usize, range: Range<u64>) -> &[f32] {
        let (start, end) = (range.start as usize, range.end as usize);
        assert!(start <= end && end <= self.len, "a range of the layout");
        // SAFETY: inside the mapping, which is aligned to pages.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset + start), end - start) }
    }

    /// Writes values that the worker reads.
    pub fn write_values(&self, start: u64, from: &[f32]) {
        let start = start as usize;
        if self.len * 4 < STREAMED_BYTES {
            return self.write(start, self.len, from);
        }
        assert!(start + from.len() <= self.len, "a range of the layout");
        // SAFETY: inside the mapping; `from` is other memory.
        unsafe { stream(from, self.base.as_ptr().add(start)) }
    }

    /// Writes gradients in the worker's place.
    pub fn write_gradients(&self, start: u64, from: &[f32]) {
        self.write(self.len + start as usize, 2 * self.len, from);
    }

    fn write(&self, start: usize, limit: usize, from: &[f32]) {
        assert!(start + from.len() <= limit, "a range of the layout");
        // SAFETY: inside the mapping; `from` is other memory.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), self.base.as_ptr().add(start), from.len())
        }
    }
}

/// Copies past the cache.
///
/// # Safety
/// There is room behind `to`, which `from` does not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(from: &[f32], to: *mut f32) {
    use std::arch::x86_64::{__m128, _mm_loadu_ps, _mm_sfence, _mm_stream_ps};
    const LANES: usize = 4;
    let unaligned = to.align_offset(align_of::<__m128>()).min(from.len());
    let whole = (from.len() - unaligned) / LANES * LANES;
    let end = unaligned + whole;
    // SAFETY: all is inside of `from` and of the room behind `to`; what is streamed begins where a
    // register may.
    unsafe {
        std::ptr::copy_nonoverlapping(from.as_ptr(), to, unaligned);
        for at in (unaligned..end).step_by(LANES) {
            _mm_stream_ps(to.add(at), _mm_loadu_ps(from.as_ptr().add(at)));
        }
        std::ptr::copy_nonoverlapping(from.as_ptr().add(end), to.add(end), from.len() - end);
        // Before anybody is told.
        _mm_sfence();
    }
}

/// # Safety
/// There is room behind `to`, which `from` does not overlap.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(from: &[f32], to: *mut f32) {
    // SAFETY: as promised.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody has a reference any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len * 8) };
    }
}

fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_where_they_belong_past_the_cache_or_not() {
        for len in [1 << 10, STREAMED_BYTES as u64 / 4] {
            let arena = Arena::new(len).unwrap();
            for (start, count) in [(0u64, 3usize), (5, 1), (64, 17), (101, 200), (len - 2, 2)] {
                let numbers: Vec<f32> = (1..=count).map(|number| number as f32).collect();
                arena.write_values(start, &numbers);
                assert_eq!(arena.values(start..start + count as u64), numbers);
            }
            assert_eq!(arena.values(3..6), [0.0, 0.0, 1.0]);
        }
    }
}
