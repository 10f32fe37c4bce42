//! The secret out of what other processes can see: `/proc/PID/cmdline`, which everybody may read, and
//! `/proc/PID/environ`. Linux with glibc only: there, functions in `.init_array` are given the original `argv`.

use crate::app::settings::SECRET_VARIABLE;
use std::{
    ffi::{CStr, OsString, c_char, c_int},
    sync::atomic::{AtomicPtr, AtomicUsize, Ordering},
};
use zeroize::Zeroizing;

const SECRET_FLAG: &[u8] = b"--secret";

static ARGC: AtomicUsize = AtomicUsize::new(0);
static ARGV: AtomicPtr<*mut c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Runs before `main` and only remembers where the arguments are.
extern "C" fn remember(argc: c_int, argv: *mut *mut c_char, _envp: *mut *mut c_char) {
    ARGC.store(usize::try_from(argc).unwrap_or(0), Ordering::Relaxed);
    ARGV.store(argv, Ordering::Relaxed);
}

// SAFETY: glibc calls every entry of this section with (argc, argv, envp) (gABI; glibc's `call_init`); `remember` has
// that signature and touches nothing but two atomics.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[unsafe(link_section = ".init_array")]
#[used]
static REMEMBER: extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = remember;

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
    wipe_arguments();
    Given { args, secret: take_variable() }
}

fn wipe_arguments() {
    let (argc, argv) = (ARGC.load(Ordering::Relaxed), ARGV.load(Ordering::Relaxed));
    if argv.is_null() {
        return;
    }
    let mut value_follows = false;
    for index in 0..argc {
        // SAFETY: the kernel gave `argc` pointers to NUL-terminated, writable strings that live as long as the process.
        let argument = unsafe { *argv.add(index) };
        if argument.is_null() {
            return;
        }
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(argument) }.to_bytes();
        if let Some(skipped) = secret_begins(text, value_follows) {
            // SAFETY: as above; within the string's length, and no reference to it is alive.
            unsafe { overwrite(argument.add(skipped), text.len() - skipped) };
        }
        value_follows = text == SECRET_FLAG;
    }
}

/// Where in an argument a secret begins, if it has one.
fn secret_begins(argument: &[u8], value_follows: bool) -> Option<usize> {
    if value_follows {
        return Some(0);
    }
    let value = argument.strip_prefix(SECRET_FLAG)?.strip_prefix(b"=")?;
    Some(argument.len() - value.len())
}

fn take_variable() -> Option<Zeroizing<String>> {
    let value = std::env::var(SECRET_VARIABLE).ok()?;
    unsafe extern "C" {
        static environ: *const *mut c_char;
    }
    // SAFETY: one thread; `environ` is a NULL-terminated array of NUL-terminated, writable strings (environ(7)).
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            let text = CStr::from_ptr(*entry).to_bytes();
            let prefix = SECRET_VARIABLE.len() + 1;
            if text.starts_with(SECRET_VARIABLE.as_bytes()) && text.get(prefix - 1) == Some(&b'=') {
                overwrite((*entry).add(prefix), text.len() - prefix);
            }
            entry = entry.add(1);
        }
    }
    (!value.is_empty()).then(|| Zeroizing::new(value))
}

/// SAFETY: `start..start + length` is writable and nobody else looks at it.
unsafe fn overwrite(start: *mut c_char, length: usize) {
    for index in 0..length {
        // SAFETY: the caller's promise. Volatile, or the compiler may drop writes that nobody reads.
        unsafe { start.add(index).write_volatile(b'x' as c_char) };
    }
}

#[cfg(test)]
mod tests {
    use super::secret_begins;

    #[test]
    fn the_secret_is_found_in_both_spellings_only() {
        assert_eq!(secret_begins(b"hunter2", true), Some(0));
        assert_eq!(secret_begins(b"--secret=hunter2", false), Some(9));
        assert_eq!(secret_begins(b"--secret", false), None);
        assert_eq!(secret_begins(b"--secret-file=x", false), None);
        assert_eq!(secret_begins(b"join", false), None);
    }
}
