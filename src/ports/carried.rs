//! The part of this program that uses GPUs, where this program is linked statically. Drivers are
//! loaded by the system's C library, beside which there may be no other in a process: so a static
//! program carries a small one that is linked dynamically (`packaging/build`), packed, and starts
//! it from memory wherever drivers are wanted. That one has the commands `supervise`, `gpu-probe`
//! and those of the workers.

use super::{bare::own_program, getent::is_static};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// What opens drivers for a program, as programs ask for it.
const VULKAN_LOADER: &str = "libvulkan.so.1";
/// Where the system's C library keeps an index of all libraries.
const INDEX: &str = "etc/ld.so.cache";
/// Where it looks without an index, too.
const LIBRARY_DIRECTORIES: [&str; 4] = ["lib64", "usr/lib64", "lib", "usr/lib"];
/// Longer than any such program: what is packed comes with this one, but is measured all the same.
const MAX_BYTES: u64 = 256 << 20;
/// Asks for memory that may be executed, on kernels that want it said (6.3 and newer).
const EXECUTABLE: MemfdFlags = MemfdFlags::from_bits_retain(0x10);

/// The command by which the carried program shows that it runs.
pub const TRIAL: &str = "ready";

static PACKED: OnceLock<&'static [u8]> = OnceLock::new();
static UNPACKED: OnceLock<Result<OwnedFd, String>> = OnceLock::new();

/// Says which program is carried, packed by zstd. Once, before anything asks for it.
pub fn bring(packed: &'static [u8]) {
    let _ = PACKED.set(packed);
}

/// What to execute where drivers are to be loaded; stays valid while this process lives. The error
/// says in a sentence's part why no driver can be loaded here. The first call of a static program
/// may take a tenth of a second.
pub fn program() -> Result<OsString, String> {
    if !is_static() {
        return Ok(own_program());
    }
    let unpacked = UNPACKED.get_or_init(|| {
        let packed = PACKED.get();
        let packed = packed.ok_or("it was built without the part that can (packaging/build)")?;
        why_not(Path::new("/"), interpreter(packed)?.as_deref()).map_or(Ok(()), Err)?;
        let memory = unpack(packed);
        let memory =
            memory.map_err(|error| format!("the part that can has no place in memory: {error}"))?;
        try_out(&memory).map(|()| memory)
    });
    match unpacked {
        Ok(memory) => Ok(path(memory)),
        Err(why) => Err(why.clone()),
    }
}

/// Goes on as the carried program, with this one's arguments, if their first is one of its commands
/// and drivers can be loaded here. A node starts it as what it is; this is for whoever types it.
pub fn go_on_as(is_its: impl Fn(&str) -> bool) {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    let Some(command) = first.filter(|first| first.to_str().is_some_and(is_its)) else {
        return;
    };
    if let (true, Ok(program)) = (is_static(), program()) {
        let mut next = Command::new(program);
        let error = next.arg0("nodectl").arg(command).args(arguments).exec();
        tracing::warn!("the part for GPUs could not be started: {error}");
    }
}

/// As `program`, or this program itself where that comes to nothing.
pub fn program_or_own() -> OsString {
    program().unwrap_or_else(|_| own_program())
}

/// Why the carried program, which wants this interpreter, could load no driver on the machine whose
/// files are below `root`.
fn why_not(root: &Path, interpreter: Option<&Path>) -> Option<String> {
    let below = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    if let Some(loader) = interpreter.filter(|path| !below(path).exists()) {
        return Some(format!(
            "drivers need the C library glibc, and this machine has none ({} is missing)",
            loader.display()
        ));
    }
    if has_library(root, VULKAN_LOADER) {
        return None;
    }
    Some(format!(
        "there is no Vulkan loader ({VULKAN_LOADER}) on this machine\n\
         hint: install it and the GPU's driver (Debian: `apt install libvulkan1`)"
    ))
}

/// Whether programs find the library: by the index, in the directories that need none, or where
/// LD_LIBRARY_PATH says.
fn has_library(root: &Path, name: &str) -> bool {
    let entry = [name.as_bytes(), b"\0"].concat();
    let index = fs::read(root.join(INDEX)).unwrap_or_default();
    if index.windows(entry.len()).any(|window| window == entry) {
        return true;
    }
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let named = std::env::split_paths(&path).filter(|path| path.is_absolute());
    let usual = LIBRARY_DIRECTORIES.iter().map(|path| root.join(path));
    named.chain(usual).any(|path| path.join(name).exists())
}

