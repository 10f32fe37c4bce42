//! One GPU through Vulkan: buffers, kernels, recordings, and calls that return at once. Loads
//! drivers, so it belongs in worker processes, never in a node's own.
//!
//! | file | owns |
//! |---|---|
//! | `open` | loader, layers, which device is taken, what is switched on, its queues |
//! | `info` | what a device is and can do |
//! | `calls` | the queue of calls, and `Pending` |
//! | `thread`, `landing` | the thread that submits, and the one that answers |
//! | `readback` | what was read, copied to memory of whoever asked for it |
//! | `lane` | a Vulkan queue and its timeline |
//! | `memory` | `DeviceBuffer`, pools of device memory, staging memory |
//! | `host` | `HostBuffer`: memory of the host that transfers need no copy of |
//! | `kernel`, `pipeline`, `reflect` | compiled kernels and what they expect |
//! | `recording`, `hazards` | `Step`, its checks, its barriers |
//! | `recorded`, `commands` | what was recorded, and the command buffers that are submitted |
//! | `cut`, `pace` | how much is submitted at once |
//! | `learned` | what is known of kernels on this device, from process to process |
//! | `error` | `DeviceError` |
//!
//! Calls take effect in order, as if one after the other. Where a device has queues for transfers,
//! those of buffers that a run does not touch overlap it; timeline semaphores order the rest.

mod calls;
mod commands;
mod cut;
mod error;
mod hazards;
mod host;
pub(super) mod info;
mod kernel;
mod landing;
mod lane;
mod learned;
mod memory;
pub(super) mod open;
mod pace;
mod pipeline;
mod readback;
mod recorded;
mod recording;
mod reflect;
#[cfg(test)]
mod tests;
mod thread;

pub use calls::PendingCall;
pub use error::DeviceError;
pub(super) use error::{NO_DRIVER, no_loader};
pub use host::{HostBuffer, HostSource};
pub use info::{CooperativeShape, DeviceFeatures, DeviceInfo, DeviceLimits};
pub use kernel::{Constant, Kernel, KernelSource};
pub use learned::learned_folder;
pub use memory::DeviceBuffer;
pub use recording::{BufferBinding, DeviceRecording, RecordingStep};

use calls::{Calls, DeviceCall};
use commands::CommandWriter;
use kernel::Kernels;
use learned::Learned;
use memory::{MemoryKind, MemoryPool, Staging};
use open::{Messages, Opened, WantedDevice};
use recording::DeviceRecorder;
use std::{
    fmt,
    ops::Range,
    path::PathBuf,
    sync::{Arc, OnceLock, mpsc::Receiver},
    time::Duration,
};
use vulkano::{
    command_buffer::allocator::StandardCommandBufferAllocator,
    descriptor_set::allocator::StandardDescriptorSetAllocator,
    memory::allocator::StandardMemoryAllocator,
};

/// Staging memory that is in use at once, in each direction.
const STAGING_BYTES: u64 = 128 << 20;
/// Memory of dropped `HostBuffer`s that is kept for the next.
const HOST_KEEP_BYTES: u64 = 4 << 30;
/// How long an allocation waits for earlier work to free memory.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);
/// How long the last handle waits for the work that was submitted.
const END_LIMIT: Duration = Duration::from_secs(5);

/// How to open a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Checks every call by VK_LAYER_KHRONOS_validation, where it is installed; what it says
    /// becomes an error of a call.
    pub validation: bool,
    /// Software devices may be taken.
    pub software: bool,
    /// The folder where what is learned of devices stays, for the next process: how long kernels
    /// take, and which ways are fast. It is made if it is missing.
    pub learned: Option<PathBuf>,
}

/// A GPU. Clones name the same one; it ends with the last.
#[derive(Clone)]
pub struct Device(Arc<DeviceHandle>);

struct DeviceHandle {
    kernels: Kernels,
    memory: Arc<MemoryPool>,
    host: Arc<MemoryPool>,
    writer: CommandWriter,
    sets: Arc<StandardDescriptorSetAllocator>,
    learned: Arc<Learned>,
    calls: Arc<Calls>,
    failure: Arc<DeviceFailure>,
    ended: std::sync::Mutex<Receiver<()>>,
    /// Last, so that the validation layers are heard until the device is gone.
    opened: Opened,
}

