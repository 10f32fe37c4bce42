//! Reductions over one axis. In a fixed order on each engine, without atomics: the same input gives
//! the same bits.

use super::{
    access::{OpAccess, elements},
    buffer::{BufferView, ElementKind},
    cpu::CpuMemory,
    dispatch::{Lowering, grid, unused},
    engine::EngineError,
    op::Operation,
    shaders,
};
use rayon::prelude::*;

/// output[o, i] = over j of input[o, j, i], for input [outer, axis, inner]. NaN wins; of equal
/// maxima `ArgMax` takes the first. Over nothing: 0, +∞ (`Min`), -∞ (`Max`), NaN (`Mean`); `ArgMax`
/// has no answer and is refused.
#[derive(Clone, Debug)]
pub struct Reduce {
    pub kind: Reduction,
    pub input: BufferView,
    /// f32; u32 for `ArgMax`.
    pub output: BufferView,
    pub outer: u32,
    pub axis: u32,
    pub inner: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    Sum,
    Min,
    Max,
    Mean,
    ArgMax,
}

impl Reduction {
    /// As the shader numbers them; a mean is a sum that is divided.
    fn number(self) -> u32 {
        match self {
            Self::Sum | Self::Mean => 0,
            Self::Min => 1,
            Self::Max => 2,
            Self::ArgMax => 3,
        }
    }

    fn start(self) -> f32 {
        match self {
            Self::Sum | Self::Mean => 0.0,
            Self::Min => f32::INFINITY,
            Self::Max | Self::ArgMax => f32::NEG_INFINITY,
        }
    }

    fn combine(self, a: f32, b: f32) -> f32 {
        match self {
            Self::Sum | Self::Mean => a + b,
            Self::Min => {
                if b < a || b.is_nan() {
                    b
                } else {
                    a
                }
            }
            Self::Max | Self::ArgMax => {
                if b > a || b.is_nan() {
                    b
                } else {
                    a
                }
            }
        }
    }
}

impl Operation for Reduce {
    fn name(&self) -> &'static str {
        "reduce"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let output = elements(&[self.outer, self.inner])?;
        if self.kind == Reduction::ArgMax && self.axis == 0 && output > 0 {
            return Err("the place of the maximum of nothing".into());
        }
        let kind = if self.kind == Reduction::ArgMax {
            ElementKind::U32
        } else {
            ElementKind::F32
        };
        let input = elements(&[self.outer, self.axis, self.inner])?;
        OpAccess::default()
            .read("input", &self.input, ElementKind::F32, input)?
            .write("output", &self.output, kind, output)
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        let (axis, inner) = (self.axis as usize, self.inner as usize);
        let outputs = self.outer as usize * inner;
        if outputs == 0 {
            return;
        }
        let input = memory.read::<f32>(&self.input);
        if self.kind == Reduction::ArgMax {
            let output = &mut memory.write::<u32>(&self.output)[..outputs];
            output
                .par_iter_mut()
                .enumerate()
                .for_each(|(slot, output)| {
                    let first = slot / inner * axis * inner + slot % inner;
                    *output = first_maximum((0..axis).map(|j| input[first + j * inner]));
                });
            return;
        }
        let output = &mut memory.write::<f32>(&self.output)[..outputs];
        if inner == 1 {
            let reduce =
                |(row, output): (usize, &mut f32)| *output = self.row(&input[row * axis..][..axis]);
            output.par_iter_mut().enumerate().for_each(reduce);
        } else {
            // Columns side by side, so that memory is read in order.
            const COLUMNS: usize = 4096;
            let blocks = output
                .chunks_mut(inner)
                .enumerate()
                .flat_map(|(outer, row)| {
                    row.chunks_mut(COLUMNS)
                        .enumerate()
                        .map(move |(block, to)| (outer * axis * inner + block * COLUMNS, to))
                });
            let blocks: Vec<(usize, &mut [f32])> = blocks.collect();
            blocks.into_par_iter().for_each(|(first, output)| {
                output.fill(self.kind.start());
                for j in 0..axis {
                    let row = &input[first + j * inner..][..output.len()];
                    output
                        .iter_mut()
                        .zip(row)
                        .for_each(|(a, b)| *a = self.kind.combine(*a, *b));
                }
            });
        }
        if self.kind == Reduction::Mean {
            output.iter_mut().for_each(|sum| *sum /= self.axis as f32);
        }
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        /// What an invocation reduces by itself before a second round is worth it, and the most
        /// parts of a second round.
        const ELEMENTS: u32 = 32;
        const MAX_PARTS: u32 = 1024;
        let outputs = self.outer * self.inner;
        if outputs == 0 {
            return Ok(());
        }
        let lanes = if self.inner >= 64 { 4 } else { 256 };
        let busy = outputs.div_ceil(256 / lanes) >= 1024;
        let wanted = if busy {
            1
        } else {
            self.axis.div_ceil(ELEMENTS * lanes).clamp(1, MAX_PARTS)
        };
        let parts = if u64::from(outputs) * u64::from(wanted) < 1 << 31 {
            wanted
        } else {
            1
        };
        let none = |kind| unused(&self.output, kind);
        let (values, places) = match self.kind {
            Reduction::ArgMax => (none(ElementKind::F32), self.output.clone()),
            _ => (self.output.clone(), none(ElementKind::U32)),
        };
        let mut round = Round {
            lanes,
            from: self.input.clone(),
            from_places: None,
            axis: self.axis,
            parts,
            values,
            places,
        };
        if parts > 1 {
            let len = u64::from(outputs) * u64::from(parts);
            let (values, places) = (
                lowering.scratch(ElementKind::F32, len)?,
                lowering.scratch(ElementKind::U32, len)?,
            );
            let next = Round {
                from: values.clone(),
                from_places: Some(places.clone()),
                axis: parts,
                parts: 1,
                ..round.clone()
            };
            self.round(
                lowering,
                &Round {
                    values,
                    places,
                    ..round
                },
            );
            round = next;
        }
        self.round(lowering, &round);
        Ok(())
    }
}

