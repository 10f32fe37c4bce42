//! Whether this machine may have a GPU, as far as files say. Drivers know better, and take their
//! time.

use std::{env, fs, path::Path};

/// Through one of these a program speaks to a GPU: most vendors', NVIDIA's, those of Tegra, Mali
/// and Adreno, Windows' below WSL.
const DEVICES: [&str; 6] = [
    "dev/dri",
    "dev/nvidiactl",
    "dev/nvhost-ctrl",
    "dev/mali0",
    "dev/kgsl-3d0",
    "dev/dxg",
];
/// By them somebody says which drivers the Vulkan loader takes.
const DRIVER_VARIABLES: [&str; 3] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"];
/// Display controllers, and accelerators, by the first digits of a PCI device's class (PCI Code
/// and ID Assignment Specification). A driver may make its devices when it is asked first.
const CLASSES: [&str; 2] = ["0x03", "0x12"];

/// False only where no driver finds a GPU but one in software. `root`: where the file system
/// begins.
pub fn may_have_gpus(root: &Path) -> bool {
    drivers_are_chosen()
        || DEVICES.iter().any(|device| root.join(device).exists())
        || has_controller(root)
}

/// Somebody has said which drivers are used.
pub fn drivers_are_chosen() -> bool {
    DRIVER_VARIABLES
        .iter()
        .any(|name| env::var_os(name).is_some())
}

fn has_controller(root: &Path) -> bool {
    let devices = fs::read_dir(root.join("sys/bus/pci/devices"));
    devices.into_iter().flatten().flatten().any(|device| {
        let class = fs::read_to_string(device.path().join("class"));
        class.is_ok_and(|class| CLASSES.iter().any(|digits| class.starts_with(digits)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root_with(path: &str, text: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
        root
    }

    #[test]
    fn a_device_or_a_controller_speaks_for_a_gpu_and_a_network_card_does_not() {
        if drivers_are_chosen() {
            println!("SKIPPED: a variable names the drivers");
            return;
        }
        let may_have = |path: &str, text: &str| may_have_gpus(root_with(path, text).path());
        let class = "sys/bus/pci/devices/0000:01:00.0/class";
        assert!(may_have("dev/nvidiactl", ""));
        assert!(may_have("dev/dri/renderD128", ""));
        assert!(may_have(class, "0x030200\n"));
        assert!(may_have(class, "0x120000\n"));
        assert!(!may_have(class, "0x020000\n"));
        assert!(!may_have("dev/null", ""));
    }
}