/// Why the device can no longer be used, once it cannot, and what validation said.
pub(crate) struct DeviceFailure {
    error: OnceLock<DeviceError>,
    messages: Arc<Messages>,
}

impl Device {
    /// Opens the device with this UUID, as `types::Gpu` has it.
    ///
    /// # Errors
    /// `NoLoader` and `NoDriver` where Vulkan is not installed; `NoSuchDevice`, which tells what is
    /// there.
    pub fn open(uuid: [u8; 16], options: &DeviceOptions) -> Result<Self, DeviceError> {
        Self::start(open::open(WantedDevice::Uuid(uuid), options)?, options)
    }

    /// Opens the best device: discrete before integrated before virtual, software last and only if
    /// allowed.
    ///
    /// # Errors
    /// As `open`.
    pub fn any(options: &DeviceOptions) -> Result<Self, DeviceError> {
        Self::start(open::open(WantedDevice::Best, options)?, options)
    }

    fn start(opened: Opened, options: &DeviceOptions) -> Result<Self, DeviceError> {
        let device = &opened.device;
        let allocator = Arc::new(StandardMemoryAllocator::new_default(device.clone()));
        let mut families: Vec<u32> = opened
            .queues
            .iter()
            .map(|queue| queue.queue_family_index())
            .collect();
        families.sort_unstable();
        families.dedup();
        let (largest, own) = (
            opened.info.limits.buffer_bytes,
            opened.info.gpu.memory_bytes,
        );
        let pool = |kind, keep| MemoryPool::new(&allocator, &families, kind, largest, keep);
        let staging = |kind| Staging::new(pool(kind, STAGING_BYTES), STAGING_BYTES);
        let writer = || CommandWriter {
            device: device.clone(),
            commands: Arc::new(StandardCommandBufferAllocator::new(
                device.clone(),
                Default::default(),
            )),
            family: opened.queues[0].queue_family_index(),
        };
        let learned = Arc::new(Learned::open(options.learned.as_deref(), &opened.info));
        let failure = Arc::new(DeviceFailure {
            error: OnceLock::new(),
            messages: opened.messages.clone(),
        });
        let calls = Arc::new(Calls::default());
        let setup = thread::Setup {
            calls: calls.clone(),
            failure: failure.clone(),
            writer: writer(),
            learned: learned.clone(),
            to_device: staging(MemoryKind::ToDevice),
            from_device: staging(MemoryKind::FromDevice),
        };
        let ended = thread::start(setup, &opened)?;
        Ok(Self(Arc::new(DeviceHandle {
            memory: pool(MemoryKind::Device, own / 4),
            host: pool(MemoryKind::Host, HOST_KEEP_BYTES),
            kernels: Kernels::default(),
            sets: Arc::new(StandardDescriptorSetAllocator::new(
                device.clone(),
                Default::default(),
            )),
            writer: writer(),
            learned,
            calls,
            failure,
            ended: ended.into(),
            opened,
        })))
    }

    pub fn info(&self) -> &DeviceInfo {
        &self.0.opened.info
    }

    /// Whether validation was asked for and its layers are installed.
    pub fn is_validated(&self) -> bool {
        self.0.opened.listener.is_some()
    }

    /// Device memory of that many bytes, all zero.
    ///
    /// # Errors
    /// `OutOfMemory`, also for more than the device gives in one piece
    /// (`DeviceLimits::buffer_bytes`). Where memory is short, earlier calls are waited for first,
    /// since they may hold some that was dropped.
    pub fn buffer(&self, bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        self.0.failure.verdict()?;
        let first = DeviceBuffer::new(&self.0.memory, bytes);
        let buffer = match first {
            // Dropped memory may be in use by calls that have not ended.
            Err(DeviceError::OutOfMemory { .. }) if bytes <= self.info().limits.buffer_bytes => {
                self.settle()?;
                DeviceBuffer::new(&self.0.memory, bytes)?
            }
            other => other?,
        };
        self.0.calls.push(
            DeviceCall::Zero {
                buffer: buffer.clone(),
            },
            &self.0.failure,
        );
        Ok(buffer)
    }

