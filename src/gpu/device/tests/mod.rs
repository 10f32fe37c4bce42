//! The device on lavapipe, or whatever Vulkan is here, with the validation layers where they are
//! installed.

mod calls;
mod checks;
mod failures;
mod host;
mod submissions;

use super::*;
use bytes::Bytes;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(120);

/// A device whose whole life the validation layers watched without a word. One at a time: lavapipe
/// runs each with all cores.
struct Fixture {
    device: Option<Device>,
    messages: Arc<Messages>,
    _alone: MutexGuard<'static, ()>,
}

impl Fixture {
    /// `None`, and says why, where there is no Vulkan.
    fn new() -> Option<Self> {
        Self::with(|_| {})
    }

    /// Transfers have lanes of their own, as on devices with queues for them.
    fn with_lanes() -> Option<Self> {
        Self::with(|opened| opened.transfers_apart = true)
    }

    fn with(change: impl FnOnce(&mut Opened)) -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut opened = match open::open(WantedDevice::Best, &OPTIONS) {
            Ok(opened) => opened,
            Err(
                error @ (DeviceError::NoLoader(_)
                | DeviceError::NoDriver
                | DeviceError::NoSuchDevice { .. }),
            ) => {
                eprintln!("SKIPPED: no Vulkan here: {error}");
                return None;
            }
            Err(other) => panic!("{other}"),
        };
        if opened.listener.is_none() {
            eprintln!(
                "SKIPPED: no validation layers here (Debian: `apt install vulkan-validationlayers`)"
            );
        }
        change(&mut opened);
        let messages = opened.messages.clone();
        let device = Some(Device::start(opened, &OPTIONS).unwrap());
        Some(Self {
            device,
            messages,
            _alone: alone,
        })
    }
}

impl std::ops::Deref for Fixture {
    type Target = Device;

    fn deref(&self) -> &Device {
        self.device.as_ref().expect("taken in drop() only")
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let failure = self.failure().get();
        drop(self.device.take());
        let said = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::thread::panicking() {
            assert!(failure.is_none(), "{failure:?}");
            assert!(said.is_empty(), "{}", said.join("\n"));
        }
    }
}

const OPTIONS: DeviceOptions = DeviceOptions {
    validation: true,
    software: true,
    learned: None,
};

impl Device {
    fn failure(&self) -> &DeviceFailure {
        &self.0.failure
    }
}

/// SPIR-V of a shader, compiled as shipped ones are.
fn wgsl(source: &str) -> Vec<u32> {
    let module = naga::front::wgsl::parse_str(source)
        .unwrap_or_else(|error| panic!("{}", error.emit_to_string(source)));
    let mut validator = naga::valid::Validator::new(
        naga::valid::ValidationFlags::all(),
        naga::valid::Capabilities::all(),
    );
    let info = validator.validate(&module).unwrap();
    let options = naga::back::spv::Options {
        lang_version: (1, 3),
        ..Default::default()
    };
    naga::back::spv::write_vec(&module, &info, &options, None).unwrap()
}

fn kernel(device: &Device, source: &str) -> Kernel {
    device
        .kernel(&KernelSource {
            spirv: &wgsl(source),
            entry: "main",
            constants: &[],
            name: "test",
        })
        .unwrap()
}

/// `output[i] = output[i] * 2 + input[i]`, on `u32`.
const DOUBLE_AND_ADD: &str = "
    @group(0) @binding(0) var<storage, read> input: array<u32>;
    @group(0) @binding(1) var<storage, read_write> output: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        if (id.x < arrayLength(&output)) { output[id.x] = output[id.x] * 2u + input[id.x]; }
    }";

fn words(values: impl IntoIterator<Item = u32>) -> Bytes {
    values
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect::<Vec<u8>>()
        .into()
}

fn read(device: &Device, buffer: &DeviceBuffer) -> Vec<u32> {
    let bytes = device
        .download(buffer, 0..buffer.bytes())
        .wait(LIMIT)
        .unwrap();
    bytes
        .chunks(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

fn dispatch(kernel: &Kernel, buffers: &[&DeviceBuffer], groups: u32) -> RecordingStep {
    let bindings = buffers
        .iter()
        .enumerate()
        .map(|(binding, buffer)| BufferBinding::whole(binding as u32, buffer))
        .collect();
    RecordingStep::Dispatch {
        kernel: kernel.clone(),
        bindings,
        push: Vec::new(),
        groups: [groups, 1, 1],
    }
}
