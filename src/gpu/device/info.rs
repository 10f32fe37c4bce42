//! What a device is and can do.

use ash::vk;
use nodectl_types::{Gpu, GpuDetails, GpuKind};
use serde::{Deserialize, Serialize};
use vulkano::{
    VulkanObject,
    device::{
        DeviceFeatures as Enabled,
        physical::{PhysicalDevice, PhysicalDeviceType},
    },
    memory::MemoryHeapFlags,
};

/// A device as it was opened.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    pub gpu: Gpu,
    pub limits: DeviceLimits,
    pub features: DeviceFeatures,
    /// Bytes of its own memory that nobody used when it was opened, where the driver tells
    /// (VK_EXT_memory_budget).
    pub memory_free: Option<u64>,
}

/// What a kernel or a buffer must keep to. Sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Product of a workgroup's three sizes.
    pub workgroup_invocations: u32,
    pub workgroup_size: [u32; 3],
    /// Workgroups of one dispatch, in each dimension.
    pub workgroup_count: [u32; 3],
    /// The largest range of one storage or uniform binding.
    pub storage_range: u64,
    pub uniform_range: u64,
    /// What the start of such a range must be a multiple of.
    pub storage_alignment: u64,
    pub uniform_alignment: u64,
    /// Memory shared by a workgroup.
    pub shared_bytes: u32,
    pub push_bytes: u32,
    /// Invocations of a subgroup.
    pub subgroup: u32,
    /// The fewest and the most that one may have here: a driver may choose for each shader.
    pub subgroup_sizes: [u32; 2],
    /// The largest buffer.
    pub buffer_bytes: u64,
}

/// What the device offers beyond Vulkan 1.2, all of it switched on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFeatures {
    /// Arithmetic on and storage of 16-bit floats.
    pub f16: bool,
    pub f64: bool,
    pub int64: bool,
    pub int16: bool,
    /// Arithmetic on and storage of 8-bit integers.
    pub int8: bool,
    /// Subgroups with arithmetic, ballot and shuffle in compute shaders.
    pub subgroups: bool,
    /// Atomic addition of f32 in storage buffers.
    pub float_atomics: bool,
    pub int64_atomics: bool,
    /// The Vulkan memory model with device scope: what naga's output asks for.
    pub memory_model: bool,
    /// Accesses beyond a binding's range do no harm.
    pub robust_access: bool,
    pub cooperative_matrix: Vec<CooperativeShape>,
}

/// One product `A (m x k) · B (k x n) + C (m x n)` that a subgroup computes together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CooperativeShape {
    pub m: u32,
    pub n: u32,
    pub k: u32,
    /// Component types of A and B, of C and the result: `f16`, `f32`, `i8`, `u8`, `i32`, …
    pub a: String,
    pub b: String,
    pub c: String,
    pub result: String,
}

impl DeviceFeatures {
    /// The features that a device has, in a few words each.
    pub fn names(&self) -> Vec<String> {
        let named = [
            (self.f16, "f16"),
            (self.f64, "f64"),
            (self.int8, "int8"),
            (self.int16, "int16"),
            (self.int64, "int64"),
            (self.subgroups, "subgroups"),
            (self.float_atomics, "float_atomics"),
            (self.int64_atomics, "int64_atomics"),
            (!self.cooperative_matrix.is_empty(), "cooperative_matrix"),
        ];
        named
            .into_iter()
            .filter(|(there, _)| *there)
            .map(|(_, name)| name.into())
            .collect()
    }
}

impl DeviceInfo {
    pub(super) fn read(physical: &PhysicalDevice, enabled: &Enabled) -> Option<Self> {
        let gpu = describe(physical)?;
        let features = features(physical, enabled);
        Some(Self {
            gpu,
            limits: limits(physical),
            features,
            memory_free: memory_free(physical),
        })
    }

