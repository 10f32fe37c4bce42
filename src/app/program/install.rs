//! One program in the place of another: whether it is one, for this machine, and runs here; the old
//! one kept; the new one there at once and as a whole, or not at all. Blocks on the disk.

use nodectl_ports::{Blobs, bare::own_program, files::remove_if_there};
use nodectl_types::BlobHash;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek},
    os::unix::{
        fs::{OpenOptionsExt, PermissionsExt},
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

/// Beside the program: what the new one is called until it takes its place, and the old one from
/// then on.
const NEW: &str = "new";
const PREVIOUS: &str = "previous";
/// How long a program may take to say its version.
const TRIAL: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// As far as an ELF file's header says what it is for.
const HEADER_BYTES: usize = 20;

/// A blob that is to be the program at `path`.
pub(super) struct Installation {
    pub path: PathBuf,
    pub program: BlobHash,
    pub blobs: Arc<dyn Blobs>,
}

impl Installation {
    /// Returns where the old program is. The error is the rest of a sentence.
    pub fn run(self) -> Result<PathBuf, String> {
        let blob = self.blobs.open(self.program);
        let blob = blob.map_err(|error| format!("it cannot be read: {error}"))?;
        let blob = blob.ok_or("the node has no such file")?;
        let previous = beside(&self.path, PREVIOUS);
        let there = File::open(&self.path).and_then(hash).ok();
        if there == Some(self.program) {
            // Nodes of one machine, or of a shared file system, have one file.
            return Ok(previous);
        }
        let new = beside(&self.path, NEW);
        let placed = place(blob, &new, &self.path).and_then(|()| try_program(&new));
        let placed = placed.and_then(|()| {
            exchange(&new, &self.path, &previous, there.is_some())
                .map_err(|error| cannot_replace(&self.path, &error))
        });
        if placed.is_err() {
            let _ = fs::remove_file(&new);
        }
        placed.map(|()| previous)
    }
}

/// This machine's, as uname(2) says it.
pub(super) fn architecture() -> String {
    let system = rustix::system::uname();
    system.machine().to_string_lossy().into_owned()
}

pub(super) fn hash(mut file: File) -> io::Result<BlobHash> {
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut file, &mut hasher)?;
    Ok(BlobHash(*hasher.finalize().as_bytes()))
}

fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or(OsStr::new("nodectl")).to_owned();
    name.push(OsString::from(format!(".{what}")));
    path.with_file_name(name)
}

fn cannot_replace(path: &Path, error: &io::Error) -> String {
    format!(
        "{} cannot be replaced: {error}\nhint: where a package brought it, upgrade that package and restart the node",
        path.display()
    )
}

/// A copy of the blob, as executable as the program that it is to replace.
fn place(mut blob: File, new: &Path, old: &Path) -> Result<(), String> {
    check_kind(&mut blob)?;
    let failed = |error: io::Error| cannot_replace(old, &error);
    let mode = fs::metadata(old).map_or(0o755, |old| old.permissions().mode() & 0o777);
    remove_if_there(new).map_err(failed)?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o700);
    let mut file = options.open(new).map_err(failed)?;
    io::copy(&mut blob, &mut file).map_err(failed)?;
    file.set_permissions(fs::Permissions::from_mode(mode | 0o100))
        .and_then(|()| file.sync_all())
        .map_err(failed)
}

/// Whether it is a program for machines like this one: what is executed here says what that is.
fn check_kind(file: &mut File) -> Result<(), String> {
    let header = |file: &mut File| -> io::Result<[u8; HEADER_BYTES]> {
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header)?;
        file.rewind()?;
        Ok(header)
    };
    let theirs = header(file).map_err(|error| format!("it is no program: {error}"))?;
    if theirs[..4] != *b"\x7fELF" {
        return Err("it is no program (it does not begin as ELF files do)".into());
    }
    let ours = File::open(own_program()).and_then(|mut own| header(&mut own));
    let ours = ours.map_err(|error| format!("this node's program cannot be read: {error}"))?;
    // Word size, byte order; machine (elf(5)).
    let kind = |header: [u8; HEADER_BYTES]| (header[4], header[5], header[18], header[19]);
    if kind(theirs) != kind(ours) {
        let machine = architecture();
        return Err(format!(
            "it is for machines of another architecture than this one's ({machine})"
        ));
    }
    Ok(())
}

