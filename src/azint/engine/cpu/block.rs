//! The inner loops: pixels of up to eight frames, block by block.

use super::{
    super::{corrections::Dummy, integrator::EngineJob},
    BLOCK, CpuPlan, LANES,
    constants::{Constants, Expectation},
    lanes::{Lanes, Pixel, Portable, Values},
    layout::{ShareLayout, Sparse},
};

/// Streams of pixels within a block that are added in turn: pixels side by side are often in one
/// bin, and an addition would wait for the one before it.
const STREAMS: usize = 4;
/// Additions of 32-bit floats to a bin, on average, before they go over to 64 bits.
const ADDITIONS: usize = 64;
/// Entries of a table that 16 bits index without a check.
const TABLE: usize = 1 << 16;

/// Some frames to be integrated with a plan.
pub(super) struct BlockTask<'a> {
    pub plan: &'a CpuPlan,
    pub job: &'a EngineJob<'a>,
    pub expectation: &'a Expectation,
    /// Up to `LANES`.
    pub frames: usize,
}

/// The sums over a range of pixels.
#[derive(Default)]
pub(super) struct SumPart {
    pub regions: Vec<RegionSums>,
    /// Pixels that were dummies without being expected to be, or the other way round.
    pub surprises: usize,
    /// The bits of the first frame's pixels that are dummies, eight to a byte.
    pub invalid: Vec<u8>,
}

/// The sums of one region, by bin and frame.
pub(super) struct RegionSums {
    pub signal: Vec<[f64; LANES]>,
    /// Σ c²·max(1, raw), of the Poisson model.
    pub variance: Vec<[f64; LANES]>,
    /// Where there were surprises.
    pub corrections: Option<ByFrame>,
}

/// By frame and bin: what the constants change by.
type ByFrame = Box<[Option<Vec<Constants>>; LANES]>;

impl SumPart {
    /// Adds the pixels that follow.
    pub fn add(&mut self, other: &Self) {
        self.surprises += other.surprises;
        self.invalid.extend(&other.invalid);
        for (ours, theirs) in self.regions.iter_mut().zip(&other.regions) {
            for (ours, theirs) in [
                (&mut ours.signal, &theirs.signal),
                (&mut ours.variance, &theirs.variance),
            ] {
                for (ours, theirs) in ours.iter_mut().flatten().zip(theirs.iter().flatten()) {
                    *ours += theirs;
                }
            }
            let Some(theirs) = &theirs.corrections else {
                continue;
            };
            for (ours, theirs) in ours
                .corrections
                .get_or_insert_default()
                .iter_mut()
                .zip(theirs.iter())
            {
                match (ours, theirs) {
                    (_, None) => {}
                    (Some(ours), Some(theirs)) => ours
                        .iter_mut()
                        .zip(theirs)
                        .for_each(|(a, b)| *a = a.plus(b)),
                    (ours, Some(theirs)) => *ours = Some(theirs.clone()),
                }
            }
        }
    }
}

/// Sums of 32 bits over few pixels.
enum SumTable {
    Single(Box<[Values]>),
    /// Of pixels whose first bin it is: what goes to that bin, and to the one after it.
    Pairs(Box<[[Values; 2]]>),
    Direct,
}

impl SumTable {
    fn new(layout: &ShareLayout) -> Self {
        match layout {
            ShareLayout::Single { .. } => Self::Single(vec![[0.0; LANES]; TABLE].into()),
            ShareLayout::Pairs { .. } => Self::Pairs(vec![[[0.0; LANES]; 2]; TABLE].into()),
            ShareLayout::Sparse(_) => Self::Direct,
        }
    }

    /// Moves the sums over to 64 bits.
    #[inline(always)]
    fn flush(&mut self, sums: &mut [[f64; LANES]]) {
        let move_over = |from: &mut Values, to: &mut [f64; LANES]| {
            to.iter_mut()
                .zip(&*from)
                .for_each(|(to, from)| *to += f64::from(*from));
            *from = [0.0; LANES];
        };
        match self {
            Self::Single(table) => sums
                .iter_mut()
                .zip(table.iter_mut())
                .for_each(|(to, from)| move_over(from, to)),
            Self::Pairs(table) => {
                for (bin, from) in table.iter_mut().enumerate().take(sums.len()) {
                    move_over(&mut from[0], &mut sums[bin]);
                    if let Some(next) = sums.get_mut(bin + 1) {
                        move_over(&mut from[1], next);
                    }
                }
            }
            Self::Direct => {}
        }
    }
}

