//! Files that an integration names: images as EDF and TIFF, geometries, datasets. The first byte
//! chooses a format.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodectl::azint::{
    engine::{Geometry, Image, Mask},
    frames::{Reader, Stack},
};
use std::sync::Arc;

fuzz_target!(|bytes: &[u8]| {
    let Some((format, bytes)) = bytes.split_first() else {
        return;
    };
    if format % 4 == 0 {
        if let Ok(text) = std::str::from_utf8(bytes) {
            let _ = Geometry::from_poni(text);
        }
        return;
    }
    let name = ["", "a.edf", "a.tif", "a.h5"][usize::from(format % 4)];
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).expect("a temporary file");
    if format % 4 < 3 {
        let _ = (Image::read(&path, None), Mask::read(&path, None));
    } else if let Ok(stack) = Stack::open(&path, None, None) {
        let _ = Reader::new(Arc::new(stack)).read(0..1);
    }
});