    /// Host memory of that many bytes, which transfers need no copy of.
    ///
    /// # Errors
    /// As `buffer`.
    pub fn host_buffer(&self, bytes: usize) -> Result<HostBuffer, DeviceError> {
        self.0.failure.verdict()?;
        match HostBuffer::new(&self.0.host, bytes) {
            // Dropped memory may be in use by calls that have not ended.
            Err(DeviceError::OutOfMemory { .. })
                if bytes as u64 <= self.info().limits.buffer_bytes =>
            {
                self.settle()?;
                HostBuffer::new(&self.0.host, bytes)
            }
            other => other,
        }
    }

    /// Waits until all earlier calls have ended.
    fn settle(&self) -> Result<(), DeviceError> {
        let (pending, reply) =
            PendingCall::new("the work before an allocation".into(), &self.0.failure);
        self.0
            .calls
            .push(DeviceCall::Settle { reply }, &self.0.failure);
        pending.wait(SETTLE_LIMIT)
    }

    /// Compiles a kernel, or finds it if the same was compiled before. May take seconds, on the
    /// caller's thread.
    ///
    /// # Errors
    /// `Invalid`: malformed SPIR-V, a missing entry point, constants that do not match, a workgroup
    /// that is too large, something else than buffers among the bindings, or what the driver's
    /// compiler says.
    pub fn kernel(&self, source: &KernelSource<'_>) -> Result<Kernel, DeviceError> {
        let kernel = self
            .0
            .kernels
            .get(&self.0.opened.device, self.info(), source)?;
        self.0.failure.verdict()?;
        Ok(kernel)
    }

    /// Checks the steps, and records them with a barrier before each one that depends on an earlier
    /// one. A run of them is cut into submissions of about 200 ms, also between the workgroups of a
    /// dispatch, by what is known of how long its kernels take here; a kernel that asks for the
    /// number of workgroups cannot be cut.
    ///
    /// # Errors
    /// `Invalid` names the step and what is wrong with it; nothing has reached the GPU then.
    pub fn record(&self, steps: Vec<RecordingStep>) -> Result<DeviceRecording, DeviceError> {
        let recorder = DeviceRecorder {
            writer: &self.0.writer,
            info: self.info(),
            sets: &self.0.sets,
            learned: &self.0.learned,
        };
        let recording = recorder.record(steps)?;
        self.0.failure.verdict()?;
        Ok(recording)
    }

    /// Writes bytes into the buffer from byte `offset` on. Those of a `HostBuffer` are not copied
    /// before.
    pub fn upload(
        &self,
        to: &DeviceBuffer,
        offset: u64,
        source: impl Into<HostSource>,
    ) -> PendingCall<()> {
        let source = source.into();
        let range = match recording::inside(to, offset, source.len() as u64) {
            Ok(range) => range,
            Err(why) => return self.invalid(format!("uploading: {why}")),
        };
        if let HostSource::Host(buffer) = &source
            && buffer.device() != &self.0.opened.device
        {
            return self.invalid("it belongs to another device".into());
        }
        let (pending, reply) =
            PendingCall::new(format!("uploading {} bytes", source.len()), &self.0.failure);
        if range.is_empty() {
            let _ = reply.try_send(self.0.failure.verdict());
            return pending;
        }
        self.call(
            to.device(),
            DeviceCall::Upload {
                to: to.clone(),
                offset,
                source,
                reply,
            },
            pending,
        )
    }

    /// Runs a recording, once more.
    pub fn run(&self, recording: &DeviceRecording) -> PendingCall<()> {
        let (pending, reply) = PendingCall::new("running a recording".into(), &self.0.failure);
        self.call(
            recording.device(),
            DeviceCall::Run {
                recording: recording.clone(),
                reply,
            },
            pending,
        )
    }

    /// The longest that a submission of kernels has taken since this was last asked.
    pub fn take_longest(&self) -> Duration {
        self.0.learned.take_longest()
    }

