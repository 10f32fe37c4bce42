//! Frames that virtual datasets put together, as h5py wrote them (`make.py`).

use super::{FRAMES, SHAPE, fixture, floats};
use crate::frames::{Reader, Stack};
use nodectl_types::Scalar;
use std::sync::Arc;

#[test]
fn every_other_frame_of_a_source_is_one_of_a_virtual_dataset() {
    let (_, pixels) = floats("strides.h5");
    let (_, plain) = floats("chunked.h5");
    let frame = |all: &[f32], frame: usize| {
        let length = SHAPE[0] * SHAPE[1];
        all[frame * length..(frame + 1) * length].to_vec()
    };
    for (at, source) in [2, 0, 3, 1, 4].into_iter().enumerate() {
        assert!(frame(&pixels, at) == frame(&plain, source), "frame {at}");
    }
}

/// What `make.py` read of a virtual dataset, as floats; gaps of NaN are NaN.
fn as_hdf5_has_it(name: &str, stored: Scalar) -> Vec<f32> {
    let array = std::fs::read(fixture(name)).unwrap();
    let header = 10 + usize::from(u16::from_le_bytes([array[8], array[9]]));
    let pixels = nodectl_formats::convert(array[header..].to_vec(), stored, Scalar::F32);
    let pixels = pixels.as_chunks::<4>().0.iter();
    pixels.map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn frames_are_put_together_from_modules_as_hdf5_does() {
    for (name, stored) in [
        ("modules", Scalar::U32),
        ("modules_nan", Scalar::F32),
        ("tiled", Scalar::U32),
    ] {
        let (stack, pixels) = floats(&format!("{name}.h5"));
        assert_eq!(
            (stack.frames, stack.shape, stack.scalar),
            (FRAMES, SHAPE, stored),
            "{name}"
        );
        let expected = as_hdf5_has_it(&format!("{name}.npy"), stored);
        let is_same = |(found, expected): (&f32, &f32)| found.to_bits() == expected.to_bits();
        assert_eq!(pixels.len(), expected.len());
        let wrong = pixels.iter().zip(&expected).position(|pair| !is_same(pair));
        assert_eq!(wrong, None, "{name}");
    }
    let gap = floats("modules.h5").1[18 * SHAPE[1]];
    assert!((gap - 7.0).abs() < f32::EPSILON, "{gap}");
    assert!(floats("modules_nan.h5").1[18 * SHAPE[1]].is_nan());
}

/// A module without its file, and frames that nothing is mapped to, are bad frames, and no others.
#[test]
fn a_missing_module_costs_its_frames() {
    let stack = Stack::open(&fixture("modules_half.h5"), None, None).unwrap();
    assert_eq!((stack.frames, stack.shape), (FRAMES, SHAPE));
    let mut reader = Reader::new(Arc::new(stack));
    let mut told = |frame: u64| {
        let read = reader.read(frame..FRAMES);
        read.map(|stored| stored.frames.clone())
            .map_err(|error| error.to_string())
    };
    assert_eq!(told(0), Ok(0..1));
    assert_eq!(told(3), Ok(3..4));
    assert!(told(2).unwrap_err().contains("frame 2: it has no source"));
    assert!(
        told(4)
            .unwrap_err()
            .contains("nowhere.h5, which cannot be opened")
    );
}

/// Frames whose source is not there are bad, and no others.
#[test]
fn a_source_that_is_missing_costs_its_own_frames() {
    let stack = Stack::open(&fixture("half.h5"), None, None).unwrap();
    assert_eq!(
        (stack.frames, stack.shape, stack.scalar),
        (FRAMES, SHAPE, Scalar::U32)
    );
    let mut reader = Reader::new(Arc::new(stack));
    assert!(reader.read(1..FRAMES).is_ok());
    let error = reader.read(3..FRAMES).err().unwrap().to_string();
    assert!(
        error.contains("nowhere.h5, which cannot be opened"),
        "{error}"
    );
    assert_eq!(reader.together(&(3..FRAMES)), 3..5);
}
