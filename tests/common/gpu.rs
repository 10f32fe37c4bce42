//! Whether this machine has a device for shaders, and whether that is a real GPU.

use super::{cluster::both, program};
use serde_json::Value;
use std::process::Command;

/// What compute shaders run on here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ShaderDevice {
    /// Tasks are granted it.
    Gpu,
    /// Mesa's driver on the processor, for tasks that were granted none.
    Software,
}

impl ShaderDevice {
    /// What a job asks for to compute on it.
    pub fn gpus(self) -> u32 {
        match self {
            Self::Gpu => 1,
            Self::Software => 0,
        }
    }
}

/// The best device here; none, said as a skipped test, where there is none.
pub fn shader_device() -> Option<ShaderDevice> {
    let output = Command::new(program())
        .arg("gpu-probe")
        .output()
        .expect("nodectl starts");
    let said = both(&output);
    let answer = said.lines().rev().find(|line| line.starts_with('{'));
    let answer: Option<Value> = answer.and_then(|line| serde_json::from_str(line).ok());
    let listed = answer.as_ref().and_then(|answer| answer["Ok"].as_array());
    match listed.map_or(&[][..], Vec::as_slice) {
        [] => {
            eprintln!(
                "SKIPPED: no Vulkan device here (Debian: mesa-vulkan-drivers): {}",
                said.trim()
            );
            None
        }
        gpus if gpus.iter().any(|gpu| gpu["kind"] != "Software") => Some(ShaderDevice::Gpu),
        _ => Some(ShaderDevice::Software),
    }
}
