//! Frames as they lie in memory, and the patterns made of them.

use super::errors::IntegrationError;

/// Counts of one type, frame after frame, rows of a frame after each other.
#[derive(Clone, Copy, Debug)]
pub enum Pixels<'a> {
    U8(&'a [u8]),
    U16(&'a [u16]),
    U32(&'a [u32]),
    I32(&'a [i32]),
    F32(&'a [f32]),
}

impl Pixels<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::U8(values) => values.len(),
            Self::U16(values) => values.len(),
            Self::U32(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::F32(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn bytes_per_pixel(&self) -> usize {
        match self {
            Self::U8(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) | Self::I32(_) | Self::F32(_) => 4,
        }
    }
}

/// Frames of one shape: `pixels` are [frames, rows, columns], row-major.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    pub pixels: Pixels<'a>,
    pub frames: usize,
    /// Rows, columns.
    pub shape: [usize; 2],
}

impl<'a> Frames<'a> {
    /// # Errors
    /// If the shape does not fit the number of pixels.
    pub fn new(
        pixels: Pixels<'a>,
        frames: usize,
        shape: [usize; 2],
    ) -> Result<Self, IntegrationError> {
        let wanted = shape[0]
            .checked_mul(shape[1])
            .and_then(|pixels| pixels.checked_mul(frames));
        if wanted != Some(pixels.len()) {
            return Err(IntegrationError::Length {
                frames,
                shape,
                values: pixels.len(),
            });
        }
        Ok(Self {
            pixels,
            frames,
            shape,
        })
    }
}

/// The axes of a region's patterns.
#[derive(Clone, Debug, PartialEq)]
pub struct Axes {
    /// Centres of the radial bins, in the unit of the settings.
    pub radial: Vec<f64>,
    /// Centres of the azimuthal bins in degrees, of patterns of two dimensions.
    pub azimuthal_deg: Option<Vec<f64>>,
}

impl Axes {
    /// Bins of a pattern.
    pub fn bins(&self) -> usize {
        self.radial.len() * self.azimuthal_deg.as_ref().map_or(1, Vec::len)
    }
}

/// What became of frames in one region. Arrays are [frames, radial] or [frames, azimuthal, radial],
/// row-major; bins that no pixel fell into are 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patterns {
    pub frames: usize,
    /// Bins of one frame.
    pub bins: usize,
    /// Σ c·signal / Σ c·ω.
    pub intensity: Vec<f32>,
    /// The standard error of `intensity`, where there is an error model.
    pub sigma: Option<Vec<f32>>,
    /// The standard deviation of single pixels, where there is an error model.
    pub std: Option<Vec<f32>>,
    /// Σ c·signal, signal = raw - dark.
    pub signal: Vec<f64>,
    /// Σ c·ω, ω = monitor · flat · polarization · solid angle · absorption.
    pub norm: Vec<f64>,
    /// Σ c: the pixels in a bin.
    pub count: Vec<f64>,
    /// Σ c²·variance, where there is an error model.
    pub variance: Option<Vec<f64>>,
}

impl Patterns {
    pub(super) fn with_capacity(frames: usize, bins: usize, has_errors: bool) -> Self {
        let values = frames * bins;
        Self {
            frames: 0,
            bins,
            intensity: Vec::with_capacity(values),
            sigma: has_errors.then(|| Vec::with_capacity(values)),
            std: has_errors.then(|| Vec::with_capacity(values)),
            signal: Vec::with_capacity(values),
            norm: Vec::with_capacity(values),
            count: Vec::with_capacity(values),
            variance: has_errors.then(|| Vec::with_capacity(values)),
        }
    }

    /// Adds the patterns of frames that follow, of the same bins and error model.
    pub fn append(&mut self, later: Self) {
        let optional = |all: &mut Option<Vec<f32>>, later: Option<Vec<f32>>| {
            if let (Some(all), Some(later)) = (all, later) {
                all.extend(later);
            }
        };
        self.frames += later.frames;
        self.intensity.extend(later.intensity);
        optional(&mut self.sigma, later.sigma);
        optional(&mut self.std, later.std);
        self.signal.extend(later.signal);
        self.norm.extend(later.norm);
        self.count.extend(later.count);
        if let (Some(all), Some(later)) = (&mut self.variance, later.variance) {
            all.extend(later);
        }
    }

    /// Adds one frame, bin by bin.
    pub(super) fn push(&mut self, sums: impl Iterator<Item = Sums>) {
        self.frames += 1;
        for sums in sums {
            // Also false where a norm is NaN.
            let is_filled = sums.norm2 > 0.0;
            let or_zero = |value: f64| if is_filled { value as f32 } else { 0.0 };
            self.intensity.push(or_zero(sums.signal / sums.norm));
            self.signal.push(sums.signal);
            self.norm.push(sums.norm);
            self.count.push(sums.count);
            if let (Some(sigma), Some(std), Some(variance)) =
                (&mut self.sigma, &mut self.std, &mut self.variance)
            {
                sigma.push(or_zero(sums.variance.sqrt() / sums.norm));
                std.push(or_zero((sums.variance / sums.norm2).sqrt()));
                variance.push(sums.variance);
            }
        }
    }
}

/// The sums over one bin of one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    pub signal: f64,
    pub variance: f64,
    pub norm: f64,
    /// Σ c²·ω².
    pub norm2: f64,
    pub count: f64,
}
