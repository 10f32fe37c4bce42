//! Stored frames to patterns. Where engine and chunks allow it frames go strip by strip: the same
//! pixels of several frames are decoded, interleaved and added up while they are in the second
//! cache, and no frame is ever whole in memory. Elsewhere frames are decoded first.

use super::{
    engine::{Frames, IntegrationError, Integrator, MAX_STRIPS, Patterns, Pixels, Strips},
    frames::{Decoder, FramesError, Pieces, Stack, StoredFrames},
};
use nodectl_types::Scalar;
use std::time::{Duration, Instant};

/// Bytes of a frame that are decoded at once: a block of bitshuffle, as writers have them.
const STRIP_BYTES: usize = 8192;

/// Why frames have no patterns.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    #[error(transparent)]
    Frames(#[from] FramesError),
    #[error(transparent)]
    Integration(#[from] IntegrationError),
}

/// What a thread keeps from batch to batch.
#[derive(Default)]
pub struct BatchScratch {
    decoder: Decoder,
    /// Decoded pixels; of 32 bits, so that every type is aligned.
    pixels: Vec<u32>,
    /// How long decoding took, of all batches.
    pub decoding: Duration,
}

impl BatchScratch {
    /// The patterns of frames that follow each other, for each region. `monitors`: what each is
    /// divided by; none for 1.
    pub fn integrate(
        &mut self,
        integrator: &Integrator,
        stack: &Stack,
        units: &[StoredFrames],
        monitors: &[f64],
    ) -> Result<Vec<Patterns>, BatchError> {
        let pieces: Option<Result<Vec<Pieces<'_>>, FramesError>> = if units.len() > MAX_STRIPS {
            None
        } else {
            units.iter().map(StoredFrames::pieces).collect()
        };
        let nothing = pixels(stack.scalar, bytemuck::cast_slice::<u32, u8>(&[]));
        match (pieces, integrator.strips(&nothing, units.len())) {
            (Some(pieces), Some(strips)) if stack.shape == integrator.shape() => {
                self.by_strips(strips, stack, pieces?, monitors)
            }
            _ => self.whole(integrator, stack, units, monitors),
        }
    }

    fn by_strips(
        &mut self,
        mut strips: Strips<'_>,
        stack: &Stack,
        mut pieces: Vec<Pieces<'_>>,
        monitors: &[f64],
    ) -> Result<Vec<Patterns>, BatchError> {
        let mut left = stack.frame_bytes();
        while left > 0 {
            let length = left.min(STRIP_BYTES);
            let begin = Instant::now();
            let bytes = room(&mut self.pixels, length * pieces.len());
            for (frame, target) in pieces.iter_mut().zip(bytes.chunks_exact_mut(length)) {
                frame.fill(target, &mut self.decoder)?;
            }
            self.decoding += begin.elapsed();
            let strip = pixels(stack.scalar, bytes);
            strips.add(&Frames::new(
                strip,
                pieces.len(),
                [1, length / stack.scalar.bytes()],
            )?)?;
            left -= length;
        }
        Ok(strips.finish(monitors)?)
    }

    fn whole(
        &mut self,
        integrator: &Integrator,
        stack: &Stack,
        units: &[StoredFrames],
        monitors: &[f64],
    ) -> Result<Vec<Patterns>, BatchError> {
        let begin = Instant::now();
        let count = |unit: &StoredFrames| (unit.frames.end - unit.frames.start) as usize;
        let frames = units.iter().map(count).sum();
        let mut rest = room(&mut self.pixels, stack.frame_bytes() * frames);
        for unit in units {
            let (target, behind) = rest.split_at_mut(stack.frame_bytes() * count(unit));
            unit.decode(target, &mut self.decoder)?;
            rest = behind;
        }
        self.decoding += begin.elapsed();
        let bytes = room(&mut self.pixels, stack.frame_bytes() * frames);
        Ok(integrator.integrate(
            &Frames::new(pixels(stack.scalar, bytes), frames, stack.shape)?,
            monitors,
        )?)
    }
}

/// The first bytes of a buffer, which grows where it must.
fn room(buffer: &mut Vec<u32>, length: usize) -> &mut [u8] {
    let wanted = length.div_ceil(size_of::<u32>());
    if buffer.len() < wanted {
        buffer.resize(wanted, 0);
    }
    &mut bytemuck::cast_slice_mut(buffer)[..length]
}

