//! How work is cut into submissions, what is learned of kernels, and a device that is lost.

use super::{super::lane::LaneDriver, *};
use std::sync::atomic::{AtomicBool, Ordering};
use vulkano::{
    buffer::BufferMemory, device::Queue, memory::MemoryPropertyFlags, sync::semaphore::Semaphore,
};

/// `n[i] += i + 1`, after a while.
const SLOW: &str = "
    @group(0) @binding(0) var<storage, read_write> n: array<u32>;
    @compute @workgroup_size(4, 2) fn main(
        @builtin(global_invocation_id) id: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>,
    ) {
        let i = id.x + 4u * WIDTHu * (id.y + 2u * HEIGHTu * id.z);
        var x = i;
        for (var j = 0u; j < ROUNDSu; j++) { x = x * 1664525u + 1013904223u; }
        // Never so, which nobody can know before.
        if x == 1u && group.x == 77777u { n[0] = 0u; }
        n[i] += i + 1u;
    }";

fn slow(device: &Device, [width, height, _]: [u32; 3], rounds: u32) -> Kernel {
    let source = SLOW
        .replace("WIDTH", &width.to_string())
        .replace("HEIGHT", &height.to_string())
        .replace("ROUNDS", &rounds.to_string());
    kernel(device, &source)
}

fn run_slow(device: &Device, groups: [u32; 3], rounds: u32, runs: u32) -> DeviceRecording {
    let kernel = slow(device, groups, rounds);
    let count = 8 * groups.iter().product::<u32>();
    let buffer = device.buffer(u64::from(count) * 4).unwrap();
    let step = RecordingStep::Dispatch {
        kernel,
        bindings: vec![BufferBinding::whole(0, &buffer)],
        push: Vec::new(),
        groups,
    };
    // Each step needs all of the one before.
    let recording = device.record(vec![step.clone(), step]).unwrap();
    for run in 1..=runs {
        device.run(&recording).wait(LIMIT).unwrap();
        let expected: Vec<u32> = (1..=count).map(|i| i * 2 * run).collect();
        assert!(read(device, &buffer) == expected, "{groups:?}, run {run}");
    }
    recording
}

fn first_kernel(recording: &DeviceRecording) -> cut::KernelId {
    recording.0.sizes[0].kernel.unwrap()
}

/// In how many submissions it runs.
fn parts(device: &Device, recording: &DeviceRecording) -> usize {
    let cut = recording.0.cut(&device.0.writer, &device.0.learned);
    cut.unwrap().expect("its kernels are known").parts.len()
}

#[test]
fn a_slow_dispatch_is_cut_and_computes_the_same() {
    let Some(device) = Fixture::new() else { return };
    // Some tenths of a second on a processor of today; a GPU finds all of it short.
    let groups = [37, 11, 9];
    let recording = run_slow(&device, groups, 30_000, 3);
    if device.info().gpu.kind != nodectl_types::GpuKind::Software {
        return eprintln!("SKIPPED: this kernel is slow on software devices only");
    }
    device.take_longest();
    // How fast this machine is at a moment is nobody's promise: the best of some.
    let longest = (0..3).map(|_| {
        device.run(&recording).wait(LIMIT).unwrap();
        device.take_longest()
    });
    let longest = longest.min().unwrap();
    assert!(longest <= super::super::pace::LIMIT, "{longest:?}");
    let pace = device.0.learned.pace(&first_kernel(&recording)).unwrap();
    let expected = pace.time(2 * 37 * 11 * 9).as_secs_f64();
    let needed = (expected / super::super::pace::LIMIT.as_secs_f64()).ceil();
    let parts = parts(&device, &recording);
    assert!(parts as f64 >= needed, "{parts} for {expected} s");
}

#[test]
fn pieces_of_every_shape_make_the_whole() {
    let Some(device) = Fixture::new() else { return };
    for groups in [
        [1, 1, 1],
        [1000, 1, 1],
        [1, 300, 2],
        [7, 13, 11],
        [3, 1, 700],
    ] {
        run_slow(&device, groups, 10, 2);
    }
}

