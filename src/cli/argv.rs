//! The secret out of what other processes can see: `/proc/PID/cmdline`, which everybody may read,
//! and `/proc/PID/environ`. The kernel says where in this process both lie (proc_pid_stat(5)),
//! whatever the C library.

use nodectl_app::settings::SECRET_VARIABLE;
use nodectl_ports::processes::Stat;
use std::{ffi::OsString, ops::Range};
use zeroize::Zeroizing;

/// An invitation is as good as the secret, for a while.
const SECRET_FLAGS: [&[u8]; 2] = [b"--secret", b"--invite"];

/// What the user gave this process.
pub struct Given {
    pub args: Vec<OsString>,
    /// `NODECTL_SECRET`.
    pub secret: Option<Zeroizing<String>>,
}

/// Copies the arguments and the secret variable, then overwrites the secret in the originals: the
/// variable stays set, to nonsense, and children inherit that. To be called first in `main`, while
/// there is one thread.
pub fn take() -> Given {
    let args = std::env::args_os().collect();
    let secret = std::env::var(SECRET_VARIABLE)
        .ok()
        .filter(|secret| !secret.is_empty())
        .map(Zeroizing::new);
    // Without /proc, nobody else can read it there either.
    if let Ok(stat) = Stat::own() {
        // SAFETY: one thread, and `args` and `secret` are copies: nobody holds a reference into
        // these strings.
        unsafe {
            wipe(stat.arguments(), secret_in_arguments);
            wipe(stat.environment(), secret_in_environment);
        }
    }
    Given { args, secret }
}

/// SAFETY: no reference into the process's original arguments or environment is alive.
unsafe fn wipe(strings: Option<Range<usize>>, find: fn(&[u8]) -> Vec<Range<usize>>) {
    let Some(place) = strings.filter(|place| place.start != 0 && !place.is_empty()) else {
        return;
    };
    let memory = std::ptr::with_exposed_provenance_mut::<u8>(place.start);
    // SAFETY: the kernel put the strings there, on this process's own stack, readable and writable.
    let strings = unsafe { std::slice::from_raw_parts(memory, place.len()) }.to_vec();
    for index in find(&strings).into_iter().flatten() {
        // SAFETY: as above; `index` is within the copy's length. Volatile, or the compiler may drop
        // what nobody reads.
        unsafe { memory.add(index).write_volatile(b'x') };
    }
}

/// Where secrets lie in NUL-separated arguments: after `--secret` and in `--secret=…`, and the same
/// for invitations.
fn secret_in_arguments(strings: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut value_follows = false;
    for (begin, text) in split(strings) {
        let after = |flag: &&[u8]| {
            text.strip_prefix(*flag)
                .and_then(|rest| rest.strip_prefix(b"="))
        };
        let after_equals = SECRET_FLAGS.iter().find_map(after);
        match after_equals {
            _ if value_follows => found.push(begin..begin + text.len()),
            Some(value) => found.push(begin + text.len() - value.len()..begin + text.len()),
            None => {}
        }
        value_follows = SECRET_FLAGS.contains(&text);
    }
    found
}

fn secret_in_environment(strings: &[u8]) -> Vec<Range<usize>> {
    let prefix = format!("{SECRET_VARIABLE}=");
    let secrets = split(strings).filter(|(_, text)| text.starts_with(prefix.as_bytes()));
    secrets
        .map(|(begin, text)| begin + prefix.len()..begin + text.len())
        .collect()
}

/// The strings and where they begin.
fn split(strings: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    strings.split(|byte| *byte == 0).scan(0, |begin, text| {
        let this = *begin;
        *begin += text.len() + 1;
        Some((this, text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(strings: &str, find: fn(&[u8]) -> Vec<Range<usize>>) -> Vec<&str> {
        find(strings.as_bytes())
            .into_iter()
            .map(|range| &strings[range])
            .collect()
    }

    #[test]
    fn the_secret_is_found_in_both_spellings_only() {
        let arguments = "nodectl\0join\0--secret\0one\0--secret=two\0--secret-file\0f\0--secret-file=g\0--secret\0";
        assert_eq!(found(arguments, secret_in_arguments), ["one", "two", ""]);
        let environment = "A=1\0NODECTL_SECRET=three\0NODECTL_SECRET_X=4\0";
        assert_eq!(found(environment, secret_in_environment), ["three"]);
    }
}
