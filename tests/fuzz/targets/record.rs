//! Records of a journal. What decodes must come back from its own encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodectl::wire::journal;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(record) = journal::decode(bytes) {
        let again = journal::encode(&record);
        let read = journal::decode(&again).expect("its own encoding");
        assert_eq!(journal::encode(&read), again);
    }
});
