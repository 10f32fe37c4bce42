//! Packets on mDNS's port, from anybody on the network.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nodectl::net::fuzz::mdns(bytes));