/// What the kernel starts for the packed program: the entry of the kind INTERP (3) of its program
/// headers (elf(5)).
fn interpreter(packed: &[u8]) -> Result<Option<PathBuf>, String> {
    let mut start = Vec::new();
    let read = unpacked(packed).and_then(|file| file.take(4096).read_to_end(&mut start));
    read.map_err(|error| format!("the part that can is damaged: {error}"))?;
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let field = start.get(at..at + bytes)?.iter().rev();
        Some(field.fold(0, |value, byte| value << 8 | usize::from(*byte)))
    };
    let text = || {
        let (table, size, count) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
        let entry = (0..count)
            .map(|index| table + index * size)
            .find(|entry| number(*entry, 4) == Some(3))?;
        let (at, bytes) = (number(entry + 8, 8)?, number(entry + 0x20, 8)?);
        let text = start.get(at..at.checked_add(bytes)?)?.split_last()?.1;
        std::str::from_utf8(text).ok().map(PathBuf::from)
    };
    Ok(text())
}

fn path(memory: &OwnedFd) -> OsString {
    format!("/proc/self/fd/{}", memory.as_raw_fd()).into()
}

/// Whether it runs here: a C library that is too old for it shows now, and not when a node has been
/// made to rest on it.
fn try_out(memory: &OwnedFd) -> Result<(), String> {
    let mut command = Command::new(path(memory));
    let tried = command
        .arg0("nodectl")
        .arg(TRIAL)
        .stdin(Stdio::null())
        .output();
    let why = match tried {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_string(),
        Err(error) => error.to_string(),
    };
    Err(format!(
        "the part that can does not run on this machine: {why}"
    ))
}

fn unpacked(packed: &[u8]) -> io::Result<StreamingDecoder<&[u8], FrameDecoder>> {
    StreamingDecoder::new(packed).map_err(io::Error::other)
}

/// A file in memory that nobody can change any more.
fn unpack(packed: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create(c"nodectl", flags | EXECUTABLE)
        .or_else(|_| memfd_create(c"nodectl", flags))?;
    let mut file = File::from(memory);
    io::copy(&mut unpacked(packed)?.take(MAX_BYTES), &mut file)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write;

    fn packed(program: &[u8]) -> Vec<u8> {
        compress_to_vec(program, CompressionLevel::Fastest)
    }

    #[test]
    fn a_packed_program_runs_from_memory_that_nobody_can_change() {
        let Ok(program) = fs::read("/bin/true") else {
            return println!("SKIPPED: no /bin/true");
        };
        let packed = packed(&program);
        let found = interpreter(&packed).unwrap().expect("it is dynamic");
        assert!(found.exists(), "{}", found.display());
        let memory = unpack(&packed).unwrap();
        assert_eq!(try_out(&memory), Ok(()));
        let written = File::from(memory).write_all(b"x");
        assert!(written.is_err(), "it is sealed");
    }

    #[test]
    fn a_program_that_does_not_run_here_is_not_rested_on() {
        let memory = unpack(&packed(b"\x7fELF, but not really")).unwrap();
        let why = try_out(&memory).unwrap_err();
        assert!(why.contains("does not run on this machine"), "{why}");
        let Ok(program) = fs::read("/bin/false") else {
            return println!("SKIPPED: no /bin/false");
        };
        assert!(try_out(&unpack(&packed(&program)).unwrap()).is_err());
    }

    #[test]
    fn what_is_no_program_has_no_interpreter_and_damage_is_told() {
        assert_eq!(interpreter(&packed(b"#!/bin/sh\n")), Ok(None));
        let mut damaged = packed(&[7; 9000]);
        damaged.truncate(damaged.len() / 2);
        assert!(interpreter(&damaged).is_err() || unpack(&damaged).is_err());
    }

    #[test]
    fn a_machine_says_what_it_lacks_for_drivers() {
        let root = tempfile::tempdir().unwrap();
        let loader = Path::new("/lib64/ld-linux-x86-64.so.2");
        let why = || why_not(root.path(), Some(loader));
        assert!(why().unwrap().contains("glibc"), "{:?}", why());
        fs::create_dir(root.path().join("lib64")).unwrap();
        fs::write(root.path().join("lib64/ld-linux-x86-64.so.2"), "").unwrap();
        assert!(why().unwrap().contains("no Vulkan loader"), "{:?}", why());
        fs::create_dir(root.path().join("etc")).unwrap();
        fs::write(
            root.path().join(INDEX),
            b"ld.so\0libvulkan.so.1\0/lib/libvulkan.so.1\0",
        )
        .unwrap();
        assert_eq!(why(), None);
        fs::remove_file(root.path().join(INDEX)).unwrap();
        assert!(why().is_some());
        fs::write(root.path().join("lib64").join(VULKAN_LOADER), "").unwrap();
        assert_eq!(why(), None);
    }
}
