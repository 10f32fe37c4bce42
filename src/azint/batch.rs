//! Stored frames to patterns. Where engine and chunks allow it frames go strip by strip: the same
//! pixels of several frames are decoded, interleaved and added up while they are in the second
//! cache, and no frame is ever whole in memory. A GPU may get chunks as they are stored, and decode
//! them. Elsewhere frames are decoded first.

use super::{
    decode::ChunkBlocks,
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
        if integrator.takes_chunks()
            && let Some(patterns) = self.by_chunks(integrator, stack, units, monitors)?
        {
            return Ok(patterns);
        }
        let is_whole = integrator.is_on_device() || stack.shape != integrator.shape();
        let pieces: Option<Result<Vec<Pieces<'_>>, FramesError>> = match is_whole {
            true => None,
            false => units.iter().map(StoredFrames::pieces).collect(),
        };
        if let Some(pieces) = pieces
            && let Some(patterns) = self.by_strips(integrator, stack, pieces?, monitors)?
        {
            return Ok(patterns);
        }
        if stack.shape == integrator.shape()
            && let Some(patterns) = self.for_device(integrator, stack, units, monitors)?
        {
            return Ok(patterns);
        }
        self.whole(integrator, stack, units, monitors)
    }

    /// On a device that decodes. None where it does not take such frames or one of them is
    /// damaged: the decoders of this machine say which, and how.
    fn by_chunks(
        &mut self,
        integrator: &Integrator,
        stack: &Stack,
        units: &[StoredFrames],
        monitors: &[f64],
    ) -> Result<Option<Vec<Patterns>>, BatchError> {
        let begin = Instant::now();
        let chunks: Option<Vec<ChunkBlocks<'_>>> = units.iter().map(StoredFrames::blocks).collect();
        self.decoding += begin.elapsed();
        let Some(chunks) = chunks.filter(|_| stack.shape == integrator.shape()) else {
            return Ok(None);
        };
        let nothing = no_pixels(stack.scalar);
        Ok(integrator.integrate_chunks(&nothing, &chunks, monitors)?)
    }

    /// As many frames at once as strips are made of. None where whole frames are needed.
    fn by_strips(
        &mut self,
        integrator: &Integrator,
        stack: &Stack,
        mut pieces: Vec<Pieces<'_>>,
        monitors: &[f64],
    ) -> Result<Option<Vec<Patterns>>, BatchError> {
        integrator.check_monitors(pieces.len(), monitors)?;
        let nothing = no_pixels(stack.scalar);
        let mut all: Option<Vec<Patterns>> = None;
        let mut monitors = monitors.chunks(MAX_STRIPS);
        for pieces in pieces.chunks_mut(MAX_STRIPS) {
            let Some(mut strips) = integrator.strips(&nothing, pieces.len()) else {
                return Ok(None);
            };
            self.strip_by_strip(&mut strips, stack, pieces)?;
            let patterns = strips.finish(monitors.next().unwrap_or_default())?;
            match &mut all {
                None => all = Some(patterns),
                Some(all) => {
                    let later = all.iter_mut().zip(patterns);
                    later.for_each(|(all, later)| all.append(later));
                }
            }
        }
        Ok(all)
    }

    /// Adds all pixels of frames, strip by strip.
    fn strip_by_strip(
        &mut self,
        strips: &mut Strips<'_>,
        stack: &Stack,
        pieces: &mut [Pieces<'_>],
    ) -> Result<(), BatchError> {
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
        Ok(())
    }

    /// On a device that reads frames where they are decoded. None where it does not.
    fn for_device(
        &mut self,
        integrator: &Integrator,
        stack: &Stack,
        units: &[StoredFrames],
        monitors: &[f64],
    ) -> Result<Option<Vec<Patterns>>, BatchError> {
        let frames = units.iter().map(count).sum();
        let nothing = no_pixels(stack.scalar);
        let Some(mut device) = integrator.device_frames(&nothing, frames)? else {
            return Ok(None);
        };
        integrator.check_monitors(frames, monitors)?;
        let at_once = device.at_once();
        if units.iter().any(|unit| count(unit) > at_once) {
            return Ok(None);
        }
        let mut rest = units;
        while !rest.is_empty() {
            let (fitting, frames) = fitting(rest.iter().map(count), at_once);
            let (group, behind) = rest.split_at(fitting);
            let mut memory = device.memory(frames)?;
            self.decode(stack, group, &mut memory)?;
            device.add(memory)?;
            rest = behind;
        }
        Ok(Some(device.finish(monitors)?))
    }

    /// Decodes frames one after the other.
    fn decode(
        &mut self,
        stack: &Stack,
        units: &[StoredFrames],
        mut target: &mut [u8],
    ) -> Result<(), FramesError> {
        let begin = Instant::now();
        for unit in units {
            let (own, behind) = target.split_at_mut(stack.frame_bytes() * count(unit));
            unit.decode(own, &mut self.decoder)?;
            target = behind;
        }
        self.decoding += begin.elapsed();
        Ok(())
    }

    fn whole(
        &mut self,
        integrator: &Integrator,
        stack: &Stack,
        units: &[StoredFrames],
        monitors: &[f64],
    ) -> Result<Vec<Patterns>, BatchError> {
        let frames = units.iter().map(count).sum();
        let mut memory = std::mem::take(&mut self.pixels);
        let bytes = room(&mut memory, stack.frame_bytes() * frames);
        let decoded = self.decode(stack, units, bytes);
        let patterns = decoded.map_err(BatchError::from).and_then(|()| {
            let frames = Frames::new(pixels(stack.scalar, bytes), frames, stack.shape)?;
            Ok(integrator.integrate(&frames, monitors)?)
        });
        self.pixels = memory;
        patterns
    }
}

/// How many units come together, of which each has so many frames, and how many frames: at most
/// `most`.
fn fitting(counts: impl Iterator<Item = usize>, most: usize) -> (usize, usize) {
    let (mut units, mut frames) = (0, 0);
    for count in counts {
        if frames + count > most {
            break;
        }
        (units, frames) = (units + 1, frames + count);
    }
    (units, frames)
}

/// The frames that it decodes to.
fn count(unit: &StoredFrames) -> usize {
    (unit.frames.end - unit.frames.start) as usize
}

/// The first bytes of a buffer, which grows where it must.
fn room(buffer: &mut Vec<u32>, length: usize) -> &mut [u8] {
    let wanted = length.div_ceil(size_of::<u32>());
    if buffer.len() < wanted {
        buffer.resize(wanted, 0);
    }
    &mut bytemuck::cast_slice_mut(buffer)[..length]
}

/// None, of this type.
fn no_pixels(scalar: Scalar) -> Pixels<'static> {
    pixels(scalar, bytemuck::cast_slice::<u32, u8>(&[]))
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
pub(crate) mod tests;
