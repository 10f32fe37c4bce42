//! Disks of a few megabytes.

// Each test program uses some of it.
#![allow(dead_code)]

use std::{path::Path, process::Command};

/// A file system of a few megabytes, gone when dropped.
pub struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    pub fn new(size: &str) -> Option<Self> {
        let dir = tempfile::Builder::new()
            .prefix("nodectl-")
            .tempdir()
            .expect("a temporary directory");
        let disk = Self { dir };
        let mounted = disk.mount(&[
            "-t",
            "tmpfs",
            "-o",
            &format!("size={size},mode=0700"),
            "tmpfs",
        ]);
        if let Err(why) = &mounted {
            eprintln!("SKIPPED: a small disk cannot be mounted here: {why}");
        }
        mounted.is_ok().then_some(disk)
    }

    fn mount(&self, arguments: &[&str]) -> Result<(), String> {
        let output = Command::new("mount")
            .args(arguments)
            .arg(self.path())
            .output();
        let output = output.map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    pub fn remount(&self, option: &str) {
        self.mount(&["-o", &format!("remount,{option}")])
            .expect("it was mounted by us");
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a node that is still dying may have files open.
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.dir.path())
            .output();
    }
}
