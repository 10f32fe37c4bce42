//! Records of a journal. What decodes must come back from its own encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodectl::wire::journal::Record;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(record) = Record::decode(bytes) {
        let again = record.encode();
        assert_eq!(Record::decode(&again).expect("its own encoding").encode(), again);
    }
});
