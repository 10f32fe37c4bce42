//! Formats against numpy, h5py and Pillow, whose files are committed; blocks against the whole;
//! headers that lie.

use super::{array::runs, *};
use nodectl_types::Scalar;
use proptest::prelude::*;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> ArrayLocation {
    let (file, member) = name.split_once(':').map_or((name, None), |(file, member)| {
        (file, Some(member.to_string()))
    });
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/arrays")
        .join(file);
    ArrayLocation {
        path,
        member,
        raw: None,
    }
}

/// 0, 1, 2, … of a type.
fn ramp(scalar: Scalar, shape: &[u64]) -> Array {
    let count = shape.iter().product::<u64>();
    let bytes = (0..count)
        .flat_map(|number| (number as f64).to_le_bytes())
        .collect();
    Array {
        info: Info {
            scalar,
            shape: shape.to_vec(),
        },
        bytes: convert(bytes, Scalar::F64, scalar),
    }
}

#[test]
fn what_numpy_h5py_and_pillow_wrote_is_read() {
    use Scalar::*;
    for (name, scalar) in [
        ("fortran.npy", F32),
        ("big.npy", I16),
        ("v3.npy", F16),
        ("stored.npz:ramp", U8),
        ("deflated.npz", U32),
        ("h5py.h5:/plain", F64),
        ("h5py.h5:deep/er/big", U32),
        ("h5py.h5:half", F16),
        ("h5py.h5:/chunked", I32),
    ] {
        let (place, expected) = (fixture(name), ramp(scalar, &[2, 3, 4]));
        assert_eq!(
            place.inspect().unwrap_or_else(|error| panic!("{error}")),
            expected.info,
            "{name}"
        );
        assert_eq!(
            place.read().unwrap_or_else(|error| panic!("{error}")),
            expected,
            "{name}"
        );
        let block = place
            .read_block(&[1, 1, 1], &[1, 2, 3])
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(block, expected.block(&[1, 1, 1], &[1, 2, 3]), "{name}");
        assert!(place.read_block(&[1, 1, 1], &[1, 2, 4]).is_err(), "{name}");
    }
    for name in ["bool.npy", "h5py.h5:bool"] {
        let truths = fixture(name).read().unwrap();
        let odd: Vec<u8> = (0..24).map(|number| number % 2).collect();
        assert_eq!((truths.info.scalar, truths.bytes), (Bool, odd), "{name}");
    }
    assert_eq!(
        fixture("scalar.npy").read().unwrap().bytes,
        2.5f64.to_le_bytes()
    );
    assert_eq!(
        fixture("h5py.h5:number").read().unwrap().bytes,
        (-5i64).to_le_bytes()
    );
}

#[test]
fn images_are_read() {
    let tens: Vec<u8> = (0..24).map(|number| number * 10).collect();
    let image = fixture("rgb.png").read().unwrap();
    assert_eq!(
        (image.info, image.bytes),
        (
            Info {
                scalar: Scalar::U8,
                shape: vec![2, 4, 3]
            },
            tens
        )
    );
    assert_eq!(fixture("palette.png").inspect().unwrap().shape, [2, 4, 3]);
    let image = fixture("gray16.png").read().unwrap();
    let thousands: Vec<u8> = (0..12u16)
        .flat_map(|number| (number * 1000).to_le_bytes())
        .collect();
    assert_eq!(
        (image.info, image.bytes),
        (
            Info {
                scalar: Scalar::U16,
                shape: vec![3, 4]
            },
            thousands
        )
    );
}

#[test]
fn what_is_written_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    for scalar in Scalar::ALL {
        for shape in [vec![2, 3, 5], vec![4], vec![], vec![0, 3]] {
            let array = ramp(scalar, &shape);
            for name in ["a.npy", "a.npz", "a.h5", "a.raw"] {
                let path = dir.path().join(name);
                if name == "a.h5" && shape.contains(&0) {
                    continue;
                }
                write(&path, &[("group/data", &array)], None)
                    .unwrap_or_else(|error| panic!("{error}"));
                let raw = (name == "a.raw").then(|| array.info.clone());
                let place = ArrayLocation {
                    path,
                    member: (name != "a.npy").then(|| "group/data".to_string()),
                    raw,
                };
                assert_eq!(
                    place.inspect().unwrap_or_else(|error| panic!("{error}")),
                    array.info,
                    "{name} {scalar}"
                );
                assert_eq!(
                    place.read().unwrap_or_else(|error| panic!("{error}")),
                    array,
                    "{name} {scalar}"
                );
            }
        }
    }
    let several = dir.path().join("several.h5");
    let (first, second) = (ramp(Scalar::F32, &[3]), ramp(Scalar::U8, &[2, 2]));
    write(&several, &[("x/a", &first), ("x/y/b", &second)], None).unwrap();
    assert_eq!(
        ArrayLocation {
            member: Some("/x/y/b".into()),
            ..ArrayLocation::new(&several)
        }
        .read()
        .unwrap(),
        second
    );
    assert_eq!(
        ArrayLocation {
            member: Some("x/a".into()),
            ..ArrayLocation::new(&several)
        }
        .read()
        .unwrap(),
        first
    );
    assert!(
        write(
            &dir.path().join("a.npy"),
            &[("a", &first), ("b", &second)],
            None
        )
        .is_err()
    );
    let left: Vec<PathBuf> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(
        left.iter()
            .all(|path| path.extension().is_none_or(|ending| ending != "part")),
        "{left:?}"
    );
}