    /// Which way of doing `what` was found to be the fastest here, by this process or an earlier
    /// one.
    pub(super) fn choice(&self, what: &str) -> Option<String> {
        self.0.learned.choice(what)
    }

    /// Notes which way of doing `what` is the fastest here.
    pub(super) fn choose(&self, what: &str, way: &str) {
        self.0.learned.choose(what, way);
    }

    /// Reads bytes of a buffer.
    pub fn download(&self, from: &DeviceBuffer, range: Range<u64>) -> PendingCall<Vec<u8>> {
        if let Err(why) = recording::check_range(from, &range) {
            return self.invalid(format!("downloading: {why}"));
        }
        let what = format!("downloading {} bytes", range.end - range.start);
        let (pending, reply) = PendingCall::new(what, &self.0.failure);
        if range.is_empty() {
            let _ = reply.try_send(self.0.failure.verdict().map(|()| Vec::new()));
            return pending;
        }
        self.call(
            from.device(),
            DeviceCall::Download {
                from: from.clone(),
                range,
                reply,
            },
            pending,
        )
    }

    /// Reads bytes of a buffer into host memory from `offset` on: as many as `into` has. It comes
    /// back with them; where that fails, it goes to the pool.
    pub fn download_into(
        &self,
        from: &DeviceBuffer,
        offset: u64,
        into: HostBuffer,
    ) -> PendingCall<HostBuffer> {
        let range = match recording::inside(from, offset, into.len() as u64) {
            Ok(range) => range,
            Err(why) => return self.invalid(format!("downloading: {why}")),
        };
        if into.device() != &self.0.opened.device {
            return self.invalid("it belongs to another device".into());
        }
        let what = format!("downloading {} bytes", into.len());
        let (pending, reply) = PendingCall::new(what, &self.0.failure);
        if range.is_empty() {
            let _ = reply.try_send(self.0.failure.verdict().map(|()| into));
            return pending;
        }
        self.call(
            from.device(),
            DeviceCall::DownloadInto {
                from: from.clone(),
                offset,
                into,
                reply,
            },
            pending,
        )
    }

    fn call<T>(
        &self,
        owner: &Arc<vulkano::device::Device>,
        call: DeviceCall,
        pending: PendingCall<T>,
    ) -> PendingCall<T> {
        if owner != &self.0.opened.device {
            return self.invalid("it belongs to another device".into());
        }
        match self.0.failure.get() {
            Some(error) => PendingCall::failed(error, &self.0.failure),
            None => {
                self.0.calls.push(call, &self.0.failure);
                pending
            }
        }
    }

    fn invalid<T>(&self, why: String) -> PendingCall<T> {
        PendingCall::failed(DeviceError::Invalid(why), &self.0.failure)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device {{ name: {:?} }}", self.info().gpu.name)
    }
}

impl Drop for DeviceHandle {
    fn drop(&mut self) {
        self.calls.close();
        // Drivers do not like a process that exits while they work. A device that hangs is left
        // behind.
        if let Ok(ended) = self.ended.get_mut() {
            let _ = ended.recv_timeout(END_LIMIT);
        }
        if let Err(error) = self.failure.verdict() {
            tracing::debug!(%error, "the device ended with an error that nobody waited for");
        }
    }
}

impl DeviceFailure {
    /// The first error stays.
    fn set(&self, error: DeviceError) {
        let _ = self.error.set(error);
    }

    fn get(&self) -> Option<DeviceError> {
        self.error.get().cloned()
    }

    /// What a call that succeeded by itself answers.
    fn verdict(&self) -> Result<(), DeviceError> {
        if let Some(error) = self.get() {
            return Err(error);
        }
        let said = std::mem::take(
            &mut *self
                .messages
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner()),
        );
        if said.is_empty() {
            Ok(())
        } else {
            Err(DeviceError::Invalid(format!(
                "validation: {}",
                said.join("\n")
            )))
        }
    }

    fn ended() -> DeviceError {
        DeviceError::lost("its thread has ended")
    }
}
