//! Messages of peers. What decodes must come back from its own encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodectl::wire::control::{decode, encode};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = decode(bytes) {
        let again = encode(&message).expect("a decoded message is below the limit");
        // Bytes are compared, not values: a NaN differs from itself.
        let twice = decode(&again).expect("its own encoding");
        assert_eq!(encode(&twice).expect("as large as before"), again);
    }
});