#[test]
fn a_kernel_that_asks_for_the_number_of_workgroups_is_never_cut() {
    let Some(device) = Fixture::new() else { return };
    let counts = kernel(
        &device,
        "
        @group(0) @binding(0) var<storage, read_write> n: array<u32>;
        @compute @workgroup_size(1) fn main(
            @builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        ) { n[id.x] = count.x; }",
    );
    let buffer = device.buffer(4000).unwrap();
    let recording = device
        .record(vec![dispatch(&counts, &[&buffer], 1000)])
        .unwrap();
    device.run(&recording).wait(LIMIT).unwrap();
    assert_eq!(read(&device, &buffer), [1000; 1000]);
}

#[test]
fn what_was_learned_is_there_in_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let options = DeviceOptions {
        learned: Some(folder.path().join("gpus")),
        ..OPTIONS
    };
    let Some(alone) = Fixture::new() else { return };
    let groups = [500, 1, 1];
    let open = || Device::open(alone.info().gpu.uuid, &options).unwrap();
    let device = open();
    let id = first_kernel(&run_slow(&device, groups, 1000, 1));
    device.choose("a product", "by hand");
    drop(device);
    let device = open();
    assert_eq!(device.choice("a product").as_deref(), Some("by hand"));
    assert!(device.0.learned.pace(&id).is_some());
    // It is not tried again.
    let recording = run_slow(&device, groups, 1000, 0);
    assert!(parts(&device, &recording) >= 1);
    drop(device);
    // What is none of ours counts as nothing learned.
    for file in std::fs::read_dir(folder.path().join("gpus")).unwrap() {
        std::fs::write(file.unwrap().path(), "{").unwrap();
    }
    assert_eq!(open().choice("a product"), None);
}

/// A driver whose device is lost once somebody says so: while its work is waited for, or while more
/// is submitted.
#[derive(Default)]
struct Loses {
    waiting: AtomicBool,
    submitting: AtomicBool,
}

impl Loses {
    /// A device with such a driver, and what is open alone meanwhile.
    fn device() -> Option<(Fixture, Device, Arc<Self>)> {
        let alone = Fixture::new()?;
        let driver = Arc::new(Self::default());
        let mut opened = open::open(WantedDevice::Best, &OPTIONS).unwrap();
        opened.driver = driver.clone();
        let device = Device::start(opened, &OPTIONS).unwrap();
        Some((alone, device, driver))
    }

    fn told(is_lost: &AtomicBool, doing: &str) -> Result<(), DeviceError> {
        match is_lost.load(Ordering::SeqCst) {
            true => Err(error::refused::<vulkano::VulkanError>(doing)(
                vulkano::VulkanError::DeviceLost,
            )),
            false => Ok(()),
        }
    }
}

