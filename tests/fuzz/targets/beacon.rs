//! Packets on the beacon's port, from anybody on the network: as they are, and as somebody with the
//! secret could seal them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nodectl::net::fuzz::beacon(bytes));