/// Has a program say its version: that it is not nodectl, or that a C library is too old for it,
/// shows here, and not when it is too late. Blocks for 20 s at most; the error is the rest of a
/// sentence.
pub fn try_program(program: &Path) -> Result<(), String> {
    let refused = |why: String| format!("it does not run on this machine: {why}");
    let mut child = spawn(program).map_err(|error| refused(error.to_string()))?;
    let in_time = ends_in_time(&child).map_err(|error| refused(error.to_string()));
    if !matches!(in_time, Ok(true)) {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| refused(error.to_string()))?;
    if !in_time? {
        return Err(refused("it did not say its version in time".into()));
    }
    let said = |stream: Option<&mut dyn Read>| {
        let mut text = String::new();
        if let Some(stream) = stream {
            let _ = stream.take(2000).read_to_string(&mut text);
        }
        text.trim().to_string()
    };
    let (out, err) = (
        said(child.stdout.as_mut().map(|stream| stream as &mut dyn Read)),
        said(child.stderr.as_mut().map(|stream| stream as &mut dyn Read)),
    );
    if status.signal().is_some() {
        return Err(format!(
            "it crashes when it is asked for its version ({status}): the file may be damaged\nhint: copy it again"
        ));
    }
    match (status.success(), out.starts_with("nodectl ")) {
        (true, true) => Ok(()),
        (true, false) => Err("it is a program, but not nodectl".into()),
        (false, _) if err.is_empty() => Err(refused(status.to_string())),
        (false, _) => Err(refused(err)),
    }
}

/// A file that was just written may still be open for writing in a process that another thread has
/// begun to start: it is tried again.
fn spawn(program: &Path) -> io::Result<Child> {
    let deadline = Instant::now() + TRIAL;
    loop {
        // A name without a slash would be looked for in PATH.
        let mut command = Command::new(std::path::absolute(program)?);
        command
            .arg0("nodectl")
            .arg("--version")
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        match command.spawn() {
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy
                    && Instant::now() < deadline =>
            {
                pause();
            }
            spawned => return spawned,
        }
    }
}

/// Nothing tells when another process has closed a file.
#[expect(clippy::disallowed_methods, reason = "there is nothing to wait for")]
fn pause() {
    std::thread::sleep(LOOK_AGAIN);
}

fn ends_in_time(child: &Child) -> io::Result<bool> {
    let death = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let limit = Timespec {
        tv_sec: TRIAL.as_secs() as i64,
        tv_nsec: 0,
    };
    let ended = poll(&mut [PollFd::new(&death, PollFlags::IN)], Some(&limit))?;
    Ok(ended > 0)
}

/// Keeps the old program, if there is one, under another name, and gives its own to the new one.
fn exchange(new: &Path, path: &Path, previous: &Path, is_there: bool) -> io::Result<()> {
    if is_there {
        remove_if_there(previous)?;
        fs::hard_link(path, previous)?;
    }
    fs::rename(new, path)?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(directory: &Path, script: &str) -> PathBuf {
        let path = directory.join("nodectl");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn what_is_no_program_for_this_machine_is_refused_before_it_is_run() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let refused = |content: &[u8]| {
            fs::write(&path, content).unwrap();
            check_kind(&mut File::open(&path).unwrap()).unwrap_err()
        };
        assert!(refused(b"#!/bin/sh\necho nodectl 9.9.9\n").contains("no program"));
        assert!(refused(b"").contains("no program"));
        let mut foreign = fs::read(own_program()).unwrap();
        foreign.truncate(64);
        check_kind(&mut {
            fs::write(&path, &foreign).unwrap();
            File::open(&path).unwrap()
        })
        .unwrap();
        // s390x: 22.
        (foreign[5], foreign[18], foreign[19]) = (2, 0, 22);
        assert!(refused(&foreign).contains("another architecture"));
    }

    #[test]
    fn a_program_that_does_not_run_or_is_another_one_is_refused_with_its_reason() {
        let directory = tempfile::tempdir().unwrap();
        let tried = |script: &str| try_program(&program(directory.path(), script));
        assert_eq!(tried("echo nodectl 9.9.9"), Ok(()));
        let why = tried("echo libc.so.6: version GLIBC_9.9 not found >&2; exit 1").unwrap_err();
        assert!(why.contains("GLIBC_9.9"), "{why}");
        let why = tried("kill -SEGV $$").unwrap_err();
        assert!(why.contains("may be damaged"), "{why}");
        let why = tried("echo busybox").unwrap_err();
        assert!(why.contains("not nodectl"), "{why}");
    }

    #[test]
    fn the_old_program_is_kept_and_the_new_one_has_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nodectl");
        let (new, previous) = (beside(&path, NEW), beside(&path, PREVIOUS));
        for (round, old) in [(1, "one"), (2, "two")] {
            fs::write(&path, old).unwrap();
            fs::write(&new, format!("new {round}")).unwrap();
            exchange(&new, &path, &previous, true).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("new {round}"));
            assert_eq!(fs::read_to_string(&previous).unwrap(), old);
            assert!(!new.exists());
        }
    }
}
