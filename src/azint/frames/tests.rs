//! The files of `tests/fixtures/frames`, which h5py and hdf5plugin made (`make.py` there).

mod virtual_datasets;

use super::{Decoder, FramesError, Reader, Stack};
use crate::engine::damaged;
use nodectl_formats::{ArrayLocation, hdf5};
use nodectl_types::Scalar;
use proptest::prelude::*;
use rust_hdf5::{H5File, Selection};
use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

const FRAMES: u64 = 5;
const SHAPE: [usize; 2] = [37, 45];

pub(crate) fn fixture(name: &str) -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("two folders up");
    workspace.join("tests/fixtures/frames").join(name)
}

/// What `make.py` writes, as 32 bits.
fn pixel(frame: u64, row: u64, column: u64) -> u32 {
    if row == column {
        u32::MAX
    } else {
        ((frame * 31 + row * 7 + column * 3) % 23) as u32
    }
}

fn expected(scalar: Scalar, frame: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for row in 0..SHAPE[0] as u64 {
        for column in 0..SHAPE[1] as u64 {
            let value = pixel(frame, row, column);
            match scalar {
                Scalar::F32 => bytes.extend((value as f32).to_le_bytes()),
                other => bytes.extend(&value.to_le_bytes()[..other.bytes()]),
            }
        }
    }
    bytes
}

fn check(name: &str, dataset: Option<&str>, entry: Option<&str>, scalar: Scalar) -> Stack {
    let stack = Stack::open(&fixture(name), dataset, entry)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(
        (stack.frames, stack.shape, stack.scalar),
        (FRAMES, SHAPE, scalar),
        "{name}"
    );
    let shared = Arc::new(stack.clone());
    let (mut reader, mut decoder) = (Reader::new(shared), Decoder::default());
    for start in [0, 1, 3] {
        let mut next = start;
        while next < FRAMES {
            let unit = reader
                .read(next..FRAMES)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(unit.frames.start, next);
            let mut target =
                vec![0; stack.frame_bytes() * (unit.frames.end - unit.frames.start) as usize];
            unit.decode(&mut target, &mut decoder)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            for (frame, found) in unit.frames.clone().zip(target.chunks(stack.frame_bytes())) {
                assert!(found == expected(scalar, frame), "{name}: frame {frame}");
            }
            if let Some(pieces) = unit.pieces() {
                let mut pieces = pieces.unwrap_or_else(|error| panic!("{name}: {error}"));
                let mut again = vec![0; target.len()];
                for part in again.chunks_mut(1000) {
                    pieces
                        .fill(part, &mut decoder)
                        .unwrap_or_else(|error| panic!("{name}: {error}"));
                }
                assert!(again == target, "{name}: in pieces");
            }
            next = unit.frames.end;
        }
    }
    stack
}

#[test]
fn every_compression_and_layout_gives_the_same_pixels() {
    let names = [
        "bitshuffle_lz4.h5",
        "bitshuffle_zstd.h5",
        "bitshuffle.h5",
        "lz4.h5",
        "zstd.h5",
        "gzip_shuffle.h5",
        "fletcher.h5",
        "lzf.h5",
        "chunked.h5",
        "contiguous.h5",
        "tiles.h5",
        "big_endian.h5",
    ];
    for name in names {
        check(name, None, None, Scalar::U32);
    }
    for dataset in [
        "/blosclz_0",
        "/blosclz_1",
        "/lz4_2",
        "/lz4hc_1",
        "/zlib_1",
        "/zstd_0",
        "/zstd_2",
    ] {
        check("blosc.h5", Some(dataset), None, Scalar::U32);
    }
    assert_eq!(
        check("tiles.h5", Some("/data"), None, Scalar::U32).unit(),
        2
    );
}

#[test]
fn every_type_of_pixel_is_read() {
    for (name, scalar) in [
        ("u1.h5", Scalar::U8),
        ("u2.h5", Scalar::U16),
        ("i4.h5", Scalar::I32),
        ("f4.h5", Scalar::F32),
    ] {
        check(name, None, None, scalar);
    }
}

/// The pixels of all frames, as floats.
fn floats(name: &str) -> (Stack, Vec<f32>) {
    let stack = Stack::open(&fixture(name), None, None).unwrap_or_else(|error| panic!("{error}"));
    let (mut reader, mut decoder) = (Reader::new(Arc::new(stack.clone())), Decoder::default());
    let (mut all, mut next) = (Vec::new(), 0);
    while next < stack.frames {
        let unit = reader
            .read(next..stack.frames)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let count = (unit.frames.end - unit.frames.start) as usize;
        let mut target = vec![0; stack.frame_bytes() * count];
        unit.decode(&mut target, &mut decoder)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(reader.together(&(next..stack.frames)), unit.frames);
        next = unit.frames.end;
        let pixels = nodectl_formats::convert(target, stack.scalar, Scalar::F32);
        let pixels = pixels.as_chunks::<4>().0.iter();
        all.extend(pixels.map(|bytes| f32::from_le_bytes(*bytes)));
    }
    (stack, all)
}

