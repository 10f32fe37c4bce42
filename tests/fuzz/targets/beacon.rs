//! Packets on the beacon's port, from anybody on the network: as they are, and as somebody with the secret could seal them.
#![no_main]

use libfuzzer_sys::fuzz_target;
// The file below names its own crate.
use nodectl::types;

#[allow(dead_code)]
#[path = "../../../src/net/discovery/beacon.rs"]
mod beacon;

fuzz_target!(|bytes: &[u8]| {
    let cipher = beacon::Cipher::new(&[1; 32]);
    let (heard, _) = cipher.open(bytes);
    assert!(!matches!(heard, beacon::Heard::Ours(_)), "opened without having been sealed");
    // What a packet claims to be, were it sealed: the decoder behind the seal.
    if let Ok((claimed, _)) = postcard::take_from_bytes::<beacon::Beacon>(bytes) {
        let sealed = beacon::Cipher::new(&[1; 32]).seal(&claimed);
        assert!(sealed.len() <= beacon::MAX_BYTES, "{} bytes", sealed.len());
        assert!(matches!(cipher.open(&sealed).0, beacon::Heard::Ours(_)));
    }
});