/// One pass over the axis, each part of it to one value.
#[derive(Clone)]
struct Round {
    lanes: u32,
    from: BufferView,
    from_places: Option<BufferView>,
    axis: u32,
    parts: u32,
    /// Empty: not wanted.
    values: BufferView,
    places: BufferView,
}

impl Reduce {
    fn round(&self, lowering: &mut Lowering<'_>, round: &Round) {
        let none = unused(&self.output, ElementKind::U32);
        let flag = |bit: u32, set: bool| u32::from(set) << bit;
        let flags = flag(0, round.from_places.is_some())
            | flag(1, round.values.len > 0)
            | flag(2, round.places.len > 0);
        let last = round.parts == 1;
        let divisor = if last && self.kind == Reduction::Mean {
            self.axis as f32
        } else {
            1.0
        };
        let parameters = [
            self.outer,
            round.axis,
            self.inner,
            round.parts,
            round.axis.div_ceil(round.parts),
            self.kind.number(),
            flags,
            round.lanes,
            divisor.to_bits(),
            self.kind.start().to_bits(),
        ];
        let slots = u64::from(self.outer) * u64::from(self.inner) * u64::from(round.parts);
        let bindings = [
            &round.from,
            round.from_places.as_ref().unwrap_or(&none),
            &round.values,
            &round.places,
        ];
        lowering.dispatch(
            shaders::reduce(),
            &bindings,
            &parameters,
            grid(slots, u64::from(256 / round.lanes)),
        );
    }

    fn row(&self, row: &[f32]) -> f32 {
        const PART: usize = 1 << 16;
        if row.len() <= PART {
            return self.part(row);
        }
        let parts: Vec<f32> = row.par_chunks(PART).map(|part| self.part(part)).collect();
        self.part(&parts)
    }

    /// In 16 lanes, so that additions do not wait for each other and become SIMD.
    fn part(&self, values: &[f32]) -> f32 {
        const LANES: usize = 16;
        let combine = |a, b| self.kind.combine(a, b);
        let mut lanes = [self.kind.start(); LANES];
        let (whole, rest) = values.as_chunks::<LANES>();
        match self.kind {
            Reduction::Sum | Reduction::Mean => {
                whole
                    .iter()
                    .for_each(|chunk| lanes.iter_mut().zip(chunk).for_each(|(a, b)| *a += b));
            }
            _ => whole.iter().for_each(|chunk| {
                lanes
                    .iter_mut()
                    .zip(chunk)
                    .for_each(|(a, b)| *a = combine(*a, *b))
            }),
        }
        let rest = rest.iter().copied().fold(self.kind.start(), combine);
        combine(lanes.into_iter().fold(self.kind.start(), combine), rest)
    }
}

fn first_maximum(values: impl Iterator<Item = f32>) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (place, value) in values.enumerate() {
        if value.is_nan() {
            return place as u32;
        }
        if value > best.1 {
            best = (place as u32, value);
        }
    }
    best.0
}
