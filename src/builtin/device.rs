//! The device that a worker computes on: the GPU that its tasks were granted, or a software device
//! where they were granted none.

use crate::CallError;
use nodectl_gpu as gpu;
use nodectl_gpu::device::{Device, DeviceError, DeviceOptions};
use nodectl_types::{GpuKind, text::split_hint};

/// Set by the node: the UUIDs of the GPUs granted, with commas between them.
const GRANTED: &str = "NODECTL_GPU_UUID";

/// Opens it. Never takes a GPU that was not granted: others compute there.
pub fn open() -> Result<Device, CallError> {
    granted()?.map_or_else(software, Ok)
}

/// The GPU that the task was granted, if it was granted one.
pub fn granted() -> Result<Option<Device>, CallError> {
    let granted = std::env::var(GRANTED).unwrap_or_default();
    let mut uuids = granted.split(',').filter(|uuid| !uuid.is_empty());
    match (uuids.next(), uuids.next()) {
        (None, _) => Ok(None),
        (Some(uuid), None) => {
            let uuid = parse(uuid)
                .ok_or_else(|| CallError::Task(format!("{GRANTED}: `{uuid}` is not a UUID")))?;
            let options = DeviceOptions {
                validation: false,
                software: false,
                learned: gpu::device::learned_folder(),
            };
            Device::open(uuid, &options)
                .map(Some)
                .map_err(|error| match error {
                    // One that is gone for good is not there any more.
                    DeviceError::Lost { .. } => CallError::LostDevice(error.to_string()),
                    other => CallError::Device(other.to_string()),
                })
        }
        (Some(_), Some(_)) => {
            let hint = "hint: set `gpus = 1`; more tasks use more GPUs";
            Err(CallError::Task(format!(
                "a task of this kind uses one GPU, and was granted more\n{hint}"
            )))
        }
    }
}

fn software() -> Result<Device, CallError> {
    let gpus = gpu::probe().map_err(|error| no_device(&error.to_string()))?;
    let found = gpus.iter().find(|gpu| gpu.kind == GpuKind::Software);
    let found = found.ok_or_else(|| no_device("the drivers here offer none"))?;
    Device::open(
        found.uuid,
        &DeviceOptions {
            validation: false,
            software: true,
            learned: gpu::device::learned_folder(),
        },
    )
    .map_err(|error| no_device(&error.to_string()))
}

fn no_device(reason: &str) -> CallError {
    // What the probe would do is about GPUs.
    let (reason, _) = split_hint(reason);
    CallError::Task(format!(
        "this computes on Vulkan devices only: the task was granted no GPU, and no software driver here does it on \
         the processor: {reason}\n\
         hint: ask for `gpus = 1` in [resources] where there are GPUs, or install a software driver on this machine \
         (Debian: `apt install mesa-vulkan-drivers`)"
    ))
}

/// 32 hexadecimal digits, with hyphens or without.
fn parse(text: &str) -> Option<[u8; 16]> {
    let digits = text.replace('-', "");
    let number = u128::from_str_radix(&digits, 16)
        .ok()
        .filter(|_| digits.len() == 32)?;
    Some(number.to_be_bytes())
}

/// What went wrong on a device, as the end of a task: the worker must end where the device is of no
/// more use.
pub fn failed(error: DeviceError) -> CallError {
    match error {
        DeviceError::Lost { .. } => CallError::LostDevice(error.to_string()),
        DeviceError::TimedOut { .. } | DeviceError::OutOfMemory { .. } => {
            CallError::Device(error.to_string())
        }
        other => CallError::Task(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_read_as_nodes_write_it() {
        let bytes: [u8; 16] = std::array::from_fn(|index| index as u8);
        assert_eq!(parse("00010203-0405-0607-0809-0a0b0c0d0e0f"), Some(bytes));
        assert_eq!(parse("00010203"), None);
    }

    #[test]
    fn where_nothing_computes_one_hint_says_what_to_do() {
        let CallError::Task(why) = no_device("no Vulkan driver\nhint: install the GPU's") else {
            panic!("the task cannot run here");
        };
        assert!(why.contains("Vulkan devices only") && why.contains(": no Vulkan driver\n"));
        assert_eq!(why.matches("hint: ").count(), 1, "{why}");
    }
}
