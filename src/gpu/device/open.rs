//! From the loader to a logical device and its queues: which device is taken, and what is switched
//! on.

use super::{
    DeviceError, DeviceOptions,
    error::refused,
    info::{self, DeviceInfo},
    lane::{LaneDriver, VulkanDriver},
    memory::LANES,
};
use data_encoding::HEXLOWER;
use nodectl_types::{Gpu, GpuKind};
use std::{
    fmt::Write,
    sync::{Arc, Mutex},
};
use vulkano::{
    LoadingError, Validated, Version, VulkanError, VulkanLibrary,
    device::{
        Device, DeviceCreateInfo, DeviceExtensions, Queue, QueueCreateInfo, QueueFamilyProperties,
        QueueFlags, physical::PhysicalDevice,
    },
    instance::{
        Instance, InstanceCreateInfo,
        debug::{
            DebugUtilsMessageSeverity, DebugUtilsMessageType, DebugUtilsMessenger,
            DebugUtilsMessengerCallback, DebugUtilsMessengerCreateInfo, ValidationFeatureEnable,
        },
    },
};

const VALIDATION_LAYER: &str = "VK_LAYER_KHRONOS_validation";
/// What validation says is kept up to here.
const MAX_MESSAGES: usize = 64;

/// What the validation layers had to say and nobody has heard yet.
pub(super) type Messages = Mutex<Vec<String>>;

/// A device with its queues.
pub(super) struct Opened {
    pub(super) device: Arc<Device>,
    /// The queue of each lane; the same one several times where the device has no more.
    pub(super) queues: [Arc<Queue>; LANES],
    pub(super) driver: Arc<dyn LaneDriver>,
    /// Whether transfers have queues of their own.
    pub(super) transfers_apart: bool,
    pub(super) info: DeviceInfo,
    pub(super) messages: Arc<Messages>,
    /// Hears what the validation layers say, where they are. The last to be dropped.
    pub(super) listener: Option<DebugUtilsMessenger>,
}

/// Which device is wanted.
#[derive(Clone, Copy)]
pub(super) enum WantedDevice {
    Uuid([u8; 16]),
    Best,
}

pub(super) fn open(wanted: WantedDevice, options: &DeviceOptions) -> Result<Opened, DeviceError> {
    let messages = Arc::new(Messages::default());
    let (instance, listener) = instance(options, &messages)?;
    let physical = pick(&instance, wanted, options)?;
    let enabled = info::wanted().intersection(physical.supported_features());
    let families = Families::of(&physical)?;
    let (device, queues) = Device::new(
        physical.clone(),
        DeviceCreateInfo {
            queue_create_infos: families.queues(),
            enabled_extensions: wanted_extensions().intersection(physical.supported_extensions()),
            enabled_features: enabled,
            ..Default::default()
        },
    )
    .map_err(refused("opening the GPU"))?;
    let info =
        DeviceInfo::read(&physical, &enabled).expect("pick() takes devices that can be described");
    let transfers_apart = families.transfer.is_some();
    Ok(Opened {
        device,
        queues: families.lanes(queues.collect()),
        driver: Arc::new(VulkanDriver),
        transfers_apart,
        info,
        messages,
        listener,
    })
}

fn instance(
    options: &DeviceOptions,
    messages: &Arc<Messages>,
) -> Result<(Arc<Instance>, Option<DebugUtilsMessenger>), DeviceError> {
    let library = VulkanLibrary::new().map_err(|error| match error {
        LoadingError::LibraryLoadFailure(why) => DeviceError::NoLoader(why.to_string()),
        LoadingError::VulkanError(error) => refused::<VulkanError>("loading Vulkan")(error),
    })?;
    let mut create = InstanceCreateInfo::default();
    let mut layers = library
        .layer_properties()
        .map_err(refused("listing the layers"))?;
    let validated = options.validation && layers.any(|layer| layer.name() == VALIDATION_LAYER);
    if validated {
        create.enabled_layers.push(VALIDATION_LAYER.into());
        create.enabled_extensions.ext_debug_utils = true;
        let offered = library.supported_extensions_with_layers([VALIDATION_LAYER]);
        if offered.is_ok_and(|offered| offered.ext_validation_features) {
            // Finds missing barriers, which software devices forgive.
            create.enabled_extensions.ext_validation_features = true;
            create
                .enabled_validation_features
                .push(ValidationFeatureEnable::SynchronizationValidation);
        }
    }
    let starting = refused::<Validated<VulkanError>>("starting Vulkan");
    let instance = Instance::new(library, create).map_err(&starting)?;
    let messenger =
        validated.then(|| DebugUtilsMessenger::new(instance.clone(), listener(messages.clone())));
    let messenger = messenger.transpose().map_err(starting)?;
    Ok((instance, messenger))
}

fn listener(messages: Arc<Messages>) -> DebugUtilsMessengerCreateInfo {
    let hear = move |_, _, data: vulkano::instance::debug::DebugUtilsMessengerCallbackData<'_>| {
        let mut heard = messages
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if heard.len() < MAX_MESSAGES {
            heard.push(data.message.to_string());
        }
    };
    // SAFETY: the closure makes no calls into Vulkan.
    let callback = unsafe { DebugUtilsMessengerCallback::new(hear) };
    DebugUtilsMessengerCreateInfo {
        message_severity: DebugUtilsMessageSeverity::ERROR | DebugUtilsMessageSeverity::WARNING,
        message_type: DebugUtilsMessageType::VALIDATION,
        ..DebugUtilsMessengerCreateInfo::user_callback(callback)
    }
}

