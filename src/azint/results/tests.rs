//! What is written, read again: with our own reader here, with h5py and silx's conventions in
//! `tests/integrate.rs`.

use super::{
    Calibrant, HeatMap, NexusFile, Part, RegionPart, Total, finished, nexus, peaks, svg, table,
};
use nodectl_formats::ArrayLocation;

fn about(frames: u64, has_errors: bool) -> super::FileMetadata {
    super::FileMetadata {
        title: "lab6".into(),
        source_file: "/data/lab6.h5".into(),
        source_dataset: "entry/data".into(),
        fingerprint: "0123".into(),
        first: 0,
        frames,
        configuration: "{\"points\":4}".into(),
        unit: "q_nm^-1".into(),
        has_errors,
        date: "2026-01-01T00:00:00Z".into(),
        engine: "cpu".into(),
    }
}

fn part(first: u64, frames: u64, bins: usize) -> Part {
    let values: Vec<f32> = (0..frames as usize * bins)
        .map(|index| (first as usize * bins + index) as f32)
        .collect();
    let mut total = Total::default();
    let sums: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
    total.add(bins, &sums, &vec![1.0; sums.len()], Some(&sums));
    Part {
        first,
        frames,
        regions: vec![RegionPart {
            sigma: Some(values.clone()),
            intensity: values,
            total,
        }],
        bad: Vec::new(),
    }
}

#[test]
fn parts_in_any_order_make_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.h5");
    let axes = nexus::RegionAxes {
        name: None,
        radial: vec![1.0, 2.0, 3.0, 4.0],
        azimuthal_deg: None,
    };
    let mut file = NexusFile::create(&path, about(7, true), vec![axes]).unwrap();
    let mut total = Total::default();
    for (first, frames) in [(4, 3), (0, 2), (2, 2)] {
        let part = part(first, frames, 4);
        file.write(&part).unwrap();
        total.join(&part.regions[0].total);
    }
    assert!(file.write(&part(6, 2, 4)).is_err(), "beyond the end");
    assert!(!path.exists(), "only what is whole has the name");
    let bad = super::BadFrames {
        first: 2,
        frames: 2,
        why: "it was never written".into(),
    };
    file.finish(&[total], &[bad]).unwrap();
    let frames = ArrayLocation {
        member: Some("entry/bad_frames/frame".into()),
        ..ArrayLocation::new(&path)
    };
    let frames = frames.read().unwrap().bytes;
    assert_eq!(frames, [2u64, 3].map(u64::to_le_bytes).concat());
    let origin = nexus::PatternOrigin::of(&path).expect("it says so");
    assert_eq!(
        (&*origin.source_file, &*origin.fingerprint),
        ("/data/lab6.h5", "0123")
    );
    assert!(path.exists() && !dir.path().join("out.h5.part").exists());
    let read = |member: &str| {
        ArrayLocation {
            member: Some(member.into()),
            ..ArrayLocation::new(&path)
        }
        .read()
        .unwrap()
    };
    let floats = |member: &str| -> Vec<f32> {
        read(member)
            .bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect()
    };
    assert_eq!(read("entry/result/data").info.shape, [7, 4]);
    assert_eq!(
        floats("entry/result/data"),
        (0..28).map(|value| value as f32).collect::<Vec<_>>()
    );
    assert_eq!(
        floats("entry/result/data_errors"),
        floats("entry/result/data")
    );
    assert_eq!(floats("entry/mean/data"), [12.0, 13.0, 14.0, 15.0]);
}

