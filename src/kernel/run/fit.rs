//! Whether a kernel fits a device: what the entry point needs against what the device offers. Pure;
//! the sentences are for users.

use nodectl_gpu::{
    device::{DeviceFeatures, DeviceInfo},
    shader::{EntryPoint, Feature},
};

/// Says what the device lacks.
pub fn check(entry: &EntryPoint, info: &DeviceInfo) -> Result<(), String> {
    let name = &info.gpu.name;
    if let Some(lacking) = entry
        .features
        .iter()
        .find(|feature| !has(&info.features, **feature))
    {
        let hint =
            "hint: `where` chooses nodes whose GPUs have it; `nodectl devices` lists features";
        return Err(format!(
            "{name} has no {lacking}, which `{}` needs\n{hint}",
            entry.name
        ));
    }
    let [x, y, z] = entry.workgroup;
    let invocations = entry
        .workgroup
        .iter()
        .fold(1u32, |product, size| product.saturating_mul(*size));
    let limits = &info.limits;
    let too_wide = (0..3).any(|axis| entry.workgroup[axis] > limits.workgroup_size[axis]);
    if too_wide || invocations > limits.workgroup_invocations {
        return Err(format!(
            "a workgroup of {x} x {y} x {z} is too large for {name}: at most {:?}, {} invocations in all\n\
             hint: every device takes 128 invocations",
            limits.workgroup_size, limits.workgroup_invocations
        ));
    }
    if entry.shared_bytes > limits.shared_bytes {
        return Err(format!(
            "`{}` has {} bytes of workgroup memory, and {name} has {}\nhint: every device has 16 KiB",
            entry.name, entry.shared_bytes, limits.shared_bytes
        ));
    }
    Ok(())
}

fn has(features: &DeviceFeatures, feature: Feature) -> bool {
    match feature {
        Feature::F16 => features.f16,
        Feature::F64 => features.f64,
        Feature::I16 => features.int16,
        Feature::I64 => features.int64,
        Feature::I64Atomics => features.int64_atomics,
        Feature::F32Atomics => features.float_atomics,
        Feature::Subgroups => features.subgroups,
        Feature::CooperativeMatrix => !features.cooperative_matrix.is_empty(),
    }
}

/// The workgroups that cover `size` cells; None where the device takes no such number in one
/// dispatch.
pub fn groups(size: [u32; 3], workgroup: [u32; 3], most: [u32; 3]) -> Option<[u32; 3]> {
    let mut groups = [0; 3];
    for axis in 0..3 {
        groups[axis] = size[axis].div_ceil(workgroup[axis].max(1));
        if groups[axis] > most[axis] {
            return None;
        }
    }
    Some(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_cover_the_cells_or_are_too_many() {
        assert_eq!(groups([17, 1, 8], [8, 8, 4], [65_535; 3]), Some([3, 1, 2]));
        assert_eq!(groups([8 * 65_535 + 1, 1, 1], [8, 1, 1], [65_535; 3]), None);
    }
}
