//! Arrays in files: the first byte chooses a format. What is read is what the header says; nothing
//! makes a reader panic, hang or allocate more than the file could hold.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodectl::formats::{ArrayLocation, Picture, decode_npy};

fuzz_target!(|bytes: &[u8]| {
    let Some((format, bytes)) = bytes.split_first() else {
        return;
    };
    let (name, member) = match format % 6 {
        0 => {
            if let Ok(array) = decode_npy(bytes) {
                assert_eq!(array.info.bytes(), Some(array.bytes.len() as u64));
            }
            return;
        }
        1 => ("a.npz", None),
        2 => ("a.png", None),
        3 => ("a.h5", Some("a".to_string())),
        4 => ("a.idx", None),
        _ => ("a.safetensors", None),
    };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let place = ArrayLocation {
        member,
        ..ArrayLocation::new(dir.path().join(name))
    };
    std::fs::write(&place.path, bytes).expect("a temporary file");
    if format % 6 == 2 {
        // The first bytes tell PNG from JPEG.
        if let (Ok(extent), Ok(picture)) =
            (Picture::extent(&place.path), Picture::read(&place.path))
        {
            assert_eq!(extent, [picture.rows, picture.columns]);
        }
    }
    if let (Ok(info), Ok(array)) = (place.inspect(), place.read()) {
        assert_eq!(
            (&info, info.bytes()),
            (&array.info, Some(array.bytes.len() as u64))
        );
    }
});
