//! What processes are started with, also in a root that has neither `/proc` nor `/dev`.

use rustix::fs::{MemfdFlags, memfd_create};
use std::{
    ffi::{CStr, OsStr, OsString},
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::Stdio,
};

/// This very program, also when its file was replaced or removed since.
pub const OWN_PROGRAM: &str = "/proc/self/exe";

/// What to execute for this very program. Without `/proc` it is a path, and another program once
/// that was replaced.
pub fn own_program() -> OsString {
    match Path::new(OWN_PROGRAM).exists() {
        true => OWN_PROGRAM.into(),
        false => started_as().map_or(OWN_PROGRAM.into(), PathBuf::into_os_string),
    }
}

/// Where this program's file is, or was when it was started.
pub fn own_path() -> io::Result<PathBuf> {
    std::env::current_exe().or_else(|error| started_as().ok_or(error))
}

/// The path by which the kernel was asked to execute this program (getauxval(3)).
fn started_as() -> Option<PathBuf> {
    // SAFETY: without memory of the caller's.
    let path = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const libc::c_char;
    if path.is_null() {
        return None;
    }
    // SAFETY: the kernel has put a string there that lives as long as the process.
    let path = unsafe { CStr::from_ptr(path) };
    std::path::absolute(OsStr::from_bytes(path.to_bytes())).ok()
}

/// A stream of a child that says nothing and swallows everything: `/dev/null`, or a file in memory
/// where that is missing, which is not for children that write much.
pub fn nothing() -> io::Result<Stdio> {
    match Path::new("/dev/null").exists() {
        true => Ok(Stdio::null()),
        false => Ok(memfd_create(c"nothing", MemfdFlags::CLOEXEC)?.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_found_both_ways() {
        let ours = std::fs::canonicalize(own_path().unwrap()).unwrap();
        assert_eq!(std::fs::canonicalize(started_as().unwrap()).unwrap(), ours);
        assert_eq!(own_program(), OWN_PROGRAM);
    }
}
