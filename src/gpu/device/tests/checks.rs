//! Mistakes that are found before anything reaches the GPU.

use super::*;
use std::ops::Range;

fn refused(device: &Device, step: RecordingStep) -> String {
    match device.record(vec![step]) {
        Err(DeviceError::Invalid(why)) => why,
        other => panic!("{other:?}"),
    }
}

/// A kernel with a uniform and an array.
const TWO_BINDINGS: &str = "
    struct Sizes { count: u32, scale: vec4<f32>, table: array<vec4<u32>, 10> }
    @group(0) @binding(0) var<uniform> sizes: Sizes;
    @group(0) @binding(1) var<storage, read_write> out: array<vec4<u32>>;
    @compute @workgroup_size(1) fn main() { out[0] = sizes.table[sizes.count]; }";

fn at(binding: u32, buffer: &DeviceBuffer, range: Range<u64>) -> BufferBinding {
    BufferBinding {
        set: 0,
        binding,
        buffer: buffer.clone(),
        range,
    }
}

#[test]
fn wrong_bindings_are_named() {
    let Some(device) = Fixture::new() else { return };
    let kernel = kernel(&device, TWO_BINDINGS);
    let (small, large) = (device.buffer(64).unwrap(), device.buffer(4096).unwrap());
    let with = |bindings: &[BufferBinding], push: &[u8]| RecordingStep::Dispatch {
        kernel: kernel.clone(),
        bindings: bindings.to_vec(),
        push: push.to_vec(),
        groups: [1; 3],
    };
    let (sizes, out) = (at(0, &large, 0..4096), at(1, &small, 0..64));
    let right = [sizes.clone(), out.clone()];
    assert!(device.record(vec![with(&right, &[])]).is_ok());
    let stray = at(2, &small, 0..64);
    let with_sizes = |out: BufferBinding| vec![sizes.clone(), out];
    let cases = [
        (
            vec![sizes.clone()],
            "nothing is bound to binding 1 of set 0",
        ),
        (
            [&right[..], &[stray]].concat(),
            "binding 2 of set 0: the kernel has no such buffer",
        ),
        (
            vec![sizes.clone(), out.clone(), out.clone()],
            "binding 1 of set 0: bound twice",
        ),
        (
            vec![at(0, &small, 0..64), out.clone()],
            "binding 0 of set 0: 64 bytes, and the shader declares at least 192",
        ),
        (
            with_sizes(at(1, &small, 0..12)),
            "binding 1 of set 0: 12 bytes, and the shader declares at least 16",
        ),
        (with_sizes(at(1, &small, 0..0)), "0 bytes"),
        (
            with_sizes(at(1, &small, 0..65)),
            "bytes 0..65 of a buffer of 64",
        ),
        (
            with_sizes(at(1, &large, 4..4096)),
            "starts at byte 4, which is not a multiple of",
        ),
    ];
    for (bindings, expected) in cases {
        let error = refused(&device, with(&bindings, &[]));
        assert!(
            error.starts_with("step 0: kernel `test`") && error.contains(expected),
            "{error}"
        );
    }
    let pushed = refused(&device, with(&right, &[0; 4]));
    assert!(pushed.contains("takes 0 bytes of push constants, and 4 are given"));
}

#[test]
fn ranges_outside_of_buffers_are_refused() {
    let Some(device) = Fixture::new() else { return };
    let (a, b) = (device.buffer(100).unwrap(), device.buffer(100).unwrap());
    let copy = |from: &DeviceBuffer, from_offset, to: &DeviceBuffer, to_offset, bytes| {
        RecordingStep::Copy {
            from: from.clone(),
            from_offset,
            to: to.clone(),
            to_offset,
            bytes,
        }
    };
    assert!(refused(&device, copy(&a, 50, &b, 0, 51)).contains("bytes 50..101 of a buffer of 100"));
    assert!(refused(&device, copy(&a, 0, &b, u64::MAX, 2)).contains("of a buffer of 100"));
    assert!(refused(&device, copy(&a, 0, &a, 10, 20)).contains("of the same buffer overlap"));
    let fill = RecordingStep::Fill {
        buffer: a.clone(),
        range: 0..10,
        value: 0,
    };
    assert!(refused(&device, fill).contains("multiples of 4"));
    let invalid = |result: Result<_, DeviceError>| matches!(result, Err(DeviceError::Invalid(_)));
    assert!(invalid(device.upload(&a, 1, words([0; 25])).wait(LIMIT)));
    #[expect(clippy::reversed_empty_ranges)]
    for range in [0..101, 5..4, 200..300] {
        assert!(invalid(device.download(&a, range).wait(LIMIT).map(drop)));
    }
    assert!(
        device
            .record(vec![copy(&a, 0, &a, 50, 50), copy(&a, 0, &b, 0, 0)])
            .is_ok()
    );
    assert_eq!(device.download(&a, 7..7).wait(LIMIT), Ok(Vec::new()));
}