/// Where a region's pixels are added up.
struct BlockSums {
    table: SumTable,
    sums: Vec<[f64; LANES]>,
    /// Of sparse shares: the next pixel to come.
    cursor: usize,
}

impl BlockSums {
    fn new(layout: &ShareLayout, bins: usize, start: usize) -> Self {
        let cursor = match layout {
            ShareLayout::Single { .. } => 0,
            ShareLayout::Pairs { more: sparse, .. } | ShareLayout::Sparse(sparse) => sparse
                .pixels
                .partition_point(|pixel| (*pixel as usize) < start),
        };
        Self {
            table: SumTable::new(layout),
            sums: vec![[0.0; LANES]; bins],
            cursor,
        }
    }

    /// Adds a block of pixels from `at` on. `SQUARED`: with the squares of shares, as variances
    /// are.
    #[inline(always)]
    fn add<const SQUARED: bool>(&mut self, layout: &ShareLayout, at: usize, values: &[Values]) {
        match (&mut self.table, layout) {
            (SumTable::Single(table), ShareLayout::Single { bins }) => {
                add_single(table, &bins[at..at + values.len()], values)
            }
            (
                SumTable::Pairs(table),
                ShareLayout::Pairs {
                    bins,
                    seconds,
                    more,
                },
            ) => {
                let range = at..at + values.len();
                add_pairs::<SQUARED>(table, &bins[range.clone()], &seconds[range], values);
                add_sparse::<SQUARED>(&mut self.sums, more, &mut self.cursor, at, values);
            }
            (_, ShareLayout::Sparse(sparse)) => {
                add_sparse::<SQUARED>(&mut self.sums, sparse, &mut self.cursor, at, values)
            }
            _ => unreachable!("a table is made for its layout"),
        }
    }
}

/// Calls `each` with all of 0..count, in an order that keeps neighbours apart.
#[inline(always)]
fn in_streams(count: usize, mut each: impl FnMut(usize)) {
    let length = count / STREAMS;
    for index in 0..length {
        for stream in 0..STREAMS {
            each(stream * length + index);
        }
    }
    (length * STREAMS..count).for_each(each);
}

#[inline(always)]
fn add_single(table: &mut [Values], bins: &[u16], values: &[Values]) {
    let table: &mut [Values; TABLE] = table.try_into().expect("a table has that size");
    in_streams(bins.len(), |pixel| {
        let sums = &mut table[usize::from(bins[pixel])];
        for (sum, value) in sums.iter_mut().zip(&values[pixel]) {
            *sum += value;
        }
    });
}

#[inline(always)]
fn add_pairs<const SQUARED: bool>(
    table: &mut [[Values; 2]],
    bins: &[u16],
    seconds: &[f32],
    values: &[Values],
) {
    let table: &mut [[Values; 2]; TABLE] = table.try_into().expect("a table has that size");
    in_streams(bins.len(), |pixel| {
        let [first, second] = &mut table[usize::from(bins[pixel])];
        let (mut to_first, mut to_second) = (1.0 - seconds[pixel], seconds[pixel]);
        if SQUARED {
            (to_first, to_second) = (to_first * to_first, to_second * to_second);
        }
        for ((first, second), value) in first.iter_mut().zip(second).zip(&values[pixel]) {
            *first += to_first * value;
            *second += to_second * value;
        }
    });
}

#[inline(always)]
fn add_sparse<const SQUARED: bool>(
    sums: &mut [[f64; LANES]],
    sparse: &Sparse,
    cursor: &mut usize,
    at: usize,
    values: &[Values],
) {
    while let Some(pixel) = sparse
        .pixels
        .get(*cursor)
        .map(|pixel| *pixel as usize)
        .filter(|pixel| *pixel < at + values.len())
    {
        let values = &values[pixel - at];
        for share in sparse.starts[*cursor] as usize..sparse.starts[*cursor + 1] as usize {
            let sums = &mut sums[sparse.bins[share] as usize];
            let weight = sparse.weights[share];
            let weight = f64::from(if SQUARED { weight * weight } else { weight });
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum += weight * f64::from(*value);
            }
        }
        *cursor += 1;
    }
}

