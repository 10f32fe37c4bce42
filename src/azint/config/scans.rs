//! Scans in the files of BLISS, ESRF's acquisition: entries `1.1`, `2.1`, …, of which integrator
//! takes all that have frames, each for results of its own.

use crate::{datasets::Named, frames::Stack};
use nodectl_formats::hdf5;
use std::path::Path;

/// What the configuration says of the frames' place in an entry.
pub(super) struct DetectorName {
    /// As LIMA calls it.
    pub(super) name: Option<String>,
    pub(super) suffix: Option<String>,
}

impl DetectorName {
    /// Where frames may be in an entry, the likeliest place first; nothing for a search.
    fn places(&self) -> Vec<String> {
        let Some(name) = &self.name else {
            return vec![String::new()];
        };
        let suffixed = self
            .suffix
            .iter()
            .map(|suffix| format!("/measurement/{name}_{suffix}"));
        suffixed
            .chain([
                format!("/instrument/{name}/data"),
                format!("/measurement/{name}"),
            ])
            .collect()
    }
}

/// Each scan with frames as a dataset of its own; files that have no scans as they are.
/// `entry`: the only one that is meant.
pub(super) fn each_scan(
    named: Vec<Named>,
    entry: Option<&str>,
    detector: &DetectorName,
) -> Vec<Named> {
    named
        .into_iter()
        .flat_map(|named| scans_of(named, entry, detector))
        .collect()
}

fn scans_of(named: Named, entry: Option<&str>, detector: &DetectorName) -> Vec<Named> {
    if named.dataset.is_some() {
        return vec![named];
    }
    let entries = match entry {
        Some(entry) => vec![entry.to_string()],
        None => scan_entries(&named.path),
    };
    let places = detector.places();
    let of_scan = |entry: &String, place: &String| Named {
        dataset: Some(format!("{entry}{place}")),
        part: scan_number(entry).map(|number| format!("scan{number:04}")),
        ..named.clone()
    };
    let with_frames = |entry: &String| {
        let mut all = places.iter().map(|place| of_scan(entry, place));
        all.find(|scan| Stack::open(&scan.path, scan.dataset.as_deref(), None).is_ok())
    };
    let found: Vec<Named> = entries.iter().filter_map(with_frames).collect();
    if !found.is_empty() {
        return found;
    }
    // The task of such a file tells what it lacks.
    match (entries.first(), places.last()) {
        (Some(entry), Some(place)) => vec![of_scan(entry, place)],
        _ => vec![named],
    }
}

/// The entries of scans, by number. None of a file that cannot be read, which its task tells.
fn scan_entries(path: &Path) -> Vec<String> {
    let names = hdf5::guarded(|| {
        let file = hdf5::open(path)?;
        let names = file.root_group().link_names();
        names.map_err(|error| error.to_string())
    });
    let mut entries: Vec<String> = names
        .unwrap_or_default()
        .into_iter()
        .filter(|name| scan_number(name).is_some())
        .collect();
    entries.sort_by_key(|name| scan_number(name));
    entries
}

/// 12 of `12.1`.
fn scan_number(entry: &str) -> Option<u32> {
    entry.trim_matches('/').strip_suffix(".1")?.parse().ok()
}
