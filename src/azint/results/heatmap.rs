//! All patterns of a dataset as one image: frames down, radial positions across. Frames beyond its
//! height are averaged.

use super::Part;
use nodectl_formats::{self as formats, Array, ArrayError, Info};
use nodectl_types::Scalar;
use std::path::Path;

/// The most pixels down and across.
const MAX_EXTENT: usize = 1024;
/// Viridis (van der Walt and Smith, matplotlib, CC0) at five places.
const SCALE: [[u8; 3]; 5] = [
    [68, 1, 84],
    [59, 82, 139],
    [33, 145, 140],
    [94, 201, 98],
    [253, 231, 37],
];
/// The shares of the values at which a picture is as dark and as bright as it gets.
const DARKEST: f64 = 0.01;
const BRIGHTEST: f64 = 0.995;

/// Sums of what falls into each pixel.
pub struct HeatMap {
    first: u64,
    frames: u64,
    bins: usize,
    rows: usize,
    columns: usize,
    sums: Vec<f64>,
    counts: Vec<u32>,
}

impl HeatMap {
    /// Of the patterns of so many frames from the `first` on, each of `bins` radial positions; of
    /// cakes, the azimuth is averaged away.
    pub fn new(first: u64, frames: u64, bins: usize) -> Self {
        let rows = frames.clamp(1, MAX_EXTENT as u64) as usize;
        let columns = bins.clamp(1, MAX_EXTENT);
        Self {
            first,
            frames: frames.max(1),
            bins,
            rows,
            columns,
            sums: vec![0.0; rows * columns],
            counts: vec![0; rows * columns],
        }
    }

    /// Adds the patterns of the first region.
    pub fn add(&mut self, part: &Part) {
        let Some(region) = part.regions.first() else {
            return;
        };
        let azimuths = region.intensity.len() / (self.bins * part.frames.max(1) as usize).max(1);
        let patterns = region.intensity.chunks_exact((self.bins * azimuths).max(1));
        for (frame, pattern) in (part.first..).zip(patterns) {
            let place = u128::from(frame.saturating_sub(self.first));
            let row = (place * self.rows as u128 / u128::from(self.frames)) as usize;
            for (index, value) in pattern
                .iter()
                .enumerate()
                .filter(|(_, value)| value.is_finite())
            {
                let column = index % self.bins * self.columns / self.bins;
                let at = row.min(self.rows - 1) * self.columns + column;
                self.sums[at] += f64::from(*value);
                self.counts[at] += 1;
            }
        }
    }

    /// The first frame, and how many there are.
    pub fn extent(&self) -> (u64, u64) {
        (self.first, self.frames)
    }

    /// The map with at most so many pixels down and across: averages, None where nothing was
    /// measured.
    pub fn coarse(&self, most_rows: usize, most_columns: usize) -> Vec<Vec<Option<f32>>> {
        let (rows, columns) = (self.rows.min(most_rows), self.columns.min(most_columns));
        let mut coarse = vec![vec![(0.0, 0); columns]; rows];
        for (index, (sum, count)) in self.sums.iter().zip(&self.counts).enumerate() {
            let (row, column) = (index / self.columns, index % self.columns);
            let pixel = &mut coarse[row * rows / self.rows][column * columns / self.columns];
            *pixel = (pixel.0 + sum, pixel.1 + count);
        }
        let average =
            |(sum, count): (f64, u32)| (count > 0).then(|| (sum / f64::from(count)) as f32);
        let rows = coarse.into_iter();
        rows.map(|row| row.into_iter().map(average).collect())
            .collect()
    }

    /// Writes a PNG of the square roots: of counts they show strong and weak rings alike.
    pub fn write(&self, path: &Path) -> Result<(), ArrayError> {
        let values: Vec<f64> = self
            .sums
            .iter()
            .zip(&self.counts)
            .map(|(sum, count)| (sum / f64::from((*count).max(1))).max(0.0).sqrt())
            .collect();
        let mut ordered = values.clone();
        ordered.sort_by(f64::total_cmp);
        let at = |share: f64| ordered[((ordered.len() - 1) as f64 * share) as usize];
        let (low, high) = (at(DARKEST), at(BRIGHTEST));
        let span = if high > low { high - low } else { 1.0 };
        // A few frames are drawn as bands that can be seen.
        let height = (64usize.div_ceil(self.rows)).max(1);
        let mut bytes = Vec::with_capacity(values.len() * height * 3);
        for row in values.chunks(self.columns) {
            for _ in 0..height {
                bytes.extend(row.iter().flat_map(|value| colour((value - low) / span)));
            }
        }
        let shape = vec![(self.rows * height) as u64, self.columns as u64, 3];
        let image = Array {
            info: Info {
                scalar: Scalar::U8,
                shape,
            },
            bytes,
        };
        formats::write(path, &[("image", &image)], None)
    }
}

/// The colour at a share of the scale.
fn colour(share: f64) -> [u8; 3] {
    let place = share.clamp(0.0, 1.0) * (SCALE.len() - 1) as f64;
    let index = (place as usize).min(SCALE.len() - 2);
    let part = place - index as f64;
    std::array::from_fn(|channel| {
        let (from, to) = (
            f64::from(SCALE[index][channel]),
            f64::from(SCALE[index + 1][channel]),
        );
        (from + (to - from) * part).round() as u8
    })
}
