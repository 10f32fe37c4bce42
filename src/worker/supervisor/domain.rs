//! A Landlock domain: what a task can reach of the file system, kept by the kernel (landlock(7),
//! Linux 5.19). It knows what is allowed, not what is forbidden, and what is allowed of a directory
//! is allowed of all below it. So to hide a directory, whatever stands beside it and beside those
//! above it is allowed, one by one.
//!
//! Names and attributes stay visible, and programs can be executed: only contents and changes are
//! kept from tasks. What is made in a directory above a hidden one after the domain was is not in
//! it.

use crate::protocol::Confinement;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use std::{
    ffi::OsStr,
    fs, io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

/// The oldest version in which files may be moved from one directory to another.
const OLDEST: i32 = 2;
/// The version of Landlock in which shortening a file is a right of its own.
const TRUNCATES: i32 = 3;
/// The version of Landlock in which processes outside cannot be sent signals.
const SIGNALS: i32 = 6;

/// Where programs write that otherwise change nothing.
const TEMPORARY: [&str; 4] = ["/dev", "/proc", "/tmp", "/var/tmp"];

// linux/landlock.h
const VERSION_FLAG: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;
const SCOPE_SIGNAL: u64 = 1 << 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
/// Removing, making and moving, of whatever kind: `REMOVE_DIR` to `REFER` without a gap.
const CHANGE_DIR: u64 = (1 << 14) - (1 << 4);
const TRUNCATE: u64 = 1 << 14;

#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

/// What may be done with something and everything below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathAccess {
    All,
    Read,
}

/// Whether this kernel keeps domains; the error says why not.
pub fn is_kept() -> Result<(), String> {
    version().map(drop)
}

fn version() -> Result<i32, String> {
    // SAFETY: with this flag the call takes no attributes and answers a question.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<RulesetAttr>(),
            0usize,
            VERSION_FLAG,
        )
    };
    match i32::try_from(version) {
        Ok(version) if version >= OLDEST => Ok(version),
        Ok(version) if version > 0 => {
            Err("its Landlock is too old (Linux 5.19 has what is needed)".into())
        }
        _ => match io::Error::last_os_error().raw_os_error() {
            Some(libc::ENOSYS) => {
                Err("it has no Landlock (Linux 5.19 has, if it is built with it)".into())
            }
            Some(libc::EOPNOTSUPP) => {
                Err("its Landlock is switched off (`lsm=landlock,…` at boot switches it on)".into())
            }
            _ => Err(format!(
                "its Landlock does not answer: {}",
                io::Error::last_os_error()
            )),
        },
    }
}