#[test]
fn types_that_engines_do_not_have_become_floats() {
    let dead = [
        ("i1.h5", -1.0),
        ("i2.h5", -1.0),
        ("i8.h5", 4_294_967_295.0),
        ("u8.h5", 4_294_967_295.0),
        ("f2.h5", f32::INFINITY),
        ("f8.h5", 4_294_967_295.0),
    ];
    for (name, dead) in dead {
        let (stack, pixels) = floats(name);
        assert_eq!(
            (stack.frames, stack.shape, stack.scalar),
            (FRAMES, SHAPE, Scalar::F32)
        );
        let expected = |at: usize| {
            let (frame, pixel) = (at / (SHAPE[0] * SHAPE[1]), at % (SHAPE[0] * SHAPE[1]));
            let value = self::pixel(
                frame as u64,
                (pixel / SHAPE[1]) as u64,
                (pixel % SHAPE[1]) as u64,
            );
            if value == u32::MAX {
                dead
            } else {
                value as f32
            }
        };
        let wrong = (0..pixels.len()).find(|at| pixels[*at] != expected(*at));
        assert_eq!(wrong, None, "{name}");
    }
}

#[test]
fn maps_are_stacks_row_by_row() {
    let expected: Vec<f32> = (0..6)
        .flat_map(|frame| {
            let bytes = expected(Scalar::F32, frame);
            bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes))
                .collect::<Vec<_>>()
        })
        .collect();
    for name in ["map.h5", "map_rows.h5", "map_plain.h5"] {
        let (stack, pixels) = floats(name);
        assert_eq!((stack.frames, stack.shape), (6, SHAPE), "{name}");
        assert!(pixels == expected, "{name}");
    }
}

#[test]
fn frames_are_found_where_they_are_met_in_practice() {
    let scan = check("scan.h5", None, None, Scalar::U32);
    assert_eq!(scan.dataset, "1.1/instrument/detector/data");
    assert_eq!(scan.sources.len(), 2);
    assert_eq!(
        scan.files(),
        ["scan.h5", "./lima_0000.h5", "./lima_0001.h5"].map(fixture)
    );
    check(
        "scan.h5",
        Some("/1.1/measurement/detector"),
        None,
        Scalar::U32,
    );
    check(
        "scan.h5",
        Some("measurement/detector"),
        Some("1.1"),
        Scalar::U32,
    );
    check("scan.h5", None, Some("/1.1"), Scalar::U32);
    let eiger = check("eiger_master.h5", None, None, Scalar::U32);
    assert_eq!(
        (eiger.dataset.as_str(), eiger.sources.len()),
        ("entry/data", 2)
    );
    check("eiger_master.h5", Some("/entry/data"), None, Scalar::U32);
    check("eiger_master.h5", None, Some("entry"), Scalar::U32);
    assert_eq!(
        check("nexus.h5", None, None, Scalar::U32).dataset,
        "entry/result/images"
    );
    let part = Stack::open(&fixture("lima_0001.h5"), None, None).unwrap();
    assert_eq!(
        (part.frames, part.dataset.as_str()),
        (3, "entry_0000/measurement/data")
    );
}

