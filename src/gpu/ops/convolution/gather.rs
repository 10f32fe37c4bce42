//! Convolutions on a GPU: a convolution and both its gradients are matrix products C = A B for each
//! group, in which the elements of B are pixels of an image, found by arithmetic.
//! `shaders/convolution.wgsl` does all three; they differ in what the push constants say.

use super::{
    super::{
        activation::Activation,
        buffer::{BufferView, ElementKind},
        dispatch::{Lowering, unused},
        engine::EngineError,
        op::Operation,
        reduce::{Reduce, Reduction},
        shaders,
    },
    Conv2d, Conv2dInputGradient, Conv2dShape, Conv2dWeightGradient,
};

/// Rows and columns of C that a workgroup computes.
const TILE: u32 = 32;
const MAX_GROUPS: u32 = 65_535;
/// Workgroups that keep any GPU busy.
const ENOUGH: u32 = 1024;
/// Memory for sums of weight gradients, in elements.
const PARTS: u32 = 1 << 24;

/// The parameters, as in the shader. Rows of B are (plane, row, column) of `k`, columns those of
/// `n`; the pixel is (n · n_step + k · k_step + shift) / divide, if that is whole and inside.
struct Gather {
    m: u32,
    n: u32,
    k: u32,
    k_area: u32,
    k_width: u32,
    n_area: u32,
    n_width: u32,
    /// Elements of A from one m, plane of k, group, batch to the next.
    a_strides: [u32; 4],
    /// Planes of the image from one batch, group, plane of k to the next; by planes of n it is 1.
    b_strides: [u32; 3],
    image: [u32; 2],
    n_step: [i32; 2],
    k_step: [i32; 2],
    shift: [i32; 2],
    divide: [i32; 2],
    groups: u32,
}

impl Gather {
    fn dispatch(
        &self,
        lowering: &mut Lowering<'_>,
        views: [&BufferView; 4],
        batches: std::ops::Range<u32>,
        flags: u32,
    ) {
        let (first, end) = (batches.start * self.groups, batches.end * self.groups);
        for first in (first..end).step_by(MAX_GROUPS as usize) {
            let mut parameters = vec![
                self.m,
                self.n,
                self.k,
                self.k_area,
                self.k_width,
                self.n_area,
                self.n_width,
            ];
            parameters.extend(
                self.a_strides
                    .iter()
                    .chain(&self.b_strides)
                    .chain(&self.image),
            );
            let signed = [self.n_step, self.k_step, self.shift, self.divide];
            parameters.extend(signed.iter().flatten().map(|value| *value as u32));
            parameters.extend([self.groups, first, flags]);
            let (columns, rows) = (self.n.div_ceil(TILE), self.m.div_ceil(TILE));
            let groups = [
                columns.min(MAX_GROUPS),
                rows.min(MAX_GROUPS),
                (end - first).min(MAX_GROUPS),
            ];
            lowering.dispatch(shaders::convolution(), &views, &parameters, groups);
        }
    }
}

pub fn forward(op: &Conv2d, lowering: &mut Lowering<'_>) {
    let shape = &op.shape;
    let none = unused(&op.y, ElementKind::F32);
    let flags = op.activation as u32 | u32::from(op.bias.is_some()) << 8;
    let views = [&op.weights, &op.x, op.bias.as_ref().unwrap_or(&none), &op.y];
    if shape.samples > 0 && shape.filters > 0 {
        of_windows(shape).dispatch(lowering, views, 0..shape.samples, flags);
    }
}

/// A: filters × taps. B: taps × places.
fn of_windows(shape: &Conv2dShape) -> Gather {
    let s = shape.sizes();
    let (channels, filters, taps) = (s.channels as u32, s.filters as u32, s.taps() as u32);
    let (window, area) = (&shape.window, shape.window.area() as u32);
    Gather {
        m: filters,
        n: s.places() as u32,
        k: taps,
        k_area: area,
        k_width: window.size[1],
        n_area: s.places() as u32,
        n_width: s.columns as u32,
        a_strides: [taps, area, filters * taps, 0],
        b_strides: [shape.groups * channels, channels, 1],
        image: shape.image,
        n_step: window.stride.map(|stride| stride as i32),
        k_step: window.dilation.map(|dilation| dilation as i32),
        shift: window.padding.map(|padding| -(padding as i32)),
        divide: [1; 2],
        groups: shape.groups,
    }
}

