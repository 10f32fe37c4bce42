//! Signals by their names, signal(7), as Linux numbers them on x86 and ARM.

use std::fmt;

const NAMES: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// A signal's number, and its name where it has one: `11 (SIGSEGV)`.
pub struct Signal(pub i32);

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = usize::try_from(self.0)
            .ok()
            .and_then(|number| NAMES.get(number.checked_sub(1)?));
        match name {
            Some(name) => write!(f, "{} ({name})", self.0),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names() {
        let shown = [1, 9, 11, 15, 31, 0, -3, 64].map(|number| Signal(number).to_string());
        let expected = [
            "1 (SIGHUP)",
            "9 (SIGKILL)",
            "11 (SIGSEGV)",
            "15 (SIGTERM)",
            "31 (SIGSYS)",
            "0",
            "-3",
            "64",
        ];
        assert_eq!(shown, expected);
    }
}