#[test]
fn images_are_written_with_their_scale() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.png");
    let floats = |numbers: &[f32]| {
        numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let array = |scalar, shape: &[u64], bytes| Array {
        info: Info {
            scalar,
            shape: shape.to_vec(),
        },
        bytes,
    };
    let image = array(
        Scalar::F32,
        &[2, 3],
        floats(&[-1.0, 0.0, 0.5, 1.0, 7.0, f32::NAN]),
    );
    write(&path, &[("", &image)], None).unwrap();
    assert_eq!(
        ArrayLocation::new(&path).read().unwrap().bytes,
        [0, 0, 128, 255, 255, 0]
    );
    write(&path, &[("", &image)], Some([-1.0, 7.0])).unwrap();
    assert_eq!(
        ArrayLocation::new(&path).read().unwrap().bytes[..5],
        [0, 32, 48, 64, 255]
    );
    let counts = ramp(Scalar::U32, &[20, 20]);
    write(&path, &[("", &counts)], None).unwrap();
    assert_eq!(
        ArrayLocation::new(&path).read().unwrap().bytes[254..258],
        [254, 255, 255, 255]
    );
    let deep = ramp(Scalar::U16, &[20, 20, 4]);
    write(&path, &[("", &deep)], None).unwrap();
    assert_eq!(ArrayLocation::new(&path).read().unwrap(), deep);
    assert!(write(&path, &[("", &ramp(Scalar::U8, &[2, 2, 5]))], None).is_err());
}

#[test]
fn numbers_saturate_and_round() {
    let from_f32 = |number: f32, to| convert(number.to_le_bytes().to_vec(), Scalar::F32, to);
    assert_eq!(from_f32(300.0, Scalar::U8), [255]);
    assert_eq!(from_f32(-1.5, Scalar::I8), [-2i8 as u8]);
    assert_eq!(from_f32(f32::NAN, Scalar::I32), [0; 4]);
    assert_eq!(from_f32(0.1, Scalar::Bool), [1]);
    assert_eq!(
        convert(u64::MAX.to_le_bytes().to_vec(), Scalar::U64, Scalar::I64),
        i64::MAX.to_le_bytes()
    );
    assert_eq!(
        convert(vec![7], Scalar::U8, Scalar::F64),
        7.0f64.to_le_bytes()
    );
}

/// What is said of a file of these bytes, of which neither header nor numbers can be read.
fn refused(name: &str, bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let place = ArrayLocation::new(&path);
    let error = place.inspect().unwrap_err().to_string();
    assert!(place.read().is_err());
    error.replace(&format!("{}: ", path.display()), "")
}

#[test]
fn npy_files_that_are_cut_off_are_errors() {
    let whole = encode_npy(&ramp(Scalar::F32, &[4]));
    assert_eq!(
        refused("a.npy", &whole[..whole.len() - 1]),
        "its header says [4] of f32, which are 16 bytes, but 15 follow"
    );
    assert_eq!(
        refused("a.npy", &[&whole[..], &[0]].concat()),
        "its header says [4] of f32, which are 16 bytes, but 17 follow"
    );
    assert_eq!(refused("a.npy", &whole[..30]), "it ends within its header");
    assert!(refused("a.npy", b"PK").contains("ends within"));
    assert!(refused("a.npy", b"not an array").contains("it is not an .npy file"));
}

#[test]
fn npy_headers_that_lie_are_errors() {
    let with_shape =
        |shape: &str| format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
    let with_type =
        |kind: &str| format!("{{'descr': {kind}, 'fortran_order': False, 'shape': (4,), }}");
    let cases = [
        (
            with_shape("4294967296, 4294967296, 4294967296"),
            "too many bytes",
        ),
        (with_shape("99999999999999999999,"), "not a list of extents"),
        (with_shape("-4,"), "not a list of extents"),
        (with_type("'<U4'"), "has the type \"<U4\""),
        (with_type("'<c8'"), "has the type \"<c8\""),
        (with_type("[('a', '<f4')]"), "describes records"),
        ("{'descr': '<f4', 'shape': (4,), }".into(), "lacks one of"),
        (
            "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (4,), }".into(),
            "not a truth value",
        ),
        ("{'descr': '<f4".into(), "never ends"),
        (String::new(), "not a Python dictionary"),
    ];
    for (header, problem) in cases {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend([0; 16]);
        let error = refused("a.npy", &bytes);
        assert!(error.contains(problem), "{header}: {error}");
    }
}

