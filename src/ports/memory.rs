//! Memory that this process has freed.

/// Gives back to the system what lies unused between blocks that are used, which glibc keeps for
/// later otherwise: of a node that has read a thousand journals that is half of its memory. May
/// take milliseconds, in which nobody gets memory.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it changes nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
