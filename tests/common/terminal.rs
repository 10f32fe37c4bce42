//! A command on a pseudo-terminal of its own: what a person sees and types.

use super::{SOON, wait_for, wait_until};
use std::{
    fs::File,
    io::{Read, Write},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
};

pub struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
    /// Ends with the last process that has the terminal open.
    reader: std::thread::JoinHandle<()>,
}

impl Terminal {
    /// Starts a command with the terminal as its controlling one.
    pub fn run(command: Command) -> Self {
        Self::of_kind(command, "xterm")
    }

    /// `kind` is what `TERM` says.
    pub fn of_kind(mut command: Command, kind: &str) -> Self {
        command.env("TERM", kind);
        let (ours, theirs) = open_pty();
        let stream = || Stdio::from(theirs.try_clone().expect("a descriptor"));
        command.stdin(stream()).stdout(stream()).stderr(stream());
        // SAFETY: system calls alone, no allocation, no lock. It dies with the test, as everything
        // here.
        unsafe {
            command.pre_exec(|| {
                rustix::process::set_parent_process_death_signal(Some(
                    rustix::process::Signal::KILL,
                ))?;
                rustix::process::setsid()?;
                match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let child = command.spawn().expect("nodectl starts");
        let keyboard = File::from(ours);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut output, shown) = (keyboard.try_clone().expect("a descriptor"), screen.clone());
        // Reading fails when the last process on the terminal ends.
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                shown
                    .lock()
                    .expect("no holder panics")
                    .push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Self {
            child,
            keyboard,
            screen,
            reader,
        }
    }

    /// Everything that was shown since the start.
    pub fn screen(&self) -> String {
        self.screen.lock().expect("no holder panics").clone()
    }

    pub fn wait_for(&self, text: &str) {
        let shown = || self.screen().contains(text);
        let end = std::time::Instant::now() + SOON;
        while !shown() {
            assert!(
                std::time::Instant::now() < end,
                "`{text}` is not on the screen:\n{}",
                self.screen()
            );
            super::pause();
        }
    }

    /// `\n` is Enter, `\x03` Ctrl-C.
    pub fn press(&mut self, keys: &str) {
        self.keyboard
            .write_all(keys.as_bytes())
            .expect("the terminal takes it");
    }

    pub fn wait_exit(&mut self) -> ExitStatus {
        let status = wait_for(SOON, "the command ends", || {
            self.child.try_wait().expect("our child")
        });
        // Its last words may still be on their way.
        wait_until(SOON, "everything on the terminal ends", || {
            self.reader.is_finished()
        });
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the screen\n{}", self.screen());
        }
    }
}

/// Both ends: ours, and the one that programs see as a terminal.
fn open_pty() -> (OwnedFd, OwnedFd) {
    let (mut ours, mut theirs) = (-1, -1);
    let size = libc::winsize {
        ws_row: 30,
        ws_col: 120,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: both pointers are to integers of ours, name and settings may be null.
    let made = unsafe {
        libc::openpty(
            &mut ours,
            &mut theirs,
            std::ptr::null_mut(),
            std::ptr::null(),
            &size,
        )
    };
    assert_eq!(
        made,
        0,
        "a pseudo-terminal: {}",
        std::io::Error::last_os_error()
    );
    for descriptor in [ours, theirs] {
        // SAFETY: a descriptor that openpty() just made.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // SAFETY: nobody else owns them.
    let owned = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    assert!(owned.0.as_raw_fd() != owned.1.as_raw_fd());
    owned
}