/// Sums over pixels that come in order, some at a time.
pub(super) struct RunningSums {
    signals: Vec<BlockSums>,
    variances: Vec<BlockSums>,
    corrections: Vec<Option<ByFrame>>,
    surprises: usize,
    invalid: Vec<u8>,
    /// The pixel that comes next.
    next: usize,
    pixels_between: usize,
    next_flush: usize,
}

impl RunningSums {
    fn flush(&mut self) {
        self.signals
            .iter_mut()
            .chain(&mut self.variances)
            .for_each(|sums| sums.table.flush(&mut sums.sums));
    }

    pub fn finish(mut self) -> SumPart {
        self.flush();
        let mut variances = self.variances.into_iter().map(|sums| sums.sums);
        let regions =
            self.signals
                .into_iter()
                .zip(self.corrections)
                .map(|(signal, corrections)| RegionSums {
                    signal: signal.sums,
                    variance: variances.next().unwrap_or_default(),
                    corrections,
                });
        SumPart {
            regions: regions.collect(),
            surprises: self.surprises,
            invalid: self.invalid,
        }
    }
}

impl BlockTask<'_> {
    /// Sums over pixels from `start` on, a multiple of 8.
    pub fn begin(&self, start: usize) -> RunningSums {
        let bins = |region: usize| self.job.regions[region].matrix.bin_count;
        let sums = |(region, layout)| BlockSums::new(layout, bins(region), start);
        let all = || {
            self.plan
                .layouts
                .iter()
                .enumerate()
                .map(sums)
                .collect::<Vec<_>>()
        };
        let fewest = (0..self.plan.layouts.len()).map(bins).min().unwrap_or(0);
        let pixels_between = (fewest * ADDITIONS).clamp(8 * BLOCK, 256 * BLOCK);
        RunningSums {
            signals: all(),
            variances: if self.job.model.is_poissonian() {
                all()
            } else {
                Vec::new()
            },
            corrections: self.plan.layouts.iter().map(|_| None).collect(),
            surprises: 0,
            invalid: Vec::new(),
            next: start,
            pixels_between,
            next_flush: start + pixels_between,
        }
    }

    /// Adds the pixels that come next, as many of each frame, with the best instructions there are.
    /// Only the last ones may be no multiple of 8.
    pub fn add<T: Pixel>(&self, running: &mut RunningSums, frames: &[&[T]]) {
        // Of frames that are not there, the last one is added up once more.
        let frames: [&[T]; LANES] = std::array::from_fn(|lane| frames[lane.min(frames.len() - 1)]);
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the line above.
            return unsafe { self.add_avx2(running, &frames) };
        }
        self.add_with::<Portable, T>(running, &frames);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn add_avx2<T: Pixel>(&self, running: &mut RunningSums, frames: &[&[T]; LANES]) {
        self.add_with::<super::lanes::Avx2, T>(running, frames);
    }

    #[inline(always)]
    fn add_with<L: Lanes, T: Pixel>(&self, running: &mut RunningSums, frames: &[&[T]; LANES]) {
        let (start, length) = (running.next, frames[0].len());
        let mut values = [[0.0; LANES]; BLOCK];
        for offset in (0..length).step_by(BLOCK) {
            let (at, count) = (start + offset, BLOCK.min(length - offset));
            let values = &mut values[..count];
            let mut invalid = [[0u8; LANES]; BLOCK / 8];
            convert::<L, T>(frames, offset, self.job.dummy, values, &mut invalid);
            for (index, bits) in invalid[..count.div_ceil(8)].iter().enumerate() {
                let chunk = at / 8 + index;
                let expected = u64::from(self.expectation.invalid[chunk]) * 0x0101_0101_0101_0101;
                let valid = u64::from(self.plan.valid[chunk]) * 0x0101_0101_0101_0101;
                let surprising = (u64::from_le_bytes(*bits) ^ expected) & valid;
                running.invalid.push(bits[0]);
                if surprising != 0 {
                    running.surprises += self.correct(
                        &mut running.corrections,
                        chunk,
                        surprising.to_le_bytes(),
                        bits,
                    );
                }
            }
            for (sums, layout) in running.signals.iter_mut().zip(&self.plan.layouts) {
                sums.add::<false>(layout, at, values);
            }
            if !running.variances.is_empty() {
                to_variances(values, &invalid);
                for (sums, layout) in running.variances.iter_mut().zip(&self.plan.layouts) {
                    sums.add::<true>(layout, at, values);
                }
            }
            if at + BLOCK >= running.next_flush {
                running.flush();
                running.next_flush += running.pixels_between;
            }
        }
        running.next += length;
    }

    /// Corrects the constants for the pixels of a chunk of eight that are not what was expected.
    /// Returns how many.
    #[cold]
    fn correct(
        &self,
        corrections: &mut [Option<ByFrame>],
        chunk: usize,
        surprising: [u8; LANES],
        invalid: &[u8; LANES],
    ) -> usize {
        let mut count = 0;
        for (lane, (surprising, invalid)) in
            surprising.iter().zip(invalid).enumerate().take(self.frames)
        {
            for bit in (0..8).filter(|bit| surprising & (1 << bit) != 0) {
                count += 1;
                let sign = if invalid & (1 << bit) != 0 { -1.0 } else { 1.0 };
                for (region, correction) in self.job.regions.iter().zip(corrections.iter_mut()) {
                    let of_frame = &mut correction.get_or_insert_default()[lane];
                    let bins = region.matrix.bin_count;
                    let of_frame = of_frame.get_or_insert_with(|| vec![Constants::default(); bins]);
                    for (bin, weight) in region.matrix.of(chunk * 8 + bit) {
                        of_frame[bin].add(self.job.corrections, chunk * 8 + bit, weight, sign);
                    }
                }
            }
        }
        count
    }
}