/// A: channels × (filters, taps of a channel). B: (filters, taps of a channel) × pixels.
pub fn input_gradient(op: &Conv2dInputGradient, lowering: &mut Lowering<'_>) {
    let shape = &op.shape;
    let s = shape.sizes();
    if shape.samples == 0 || s.channels * s.pixels == 0 {
        return;
    }
    let (channels, filters, taps) = (s.channels as u32, s.filters as u32, s.taps() as u32);
    let (window, area) = (&shape.window, shape.window.area() as u32);
    let gather = Gather {
        m: channels,
        n: s.pixels as u32,
        k: filters * area,
        k_area: area,
        k_width: window.size[1],
        n_area: s.pixels as u32,
        n_width: shape.image[1],
        a_strides: [area, taps, filters * taps, 0],
        b_strides: [shape.groups * filters, filters, 1],
        image: [s.rows as u32, s.columns as u32],
        n_step: [1; 2],
        k_step: window.dilation.map(|dilation| -(dilation as i32)),
        shift: window.padding.map(|padding| padding as i32),
        divide: window.stride.map(|stride| stride as i32),
        groups: shape.groups,
    };
    let none = unused(&op.dx, ElementKind::F32);
    gather.dispatch(
        lowering,
        [&op.weights, &op.dy, &none, &op.dx],
        0..shape.samples,
        Activation::None as u32,
    );
}

/// A: filters × (samples, places). B: (samples, places) × taps. Samples are cut into parts, whose
/// sums are added in the end.
pub fn weight_gradient(
    op: &Conv2dWeightGradient,
    lowering: &mut Lowering<'_>,
) -> Result<(), EngineError> {
    let shape = &op.shape;
    if let Some(dbias) = &op.dbias {
        bias_gradient(op, dbias, lowering)?;
    }
    let s = shape.sizes();
    let (filters, taps) = (s.filters as u32, s.taps() as u32);
    let len = shape.filters * taps;
    if len == 0 || shape.samples == 0 {
        lowering.fill(&op.dweights.part(0, len.into()), 0);
        return Ok(());
    }
    let tiles = shape.groups * filters.div_ceil(TILE) * taps.div_ceil(TILE);
    let most = (ENOUGH / tiles).clamp(1, (PARTS / len).max(1));
    let share = shape.samples.div_ceil(most);
    let (whole, rest) = (shape.samples / share, shape.samples % share);
    let parts = whole + u32::from(rest > 0);
    let none = unused(&op.dweights, ElementKind::F32);
    let sums = match parts {
        1 => op.dweights.clone(),
        _ => lowering.scratch(ElementKind::F32, u64::from(parts) * u64::from(len))?,
    };
    let views = [&op.dy, &op.x, &none, &sums];
    let flags = Activation::None as u32;
    of_samples(shape, share, share).dispatch(lowering, views, 0..whole, flags);
    if rest > 0 {
        of_samples(shape, share, rest).dispatch(lowering, views, whole..parts, flags);
    }
    if parts > 1 {
        sum(&sums, &op.dweights, [1, parts, len]).lower(lowering)?;
    }
    Ok(())
}

/// The products of `samples` samples, in parts of `share`.
fn of_samples(shape: &Conv2dShape, share: u32, samples: u32) -> Gather {
    let s = shape.sizes();
    let (channels, filters, places) = (s.channels as u32, s.filters as u32, s.places() as u32);
    Gather {
        m: filters,
        n: s.taps() as u32,
        k: samples * places,
        k_area: places,
        k_width: s.columns as u32,
        n_area: shape.window.area() as u32,
        n_width: shape.window.size[1],
        a_strides: [
            places,
            shape.filters * places,
            filters * places,
            share * shape.filters * places,
        ],
        b_strides: [share * shape.channels, channels, shape.channels],
        image: shape.image,
        n_step: shape.window.dilation.map(|dilation| dilation as i32),
        k_step: shape.window.stride.map(|stride| stride as i32),
        shift: shape.window.padding.map(|padding| -(padding as i32)),
        divide: [1; 2],
        groups: shape.groups,
    }
}

/// Over places, then over samples.
fn bias_gradient(
    op: &Conv2dWeightGradient,
    dbias: &BufferView,
    lowering: &mut Lowering<'_>,
) -> Result<(), EngineError> {
    let shape = &op.shape;
    let len = u64::from(shape.samples) * u64::from(shape.filters);
    let planes = lowering.scratch(ElementKind::F32, len)?;
    let places = shape.sizes().places() as u32;
    sum(&op.dy, &planes, [shape.samples * shape.filters, places, 1]).lower(lowering)?;
    sum(&planes, dbias, [1, shape.samples, shape.filters]).lower(lowering)
}

/// Over the second of three axes.
fn sum(input: &BufferView, output: &BufferView, [outer, axis, inner]: [u32; 3]) -> Reduce {
    Reduce {
        kind: Reduction::Sum,
        input: input.clone(),
        output: output.clone(),
        outer,
        axis,
        inner,
    }
}
