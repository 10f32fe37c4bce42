//! The secret out of what other processes can see: `/proc/PID/cmdline`, which everybody may read, and
//! `/proc/PID/environ`. The kernel says where in this process both lie (proc_pid_stat(5)), whatever the C library.

use crate::app::settings::SECRET_VARIABLE;
use std::{ffi::OsString, fs};
use zeroize::Zeroizing;

const SECRET_FLAG: &[u8] = b"--secret";
/// Fields of `/proc/self/stat`, counted from 1 as in its manual: where the arguments and the environment begin and end.
const ARG_START: usize = 48;
const ENV_START: usize = 50;
/// The first field after the program's name, which may hold blanks and brackets.
const FIRST_AFTER_NAME: usize = 3;

/// What the user gave this process.
pub struct Given {
    pub args: Vec<OsString>,
    /// `NODECTL_SECRET`.
    pub secret: Option<Zeroizing<String>>,
}

/// Copies the arguments and the secret variable, then overwrites the secret in the originals: the variable stays set,
/// to nonsense, and children inherit that. To be called first in `main`, while there is one thread.
pub fn take() -> Given {
    let args = std::env::args_os().collect();
    let secret = std::env::var(SECRET_VARIABLE).ok().filter(|secret| !secret.is_empty()).map(Zeroizing::new);
    let Ok(stat) = fs::read_to_string("/proc/self/stat") else {
        // Without /proc, nobody else can read it there either.
        return Given { args, secret };
    };
    // SAFETY: one thread, and `args` and `secret` are copies: nobody holds a reference into these strings.
    unsafe {
        wipe(&stat, ARG_START, secret_in_arguments);
        wipe(&stat, ENV_START, secret_in_environment);
    }
    Given { args, secret }
}

/// SAFETY: no reference into the process's original arguments or environment is alive.
unsafe fn wipe(stat: &str, start_field: usize, find: fn(&[u8]) -> Vec<std::ops::Range<usize>>) {
    let (Some(start), Some(end)) = (field(stat, start_field), field(stat, start_field + 1)) else { return };
    if start == 0 || end <= start {
        return;
    }
    let memory = std::ptr::with_exposed_provenance_mut::<u8>(start);
    // SAFETY: the kernel put the strings at `start..end` of this process's own stack, readable and writable.
    let strings = unsafe { std::slice::from_raw_parts(memory, end - start) }.to_vec();
    for index in find(&strings).into_iter().flatten() {
        // SAFETY: as above; `index` is within the copy's length. Volatile, or the compiler may drop what nobody reads.
        unsafe { memory.add(index).write_volatile(b'x') };
    }
}

fn field(stat: &str, number: usize) -> Option<usize> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number - FIRST_AFTER_NAME)?.parse().ok()
}

/// Where secrets lie in NUL-separated arguments: after `--secret` and in `--secret=…`.
fn secret_in_arguments(strings: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    let mut value_follows = false;
    for (begin, text) in split(strings) {
        let after_equals = text.strip_prefix(SECRET_FLAG).and_then(|rest| rest.strip_prefix(b"="));
        match after_equals {
            _ if value_follows => found.push(begin..begin + text.len()),
            Some(value) => found.push(begin + text.len() - value.len()..begin + text.len()),
            None => {}
        }
        value_follows = text == SECRET_FLAG;
    }
    found
}

fn secret_in_environment(strings: &[u8]) -> Vec<std::ops::Range<usize>> {
    let prefix = format!("{SECRET_VARIABLE}=");
    let secrets = split(strings).filter(|(_, text)| text.starts_with(prefix.as_bytes()));
    secrets.map(|(begin, text)| begin + prefix.len()..begin + text.len()).collect()
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

    fn found(strings: &str, find: fn(&[u8]) -> Vec<std::ops::Range<usize>>) -> Vec<&str> {
        find(strings.as_bytes()).into_iter().map(|range| &strings[range]).collect()
    }

    #[test]
    fn the_secret_is_found_in_both_spellings_only() {
        let arguments = "nodectl\0join\0--secret\0one\0--secret=two\0--secret-file\0f\0--secret-file=g\0--secret\0";
        assert_eq!(found(arguments, secret_in_arguments), ["one", "two", ""]);
        let environment = "A=1\0NODECTL_SECRET=three\0NODECTL_SECRET_X=4\0";
        assert_eq!(found(environment, secret_in_environment), ["three"]);
    }

    #[test]
    fn fields_are_counted_after_a_name_with_blanks_and_brackets() {
        let numbers: Vec<String> = (4..=52).map(|number| number.to_string()).collect();
        let stat = format!("1 (a) b) S {}", numbers.join(" "));
        assert_eq!((field(&stat, ARG_START), field(&stat, ENV_START)), (Some(48), Some(50)));
        assert_eq!(field("1 (a) S 1", ARG_START), None);
    }
}
