//! What can go wrong with a device, and how Vulkan's own results translate to it.

use std::{fmt, time::Duration};
use vulkano::{Validated, VulkanError};

/// Why a call on a device failed. After `Lost` and `TimedOut` every further call fails in the same
/// way: the process that owns the device must end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error("{}", no_loader(.0))]
    NoLoader(String),
    #[error("{NO_DRIVER}")]
    NoDriver,
    #[error(
        "no {wanted}; there are: {there}\nhint: `nodectl devices` lists the GPUs of every node"
    )]
    /// No device that was asked for, by UUID or at all.
    NoSuchDevice { wanted: String, there: String },
    #[error("the GPU was lost: {what}\nhint: {}", lost_hint(*.ran))]
    /// The driver has given the device up, after a submission had run for `ran`, if one had.
    Lost { what: String, ran: Option<Duration> },
    #[error(
        "no memory for {wanted} bytes on the GPU{}\nhint: use smaller tiles, or fewer workers a GPU",
        .free.map(|free| format!(", {free} are free")).unwrap_or_default()
    )]
    OutOfMemory { wanted: u64, free: Option<u64> },
    #[error(
        "the GPU did not finish within {limit_ms} ms: {what}\nhint: a shader that runs too long, or a driver that hangs; \
         cut the work into smaller pieces, or raise the task's timeout"
    )]
    TimedOut { limit_ms: u64, what: String },
    #[error("{0}")]
    Invalid(String),
}

pub(crate) const NO_DRIVER: &str = "no Vulkan driver\nhint: install the GPU's (NVIDIA: the `nvidia` driver with its \
                                            Vulkan part, AMD and Intel: `mesa-vulkan-drivers`)";

pub(crate) fn no_loader(why: &str) -> String {
    format!(
        "no Vulkan loader: {why}\nhint: install it (Debian: `apt install libvulkan1`) and the GPU's driver"
    )
}

/// What runs for longer meets the watchdogs of drivers: 2 s, some of them 10.
const WATCHED: Duration = Duration::from_millis(1500);

fn lost_hint(ran: Option<Duration>) -> &'static str {
    match ran {
        Some(ran) if ran >= WATCHED => {
            "most likely the driver's watchdog, which ends what runs for some seconds: the same \
             work is cut into shorter dispatches from now on, unless its workgroups are long by \
             themselves; see `dmesg`"
        }
        _ => {
            "most likely heat, power or the driver itself: `nodectl top` shows the temperature, \
             `dmesg` what the driver said"
        }
    }
}

impl DeviceError {
    pub(super) fn lost(what: impl fmt::Display) -> Self {
        Self::Lost {
            what: what.to_string(),
            ran: None,
        }
    }

    /// What a failure in the middle of work means: the device is of no more use. `work` had run for
    /// so long.
    pub(super) fn ended_by(self, work: &str, ran: Duration) -> Self {
        let what = match self {
            Self::Lost { what, .. } => what,
            other => other.to_string(),
        };
        Self::Lost {
            what: format!(
                "{what}, after {work} had run for {:.1} s",
                ran.as_secs_f64()
            ),
            ran: Some(ran),
        }
    }

    pub(super) fn timed_out(limit: Duration, what: &str) -> Self {
        Self::TimedOut {
            limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            what: what.into(),
        }
    }

    pub(super) fn invalid(text: impl fmt::Display) -> Self {
        Self::Invalid(text.to_string())
    }

    /// Whether nothing more can be done with the device.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::TimedOut { .. })
    }
}

/// The translation of a Vulkan result to what it means for whoever was `doing` something.
pub(super) fn refused<E: Into<Validated<VulkanError>>>(doing: &str) -> impl Fn(E) -> DeviceError {
    move |error| match error.into() {
        Validated::Error(VulkanError::DeviceLost) => DeviceError::lost(doing),
        Validated::Error(VulkanError::OutOfDeviceMemory | VulkanError::OutOfHostMemory) => {
            DeviceError::OutOfMemory {
                wanted: 0,
                free: None,
            }
        }
        Validated::Error(VulkanError::IncompatibleDriver | VulkanError::InitializationFailed) => {
            DeviceError::NoDriver
        }
        Validated::Error(other) => DeviceError::Invalid(format!("{doing}: {other}")),
        Validated::ValidationError(why) => DeviceError::Invalid(format!("{doing}: {why}")),
    }
}
