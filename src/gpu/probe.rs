//! Which Vulkan devices this machine has. Loads drivers into the calling process, so only the child
//! of `gpu::child` calls it. Must not create a device or a queue.

use super::device::{NO_DRIVER, info::describe, no_loader};
use nodectl_ports::{carried, getent::is_static};
use nodectl_types::Gpu;
use serde::{Deserialize, Serialize};
use vulkano::{
    LoadingError, Validated, VulkanError, VulkanLibrary,
    instance::{Instance, InstanceCreateInfo},
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
    #[error(
        "this program is linked statically, so that it runs without a C library, and loads no driver itself: {0}"
    )]
    NoDrivers(String),
    #[error("the Vulkan driver crashed the process that asked it ({status})\nit wrote: {stderr}")]
    Crashed { status: String, stderr: String },
}

/// Every device that says which one it is, software ones included and marked. An empty list means
/// drivers without devices.
pub fn probe() -> Result<Vec<Gpu>, ProbeError> {
    // What glibc loads into such a program would run beside a second C library.
    if is_static() {
        let why = carried::program().err();
        let why = why.unwrap_or_else(|| "what it carries for that was not started".into());
        return Err(ProbeError::NoDrivers(why));
    }
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
