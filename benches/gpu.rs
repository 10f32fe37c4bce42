//! What the device costs over Vulkan itself: launching a recording, waiting for it, copying on the
//! device, to it and from it. On the best GPU here; a software one where there is no other, with
//! less work. `-- --runs N` (10,000; 1,000).

mod support;

use bytes::Bytes;
use nodectl::{
    gpu::device::{
        BufferBinding, Device, DeviceBuffer, DeviceRecording, KernelSource, PendingCall,
        RecordingStep,
    },
    types::GpuKind,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use support::{best_device, number, report};
use vulkano::{
    VulkanLibrary,
    command_buffer::{
        AutoCommandBufferBuilder, CommandBufferSubmitInfo, CommandBufferUsage,
        PrimaryAutoCommandBuffer, SubmitInfo, allocator::StandardCommandBufferAllocator,
    },
    device::{Device as VulkanDevice, DeviceCreateInfo, Queue, QueueCreateInfo, QueueFlags},
    instance::{Instance, InstanceCreateInfo},
    sync::fence::{Fence, FenceCreateInfo},
};

const LIMIT: Duration = Duration::from_secs(60);
const COPY: &[u8] = include_bytes!("../shaders/measure_copy.spv");

fn main() {
    let Some(device) = best_device() else {
        return;
    };
    let gpu = &device.info().gpu;
    report::title(&format!(
        "gpu: {} ({}), {:?}",
        gpu.name, gpu.driver, gpu.kind
    ));
    let software = gpu.kind == GpuKind::Software;
    let runs = number("--runs", if software { 1_000 } else { 10_000 });
    let raw = Raw::open(gpu.uuid);
    launches(&device, &raw, runs);
    let bytes = if software { 16 << 20 } else { 1 << 30 };
    on_the_device(&device, bytes);
    transfers(&device, bytes.min(256 << 20));
    overlap(&device, bytes.min(64 << 20));
}

/// A recording of one tiny step, against an empty command buffer submitted directly.
fn launches(device: &Device, raw: &Raw, runs: usize) {
    let buffer = device.buffer(4).expect("memory for a word");
    let fill = RecordingStep::Fill {
        buffer: buffer.clone(),
        range: 0..4,
        value: 1,
    };
    let recording = device.record(vec![fill]).expect("a step");
    device.run(&recording).wait(LIMIT).expect("a run");

    let each = |took: Duration| took.as_secs_f64() * 1e6 / runs as f64;
    let began = Instant::now();
    let pending: Vec<PendingCall<()>> = (0..runs).map(|_| device.run(&recording)).collect();
    for run in pending {
        run.wait(LIMIT).expect("a run");
    }
    let ours = each(began.elapsed());
    beside(
        "launches in a row, each",
        ours,
        "bare submits of nothing",
        each(raw.submit_many(runs)),
        "µs",
    );

    let ours = percentile_us(runs, || device.run(&recording).wait(LIMIT).expect("a run"));
    let bare = percentile_us(runs, || raw.submit_and_wait());
    beside(
        "launch until it is known to have ended, p50",
        ours,
        "bare submit and fence",
        bare,
        "µs",
    );
}

/// Both sides of a ratio.
fn beside(what: &str, measured: f64, other: &str, reference: f64, unit: &str) {
    let reference = format!(
        "{other}: {reference:.1} {unit}; ratio {:.2}",
        measured / reference
    );
    report::value(what, measured, unit, &reference);
}

fn percentile_us(runs: usize, mut run: impl FnMut()) -> f64 {
    let samples: Vec<Duration> = (0..runs)
        .map(|_| {
            let began = Instant::now();
            run();
            began.elapsed()
        })
        .collect();
    report::percentile(&samples, 50) * 1e3
}

/// The copying shader against `vkCmdCopyBuffer`. Bytes are counted twice: read and written.
fn on_the_device(device: &Device, bytes: u64) {
    let bytes = bytes.min(device.info().limits.storage_range) / 16 * 16;
    let (from, to) = (memory(device, bytes), memory(device, bytes));
    let spirv: Vec<u32> = COPY
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
        .collect();
    let source = KernelSource {
        spirv: &spirv,
        entry: "main",
        constants: &[],
        name: "measure_copy",
    };
    let kernel = device.kernel(&source).expect("a shipped shader");
    let groups = (bytes / 16)
        .div_ceil(256)
        .min(u64::from(device.info().limits.workgroup_count[0])) as u32;
    let bindings = vec![BufferBinding::whole(0, &from), BufferBinding::whole(1, &to)];
    let shader = gb_per_s(
        device,
        bytes,
        RecordingStep::Dispatch {
            kernel,
            bindings,
            push: Vec::new(),
            groups: [groups, 1, 1],
        },
    );
    let command = gb_per_s(
        device,
        bytes,
        RecordingStep::Copy {
            from,
            from_offset: 0,
            to,
            to_offset: 0,
            bytes,
        },
    );
    beside(
        "copy on the device, by a shader",
        shader,
        "vkCmdCopyBuffer",
        command,
        "GB/s",
    );
}

fn gb_per_s(device: &Device, bytes: u64, step: RecordingStep) -> f64 {
    const REPEATS: usize = 16;
    let recording = device.record(vec![step; REPEATS]).expect("steps");
    device.run(&recording).wait(LIMIT).expect("a run");
    let took = best(3, || device.run(&recording).wait(LIMIT).expect("a run"));
    2.0 * bytes as f64 * REPEATS as f64 / took / 1e9
}

/// To the device and back, against a copy of the same bytes in host memory.
fn transfers(device: &Device, bytes: u64) {
    let buffer = memory(device, bytes);
    let data = Bytes::from(vec![7u8; bytes as usize]);
    let gb = bytes as f64 / 1e9;
    let mut copied = vec![0u8; bytes as usize];
    let host = gb
        / best(5, || {
            std::hint::black_box(&mut copied).copy_from_slice(&data)
        });
    let upload = gb
        / best(5, || {
            device
                .upload(&buffer, 0, data.clone())
                .wait(LIMIT)
                .expect("an upload")
        });
    let download = gb
        / best(5, || {
            drop(
                device
                    .download(&buffer, 0..bytes)
                    .wait(LIMIT)
                    .expect("a download"),
            )
        });
    beside("upload", upload, "copy in host memory", host, "GB/s");
    beside("download", download, "copy in host memory", host, "GB/s");
    // What the device reads and writes where it lies.
    let pinned = || {
        device
            .host_buffer(bytes as usize)
            .expect("memory of the host")
    };
    pinned().fill(7);
    let upload = gb
        / best(5, || {
            let upload = device.upload(&buffer, 0, pinned());
            upload.wait(LIMIT).expect("an upload");
        });
    let download = gb
        / best(5, || {
            let download = device.download_into(&buffer, 0, pinned());
            drop(download.wait(LIMIT).expect("a download"));
        });
    beside(
        "upload without a copy",
        upload,
        "copy in host memory",
        host,
        "GB/s",
    );
    beside(
        "download without a copy",
        download,
        "copy in host memory",
        host,
        "GB/s",
    );
}

/// Batches of upload, run, download on two sets of buffers: all enqueued at once, against waiting
/// for each call.
fn overlap(device: &Device, bytes: u64) {
    const BATCHES: usize = 16;
    let sets: Vec<(DeviceBuffer, DeviceBuffer, DeviceRecording)> = (0..2)
        .map(|_| {
            let (from, to) = (memory(device, bytes), memory(device, bytes));
            let copy = |from: &DeviceBuffer, to: &DeviceBuffer| RecordingStep::Copy {
                from: from.clone(),
                from_offset: 0,
                to: to.clone(),
                to_offset: 0,
                bytes,
            };
            let steps = [copy(&from, &to), copy(&to, &from)]
                .iter()
                .cycle()
                .take(15)
                .cloned()
                .collect();
            let recording = device.record(steps).expect("steps");
            (from, to, recording)
        })
        .collect();
    let data = Bytes::from(vec![3u8; bytes as usize]);
    let one_by_one = best(2, || {
        for batch in 0..BATCHES {
            let (from, to, recording) = &sets[batch % 2];
            device
                .upload(from, 0, data.clone())
                .wait(LIMIT)
                .expect("an upload");
            device.run(recording).wait(LIMIT).expect("a run");
            device
                .download(to, 0..bytes)
                .wait(LIMIT)
                .expect("a download");
        }
    });
    let enqueued = best(2, || {
        let mut results = Vec::new();
        for batch in 0..BATCHES {
            let (from, to, recording) = &sets[batch % 2];
            drop(device.upload(from, 0, data.clone()));
            drop(device.run(recording));
            results.push(device.download(to, 0..bytes));
        }
        for result in results {
            result.wait(LIMIT).expect("a download");
        }
    });
    let each = |took: f64| took * 1e3 / BATCHES as f64;
    beside(
        "upload, run, download, a batch",
        each(enqueued),
        "waiting for each call",
        each(one_by_one),
        "ms",
    );
}

fn memory(device: &Device, bytes: u64) -> DeviceBuffer {
    device.buffer(bytes).expect("memory")
}

/// Seconds of the fastest.
fn best(trials: usize, mut run: impl FnMut()) -> f64 {
    let trial = |_| {
        let began = Instant::now();
        run();
        began.elapsed().as_secs_f64()
    };
    (0..trials).map(trial).fold(f64::INFINITY, f64::min)
}

/// Vulkan without anything of ours: a queue and a command buffer of one barrier-free nothing.
struct Raw {
    queue: Arc<Queue>,
    nothing: Arc<PrimaryAutoCommandBuffer>,
    fence: Arc<Fence>,
}

impl Raw {
    fn open(uuid: [u8; 16]) -> Self {
        let library = VulkanLibrary::new().expect("it was loaded before");
        let instance = Instance::new(library, InstanceCreateInfo::default()).expect("an instance");
        let physical = instance.enumerate_physical_devices().expect("devices");
        let physical = physical
            .into_iter()
            .find(|one| one.properties().device_uuid == Some(uuid))
            .expect("the same one");
        let families = physical.queue_family_properties();
        let family = families
            .iter()
            .position(|family| family.queue_flags.intersects(QueueFlags::COMPUTE));
        let queue_family_index = family.expect("a family for compute shaders") as u32;
        let queue_create_infos = vec![QueueCreateInfo {
            queue_family_index,
            ..Default::default()
        }];
        let create = DeviceCreateInfo {
            queue_create_infos,
            ..Default::default()
        };
        let (device, mut queues) = VulkanDevice::new(physical, create).expect("a device");
        let allocator = Arc::new(StandardCommandBufferAllocator::new(
            device.clone(),
            Default::default(),
        ));
        let usage = CommandBufferUsage::SimultaneousUse;
        let commands = AutoCommandBufferBuilder::primary(allocator, queue_family_index, usage)
            .expect("commands");
        let nothing = commands.build().expect("nothing");
        let fence = Arc::new(Fence::new(device, FenceCreateInfo::default()).expect("a fence"));
        Self {
            queue: queues.next().expect("it was asked for"),
            nothing,
            fence,
        }
    }

    fn submit(&self, fence: Option<&Arc<Fence>>) {
        let command_buffers = vec![CommandBufferSubmitInfo::new(self.nothing.clone())];
        let submit = SubmitInfo {
            command_buffers,
            ..Default::default()
        };
        // SAFETY: the commands do nothing, and live as long as `self`, which waits for the last
        // submission.
        self.queue
            .with(|mut queue| unsafe { queue.submit(&[submit], fence) })
            .expect("a submission");
    }

    fn submit_and_wait(&self) {
        self.submit(Some(&self.fence));
        self.fence.wait(Some(LIMIT)).expect("it ends");
        // SAFETY: no submission uses the fence any more.
        unsafe { self.fence.reset() }.expect("a fence that was waited for");
    }

    fn submit_many(&self, runs: usize) -> Duration {
        let began = Instant::now();
        for _ in 1..runs {
            self.submit(None);
        }
        self.submit_and_wait();
        began.elapsed()
    }
}