#[test]
fn what_is_wrong_with_a_file_is_told() {
    let told = |name: &str, dataset: Option<&str>, entry: Option<&str>| {
        let error = Stack::open(&fixture(name), dataset, entry).map(|stack| {
            let mut reader = Reader::new(Arc::new(stack.clone()));
            let (mut next, mut decoder) = (0, Decoder::default());
            while next < stack.frames {
                let unit = reader.read(next..next + 1)?;
                unit.decode(&mut vec![0; stack.frame_bytes()], &mut decoder)?;
                next += 1;
            }
            Ok::<_, FramesError>(())
        });
        let error = error.and_then(|read| read).expect_err(name).to_string();
        error
            .replace(&format!("{}/", fixture("").display()), "")
            .replace(&fixture("").display().to_string(), "")
    };
    assert!(
        told("unknown.h5", None, None)
            .contains("the HDF5 filter 307 (bzip2), which nodectl does not know")
    );
    assert!(
        told("missing.h5", None, None).contains("nowhere.h5, which cannot be opened"),
        "{}",
        told("missing.h5", None, None)
    );
    assert!(
        told("scan.h5", None, Some("3.1"))
            .contains("it has no entry `3.1`\nhint: there are `1.1`, `2.1`")
    );
    assert!(told("scan.h5", None, Some("2.1")).contains("no dataset of three axes"));
    assert!(
        told("scan.h5", Some("/nothing"), None)
            .contains("it has no dataset `/nothing`\nhint: there are `/1.1/")
    );
    assert!(
        told("wrong_size.h5", None, None)
            .contains("frame 1: the chunk is 6656 bytes after decompression, not 6660")
    );
    assert!(told("empty.h5", None, None).contains("`/entry/data/data` has no frames\n"));
    assert!(told("unwritten.h5", None, None).contains("frame 3: it was never written"));
    let cut = told("truncated.h5", None, None);
    assert!(
        cut.contains("truncated.h5") && cut.contains("the file is cut short"),
        "{cut}"
    );
    assert!(told("make.py", None, None).contains("not an HDF5 file"));
    assert!(told("absent.h5", None, None).contains("No such file"));
}

/// A master file, and of its data files those with these numbers.
fn master_with(parts: &[u32]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let names = parts.iter().map(|part| format!("eiger_data_{part:06}.h5"));
    for name in names.chain(["eiger_master.h5".into()]) {
        std::fs::copy(fixture(&name), dir.path().join(&name)).unwrap();
    }
    let master = dir.path().join("eiger_master.h5");
    (dir, master)
}

#[test]
fn a_master_keeps_the_frames_of_the_data_files_that_are_there() {
    let (_dir, master) = master_with(&[1]);
    let stack = Stack::open(&master, None, None).unwrap();
    // The second file has two frames, which nothing says.
    assert_eq!((stack.frames, stack.shape), (6, SHAPE));
    assert!(stack.lacks_files());
    let scalar = stack.scalar;
    let mut pixels = vec![0; stack.frame_bytes()];
    let mut reader = Reader::new(Arc::new(stack));
    for frame in 0..3 {
        let stored = reader.read(frame..frame + 1).unwrap();
        stored.decode(&mut pixels, &mut Decoder::default()).unwrap();
        assert!(pixels == expected(scalar, frame), "frame {frame}");
    }
    for frame in 3..6 {
        let error = reader.read(frame..frame + 1).err().unwrap();
        assert!(
            matches!(&error, FramesError::MissingSource { missing, .. } if missing.ends_with("eiger_data_000002.h5")),
            "{error}"
        );
    }
}

#[test]
fn a_master_without_any_or_with_only_its_last_data_file_says_so() {
    for (there, gone) in [(&[][..], 1), (&[2][..], 1)] {
        let (_dir, master) = master_with(there);
        let error = Stack::open(&master, None, None).unwrap_err();
        let name = format!("eiger_data_{gone:06}.h5");
        assert!(
            matches!(&error, FramesError::MissingSource { missing, .. } if missing.ends_with(&name)),
            "{error}"
        );
    }
}

#[test]
fn a_sample_whose_scans_are_files_of_their_own_is_followed_into_them() {
    for entry in [None, Some("1.1")] {
        let stack = check("sample.h5", None, entry, Scalar::U32);
        assert_eq!(stack.sources.len(), 2);
        assert!(
            stack
                .files()
                .contains(&fixture("sample_0001/raw/lima_0000.h5"))
                || stack.sources[0].path.ends_with("lima_0000.h5")
        );
    }
    check(
        "sample.h5",
        Some("/1.1/measurement/detector"),
        None,
        Scalar::U32,
    );
    check("nested.h5", None, None, Scalar::U32);
    check("numbered.h5", None, None, Scalar::U32);
}