#[test]
fn files_of_other_formats_that_lie_are_errors() {
    assert!(refused("a.npz", b"PK nothing").contains("not an .npz archive"));
    assert!(refused("a.png", b"\x89PNG nothing").contains("not a PNG image"));
    assert!(refused("a.f32", &[0; 7]).contains("not a whole number of f32"));
    assert!(refused("a.bin", &[0; 8]).contains("give `type` and `shape`"));
    assert!(refused("a.txt", &[0; 8]).contains("its ending is not that of a format"));
    assert!(refused("a.h5", &[0; 8]).contains("no dataset is named"));
    let refused = |place: &str| fixture(place).inspect().unwrap_err().to_string();
    let hollow = refused("h5py.h5:hollow");
    assert!(
        hollow.contains("claims to be [1048576, 1048576] of f64"),
        "{hollow}"
    );
    let text = refused("h5py.h5:text");
    assert!(text.contains("not a type of number"), "{text}");
    let missing = refused("h5py.h5:nothing");
    assert!(
        missing.contains("it has no dataset `/nothing`") && missing.contains("`/deep/er/big`"),
        "{missing}"
    );
    let missing = refused("stored.npz");
    assert!(
        missing.contains("`FILE.npz:NAME`; there are `ramp`, `other`"),
        "{missing}"
    );
}

fn boxes() -> impl Strategy<Value = (Vec<u64>, Vec<u64>, Vec<u64>)> {
    let axis = (1u64..6).prop_flat_map(|whole| {
        (Just(whole), 0..whole)
            .prop_flat_map(|(whole, start)| (Just(whole), Just(start), 0..=whole - start))
    });
    prop::collection::vec(axis, 0..4).prop_map(|axes| {
        (
            axes.iter().map(|a| a.0).collect(),
            axes.iter().map(|a| a.1).collect(),
            axes.iter().map(|a| a.2).collect(),
        )
    })
}

/// The numbers of a box of a ramp, the slow way.
fn expected(whole: &[u64], start: &[u64], shape: &[u64]) -> Vec<u64> {
    let mut offsets = vec![0u64];
    for axis in 0..whole.len() {
        offsets = offsets
            .iter()
            .flat_map(|offset| {
                (0..shape[axis]).map(move |index| offset * whole[axis] + start[axis] + index)
            })
            .collect();
    }
    offsets
}

proptest! {
    #[test]
    fn blocks_are_what_the_whole_has((whole, start, shape) in boxes()) {
        let array = ramp(Scalar::U64, &whole);
        let numbers = expected(&whole, &start, &shape);
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        prop_assert_eq!(&array.block(&start, &shape).bytes, &bytes);
        let covered: Vec<u64> = runs(&whole, &start, &shape).flat_map(|run| run.offset..run.offset + run.length).collect();
        prop_assert_eq!(covered, numbers);
        let dir = tempfile::tempdir().unwrap();
        let place = ArrayLocation::new(dir.path().join("a.npy"));
        write(&place.path, &[("", &array)], None).unwrap();
        prop_assert_eq!(&place.read_block(&start, &shape).unwrap().bytes, &bytes);
        let mut back = Array::zeros(array.info.clone()).unwrap();
        copy_box(&array.block(&start, &shape), &vec![0; shape.len()], &mut back, &start, &shape);
        prop_assert_eq!(back.block(&start, &shape).bytes, bytes);
    }

    #[test]
    fn no_bytes_make_the_npy_reader_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..64), at in 0usize..200, whole in any::<bool>()) {
        if whole {
            let mut file = encode_npy(&ramp(Scalar::I16, &[2, 3]));
            let at = at % file.len();
            let end = (at + bytes.len()).min(file.len());
            file[at..end].copy_from_slice(&bytes[..end - at]);
            bytes = file;
        }
        if let Ok(array) = decode_npy(&bytes) {
            prop_assert_eq!(array.info.bytes(), Some(array.bytes.len() as u64));
        }
    }

    #[test]
    fn damaged_files_are_errors(name in prop::sample::select(vec!["h5py.h5:/chunked", "deflated.npz", "rgb.png", "../torch/binary.safetensors:loss"]), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let source = fixture(name);
        let mut bytes = std::fs::read(&source.path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= byte;
        if cut { bytes.truncate(at); }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(source.path.file_name().unwrap());
        std::fs::write(&path, bytes).unwrap();
        let damaged = ArrayLocation { path, ..source };
        if let (Ok(info), Ok(array)) = (damaged.inspect(), damaged.read()) {
            prop_assert_eq!(info.bytes(), Some(array.bytes.len() as u64));
        }
    }
}