/// Converts a block from `at` on. Its last pixels, fewer than eight, are copied to where eight can
/// be read.
#[inline(always)]
fn convert<L: Lanes, T: Pixel>(
    frames: &[&[T]; LANES],
    at: usize,
    dummy: Dummy,
    values: &mut [Values],
    invalid: &mut [[u8; LANES]; BLOCK / 8],
) {
    let (eights, rest) = values.as_chunks_mut::<8>();
    for (index, out) in eights.iter_mut().enumerate() {
        // SAFETY: `L` was chosen for this processor; the block lies within the frames.
        invalid[index] = unsafe { L::convert(frames, at + 8 * index, dummy, out) };
    }
    if let (false, Some(last)) = (rest.is_empty(), frames[0].last()) {
        let start = at + 8 * eights.len();
        let padded: [[T; 8]; LANES] = frames.map(|frame| {
            std::array::from_fn(|index| frame.get(start + index).copied().unwrap_or(*last))
        });
        let mut out = [[0.0; LANES]; 8];
        // SAFETY: `L` was chosen for this processor; there are eight pixels.
        invalid[eights.len()] = unsafe {
            L::convert(
                &padded.each_ref().map(|frame| &frame[..]),
                0,
                dummy,
                &mut out,
            )
        };
        rest.copy_from_slice(&out[..rest.len()]);
    }
}

/// From counts to their Poisson variances, max(1, counts); of dummies 0.
#[inline(always)]
fn to_variances(values: &mut [Values], invalid: &[[u8; LANES]; BLOCK / 8]) {
    values
        .iter_mut()
        .flatten()
        .for_each(|value| *value = value.max(1.0));
    for (index, bits) in invalid.iter().enumerate().take(values.len().div_ceil(8)) {
        if *bits == [0; LANES] {
            continue;
        }
        for (bit, values) in values[8 * index..].iter_mut().take(8).enumerate() {
            for lane in (0..LANES).filter(|lane| bits[*lane] & (1 << bit) != 0) {
                values[lane] = 0.0;
            }
        }
    }
}