#[test]
fn a_finished_part_is_read_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("some.h5");
    let cake = nexus::RegionAxes {
        name: Some("one".into()),
        radial: vec![1.0, 2.0],
        azimuthal_deg: Some(vec![-90.0, 90.0]),
    };
    let line = nexus::RegionAxes {
        name: Some("two".into()),
        radial: vec![1.0, 2.0, 3.0, 4.0],
        azimuthal_deg: None,
    };
    let axes = vec![cake, line];
    let about = super::FileMetadata {
        first: 3,
        ..about(2, true)
    };
    let mut whole = part(3, 2, 4);
    whole.regions.push(whole.regions[0].clone());
    let mut file = NexusFile::create(&path, about, axes.clone()).unwrap();
    assert!(
        file.write(&part(2, 2, 4)).is_err(),
        "before its first frame"
    );
    file.write(&whole).unwrap();
    let totals: Vec<Total> = whole
        .regions
        .iter()
        .map(|region| region.total.clone())
        .collect();
    file.finish(&totals, &[]).unwrap();
    let names = [Some("one".to_string()), Some("two".to_string())];
    assert_eq!(finished(&path, &names), Some((whole, axes)));
    assert_eq!(
        finished(&path, &names[..1]).map(|(part, _)| part.regions.len()),
        Some(1)
    );
    assert_eq!(finished(&path, &[None]), None);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(finished(&path, &names), None);
}

#[test]
fn calibrants_have_the_rings_of_their_certificates() {
    let known = |name| Calibrant::from_name(name).unwrap();
    let degrees = |calibrant: Calibrant, index: usize| {
        // Cu Kα1, as the certificates list.
        calibrant.rings(0.1)[index]
            .position("2th_deg", Some(1.540_592_9e-10))
            .unwrap()
    };
    assert!((degrees(known("LaB6"), 0) - 21.358).abs() < 2e-3);
    assert!((degrees(known("Si"), 0) - 28.441).abs() < 2e-3);
    assert!((degrees(known("CeO2"), 0) - 28.549).abs() < 4e-3);
    let hkl: Vec<[i32; 3]> = known("Si")
        .rings(0.15)
        .iter()
        .filter_map(|ring| ring.hkl)
        .collect();
    assert_eq!(hkl, [[1, 1, 1], [2, 2, 0], [3, 1, 1]]);
}

/// The spacings of the first rings, in Å, as pyFAI 2026.9 lists them.
#[test]
fn calibrants_have_the_rings_of_pyfai() {
    let listed: [(&str, &[f64]); 7] = [
        ("Al", &[2.33797992, 2.02475, 1.43171446, 1.22097019]),
        ("NaCl", &[3.25631325, 2.82005, 1.99407648, 1.70055413]),
        ("Ni", &[2.03450729, 1.761935, 1.24587619]),
        ("diamond", &[2.0593, 1.2611]),
        (
            "AgBh",
            &[58.38, 29.19, 19.46, 14.595, 11.676, 9.73, 8.34, 7.2975],
        ),
        (
            "alpha_Al2O3",
            &[
                3.47871214, 2.55009722, 2.3785, 2.16461667, 2.08460357, 1.96343287, 1.73935607,
                1.60090113,
            ],
        ),
        (
            "Cr2O3",
            &[
                3.63076001, 2.66523182, 2.4794895, 2.26598667, 2.17521698, 2.04757903, 1.81538001,
                1.67269102,
            ],
        ),
    ];
    for (name, spacings) in listed {
        let rings = Calibrant::from_name(name).expect(name).rings(0.05);
        for (ring, d) in rings.iter().zip(spacings) {
            assert!(
                (ring.d_nm * 10.0 - d).abs() < 2e-4 * d,
                "{name}: {ring:?} for {d}"
            );
        }
        assert!(rings.len() >= spacings.len(), "{name}");
    }
}

