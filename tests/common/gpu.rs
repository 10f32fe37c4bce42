//! Whether this machine has a device for shaders, and whether that is a real GPU; and a layer that
//! has nodes take the one that is here for a card, and lose it.

use super::{cluster::both, program, source};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

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

/// What a `TestCard` is called.
pub const CARD: &str = "Card of the tests";
const LAYER: &str = "VK_LAYER_NODECTL_card";

/// The device that is here as a GPU on a card, for nodes that are given `variables`.
pub struct TestCard {
    variables: [(&'static str, String); 2],
    /// While this file is there, the next submission to the card removes it, and the process that
    /// submits has lost the card.
    pub trigger: PathBuf,
}

impl TestCard {
    /// Builds the layer in a directory; none, said as a skipped test, where there is no compiler.
    pub fn new(dir: &Path) -> Option<Self> {
        let trigger = dir.join("lose-the-card");
        let library = dir.join("card.so");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]);
        compiler
            .arg(&library)
            .arg(format!("-DTRIGGER=\"{}\"", trigger.display()))
            .arg(source("tests/fixtures/vulkan/layer.c"));
        let Ok(output) = compiler.output() else {
            eprintln!("SKIPPED: no C compiler here");
            return None;
        };
        assert!(output.status.success(), "{}", both(&output));
        let manifest = json!({
            "file_format_version": "1.1.2",
            "layer": {
                "name": LAYER, "type": "GLOBAL", "library_path": library, "api_version": "1.3.0",
                "implementation_version": "1", "description": "A card that can be lost",
            },
        });
        fs::write(dir.join("card.json"), manifest.to_string()).expect("writable");
        let variables = [
            ("VK_LAYER_PATH", dir.display().to_string()),
            ("VK_INSTANCE_LAYERS", LAYER.into()),
        ];
        Some(Self { variables, trigger })
    }

    /// For a node's environment; its tasks inherit them.
    pub fn variables(&self) -> Vec<(&str, &str)> {
        let all = self.variables.iter();
        all.map(|(name, value)| (*name, value.as_str())).collect()
    }
}
