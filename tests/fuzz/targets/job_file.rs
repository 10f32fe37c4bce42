//! Job files. Any text is a job or an error that can be shown; nothing outside of the file's
//! directory is read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodectl::workloads::parse;
use std::path::Path;

fuzz_target!(|text: &str| {
    // A directory without files: what the job file names is missing, which is an error like any
    // other.
    match parse(text, Path::new("/proc/self/fdinfo/none/job.toml")) {
        Ok(jobs) => assert!(jobs.iter().all(|job| job.task_count() > 0)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