#[test]
fn listed_calibrants_are_read_whole() {
    let all: Vec<Calibrant> = Calibrant::all().collect();
    assert_eq!(all.len(), 38);
    for calibrant in all {
        let rings = calibrant.rings(0.0);
        assert!(!rings.is_empty(), "{}", calibrant.name());
        assert!(
            rings.is_sorted_by(|one, other| one.d_nm >= other.d_nm),
            "{}",
            calibrant.name()
        );
        let text = serde_json::to_string(&calibrant).unwrap();
        assert_eq!(serde_json::from_str::<Calibrant>(&text).unwrap(), calibrant);
    }
    let known = |name| Calibrant::from_name(name).unwrap();
    let quartz = known("quartz").rings(0.0);
    assert_eq!(quartz.len(), 19);
    assert_eq!(quartz[2].hkl, Some([2, -1, 0]));
    assert!((quartz[2].d_nm - 0.2458).abs() < 1e-9);
    // Of an oxide that nobody has identified.
    assert_eq!(known("CrOx").rings(0.0)[0].hkl, None);
    assert_eq!(Calibrant::from_name("mock"), None);
    assert!(serde_json::from_str::<Calibrant>("\"mock\"").is_err());
}

#[test]
fn peaks_are_found_between_bins_and_told() {
    let radial: Vec<f64> = (0..500).map(|bin| 5.0 + 0.1 * f64::from(bin)).collect();
    let places = [15.115_387, 21.376_386, 26.180_62];
    let shape = |at: f64| {
        2.0 + places
            .iter()
            .map(|place| 100.0 * (-((at - place) / 0.15).powi(2)).exp())
            .sum::<f64>()
    };
    let pattern: Vec<f32> = radial.iter().map(|at| shape(*at) as f32).collect();
    let found = peaks(&radial, &pattern);
    assert_eq!(found.len(), 3, "{found:?}");
    for (peak, place) in found.iter().zip(places) {
        assert!((peak.position - place).abs() < 0.02, "{peak:?}");
    }
    let text = table(
        "lab6",
        &radial,
        &pattern,
        "q_nm^-1",
        Some((Calibrant::from_name("LaB6").unwrap(), None)),
    );
    assert!(
        text.contains("lab6: 3 peaks") && text.lines().nth(2).unwrap().contains("100"),
        "{text}"
    );
    assert!(
        svg("lab6", &radial, &pattern, "q_nm^-1", &places)
            .unwrap()
            .contains("</svg>")
    );
    assert!(svg("none", &[], &[], "q_nm^-1", &[]).is_none());
}

#[test]
fn a_picture_has_a_row_for_each_frame_or_for_several() {
    let dir = tempfile::tempdir().unwrap();
    for (frames, bins, shape) in [(2, 30, [64, 30, 3]), (5000, 3000, [1024, 1024, 3])] {
        let mut map = HeatMap::new(0, frames, bins);
        map.add(&part(0, frames.min(10), bins));
        let path = dir.path().join(format!("{frames}.png"));
        map.write(&path).unwrap();
        assert_eq!(ArrayLocation::new(&path).read().unwrap().info.shape, shape);
    }
}

#[test]
fn a_coarse_picture_averages_what_there_is() {
    let (frames, bins) = (40, 12);
    let mut map = HeatMap::new(100, frames, bins);
    let mut part = part(100, frames, bins);
    // What could not be measured does not count.
    part.regions[0].intensity[..bins].fill(f32::NAN);
    map.add(&part);
    assert_eq!(map.extent(), (100, 40));
    let coarse = map.coarse(4, 3);
    let row = |first: usize, last: usize, column: usize| -> f32 {
        let values = (first..last).flat_map(|frame| {
            let from = frame * bins + column * 4;
            part.regions[0].intensity[from..from + 4].to_vec()
        });
        let values: Vec<f32> = values.collect();
        values.iter().sum::<f32>() / values.len() as f32
    };
    assert_eq!(coarse.len(), 4);
    for (column, value) in coarse[0].iter().enumerate() {
        assert!((value.unwrap() - row(1, 10, column)).abs() < 1e-2);
    }
    assert!((coarse[3][2].unwrap() - row(30, 40, 2)).abs() < 1e-2);
    let mut empty = HeatMap::new(0, 2, 2);
    part.regions[0].intensity.fill(f32::NAN);
    empty.add(&part);
    assert_eq!(empty.coarse(8, 8), [[None, None], [None, None]]);
}