impl LaneDriver for Loses {
    unsafe fn submit(
        &self,
        queue: &Arc<Queue>,
        submissions: &[ash::vk::SubmitInfo<'_>],
    ) -> Result<(), DeviceError> {
        Self::told(&self.submitting, "submitting work")?;
        // SAFETY: as the caller says.
        unsafe { super::super::lane::VulkanDriver.submit(queue, submissions) }
    }

    fn wait(
        &self,
        timeline: &Semaphore,
        number: u64,
        limit: Duration,
    ) -> Result<bool, DeviceError> {
        let ended = super::super::lane::VulkanDriver.wait(timeline, number, limit)?;
        Self::told(&self.waiting, "waiting for it").map(|()| ended)
    }
}

/// Whoever waits for what was not submitted any more is told at once, and not when his time is up.
#[test]
fn a_device_that_is_lost_while_work_is_submitted_is_told_to_all_who_wait() {
    let Some((_alone, device, driver)) = Loses::device() else {
        return;
    };
    let recording = run_slow(&device, [4, 1, 1], 10, 1);
    let buffer = device.buffer(20 << 20).unwrap();
    device.upload(&buffer, 0, vec![1; 4]).wait(LIMIT).unwrap();
    driver.submitting.store(true, Ordering::SeqCst);
    // Several pieces.
    let upload = device.upload(&buffer, 0, vec![0; 20 << 20]);
    let run = device.run(&recording);
    let download = device.download(&buffer, 0..4);
    let is_lost = |error: &DeviceError| matches!(error, DeviceError::Lost { .. });
    for error in [
        upload.wait(LIMIT).unwrap_err(),
        run.wait(LIMIT).unwrap_err(),
        download.wait(LIMIT).unwrap_err(),
        device.download(&buffer, 0..4).wait(LIMIT).unwrap_err(),
    ] {
        assert!(is_lost(&error), "{error:?}");
    }
}

#[test]
fn a_lost_device_says_what_ran_and_the_kernel_is_cut_smaller_next_time() {
    let Some((_alone, device, driver)) = Loses::device() else {
        return;
    };
    let groups = [500, 1, 1];
    let recording = run_slow(&device, groups, 10, 1);
    let id = first_kernel(&recording);
    let before = device.0.learned.pace(&id).unwrap().time(500);
    driver.waiting.store(true, Ordering::SeqCst);
    let error = device.run(&recording).wait(LIMIT).unwrap_err();
    assert!(
        matches!(error, DeviceError::Lost { ran: Some(_), .. }),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(text.contains("`test` had run for"), "{text}");
    assert!(text.contains("heat, power"), "{text}");
    assert_eq!(device.run(&recording).wait(LIMIT), Err(error.clone()));
    let after = device.0.learned.pace(&id).unwrap().time(500);
    assert!(
        after > before && after >= super::super::pace::LIMIT,
        "{after:?}"
    );
    let long = error.ended_by("`test`", Duration::from_secs(2)).to_string();
    assert!(long.contains("the driver's watchdog"), "{long}");
}

/// The first submission that failed ran; what was on its way behind it did not, and has no say.
#[test]
fn the_submission_that_lost_the_device_is_the_one_that_is_told_and_blamed() {
    let Some((_alone, device, driver)) = Loses::device() else {
        return;
    };
    let recording = run_slow(&device, [505, 1, 1], 10, 1);
    let id = first_kernel(&recording);
    // A kernel that once seemed slow is cut into many submissions.
    let seemed = super::super::pace::KernelShare {
        groups: 100,
        largest: 100,
    };
    device
        .0
        .learned
        .died(&[(id, seemed)].into(), Duration::ZERO);
    assert!(parts(&device, &recording) > 5);
    let slow = |groups| device.0.learned.pace(&id).unwrap().time(groups);
    let before = slow(500);
    driver.waiting.store(true, Ordering::SeqCst);
    let told = device.run(&recording).wait(LIMIT).unwrap_err();
    assert_eq!(device.0.failure.get(), Some(told));
    // Pieces of 20 workgroups each, the first of which is blamed, and one of 10.
    assert!(slow(500) < before * 6, "{before:?}, {:?}", slow(500));
}

/// Reads come from memory that the processor caches: other memory is slower by orders of magnitude.
#[test]
fn results_are_read_from_cached_memory() {
    let Some(device) = Fixture::new() else { return };
    let vulkan = &device.0.opened.device;
    let allocator = Arc::new(StandardMemoryAllocator::new_default(vulkan.clone()));
    let pool = MemoryPool::new(&allocator, &[], MemoryKind::FromDevice, u64::MAX, 0);
    let types = &vulkan.physical_device().memory_properties().memory_types;
    for bytes in [4, 32 << 20] {
        let memory = pool.take(bytes).unwrap();
        let BufferMemory::Normal(memory) = memory.buffer().memory() else {
            panic!()
        };
        let index = memory.device_memory().memory_type_index();
        let flags = types[index as usize].property_flags;
        assert!(
            flags.contains(MemoryPropertyFlags::HOST_CACHED),
            "{flags:?}"
        );
    }
}