    /// Whether its subgroups, of 32 invocations always, multiply 16 × 16 matrices of f16 with sums
    /// of f32.
    pub(crate) fn multiplies_halves(&self) -> bool {
        let is_it = |shape: &CooperativeShape| {
            let sizes = [shape.m, shape.n, shape.k];
            let types = [&shape.a, &shape.b, &shape.c, &shape.result].map(String::as_str);
            sizes == [16; 3] && types == ["f16", "f16", "f32", "f32"]
        };
        self.features.f16
            && self.features.memory_model
            && self.limits.subgroup_sizes == [32; 2]
            && self.limits.workgroup_invocations >= 256
            && self.features.cooperative_matrix.iter().any(is_it)
    }
}

/// What would be switched on here.
pub(crate) fn offered(physical: &PhysicalDevice) -> DeviceFeatures {
    features(
        physical,
        &wanted().intersection(physical.supported_features()),
    )
}

fn limits(physical: &PhysicalDevice) -> DeviceLimits {
    let properties = physical.properties();
    let allocation = properties.max_memory_allocation_size.unwrap_or(u64::MAX);
    DeviceLimits {
        workgroup_invocations: properties.max_compute_work_group_invocations,
        workgroup_size: properties.max_compute_work_group_size,
        workgroup_count: properties.max_compute_work_group_count,
        storage_range: u64::from(properties.max_storage_buffer_range),
        uniform_range: u64::from(properties.max_uniform_buffer_range),
        storage_alignment: properties
            .min_storage_buffer_offset_alignment
            .as_devicesize(),
        uniform_alignment: properties
            .min_uniform_buffer_offset_alignment
            .as_devicesize(),
        shared_bytes: properties.max_compute_shared_memory_size,
        push_bytes: properties.max_push_constants_size,
        subgroup: properties.subgroup_size.unwrap_or(1),
        subgroup_sizes: [
            properties.min_subgroup_size.unwrap_or(1),
            properties.max_subgroup_size.unwrap_or(u32::MAX),
        ],
        buffer_bytes: allocation
            .min(properties.max_buffer_size.unwrap_or(u64::MAX))
            .min(own_memory(physical)),
    }
}

fn features(physical: &PhysicalDevice, enabled: &Enabled) -> DeviceFeatures {
    use vulkano::device::physical::SubgroupFeatures as Subgroup;
    use vulkano::shader::ShaderStages;
    let properties = physical.properties();
    let needed = Subgroup::BASIC | Subgroup::ARITHMETIC | Subgroup::BALLOT | Subgroup::SHUFFLE;
    let operations = properties
        .subgroup_supported_operations
        .is_some_and(|there| there.contains(needed));
    let stages = properties
        .subgroup_supported_stages
        .is_some_and(|there| there.contains(ShaderStages::COMPUTE));
    DeviceFeatures {
        f16: enabled.shader_float16 && enabled.storage_buffer16_bit_access,
        f64: enabled.shader_float64,
        int64: enabled.shader_int64,
        int16: enabled.shader_int16 && enabled.storage_buffer16_bit_access,
        int8: enabled.shader_int8 && enabled.storage_buffer8_bit_access,
        subgroups: operations && stages,
        float_atomics: enabled.shader_buffer_float32_atomic_add,
        int64_atomics: enabled.shader_buffer_int64_atomics,
        memory_model: enabled.vulkan_memory_model && enabled.vulkan_memory_model_device_scope,
        robust_access: enabled.robust_buffer_access,
        cooperative_matrix: if enabled.cooperative_matrix {
            cooperative_shapes(physical)
        } else {
            Vec::new()
        },
    }
}

/// Free bytes of the device's own memory, all processes considered.
pub(crate) fn memory_free(physical: &PhysicalDevice) -> Option<u64> {
    if !physical.supported_extensions().ext_memory_budget {
        return None;
    }
    let heaps = &physical.memory_properties().memory_heaps;
    let largest = heaps
        .iter()
        .enumerate()
        .filter(|(_, heap)| heap.flags.intersects(MemoryHeapFlags::DEVICE_LOCAL));
    let (index, _) = largest.max_by_key(|(_, heap)| heap.size)?;
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
    let functions = physical.instance().fns();
    // SAFETY: the handle is alive, and the extension that the chained structure belongs to is
    // there.
    unsafe {
        (functions.v1_1.get_physical_device_memory_properties2)(physical.handle(), &mut properties)
    };
    Some(budget.heap_budget[index].saturating_sub(budget.heap_usage[index]))
}

