//! Secrets of a task: each a file in memory that only the processes have which inherit it. It has
//! no name, is on no disk, cannot be changed, and is gone with the last of them.

use nodectl_types::secret;
use rustix::{
    fd::OwnedFd,
    fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, memfd_create},
    io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd},
};
use std::{
    fs::File,
    io::{self, Write},
    os::fd::AsRawFd,
};

/// Descriptors that programs take for themselves, shells' among them, are lower.
const FIRST: i32 = 100;

/// Open in this process and, while it lives, in what it starts.
pub struct Placed(Vec<(String, OwnedFd)>);

pub fn place(secrets: &[(String, Vec<u8>)]) -> io::Result<Placed> {
    let place = |(name, value): &(String, Vec<u8>)| {
        let memory = memfd_create(
            "nodectl-secret",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        let mut file = File::from(memory);
        file.write_all(value)?;
        fchmod(&file, Mode::RUSR)?;
        fcntl_add_seals(
            &file,
            SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
        )?;
        let kept = fcntl_dupfd_cloexec(&file, FIRST)?;
        fcntl_setfd(&kept, FdFlags::empty())?;
        Ok((name.clone(), kept))
    };
    secrets
        .iter()
        .map(place)
        .collect::<io::Result<_>>()
        .map(Placed)
}

impl Placed {
    /// `NAME=value` of the variables that tell where they are.
    pub fn variables(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.0.iter().map(|(name, fd)| {
            format!(
                "{}=/proc/self/fd/{}",
                secret::variable(name),
                fd.as_raw_fd()
            )
            .into_bytes()
        })
    }
}