/// Trees of one node and of several, arrays of one page and of several, in old groups and in new
/// ones: the library finds no other chunks.
#[test]
fn chunks_are_where_the_library_finds_them() {
    let many = tempfile::tempdir().unwrap();
    let path = many.path().join("many.h5");
    let file = rust_hdf5::H5File::create(&path).unwrap();
    let group = file.root_group().create_group("entry").unwrap();
    let data = group
        .new_dataset::<u16>()
        .shape([300usize, 4, 4])
        .chunk(&[1, 4, 4])
        .create("data")
        .unwrap();
    let values: Vec<u16> = (0..300 * 16).map(|value| value as u16).collect();
    data.write_raw(&values).unwrap();
    drop((data, group));
    file.close().unwrap();
    let mut understood = 0;
    let fixtures = [
        "bitshuffle_lz4.h5",
        "tiles.h5",
        "chunked.h5",
        "lima_0000.h5",
        "eiger_data_000001.h5",
        "nexus.h5",
        "array.h5",
        "array_gzip.h5",
        "growing.h5",
        "growing_gzip.h5",
        "growing_two.h5",
        "growing_two_gzip.h5",
    ];
    for path in fixtures.map(fixture).into_iter().chain([path]) {
        let stack = Stack::open(&path, None, None).unwrap();
        let source = &stack.sources[0];
        let Some(chunks) = super::chunks::Chunks::of(&source.path, &source.dataset) else {
            continue;
        };
        understood += 1;
        let file = super::stack::open(&path).unwrap();
        let dataset = file.dataset(&source.dataset).unwrap();
        let chunk = source.chunk.unwrap();
        let extents = [
            source.frames,
            source.shape[0] as u64,
            source.shape[1] as u64,
        ];
        let grid: Vec<u64> = extents
            .iter()
            .zip(&chunk)
            .map(|(extent, chunk)| extent.div_ceil(*chunk))
            .collect();
        // The library takes its time over many.
        let step = if grid[0] > 100 { 13 } else { 1 };
        for (frame, row, column) in (0..grid[0])
            .step_by(step)
            .flat_map(|frame| (0..grid[1]).map(move |row| (frame, row)))
            .flat_map(|(frame, row)| (0..grid[2]).map(move |column| (frame, row, column)))
        {
            let theirs = dataset
                .read_chunk_raw_at(&[frame, row, column].map(|place| place as usize))
                .unwrap();
            assert!(
                chunks.read(&[frame, row, column]) == Some(Ok(theirs)),
                "{}: {frame}",
                path.display()
            );
        }
        assert!(chunks.read(&[grid[0], 0, 0]).is_none());
    }
    assert!(understood >= fixtures.len(), "{understood}");
    assert!(super::chunks::Chunks::of(&fixture("make.py"), "data").is_none());
    assert!(super::chunks::Chunks::of(&fixture("chunked.h5"), "nothing").is_none());
}

proptest! {
    /// Whatever an index says, it is left to the library, or chunks lie within the file.
    #[test]
    fn damage_to_an_index_does_no_harm(
        name in prop_oneof![Just("bitshuffle_lz4.h5"), Just("array_gzip.h5"), Just("growing.h5"), Just("growing_two.h5")],
        damage in prop::collection::vec((0usize..8000, any::<u8>()), 1..8),
        length in 0usize..100_000,
    ) {
        let mut bytes = std::fs::read(fixture(name)).unwrap();
        for (at, value) in damage {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(length.max(100));
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        // As readers call it: the library's decoders may give up.
        let chunks = hdf5::guarded(|| Ok(super::chunks::Chunks::of(file.path(), "data"))).unwrap_or(None);
        if let Some(chunks) = chunks {
            for frame in 0..20 {
                if let Some(Ok((raw, _))) = chunks.read(&[frame, 0, 0]) {
                    prop_assert!(raw.len() <= bytes.len());
                }
            }
        }
    }
}

/// Two directories: files in the first say that their frames are elsewhere, in the second or beside
/// them.
fn leading_files() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (own, other) = (dir.path().join("own"), dir.path().join("other"));
    for directory in [&own, &other] {
        std::fs::create_dir_all(directory).unwrap();
    }
    let secret = other.join("secret.raw");
    std::fs::write(&secret, [7; 24]).unwrap();
    std::fs::copy(fixture("chunked.h5"), other.join("frames.h5")).unwrap();
    std::fs::copy(fixture("chunked.h5"), own.join("beside.h5")).unwrap();
    std::os::unix::fs::symlink(other.join("frames.h5"), own.join("hidden.h5")).unwrap();
    let make = |name: &str, fill: &dyn Fn(&H5File)| {
        let file = H5File::create(own.join(name)).unwrap();
        fill(&file);
        file.close().unwrap();
    };
    let absolute = other.join("frames.h5").display().to_string();
    make("external.h5", &|file| {
        let secret = secret.display().to_string();
        file.new_dataset::<u8>()
            .shape([1, 4, 6])
            .external(&[(&secret, 0, 24)])
            .create("data")
            .unwrap();
    });
    for (name, target) in [
        ("up.h5", "../other/frames.h5"),
        ("far.h5", &absolute),
        ("link.h5", "hidden.h5"),
        ("near.h5", "beside.h5"),
    ] {
        make(name, &|file| {
            file.create_external_link("data", target, "/data").unwrap()
        });
    }
    for (name, source) in [
        ("virtual.h5", "../other/frames.h5"),
        ("near_virtual.h5", "beside.h5"),
    ] {
        make(name, &|file| {
            let mapped = file.new_dataset::<u32>().shape([5, 37, 45]);
            mapped
                .virtual_mapping(Selection::All, source, "/data", Selection::All)
                .create("data")
                .unwrap();
        });
    }
    (dir, own, other)
}