fn cooperative_shapes(physical: &PhysicalDevice) -> Vec<CooperativeShape> {
    let functions = &physical.instance().fns().khr_cooperative_matrix;
    let get = functions.get_physical_device_cooperative_matrix_properties_khr;
    let mut count = 0;
    // SAFETY: the handle is alive and the extension supported; without an array only the count is
    // written.
    let counted = unsafe { get(physical.handle(), &mut count, std::ptr::null_mut()) };
    let mut shapes = vec![vk::CooperativeMatrixPropertiesKHR::default(); count as usize];
    // SAFETY: as above; the array has `count` elements.
    let read = unsafe { get(physical.handle(), &mut count, shapes.as_mut_ptr()) };
    if counted != vk::Result::SUCCESS || read != vk::Result::SUCCESS {
        return Vec::new();
    }
    shapes.truncate(count as usize);
    let of_subgroups = shapes
        .into_iter()
        .filter(|shape| shape.scope == vk::ScopeKHR::SUBGROUP);
    of_subgroups
        .map(|shape| CooperativeShape {
            m: shape.m_size,
            n: shape.n_size,
            k: shape.k_size,
            a: component(shape.a_type),
            b: component(shape.b_type),
            c: component(shape.c_type),
            result: component(shape.result_type),
        })
        .collect()
}

/// Names as shaders write them.
fn component(of: vk::ComponentTypeKHR) -> String {
    match of {
        vk::ComponentTypeKHR::FLOAT16 => "f16".into(),
        vk::ComponentTypeKHR::FLOAT32 => "f32".into(),
        vk::ComponentTypeKHR::FLOAT64 => "f64".into(),
        vk::ComponentTypeKHR::SINT8 => "i8".into(),
        vk::ComponentTypeKHR::SINT16 => "i16".into(),
        vk::ComponentTypeKHR::SINT32 => "i32".into(),
        vk::ComponentTypeKHR::SINT64 => "i64".into(),
        vk::ComponentTypeKHR::UINT8 => "u8".into(),
        vk::ComponentTypeKHR::UINT16 => "u16".into(),
        vk::ComponentTypeKHR::UINT32 => "u32".into(),
        vk::ComponentTypeKHR::UINT64 => "u64".into(),
        other => format!("type {}", other.as_raw()),
    }
}

/// What is switched on where it exists: what users' and our own shaders may ask for.
pub(super) fn wanted() -> Enabled {
    Enabled {
        timeline_semaphore: true,
        robust_buffer_access: true,
        shader_float16: true,
        shader_float64: true,
        shader_int8: true,
        shader_int16: true,
        shader_int64: true,
        storage_buffer8_bit_access: true,
        storage_buffer16_bit_access: true,
        uniform_and_storage_buffer8_bit_access: true,
        uniform_and_storage_buffer16_bit_access: true,
        storage_push_constant8: true,
        storage_push_constant16: true,
        vulkan_memory_model: true,
        vulkan_memory_model_device_scope: true,
        shader_subgroup_extended_types: true,
        shader_buffer_int64_atomics: true,
        shader_shared_int64_atomics: true,
        shader_buffer_float32_atomics: true,
        shader_buffer_float32_atomic_add: true,
        shader_buffer_float64_atomics: true,
        shader_buffer_float64_atomic_add: true,
        shader_shared_float32_atomics: true,
        shader_shared_float32_atomic_add: true,
        shader_integer_dot_product: true,
        shader_zero_initialize_workgroup_memory: true,
        scalar_block_layout: true,
        maintenance4: true,
        cooperative_matrix: true,
        ..Enabled::empty()
    }
}

/// What other nodes are told of a device. `None` for one without a UUID (Vulkan 1.0): it could not
/// be picked out again, and lacks what workloads need.
pub(crate) fn describe(device: &PhysicalDevice) -> Option<Gpu> {
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
            features: offered(device).names(),
            memory_free: memory_free(device),
            rates: None,
            rests: None,
        },
    })
}

/// The largest heap on the device. Not the sum: cards list the part that the CPU can see (the PCI
/// window) once more.
fn own_memory(device: &PhysicalDevice) -> u64 {
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
