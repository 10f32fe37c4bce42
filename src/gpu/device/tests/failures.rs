//! No driver, no device, no memory, no end.

use super::*;
use std::{
    os::unix::process::ExitStatusExt,
    process::{Command, ExitStatus},
};

#[test]
fn a_device_that_is_not_there_is_said_with_those_that_are() {
    let Some(device) = Fixture::new() else { return };
    let Err(DeviceError::NoSuchDevice { wanted, there }) = Device::open([0xab; 16], &OPTIONS)
    else {
        panic!()
    };
    assert!(
        wanted.contains("abababab") && there.contains(&device.info().gpu.name),
        "{wanted}: {there}"
    );
    let found = Device::open(device.info().gpu.uuid, &OPTIONS).unwrap();
    // What is free changes while this runs.
    let identity = |device: &Device| (device.info().gpu.uuid, device.info().gpu.name.clone());
    assert_eq!(identity(&found), identity(&device));
}

#[test]
fn software_devices_are_taken_only_when_asked_for() {
    let Some(device) = Fixture::new() else { return };
    let gpu = &device.info().gpu;
    if gpu.kind == nodectl_types::GpuKind::Software {
        let Err(DeviceError::NoSuchDevice { there, .. }) =
            Device::open(gpu.uuid, &DeviceOptions::default())
        else {
            panic!()
        };
        assert!(there.contains("software, not asked for"), "{there}");
    }
}

#[test]
fn what_does_not_fit_is_out_of_memory_and_harms_nothing() {
    let Some(device) = Fixture::new() else { return };
    for bytes in [device.info().limits.buffer_bytes + 1, 1 << 50, u64::MAX] {
        let Err(DeviceError::OutOfMemory { wanted, .. }) = device.buffer(bytes) else {
            panic!("{bytes}")
        };
        assert_eq!(wanted, bytes);
    }
    let buffer = device.buffer(8).unwrap();
    assert_eq!(read(&device, &buffer), [0, 0]);
}

#[test]
fn what_validation_says_is_an_error() {
    let Some(device) = Fixture::new() else { return };
    if !device.is_validated() {
        return;
    }
    let mut spirv = wgsl(
        "
        @group(0) @binding(0) var<storage, read_write> n: array<f32>;
        @compute @workgroup_size(1) fn main() { n[0] = n[1] + n[2]; }",
    );
    // An addition of floats made one of integers.
    let add = spirv
        .iter()
        .position(|word| *word == 5 << 16 | 129)
        .unwrap();
    spirv[add] = 5 << 16 | 128;
    let said = device.kernel(&KernelSource {
        spirv: &spirv,
        entry: "main",
        constants: &[],
        name: "wrong",
    });
    assert!(
        matches!(&said, Err(DeviceError::Invalid(why)) if why.starts_with("validation: ")),
        "{said:?}"
    );
}

/// This test binary once more, running one of the ignored functions below.
fn in_child(function: &str, variables: &[(&str, &str)]) -> (ExitStatus, String) {
    let mut command = Command::new("/proc/self/exe");
    command.args([
        "--exact",
        &format!("device::tests::failures::{function}"),
        "--ignored",
        "--nocapture",
    ]);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    (
        output.status,
        String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

#[test]
fn a_machine_without_driver_is_told_so() {
    let none = "/nonexistent.json";
    let (status, said) = in_child(
        "open_any",
        &[("VK_DRIVER_FILES", none), ("VK_ICD_FILENAMES", none)],
    );
    assert!(status.success());
    assert!(
        said.contains("no Vulkan driver") || said.contains("no Vulkan loader"),
        "{said}"
    );
}

#[test]
#[ignore = "not a test: the child of the one above"]
fn open_any() {
    println!("{}", Device::any(&OPTIONS).expect_err("there is no driver"));
}

#[test]
fn a_runaway_shader_meets_the_limit_and_the_process_can_end() {
    let Some(_) = Fixture::new() else { return };
    let (status, said) = in_child("run_away", &[]);
    assert_eq!(status.signal(), Some(9), "{said}");
    assert!(
        said.contains("did not finish within 300 ms: running a recording"),
        "{said}"
    );
    assert!(said.contains("later: TimedOut"), "{said}");
}

/// Ends by itself after hours, if nothing ends it before. Lavapipe leaves a loop after 65,535
/// rounds.
const LONG: &str = "
    @group(0) @binding(0) var<storage, read_write> n: array<u32>;
    @compute @workgroup_size(1) fn main() {
        for (var i = 0u; i < 65000u; i++) {
            for (var j = 0u; j < 65000u; j++) { n[0] = n[0] * 3u + j; }
        }
    }";

#[test]
#[ignore = "not a test: the child of the one above"]
fn run_away() {
    let device = Device::any(&DeviceOptions {
        validation: false,
        software: true,
        learned: None,
    })
    .unwrap();
    let kernel = kernel(&device, LONG);
    let buffer = device.buffer(4).unwrap();
    let recording = device
        .record(vec![dispatch(&kernel, &[&buffer], 1000)])
        .unwrap();
    let run = device.run(&recording);
    let after = device.download(&buffer, 0..4);
    println!("{}", run.wait(Duration::from_millis(300)).unwrap_err());
    let later = device.run(&recording).wait(LIMIT).unwrap_err();
    println!("later: {later:?} {:?}", device.buffer(4).map(drop));
    drop(after);
    // What a worker process does: nothing can take the work back, and no driver should be asked to.
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
        .unwrap();
}
