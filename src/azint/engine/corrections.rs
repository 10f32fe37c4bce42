//! What is the same for all frames: which pixels count, by what their counts are divided (ω), what
//! is subtracted.

use super::{
    detectors::{self, DetectorFile},
    errors::IntegratorError,
    geometry::Projection,
    images::{Image, Images},
    settings::{ErrorModel, IntegrationSettings, Splitting},
};

/// Per pixel constants, [rows, columns].
pub(super) struct Corrections {
    /// flat · polarization · solid angle · absorption.
    pub omega: Vec<f32>,
    pub dark: Option<Vec<f32>>,
    /// Beside what counts say by themselves.
    pub variance: Option<Vec<f32>>,
    /// Not looked at, from the mask or the detector's gaps. Such pixels do not decide about ranges
    /// either.
    pub masked: Option<Vec<bool>>,
    flat: Option<Vec<f32>>,
}

impl Corrections {
    pub fn new(
        settings: &IntegrationSettings,
        images: &Images,
        detector: &detectors::ResolvedDetector,
        projection: &Projection,
    ) -> Result<Self, IntegratorError> {
        let shape = projection.shape;
        let values = |what: &'static str, image: &Option<Image>| {
            let check = |image: &Image| {
                check_shape(what, image.shape, image.values.len(), shape)
                    .map(|()| image.values.clone())
            };
            image.as_ref().map(check).transpose()
        };
        // What a detector's file brings counts where nothing else is given.
        let file = images.detector.as_ref();
        let given =
            |image: &Option<Image>, of_file: fn(&DetectorFile) -> &Option<Image>| match image {
                Some(image) => Some(image.clone()),
                None => file.and_then(|file| of_file(file).clone()),
            };
        let dark = values("dark", &given(&images.dark, |file| &file.dark))?;
        let flat = values("flat", &given(&images.flat, |file| &file.flat))?;
        let absorption = values("absorption", &images.absorption)?;
        let variance = values("variance", &images.variance)?;
        if settings.error_model == ErrorModel::Variance && variance.is_none() {
            return Err(IntegratorError::NoVariance);
        }
        let masked = match images
            .mask
            .as_ref()
            .or(file.and_then(|file| file.mask.as_ref()))
        {
            Some(mask) => check_shape("mask", mask.shape, mask.masked.len(), shape)
                .map(|()| Some(mask.masked.clone()))?,
            None => detector.gaps(),
        };
        let mut omega = vec![1f32; shape[0] * shape[1]];
        let mut multiply = |factor: Vec<f32>| {
            omega
                .iter_mut()
                .zip(factor)
                .for_each(|(omega, factor)| *omega *= factor)
        };
        flat.clone().into_iter().for_each(&mut multiply);
        if let Some(factor) = settings.polarization_factor {
            multiply(projection.polarizations(factor, settings.polarization_offset_rad));
        }
        if settings.solid_angle {
            multiply(projection.solid_angles());
        }
        absorption.into_iter().for_each(&mut multiply);
        if let Some(transmission) = settings.transmission {
            multiply(projection.transmissions(transmission));
        }
        let variance = match settings.error_model {
            ErrorModel::Variance => variance,
            // That darks are counts too, pyFAI's Poisson model knows in two dimensions, without
            // full splitting.
            model
                if model.is_poissonian()
                    && settings.azimuthal_points.is_some()
                    && settings.splitting != Splitting::Full =>
            {
                dark.as_ref()
                    .map(|dark| dark.iter().map(|dark| dark.max(0.0)).collect())
            }
            _ => None,
        };
        Ok(Self {
            omega,
            dark,
            variance,
            masked,
            flat,
        })
    }

    /// Whether a pixel can count at all, whatever its value in a frame. A flat field may hold
    /// dummies too.
    pub fn is_valid(&self, pixel: usize, dummy: &Dummy) -> bool {
        let is_number = |values: &Option<Vec<f32>>| {
            values
                .as_ref()
                .is_none_or(|values| values[pixel].is_finite())
        };
        let omega = self.omega[pixel];
        let is_sound =
            omega.is_finite() && omega != 0.0 && is_number(&self.dark) && is_number(&self.variance);
        is_sound
            && self
                .flat
                .as_ref()
                .is_none_or(|flat| dummy.is_valid(flat[pixel]))
    }
}

fn check_shape(
    what: &'static str,
    found: [usize; 2],
    values: usize,
    wanted: [usize; 2],
) -> Result<(), IntegratorError> {
    if found == wanted && values == wanted[0] * wanted[1] {
        return Ok(());
    }
    Err(IntegratorError::Shape {
        what,
        found,
        wanted,
    })
}

/// Which values of a frame count nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dummy {
    pub value: f32,
    pub delta: f32,
}

impl Dummy {
    /// No value is one.
    const NONE: Self = Self {
        value: 0.0,
        delta: -1.0,
    };

    /// For frames of a type of numbers.
    pub fn new(
        settings: &IntegrationSettings,
        detector: &detectors::ResolvedDetector,
        unsigned_bits: Option<u32>,
    ) -> Self {
        let (value, delta) = match settings.dummy {
            Some(value) => (value as f32, settings.delta_dummy.unwrap_or(0.0) as f32),
            None => match detector.dummy(unsigned_bits) {
                Some(dummy) => dummy,
                None => return Self::NONE,
            },
        };
        Self { value, delta }
    }

    /// Whether there are dummies beside what is no finite number.
    pub fn is_some(self) -> bool {
        self != Self::NONE
    }

    /// False for what is no finite number.
    #[inline(always)]
    pub fn is_valid(self, value: f32) -> bool {
        let away = (value - self.value).abs();
        away > self.delta && away < f32::INFINITY
    }
}