/// A domain that a process can enter, or None if it is kept from nothing.
pub fn make(confinement: &Confinement) -> Result<Option<OwnedFd>, String> {
    let paths = |list: &[Vec<u8>]| {
        list.iter()
            .map(|path| PathBuf::from(OsStr::from_bytes(path)))
            .collect::<Vec<_>>()
    };
    let hidden = paths(&confinement.hidden);
    if hidden.is_empty() && !confinement.read_only {
        return Ok(None);
    }
    let version = version()?;
    let own = paths(&confinement.own);
    let read = paths(&confinement.read);
    let usual = if confinement.read_only {
        PathAccess::Read
    } else {
        PathAccess::All
    };
    let mut rules: Vec<(PathBuf, PathAccess)> = around(&hidden, &mut entries)
        .into_iter()
        .map(|path| (path, usual))
        .collect();
    if confinement.read_only {
        // Of these nothing is left when the machine starts again, or it is no file.
        let is_above = |path: &Path| hidden.iter().any(|hidden| hidden.starts_with(path));
        let temporary = TEMPORARY
            .iter()
            .map(PathBuf::from)
            .filter(|path| !is_above(path));
        rules.extend(temporary.map(|path| (path, PathAccess::All)));
    }
    rules.extend(own.into_iter().map(|path| (path, PathAccess::All)));
    rules.extend(read.into_iter().map(|path| (path, PathAccess::Read)));
    let failed = |error: io::Error| error.to_string();
    let ruleset = Ruleset::new(version).map_err(failed)?;
    for (path, access) in rules {
        ruleset
            .allow(&path, access)
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(Some(ruleset.fd))
}

/// What has to be allowed so that all is but `hidden`. `list` gives a directory's entries; one that
/// it does not know has none.
fn around(hidden: &[PathBuf], list: &mut dyn FnMut(&Path) -> Vec<PathBuf>) -> Vec<PathBuf> {
    let mut allowed = Vec::new();
    let mut above = vec![PathBuf::from("/")];
    while let Some(directory) = above.pop() {
        for entry in list(&directory) {
            if hidden.contains(&entry) {
                continue;
            }
            if hidden.iter().any(|hidden| hidden.starts_with(&entry)) {
                above.push(entry);
            } else {
                allowed.push(entry);
            }
        }
    }
    allowed
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}

struct Ruleset {
    fd: OwnedFd,
    handled: u64,
}

impl Ruleset {
    fn new(version: i32) -> io::Result<Self> {
        let truncate = if version >= TRUNCATES { TRUNCATE } else { 0 };
        let handled = READ_FILE | WRITE_FILE | CHANGE_DIR | truncate;
        let scoped = if version >= SIGNALS { SCOPE_SIGNAL } else { 0 };
        let attr = RulesetAttr {
            handled_access_fs: handled,
            handled_access_net: 0,
            scoped,
        };
        // SAFETY: the pointer is to a local of the size that is told; older kernels take a longer
        // one whose rest is zero. The descriptor is new and nobody else's, and closes itself on
        // execution.
        unsafe {
            let fd = libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const attr,
                size_of::<RulesetAttr>(),
                0u32,
            );
            let fd = i32::try_from(fd)
                .ok()
                .filter(|fd| *fd >= 0)
                .ok_or_else(io::Error::last_os_error)?;
            Ok(Self {
                fd: OwnedFd::from_raw_fd(fd),
                handled,
            })
        }
    }

    /// What is gone by now, or is a link, needs no rule.
    fn allow(&self, path: &Path, access: PathAccess) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(opened) = open(path, flags, Mode::empty()) else {
            return Ok(());
        };
        let allowed = match (FileType::from_raw_mode(fstat(&opened)?.st_mode), access) {
            (FileType::Symlink, _) => return Ok(()),
            (_, PathAccess::Read) => READ_FILE,
            (FileType::Directory, PathAccess::All) => self.handled,
            (_, PathAccess::All) => self.handled & (READ_FILE | WRITE_FILE | TRUNCATE),
        };
        let attr = PathBeneathAttr {
            allowed_access: allowed,
            parent_fd: opened.as_raw_fd(),
        };
        // SAFETY: both descriptors are open, and the pointer is to a local of the kind that the
        // rule's type says.
        let added = unsafe {
            let rule = &raw const attr;
            libc::syscall(
                libc::SYS_landlock_add_rule,
                self.fd.as_raw_fd(),
                RULE_PATH_BENEATH,
                rule,
                0u32,
            )
        };
        if added < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

/// Has the calling process enter a domain, for good, with all that it starts. Async-signal-safe.
pub unsafe fn enter(fd: libc::c_int) -> bool {
    // SAFETY: no pointers; `fd` is a ruleset.
    unsafe { libc::syscall(libc::SYS_landlock_restrict_self, fd, 0u32) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_allowed_but_what_is_hidden() {
        let tree = [
            "/etc",
            "/etc/nodectl",
            "/etc/nodectl/secret",
            "/etc/hosts",
            "/users",
            "/users/a",
            "/users/a/data",
            "/users/a/work",
            "/users/b",
            "/usr",
        ];
        let mut list = |directory: &Path| {
            let below = |path: &&&str| Path::new(path).parent() == Some(directory);
            tree.iter().filter(below).map(PathBuf::from).collect()
        };
        let mut allowed = around(
            &["/users/a/data".into(), "/etc/nodectl/secret".into()],
            &mut list,
        );
        allowed.sort();
        assert_eq!(
            allowed,
            ["/etc/hosts", "/users/a/work", "/users/b", "/usr"].map(PathBuf::from)
        );
        let mut of_nothing = |_: &Path| Vec::new();
        assert_eq!(
            around(&["/a/b".into()], &mut of_nothing),
            Vec::<PathBuf>::new()
        );
    }
}
