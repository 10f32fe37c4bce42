//! Sealed streams, read by tasks and by threads: bytes of anybody, and frames of any lengths as a
//! member seals them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nodectl::net::fuzz::sealed(bytes));