fn data_of(file: PathBuf) -> ArrayLocation {
    ArrayLocation {
        member: Some("/data".into()),
        ..ArrayLocation::new(file)
    }
}

/// A file comes from anybody. What it says is elsewhere is read as the user, so it stays below the
/// file's own directory.
#[test]
fn no_file_leads_out_of_its_directory() {
    let (_dir, own, other) = leading_files();
    for name in ["up.h5", "far.h5", "link.h5", "virtual.h5"] {
        for dataset in [None, Some("/data")] {
            let error = Stack::open(&own.join(name), dataset, None)
                .map(|stack| stack.frames)
                .unwrap_err();
            assert!(!error.to_string().contains("cut short"), "{error}");
            let is_told = matches!(error, FramesError::Outside { .. });
            assert!(is_told || dataset.is_none(), "{name}: {error}");
        }
        let within = Stack::open_within(
            &own.join(name),
            Some("/data"),
            None,
            std::slice::from_ref(&other),
        );
        assert_eq!(
            within.unwrap().frames,
            FRAMES,
            "{name}: its directory was named"
        );
        // What kernels and trainings read is looked at in the same way; there nobody can name
        // others.
        let location = data_of(own.join(name));
        assert!(
            location.read().is_err() && location.inspect().is_err(),
            "{name}"
        );
    }
    for name in ["near.h5", "near_virtual.h5"] {
        assert_eq!(
            Stack::open(&own.join(name), None, None).unwrap().frames,
            FRAMES,
            "{name}"
        );
    }
    assert_eq!(
        data_of(own.join("near.h5")).inspect().unwrap().shape[0],
        FRAMES
    );
}

#[test]
fn numbers_that_lie_in_another_file_are_not_read() {
    let (_dir, own, _other) = leading_files();
    let error = Stack::open(&own.join("external.h5"), None, None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("its numbers lie in another file") && error.contains("secret.raw"),
        "{error}"
    );
    let location = data_of(own.join("external.h5"));
    for error in [
        location.read().map(|_| ()).unwrap_err(),
        location.inspect().map(|_| ()).unwrap_err(),
    ] {
        assert!(
            error
                .to_string()
                .contains("its numbers lie in another file"),
            "{error}"
        );
    }
}

/// Some writers name the first part as what is to be plotted.
#[test]
fn a_signal_that_names_one_part_means_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("scan_master.h5");
    let file = H5File::create(&path).unwrap();
    file.set_attr_string("default", "entry/data").unwrap();
    let entry = file.create_group("entry").unwrap();
    let data = entry.create_group("data").unwrap();
    data.set_attr_string("signal", "data_000001").unwrap();
    for (name, frames) in [("data_000001", 2), ("data_000002", 3)] {
        let part = data.new_dataset::<u16>().shape([frames, 4, 5]).create(name);
        part.unwrap().write_raw(&vec![1_u16; frames * 20]).unwrap();
    }
    drop((data, entry));
    file.close().unwrap();
    for dataset in [None, Some("/entry/data")] {
        assert_eq!(Stack::open(&path, dataset, None).unwrap().frames, 5);
    }
    let one = Stack::open(&path, Some("/entry/data/data_000002"), None);
    assert_eq!(one.unwrap().frames, 3);
}

/// One file's descriptors of groups, types, filters and chunks, 2,000 times with other bytes.
#[test]
fn a_damaged_file_is_refused_or_read_and_never_hangs() {
    let whole = std::fs::read(fixture("bitshuffle_lz4.h5")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.h5");
    let begun = std::time::Instant::now();
    for bytes in damaged(&whole, 4096) {
        std::fs::write(&path, bytes).unwrap();
        let Ok(stack) = Stack::open(&path, None, None) else {
            continue;
        };
        let (frames, length) = (stack.frames, stack.frame_bytes());
        if length > 1 << 24 {
            continue;
        }
        let mut reader = Reader::new(Arc::new(stack));
        for frame in 0..frames.min(2) {
            if let Ok(stored) = reader.read(frame..frame + 1) {
                let mut pixels = vec![0; length * stored.frames.clone().count()];
                let _ = stored.decode(&mut pixels, &mut Decoder::default());
            }
        }
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(120));
}