/// The device, among those that can do what `Device` needs.
fn pick(
    instance: &Arc<Instance>,
    wanted: WantedDevice,
    options: &DeviceOptions,
) -> Result<Arc<PhysicalDevice>, DeviceError> {
    let all = instance
        .enumerate_physical_devices()
        .map_err(refused("listing the GPUs"))?;
    let known: Vec<_> = all
        .filter_map(|device| Some((info::describe(&device)?, device)))
        .collect();
    let fits = |gpu: &Gpu| match wanted {
        WantedDevice::Uuid(uuid) => gpu.uuid == uuid,
        WantedDevice::Best => true,
    };
    let allowed = |gpu: &Gpu| options.software || gpu.kind != GpuKind::Software;
    let candidates = known.iter().filter(|(gpu, _)| fits(gpu) && allowed(gpu));
    let best = candidates.min_by_key(|(gpu, device)| (!is_able(device), rank(gpu.kind)));
    match best {
        Some((_, device)) if is_able(device) => Ok(device.clone()),
        Some((gpu, device)) => Err(DeviceError::Invalid(format!(
            "{} ({}) offers Vulkan {}, and 1.2 with timeline semaphores is needed\nhint: a newer driver",
            gpu.name,
            gpu.driver,
            device.api_version()
        ))),
        None => Err(no_such_device(wanted, options, &known)),
    }
}

/// The order in which devices are taken: the most able kind first.
fn rank(kind: GpuKind) -> u8 {
    match kind {
        GpuKind::Discrete => 0,
        GpuKind::Integrated => 1,
        GpuKind::Virtual => 2,
        GpuKind::Software => 3,
    }
}

fn is_able(device: &PhysicalDevice) -> bool {
    device.api_version() >= Version::V1_2 && device.supported_features().timeline_semaphore
}

fn no_such_device(
    wanted: WantedDevice,
    options: &DeviceOptions,
    known: &[(Gpu, Arc<PhysicalDevice>)],
) -> DeviceError {
    let mut there = String::new();
    for (gpu, _) in known {
        let unasked = if gpu.kind == GpuKind::Software && !options.software {
            ", software, not asked for"
        } else {
            ""
        };
        let separator = if there.is_empty() { "" } else { "; " };
        let _ = write!(
            there,
            "{separator}{} ({}{unasked})",
            gpu.name,
            HEXLOWER.encode(&gpu.uuid)
        );
    }
    let wanted = match wanted {
        WantedDevice::Uuid(uuid) => format!("GPU {}", HEXLOWER.encode(&uuid)),
        WantedDevice::Best => "GPU that can be used".into(),
    };
    DeviceError::NoSuchDevice {
        wanted,
        there: if there.is_empty() {
            "none".into()
        } else {
            there
        },
    }
}

/// The extensions that some of the features belong to.
fn wanted_extensions() -> DeviceExtensions {
    DeviceExtensions {
        ext_shader_atomic_float: true,
        ext_memory_budget: true,
        khr_cooperative_matrix: true,
        ..DeviceExtensions::empty()
    }
}

/// Which queue families the lanes use.
struct Families {
    compute: u32,
    /// A family that does nothing but transfers, and how many of its queues are taken.
    transfer: Option<(u32, usize)>,
}

impl Families {
    fn of(physical: &PhysicalDevice) -> Result<Self, DeviceError> {
        let families = physical.queue_family_properties();
        let index =
            |wanted: &dyn Fn(&QueueFamilyProperties) -> bool| families.iter().position(wanted);
        let Some(compute) = index(&|family| family.queue_flags.intersects(QueueFlags::COMPUTE))
        else {
            return Err(DeviceError::Invalid(
                "the GPU has no queue for compute shaders".into(),
            ));
        };
        let transfer = index(&|family| copies_only(family)).map(|found| {
            let queues = families[found].queue_count.min(LANES as u32 - 1);
            (found as u32, queues as usize)
        });
        Ok(Self {
            compute: compute as u32,
            transfer,
        })
    }

    fn queues(&self) -> Vec<QueueCreateInfo> {
        let create = |queue_family_index, queues| QueueCreateInfo {
            queue_family_index,
            queues,
            ..Default::default()
        };
        let mut queues = vec![create(self.compute, vec![1.0])];
        queues.extend(
            self.transfer
                .map(|(family, count)| create(family, vec![0.5; count])),
        );
        queues
    }

    /// Compute, to the device, from the device.
    fn lanes(&self, queues: Vec<Arc<Queue>>) -> [Arc<Queue>; LANES] {
        let of_family = |family: u32| {
            queues
                .iter()
                .filter(move |queue| queue.queue_family_index() == family)
        };
        let compute = of_family(self.compute)
            .next()
            .expect("it was asked for")
            .clone();
        let transfer: Vec<_> = self
            .transfer
            .iter()
            .flat_map(|(family, _)| of_family(*family))
            .collect();
        let to = transfer.first().map_or(&compute, |queue| *queue).clone();
        let from = transfer.last().map_or(&compute, |queue| *queue).clone();
        [compute, to, from]
    }
}

/// Families of video codecs can copy too, but are meant for other things.
fn copies_only(family: &QueueFamilyProperties) -> bool {
    let others = QueueFlags::GRAPHICS
        | QueueFlags::COMPUTE
        | QueueFlags::VIDEO_DECODE
        | QueueFlags::VIDEO_ENCODE
        | QueueFlags::OPTICAL_FLOW;
    family.queue_flags.intersects(QueueFlags::TRANSFER) && !family.queue_flags.intersects(others)
}
