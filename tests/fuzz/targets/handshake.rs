//! What strangers say in place of a handshake, to either end, and the proof of an identity as a
//! member could make it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nodectl::net::fuzz::handshake(bytes));
