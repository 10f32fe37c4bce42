//! Detectors: by the name of their type, by their pixels alone, or by a file that says where each
//! pixel is. What is known of types (sizes and places of pixels, gaps between modules, values of
//! dead pixels) is pyFAI's.
//!
//! | file | owns |
//! |---|---|
//! | `table` | what is known of types |
//! | `layout` | where pixels are on a detector |
//! | `nexus` | detectors from files |

mod layout;
mod nexus;
mod table;

pub(super) use layout::{PixelCorners, PixelLayout};
pub use nexus::DetectorFile;

use super::errors::IntegratorError;
use layout::Arrangement;
use nodectl_types::suggest::nearest;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The detector of an experiment. What is None comes from the type that is named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetectorSettings {
    /// As pyFAI calls it: `Pilatus1M`, `Eiger2 4M`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A NeXus file that says where each pixel is, in place of a name. It is read by who makes an
    /// integrator: see `DetectorFile`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Height and width of a pixel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pixel1_m: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pixel2_m: Option<f64>,
    /// Rows, columns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<[usize; 2]>,
    /// Of a curved detector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub radius_m: Option<f64>,
    /// Where the first pixel is, 1 to 4 (pyFAI's `orientation`); 3 unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orientation: Option<u8>,
}

/// The most pixels of a detector; guards against slips of the keyboard.
const MAX_PIXELS: usize = 1 << 30;

impl DetectorSettings {
    pub(super) fn check(&self) -> Result<(), IntegratorError> {
        self.orientation().map(drop)?;
        // What is in a file is seen when it is read.
        if self.file.is_some() {
            Ok(())
        } else {
            resolve(&self.of_frames([1, 1]), None).map(drop)
        }
    }

    /// Whether the detector is known by the size of its pixels alone: frames say how many there
    /// are.
    pub fn takes_any_shape(&self) -> bool {
        self.name.is_none() && self.file.is_none() && self.shape.is_none()
    }

    /// This detector, with so many rows and columns if it does not say how many it has.
    pub fn of_frames(&self, shape: [usize; 2]) -> Self {
        Self {
            shape: self.shape.or(self.takes_any_shape().then_some(shape)),
            ..self.clone()
        }
    }

    fn orientation(&self) -> Result<u8, IntegratorError> {
        // 0 is pyFAI's "unspecified", which it reads as 3.
        let orientation = self.orientation.filter(|given| *given != 0).unwrap_or(3);
        if (1..=4).contains(&orientation) {
            return Ok(orientation);
        }
        Err(IntegratorError::value(
            "orientation",
            orientation.to_string(),
            "1, 2, 3 or 4".into(),
        ))
    }
}

/// A type of detector.
struct Detector {
    name: &'static str,
    /// Other names, in lower case without spaces, dashes and underscores.
    aliases: &'static [&'static str],
    pixel_m: [f64; 2],
    shape: [usize; 2],
    arrangement: Arrangement,
    /// The value of dead pixels, how far from it values may be.
    dummy: Option<(i64, Option<f64>)>,
    gaps: Gaps,
}

/// Pixels that do not exist, or do not measure.
enum Gaps {
    None,
    /// Rows and columns, from and to.
    Stripes {
        rows: &'static [(usize, usize)],
        columns: &'static [(usize, usize)],
    },
    /// All beyond the circle that fits in.
    Circle,
    /// All but squares of so many pixels, by their first row and column.
    Tiles {
        side: usize,
        firsts: &'static [(usize, usize)],
    },
}

/// A detector with nothing left open.
#[derive(Clone)]
pub(super) struct ResolvedDetector {
    pub shape: [usize; 2],
    pub layout: PixelLayout,
    pub orientation: u8,
    definition: Option<&'static Detector>,
    /// The value of dead pixels and how far from it values may be, from a file.
    dummy: Option<(f64, Option<f64>)>,
}

