//! Which Vulkan devices this machine has. Loads drivers into the calling process, so only the child
//! of `gpu::child` calls it. Must not create a device or a queue.

use super::device::{NO_DRIVER, info, no_loader};
use nodectl_types::{Gpu, GpuDetails, GpuKind};
use serde::{Deserialize, Serialize};
use vulkano::{
    LoadingError, Validated, VulkanError, VulkanLibrary,
    device::physical::{PhysicalDevice, PhysicalDeviceType},
    instance::{Instance, InstanceCreateInfo},
    memory::MemoryHeapFlags,
};

/// Why it is not known which GPUs there are. The first two are ordinary: the machine just has none
/// that Vulkan can use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ProbeError {
    #[error("{}", no_loader(.0))]
    NoLoader(String),
    #[error("{NO_DRIVER}")]
    NoDriver,
    #[error(
        "the Vulkan driver fails to list its devices: {0}\nhint: `vulkaninfo --summary` shows what it says"
    )]
    Driver(String),
    #[error("measuring failed: {0}")]
    Measure(String),
    #[error("could not start the process that looks for GPUs: {0}")]
    Spawn(String),
    #[error(
        "the Vulkan driver did not answer within {limit_ms} ms\nhint: the GPU or its driver hangs; see `dmesg`, reload \
         the driver or restart the machine"
    )]
    TimedOut { limit_ms: u64 },
    #[error("the Vulkan driver crashed the process that asked it ({status})\nit wrote: {stderr}")]
    Crashed { status: String, stderr: String },
}

/// Every device that says which one it is, software ones included and marked. An empty list means
/// drivers without devices.
pub fn probe() -> Result<Vec<Gpu>, ProbeError> {
    let library = VulkanLibrary::new().map_err(no_library)?;
    let instance = Instance::new(library, InstanceCreateInfo::default()).map_err(no_instance)?;
    let devices = instance.enumerate_physical_devices().map_err(refused)?;
    Ok(devices.filter_map(|device| describe(&device)).collect())
}

fn no_library(error: LoadingError) -> ProbeError {
    match error {
        LoadingError::LibraryLoadFailure(why) => ProbeError::NoLoader(why.to_string()),
        LoadingError::VulkanError(error) => refused(error),
    }
}

fn no_instance(error: Validated<VulkanError>) -> ProbeError {
    match error {
        Validated::Error(error) => refused(error),
        Validated::ValidationError(why) => ProbeError::Driver(why.to_string()),
    }
}

fn refused(error: VulkanError) -> ProbeError {
    match error {
        VulkanError::IncompatibleDriver => ProbeError::NoDriver,
        // The loader's answer when every driver's own initialisation fails, as without the device's
        // kernel module.
        VulkanError::InitializationFailed => ProbeError::NoDriver,
        other => ProbeError::Driver(other.to_string()),
    }
}

/// `None` for a device without a UUID (Vulkan 1.0): it could not be picked out again, and lacks
/// what workloads need.
pub(super) fn describe(device: &PhysicalDevice) -> Option<Gpu> {
    let properties = device.properties();
    let driver = [&properties.driver_name, &properties.driver_info]
        .into_iter()
        .flatten();
    Some(Gpu {
        name: properties.device_name.clone(),
        vendor: vendor(properties.vendor_id),
        driver: driver.map(String::as_str).collect::<Vec<_>>().join(" "),
        uuid: properties.device_uuid?,
        memory_bytes: own_memory(device),
        kind: kind(properties.device_type)?,
        details: GpuDetails {
            features: info::offered(device).names(),
            memory_free: info::memory_free(device),
            rates: None,
        },
    })
}

/// The largest heap on the device. Not the sum: cards list the part that the CPU can see (the PCI
/// window) once more.
pub(super) fn own_memory(device: &PhysicalDevice) -> u64 {
    let heaps = device.memory_properties().memory_heaps.iter();
    let on_device = heaps.filter(|heap| heap.flags.intersects(MemoryHeapFlags::DEVICE_LOCAL));
    on_device.map(|heap| heap.size).max().unwrap_or(0)
}

fn kind(device_type: PhysicalDeviceType) -> Option<GpuKind> {
    Some(match device_type {
        PhysicalDeviceType::DiscreteGpu => GpuKind::Discrete,
        PhysicalDeviceType::IntegratedGpu => GpuKind::Integrated,
        PhysicalDeviceType::VirtualGpu => GpuKind::Virtual,
        PhysicalDeviceType::Cpu => GpuKind::Software,
        // An accelerator that is no GPU by its own word.
        _ => return None,
    })
}

/// PCI vendor ids, and the Khronos-assigned one of Mesa (`VkVendorId`).
fn vendor(id: u32) -> String {
    match id {
        0x10de => "NVIDIA".into(),
        0x1002 => "AMD".into(),
        0x8086 => "Intel".into(),
        0x13b5 => "Arm".into(),
        0x5143 => "Qualcomm".into(),
        0x106b => "Apple".into(),
        0x14e4 => "Broadcom".into(),
        0x10005 => "Mesa".into(),
        other => format!("vendor {other:#06x}"),
    }
}
