//! Counts of values in bins of equal width.

use super::{
    access::Access,
    buffer::{Kind, View},
    cpu::{Memory, simd},
    dispatch::{GROUP, Lowering, grid},
    engine::EngineError,
    op::Operation,
    shaders,
};
use rayon::prelude::*;

/// `counts[b]` = how many of `values` are in bin b = ⌊(value - low) · (bins / (high - low))⌋, computed in f32, so that every
/// engine counts alike. `high` itself is in the last bin, as in numpy. NaN and what is outside are not counted.
#[derive(Clone, Debug)]
pub struct Histogram {
    pub values: View,
    /// u32, overwritten.
    pub counts: View,
    pub bins: u32,
    pub low: f32,
    pub high: f32,
}

/// Bins are found in i32.
const MAX_BINS: u32 = 1 << 30;

impl Histogram {
    /// Bins to the unit.
    pub fn scale(&self) -> f32 {
        self.bins as f32 / (self.high - self.low)
    }
}

impl Operation for Histogram {
    fn name(&self) -> &'static str {
        "histogram"
    }

    fn access(&self) -> Result<Access, String> {
        let finite = self.low < self.high && (self.high - self.low).is_finite() && self.scale().is_finite();
        if self.bins == 0 || self.bins > MAX_BINS || !finite {
            return Err(format!("{} bins from {} to {}", self.bins, self.low, self.high));
        }
        let access = Access::default().read("values", &self.values, Kind::F32, self.values.len)?;
        access.write("counts", &self.counts, Kind::U32, self.bins.into())
    }

    fn cpu(&self, memory: &Memory) {
        let bins = self.bins as usize;
        let values = memory.read::<f32>(&self.values);
        let counts = &mut memory.write::<u32>(&self.counts)[..bins];
        counts.fill(0);
        let threads = rayon::current_num_threads();
        let share = values.len().div_ceil(threads).max(1 << 16);
        let count = |values: &[f32]| self.count(values);
        let parts: Vec<Vec<u32>> = values.par_chunks(share).map(count).collect();
        for part in parts.iter().flat_map(|part| part.chunks(bins + 1)) {
            counts.iter_mut().zip(part).for_each(|(sum, count)| *sum = sum.wrapping_add(*count));
        }
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        lowering.fill(&self.counts.part(0, self.bins.into()), 0);
        let len = self.values.len;
        if len > 0 {
            let bits = [self.low.to_bits(), self.high.to_bits(), self.scale().to_bits()];
            let parameters = [len as u32, self.bins, bits[0], bits[1], bits[2]];
            // Each workgroup adds its bins to the result: that must be little beside its share of values.
            let per_group = GROUP * (u64::from(self.bins) / 64).clamp(8, 64);
            lowering.dispatch(shaders::histogram(), &[&self.values, &self.counts], &parameters, grid(len, per_group));
        }
        Ok(())
    }
}

impl Histogram {
    /// Several tables side by side, each of all bins and one for what is not counted: equal values that follow each other
    /// would wait for their common bin.
    fn count(&self, values: &[f32]) -> Vec<u32> {
        const BLOCK: usize = 1024;
        const TABLES: usize = 4;
        let size = self.bins as usize + 1;
        // Tables that leave the first cache cost more than waiting.
        let several = size <= 4096;
        let mut counts = vec![0; if several { TABLES * size } else { size }];
        let (a, rest) = counts.split_at_mut(size);
        let (b, rest) = rest.split_at_mut(rest.len() / (TABLES - 1));
        let (c, d) = rest.split_at_mut(rest.len() / (TABLES - 2));
        let mut places = [0; BLOCK];
        for block in values.chunks(BLOCK) {
            let places = &mut places[..block.len()];
            find_bins(self, block, places);
            let (fours, rest) = places.as_chunks::<TABLES>();
            if several {
                for four in fours {
                    a[four[0] as usize] += 1;
                    b[four[1] as usize] += 1;
                    c[four[2] as usize] += 1;
                    d[four[3] as usize] += 1;
                }
            } else {
                fours.as_flattened().iter().for_each(|place| a[*place as usize] += 1);
            }
            rest.iter().for_each(|place| a[*place as usize] += 1);
        }
        counts
    }
}

simd! {
    fn find_bins(histogram: &Histogram, values: &[f32], places: &mut [i32]) {
        let (low, high, scale) = (histogram.low, histogram.high, histogram.scale());
        let outside = histogram.bins as i32;
        for (place, value) in places.iter_mut().zip(values) {
            let inside = *value >= low && *value <= high;
            let bin = if inside { (value - low) * scale } else { 0.0 };
            // SAFETY: what is inside is from 0 to about `bins`, which `access` keeps below 2³⁰; the rest is 0.
            let bin = unsafe { bin.to_int_unchecked::<i32>() }.min(outside - 1);
            *place = if inside { bin } else { outside };
        }
    }
}