/// `file`: what is in the file that the settings name, if they do.
pub(super) fn resolve(
    settings: &DetectorSettings,
    file: Option<&DetectorFile>,
) -> Result<ResolvedDetector, IntegratorError> {
    let orientation = settings.orientation()?;
    if let Some(path) = &settings.file {
        let file = file.ok_or_else(|| IntegratorError::NoDetectorFile { path: path.clone() })?;
        let (shape, layout, dummy) = (file.shape, file.layout.clone(), file.dummy);
        return Ok(ResolvedDetector {
            shape,
            layout,
            orientation,
            definition: None,
            dummy,
        });
    }
    let definition = settings.name.as_deref().map(find).transpose()?;
    let pixel = pixel_m(settings, definition)?;
    // Of a type, other pixels are several of the usual ones read as one, or a part of one.
    let binned = definition.map(|known| {
        let extent = |axis: usize| {
            (known.shape[axis] as f64 * known.pixel_m[axis] / pixel[axis]).round() as usize
        };
        [extent(0), extent(1)]
    });
    let shape = settings.shape.or(binned).ok_or(IntegratorError::NoShape)?;
    let pixels = shape[0]
        .checked_mul(shape[1])
        .filter(|pixels| (1..=MAX_PIXELS).contains(pixels));
    if pixels.is_none() {
        return Err(IntegratorError::value(
            "shape",
            format!("{shape:?}"),
            format!("1 to {MAX_PIXELS} pixels"),
        ));
    }
    let layout = match definition {
        None => PixelLayout::Regular {
            pixel,
            rounds_centers: true,
        },
        Some(known) => {
            check_arrangement(known, shape, orientation)?;
            known.arrangement.layout(shape, pixel, settings.radius_m)
        }
    };
    Ok(ResolvedDetector {
        shape,
        layout,
        orientation,
        definition,
        dummy: None,
    })
}

/// The extents of a pixel along rows' numbers and columns' numbers.
fn pixel_m(
    settings: &DetectorSettings,
    definition: Option<&'static Detector>,
) -> Result<[f64; 2], IntegratorError> {
    let pixel =
        |given: Option<f64>, axis: usize| given.or(definition.map(|known| known.pixel_m[axis]));
    let sizes = [
        ("pixel1", pixel(settings.pixel1_m, 0)),
        ("pixel2", pixel(settings.pixel2_m, 1)),
    ];
    let mut pixel = [0.0; 2];
    for (size, (name, value)) in pixel.iter_mut().zip(sizes) {
        let sound = value.filter(|value| value.is_finite() && *value > 0.0);
        let said = value.map_or("not given".into(), |value| value.to_string());
        *size = sound.ok_or_else(|| {
            IntegratorError::value(
                name,
                said,
                "a length in metres, or a detector's name".into(),
            )
        })?;
    }
    Ok(pixel)
}

/// Fails where a type's pixels cannot be arranged so.
fn check_arrangement(
    known: &Detector,
    shape: [usize; 2],
    orientation: u8,
) -> Result<(), IntegratorError> {
    let is_regular = matches!(known.arrangement, Arrangement::Regular { .. });
    if !is_regular && shape != known.shape {
        return Err(IntegratorError::value(
            "shape",
            format!("{shape:?}"),
            format!(
                "{:?}: pixels of {} differ and cannot be read as one",
                known.shape, known.name
            ),
        ));
    }
    // pyFAI's own positions of centres and of corners do not agree otherwise.
    if orientation != 3 && !known.arrangement.turns() {
        return Err(IntegratorError::value(
            "orientation",
            orientation.to_string(),
            format!("3, of {}", known.name),
        ));
    }
    Ok(())
}

/// A name as the table has it: case, spaces, dashes and underscores do not matter.
fn plain(name: &str) -> String {
    name.chars()
        .filter(|letter| !" -_".contains(*letter))
        .flat_map(char::to_lowercase)
        .collect()
}

fn find(name: &str) -> Result<&'static Detector, IntegratorError> {
    let wanted = plain(name);
    let found = table::DETECTORS
        .iter()
        .find(|known| plain(known.name) == wanted || known.aliases.contains(&&*wanted));
    found.ok_or_else(|| {
        let hint =
            nearest(name, table::DETECTORS.iter().map(|known| known.name)).map(str::to_owned);
        IntegratorError::UnknownDetector {
            name: name.into(),
            hint,
        }
    })
}

/// Whether what is given for a detector is a file, and not the name of a type.
pub fn is_file(name: &str) -> bool {
    let ending = name
        .rsplit_once('.')
        .map(|(_, ending)| ending.to_ascii_lowercase());
    ending.is_some_and(|ending| matches!(ending.as_str(), "h5" | "hdf5" | "nxs"))
}

/// Whether a type has such a name, or such another name.
pub fn is_known(name: &str) -> bool {
    find(name).is_ok()
}

/// The names of all types.
pub fn names() -> impl Iterator<Item = &'static str> {
    table::DETECTORS.iter().map(|known| known.name)
}