/// `bytes` lie at a multiple of four.
fn pixels(scalar: Scalar, bytes: &[u8]) -> Pixels<'_> {
    match scalar {
        Scalar::U8 => Pixels::U8(bytes),
        Scalar::U16 => Pixels::U16(bytemuck::cast_slice(bytes)),
        Scalar::I32 => Pixels::I32(bytemuck::cast_slice(bytes)),
        Scalar::F32 => Pixels::F32(bytemuck::cast_slice(bytes)),
        // `Stack::SCALARS` has no other.
        _ => Pixels::U32(bytemuck::cast_slice(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{
            ErrorModel, Geometry, Images, IntegrationSettings, Options, Region, Splitting,
            Unit as RadialUnit,
        },
        frames::{Reader, tests::fixture},
    };
    use std::sync::Arc;

    fn integrator(splitting: Splitting, model: ErrorModel, threads: usize) -> Integrator {
        let poni = "poni_version: 2\nDetector: Detector\nDetector_config: {\"pixel1\": 1e-4, \"pixel2\": 1e-4, \
                    \"max_shape\": [37, 45]}\nDistance: 0.1\nPoni1: 0.0018\nPoni2: 0.002\nWavelength: 1e-10\n";
        let geometry = Geometry::from_poni(poni).expect("a geometry");
        let mut settings = IntegrationSettings::new(geometry, RadialUnit::QPerNm, 20);
        (settings.splitting, settings.error_model) = (splitting, model);
        let region = |range| Region {
            radial_range: range,
            ..Region::default()
        };
        settings.regions = vec![region(None), region(Some([1.0, 9.0]))];
        Integrator::new(
            &settings,
            &Images::default(),
            Options {
                threads,
                ..Options::default()
            },
        )
        .expect("an integrator")
    }

    /// Strip by strip or whole, whatever the layout of the file: the same patterns.
    #[test]
    fn strips_make_the_patterns_of_whole_frames() {
        for (splitting, model) in [
            (Splitting::No, ErrorModel::Poisson),
            (Splitting::BBox, ErrorModel::No),
            (Splitting::Full, ErrorModel::Poisson),
            (Splitting::No, ErrorModel::Azimuthal),
        ] {
            let integrator = integrator(splitting, model, 2);
            for name in [
                "bitshuffle_lz4",
                "bitshuffle_zstd",
                "bitshuffle",
                "chunked",
                "contiguous",
                "tiles",
                "lz4",
                "u1",
                "u2",
                "i4",
                "f4",
            ] {
                let stack =
                    Arc::new(Stack::open(&fixture(&format!("{name}.h5")), None, None).expect(name));
                let mut reader = Reader::new(stack.clone());
                let (mut units, mut next) = (Vec::new(), 0);
                while next < stack.frames {
                    units.push(reader.read(next..stack.frames).expect(name));
                    next = units.last().map_or(next, |unit| unit.frames.end);
                }
                let monitors = [1.0, 2.0, 0.5, 4.0, 1.5];
                let mut batches = BatchScratch::default();
                // Twice: dead pixels are expected the second time.
                let all = [(); 2].map(|()| {
                    batches
                        .integrate(&integrator, &stack, &units, &monitors)
                        .expect(name)
                });
                let whole = batches
                    .whole(&integrator, &stack, &units, &monitors)
                    .expect(name);
                let close = |one: &[f32], other: &[f32]| {
                    one.iter()
                        .zip(other)
                        .all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs())
                };
                for patterns in all {
                    for (one, other) in patterns.iter().zip(&whole) {
                        assert!(
                            close(&one.intensity, &other.intensity),
                            "{name} {splitting:?}"
                        );
                        assert_eq!(one.sigma.is_some(), model != ErrorModel::No);
                        assert!(
                            close(
                                one.sigma.as_deref().unwrap_or(&[]),
                                other.sigma.as_deref().unwrap_or(&[])
                            ),
                            "{name}"
                        );
                    }
                }
                assert!(
                    batches
                        .integrate(&integrator, &stack, &units, &monitors[1..])
                        .is_err()
                );
            }
        }
    }

    #[test]
    fn strips_that_lack_or_are_too_many_are_refused() {
        let integrator = integrator(Splitting::No, ErrorModel::No, 1);
        let values = vec![0u16; 37 * 45 * 2];
        let strip = |count: usize| {
            Frames::new(Pixels::U16(&values[..2 * count]), 2, [1, count]).expect("a strip")
        };
        let begin = || {
            integrator
                .strips(&Pixels::U16(&[]), 2)
                .expect("the processor takes strips")
        };
        assert!(begin().finish(&[]).is_err());
        let mut strips = begin();
        strips.add(&strip(13)).expect("it fits");
        assert!(strips.add(&strip(8)).is_err(), "not at a multiple of 8");
        let mut strips = begin();
        strips.add(&strip(1600)).expect("it fits");
        assert!(strips.add(&strip(72)).is_err());
        strips.add(&strip(65)).expect("the last");
        strips.finish(&[]).expect("patterns");
        assert!(
            integrator
                .strips(&Pixels::U16(&[]), MAX_STRIPS + 1)
                .is_none()
        );
    }
}
