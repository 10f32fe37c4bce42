//! The file of peers that were connected, as anybody may have changed it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nodectl::net::fuzz::remembered(bytes));
