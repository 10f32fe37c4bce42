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
    columns: usize,
    /// Ends with the last process that has the terminal open.
    reader: std::thread::JoinHandle<()>,
}

impl Terminal {
    /// Starts a command with the terminal as its controlling one.
    pub fn run(command: Command) -> Self {
        Self::of_kind(command, "xterm")
    }

    /// `kind` is what `TERM` says.
    pub fn of_kind(command: Command, kind: &str) -> Self {
        Self::of_width(command, kind, 120)
    }

    /// One with so many columns.
    pub fn of_width(mut command: Command, kind: &str, columns: u16) -> Self {
        command.env("TERM", kind);
        let (ours, theirs) = open_pty(columns);
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
            columns: usize::from(columns),
            reader,
        }
    }

    /// Everything that was shown since the start.
    pub fn screen(&self) -> String {
        self.screen.lock().expect("no holder panics").clone()
    }

    /// What a terminal shows of it at the end, line by line, those that scrolled away too. Of
    /// what acts on a terminal (ECMA-48), this understands what this program uses: carriage
    /// return, line feed, cursor up, down, to the begin of a line and to a place, erasing, colours.
    pub fn lines(&self) -> Vec<String> {
        let screen = self.screen();
        let (mut lines, mut row, mut column) = (vec![Vec::new()], 0_usize, 0_usize);
        let mut chars = screen.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\r' => column = 0,
                '\n' => row += 1,
                '\x1b' if chars.next_if_eq(&'[').is_some() => {
                    let mut number = String::new();
                    let end = loop {
                        match chars.next() {
                            Some(c) if c.is_ascii_alphabetic() => break c,
                            Some(c) => number.push(c),
                            None => break 'm',
                        }
                    };
                    let count = number.parse().unwrap_or(1_usize);
                    match end {
                        'A' => row = row.saturating_sub(count),
                        'B' => row += count,
                        'G' => column = count - 1,
                        'H' => {
                            let (down, right) = number.split_once(';').unwrap_or(("1", "1"));
                            let place = |text: &str| text.parse().unwrap_or(1_usize).max(1) - 1;
                            (row, column) = (place(down), place(right));
                        }
                        'K' if number == "2" => lines[row].clear(),
                        'K' => lines[row].truncate(column),
                        'J' if number == "2" => lines.clear(),
                        'J' => {
                            lines[row].truncate(column);
                            lines.truncate(row + 1);
                        }
                        _ => {}
                    }
                }
                c => {
                    // As terminals do: a line that is full goes on in the next with what follows.
                    if column == self.columns {
                        (row, column) = (row + 1, 0);
                        lines.resize(lines.len().max(row + 1), Vec::new());
                    }
                    let line: &mut Vec<char> = &mut lines[row];
                    line.resize(line.len().max(column + 1), ' ');
                    line[column] = c;
                    column += 1;
                }
            }
            while lines.len() <= row {
                lines.push(Vec::new());
            }
        }
        let text = |line: Vec<char>| line.into_iter().collect::<String>().trim_end().to_string();
        lines.into_iter().map(text).collect()
    }

    /// Waits until a line of what the terminal shows now has this in it.
    pub fn wait_until_shown(&self, text: &str) {
        self.wait(text, || self.lines().iter().any(|line| line.contains(text)));
    }

    /// Waits until this was written, as it stands.
    pub fn wait_for(&self, text: &str) {
        self.wait(text, || self.screen().contains(text));
    }

    fn wait(&self, text: &str, shown: impl Fn() -> bool) {
        let end = std::time::Instant::now() + SOON;
        while !shown() {
            assert!(
                std::time::Instant::now() < end,
                "`{text}` is not on the screen:\n{}",
                self.screen()
            );
            super::pause(super::LOOK_AGAIN);
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
fn open_pty(columns: u16) -> (OwnedFd, OwnedFd) {
    let (mut ours, mut theirs) = (-1, -1);
    let size = libc::winsize {
        ws_row: 30,
        ws_col: columns,
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