impl ResolvedDetector {
    /// Which pixels of the type do not exist, [rows, columns]; None where all do. Gaps are known of
    /// unbinned detectors only.
    pub fn gaps(&self) -> Option<Vec<bool>> {
        let known = self.definition?;
        let [rows, columns] = self.shape;
        match known.gaps {
            Gaps::Circle => {
                let middle = [rows / 2, columns / 2].map(|half| half as f64);
                let beyond = |row: usize, column: usize| {
                    let across = [
                        row as f64 + 0.5 - middle[0],
                        column as f64 + 0.5 - middle[1],
                    ];
                    across[0] * across[0] + across[1] * across[1] > middle[0] * middle[0]
                };
                Some(
                    (0..rows * columns)
                        .map(|at| beyond(at / columns, at % columns))
                        .collect(),
                )
            }
            _ if self.shape != known.shape => None,
            Gaps::None => None,
            Gaps::Stripes {
                rows: row_gaps,
                columns: column_gaps,
            } => {
                let is_gap = |gaps: &[(usize, usize)], at: usize| {
                    gaps.iter().any(|(from, to)| (*from..*to).contains(&at))
                };
                let column_gaps: Vec<bool> = (0..columns)
                    .map(|column| is_gap(column_gaps, column))
                    .collect();
                let row = |row: usize| {
                    let whole = is_gap(row_gaps, row);
                    column_gaps.iter().map(move |gap| whole || *gap)
                };
                Some((0..rows).flat_map(row).collect())
            }
            Gaps::Tiles { side, firsts } => {
                let mut gaps = vec![true; rows * columns];
                for (first, column) in firsts {
                    for row in *first..(first + side).min(rows) {
                        gaps[row * columns + column..row * columns + (column + side).min(columns)]
                            .fill(false);
                    }
                }
                Some(gaps)
            }
        }
    }

    /// The value of dead pixels of frames whose numbers have `bits` bits unsigned (None: signed or
    /// floats), and how far from it values may be (pyFAI's `get_dummies`).
    pub fn dummy(&self, unsigned_bits: Option<u32>) -> Option<(f32, f32)> {
        let (value, delta) = match self.definition {
            Some(known) => known.dummy.map(|(value, delta)| (value as f64, delta))?,
            None => self.dummy?,
        };
        let wrapped = match unsigned_bits {
            Some(8) => f32::from(value as i64 as u8),
            Some(16) => f32::from(value as i64 as u16),
            Some(_) => value as i64 as u32 as f32,
            None => value as f32,
        };
        Some((wrapped, delta.map_or(f32::EPSILON, |delta| delta as f32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> DetectorSettings {
        DetectorSettings {
            name: Some(name.into()),
            ..DetectorSettings::default()
        }
    }

    #[test]
    fn names_are_found_however_they_are_written() {
        for name in ["Eiger2 4M", "eiger2_4m", "Eiger2_4M"] {
            let found = resolve(&named(name), None).expect("a known type");
            assert_eq!(found.shape, [2162, 2068]);
        }
        let error = resolve(&named("Pilatus1N"), None)
            .err()
            .expect("no such type")
            .to_string();
        assert!(error.contains("did you mean \"Pilatus1M\""), "{error}");
    }

    #[test]
    fn no_two_types_share_a_name() {
        let mut all: Vec<String> = table::DETECTORS
            .iter()
            .map(|known| plain(known.name))
            .collect();
        all.extend(
            table::DETECTORS
                .iter()
                .flat_map(|known| known.aliases.iter().map(|alias| (*alias).to_owned())),
        );
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn gaps_of_a_pilatus() {
        let gaps = resolve(&named("Pilatus1M"), None)
            .expect("known")
            .gaps()
            .expect("it has gaps");
        let count = gaps.iter().filter(|gap| **gap).count();
        assert_eq!(count, 4 * 17 * 981 + 7 * (1043 - 4 * 17));
        assert!(!gaps[0] && gaps[195 * 981]);
    }

    #[test]
    fn dead_pixels_of_a_pilatus_by_type() {
        let known = resolve(&named("Pilatus1M"), None).expect("known");
        assert_eq!(known.dummy(None), Some((-2.0, 1.5)));
        assert_eq!(known.dummy(Some(32)), Some((4294967294u32 as f32, 1.5)));
        assert_eq!(known.dummy(Some(16)), Some((65534.0, 1.5)));
    }

    #[test]
    fn several_pixels_read_as_one() {
        let settings = DetectorSettings {
            pixel1_m: Some(100e-6),
            pixel2_m: Some(100e-6),
            ..named("Perkin")
        };
        assert_eq!(resolve(&settings, None).expect("known").shape, [4096, 4096]);
    }
}
