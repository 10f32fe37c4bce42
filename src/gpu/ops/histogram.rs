//! Counts of values in bins of equal width.

use super::{
    access::OpAccess,
    buffer::{BufferView, ElementKind},
    cpu::{CpuMemory, simd},
    dispatch::{GROUP, Lowering, grid},
    engine::EngineError,
    op::Operation,
    shaders,
};
use rayon::prelude::*;

/// `counts[b]` = how many of `values` are in bin b = ⌊(value - low) · (bins / (high - low))⌋,
/// computed in f32, so that every engine counts alike. `high` itself is in the last bin, as in
/// numpy. NaN and what is outside are not counted.
#[derive(Clone, Debug)]
pub struct Histogram {
    pub values: BufferView,
    /// u32, overwritten.
    pub counts: BufferView,
    pub bins: u32,
    pub low: f32,
    pub high: f32,
}

/// Bins are found in i32.
const MAX_BINS: u32 = 1 << 30;

impl Histogram {
    /// Bins to the unit.
    #[inline]
    pub fn scale(&self) -> f32 {
        self.bins as f32 / (self.high - self.low)
    }
}

impl Operation for Histogram {
    fn name(&self) -> &'static str {
        "histogram"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let finite =
            self.low < self.high && (self.high - self.low).is_finite() && self.scale().is_finite();
        if self.bins == 0 || self.bins > MAX_BINS || !finite {
            return Err(format!(
                "{} bins from {} to {}",
                self.bins, self.low, self.high
            ));
        }
        let access =
            OpAccess::default().read("values", &self.values, ElementKind::F32, self.values.len)?;
        access.write("counts", &self.counts, ElementKind::U32, self.bins.into())
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        let bins = self.bins as usize;
        let values = memory.read::<f32>(&self.values);
        let counts = &mut memory.write::<u32>(&self.counts)[..bins];
        counts.fill(0);
        let threads = rayon::current_num_threads();
        let share = values.len().div_ceil(threads).max(1 << 16);
        let count = |values: &[f32]| self.count(values);
        let parts: Vec<Vec<u32>> = values.par_chunks(share).map(count).collect();
        for part in parts.iter().flat_map(|part| part.chunks(bins + 1)) {
            counts
                .iter_mut()
                .zip(part)
                .for_each(|(sum, count)| *sum = sum.wrapping_add(*count));
        }
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        lowering.fill(&self.counts.part(0, self.bins.into()), 0);
        let len = self.values.len;
        if len > 0 {
            let bits = [
                self.low.to_bits(),
                self.high.to_bits(),
                self.scale().to_bits(),
            ];
            let parameters = [len as u32, self.bins, bits[0], bits[1], bits[2]];
            // Each workgroup adds its bins to the result: that must be little beside its share of
            // values.
            let per_group = GROUP * (u64::from(self.bins) / 64).clamp(8, 64);
            lowering.dispatch(
                shaders::histogram(),
                &[&self.values, &self.counts],
                &parameters,
                grid(len, per_group),
            );
        }
        Ok(())
    }
}

impl Histogram {
    /// Counts of all bins, and last of what is not counted.
    fn count(&self, values: &[f32]) -> Vec<u32> {
        const BLOCK: usize = 1024;
        let size = self.bins as usize + 1;
        if self.bins > u32::from(u16::MAX) {
            let mut counts = vec![0u32; size];
            let mut places = [0i32; BLOCK];
            for block in values.chunks(BLOCK) {
                let places = &mut places[..block.len()];
                find_bins(self, block, places);
                places.iter().for_each(|place| counts[*place as usize] += 1);
            }
            return counts;
        }
        // Two tables side by side, since equal values that follow each other would wait for their
        // common bin; more leave the first cache. Places of 16 bits, and no checks, for what takes
        // time are loads and stores.
        let mut counts = vec![0u32; 2 * size];
        let mut places = [0u16; BLOCK];
        for block in values.chunks(BLOCK) {
            let places = &mut places[..block.len()];
            find_narrow_bins(self, block, places);
            let table = counts.as_mut_ptr();
            let (pairs, rest) = places.as_chunks::<2>();
            // SAFETY: places are at most `bins`, so less than `size`.
            unsafe {
                for [even, odd] in pairs {
                    *table.add(usize::from(*even)) += 1;
                    *table.add(size + usize::from(*odd)) += 1;
                }
                rest.iter()
                    .for_each(|place| *table.add(usize::from(*place)) += 1);
            }
        }
        counts
    }

    /// The bin of a value; `bins` if it is outside.
    #[inline(always)]
    fn bin(&self, value: f32) -> i32 {
        let bins = self.bins as i32;
        let inside = value >= self.low && value <= self.high;
        let bin = if inside {
            (value - self.low) * self.scale()
        } else {
            0.0
        };
        // SAFETY: what is inside is from 0 to about `bins`, which `access` keeps below 2³⁰; the
        // rest is 0.
        let bin = unsafe { bin.to_int_unchecked::<i32>() }.min(bins - 1);
        if inside { bin } else { bins }
    }
}

simd! {
    fn find_bins(histogram: &Histogram, values: &[f32], places: &mut [i32]) {
        places.iter_mut().zip(values).for_each(|(place, value)| *place = histogram.bin(*value));
    }
}

simd! {
    fn find_narrow_bins(histogram: &Histogram, values: &[f32], places: &mut [u16]) {
        places.iter_mut().zip(values).for_each(|(place, value)| *place = histogram.bin(*value) as u16);
    }
}
