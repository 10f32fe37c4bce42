//! A GPU's driver of which the Vulkan loader is told by this program. Whoever looks for GPUs leaves
//! the driver's manifest in the data directory where one is needed; tasks that are granted a GPU
//! find it by these variables.

use std::path::{Path, PathBuf};

/// In the data directory.
pub const DRIVERS: &str = "drivers";
/// In that directory: a manifest as the Vulkan loader reads it.
pub const MANIFEST: &str = "icd.json";
/// Both mean the same; loaders before 1.3.207 know the second only.
const VARIABLES: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

/// The manifest that is needed here, if one is.
pub fn manifest(drivers: &Path) -> Option<PathBuf> {
    let path = drivers.join(MANIFEST);
    path.exists().then_some(path)
}

/// What tells the Vulkan loader of a manifest, and of no other.
pub fn variables(manifest: &Path) -> impl Iterator<Item = (&'static str, &Path)> {
    VARIABLES.into_iter().map(move |name| (name, manifest))
}