#[test]
fn too_many_workgroups_and_too_large_ones_are_refused() {
    let Some(device) = Fixture::new() else { return };
    let buffer = device.buffer(4).unwrap();
    let small = kernel(
        &device,
        "@group(0) @binding(0) var<storage, read_write> n: u32;
        @compute @workgroup_size(1) fn main() { n = 1u; }",
    );
    let limit = device.info().limits.workgroup_count[0];
    if limit < u32::MAX {
        assert!(
            refused(&device, dispatch(&small, &[&buffer], limit + 1))
                .contains("workgroups, and the GPU takes")
        );
    }
    let spirv = wgsl("@compute @workgroup_size(64, 64, 64) fn main() {}");
    let large = device.kernel(&KernelSource {
        spirv: &spirv,
        entry: "main",
        constants: &[],
        name: "large",
    });
    let Err(DeviceError::Invalid(why)) = large else {
        panic!("{large:?}")
    };
    assert!(
        why.starts_with("kernel `large`: its workgroup of [64, 64, 64] is more than the GPU takes"),
        "{why}"
    );
}

#[test]
fn kernels_that_cannot_be_are_refused_and_named() {
    let Some(device) = Fixture::new() else { return };
    let good = wgsl(
        "@group(0) @binding(0) var<storage, read_write> n: u32;
        @compute @workgroup_size(1) fn main() { n = 1u; }",
    );
    let refused = |spirv: &[u32], entry: &str, constants: &[(u32, Constant)]| match device.kernel(
        &KernelSource {
            spirv,
            entry,
            constants,
            name: "mine",
        },
    ) {
        Err(DeviceError::Invalid(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(refused(&good, "other", &[]).contains("no compute entry point `other`"));
    assert!(refused(&[], "main", &[]).starts_with("kernel `mine`: its SPIR-V cannot be read"));
    assert!(refused(&good[..good.len() / 2], "main", &[]).starts_with("kernel `mine`"));
    assert!(
        refused(&good, "main", &[(3, Constant::U32(1))])
            .contains("no specialization constant 3; it has []")
    );
    for cut in [4, 7, 20] {
        refused(&good[..cut], "main", &[]);
    }
}

#[test]
fn the_same_kernel_is_compiled_once() {
    let Some(device) = Fixture::new() else { return };
    let (first, second) = (
        kernel(&device, DOUBLE_AND_ADD),
        kernel(&device, DOUBLE_AND_ADD),
    );
    assert!(Arc::ptr_eq(&first.0, &second.0));
    assert_eq!(first.workgroup(), [64, 1, 1]);
}

#[test]
fn what_belongs_to_another_device_is_refused() {
    let Some(device) = Fixture::new() else { return };
    let other = Device::any(&OPTIONS).unwrap();
    let (ours, theirs) = (device.buffer(4).unwrap(), other.buffer(4).unwrap());
    let fill = RecordingStep::Fill {
        buffer: theirs.clone(),
        range: 0..4,
        value: 0,
    };
    assert!(refused(&device, fill.clone()).contains("a buffer of another device"));
    assert!(matches!(
        device.download(&theirs, 0..4).wait(LIMIT),
        Err(DeviceError::Invalid(_))
    ));
    let recording = other.record(vec![fill]).unwrap();
    assert!(matches!(
        device.run(&recording).wait(LIMIT),
        Err(DeviceError::Invalid(_))
    ));
    assert_eq!(read(&device, &ours), [0]);
}

/// No device here has cooperative matrices; that their shader can be read for one that has them is
/// all that can be seen.
#[test]
fn cooperative_matrices_are_understood() {
    let bytes = include_bytes!("../../../../shaders/gemm_cooperative.spv");
    let words: Vec<u32> = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|word| u32::from_le_bytes(*word))
        .collect();
    vulkano::shader::spirv::Spirv::new(&words).expect("vulkano reads it");
}
