//! Convolutions on the CPU: the windows of some rows of the output become the columns of a matrix
//! (im2col), whose product with the filters is the output; gradients go the same way back.
//! Chellapilla, Puri and Simard, "High performance convolutional neural networks for document
//! processing", 2006.

use super::{
    super::cpu::{CpuMemory, Product, product},
    Conv2d, Conv2dInputGradient, Conv2dWeightGradient, Sizes,
};
use rayon::prelude::*;
use std::ops::Range;

/// Elements of the matrix of windows: what a core's cache holds.
const BLOCK: usize = 1 << 18;
/// Memory for sums of weight gradients, in elements.
const PARTS: usize = 1 << 25;

pub fn forward(op: &Conv2d, memory: &CpuMemory<'_>) {
    let sizes = op.shape.sizes();
    let (groups, places, taps) = (op.shape.groups as usize, sizes.places(), sizes.taps());
    if op.shape.samples == 0 || sizes.filters == 0 {
        return;
    }
    let (x, weights) = (memory.read::<f32>(&op.x), memory.read::<f32>(&op.weights));
    let bias = op.bias.as_ref().map(|bias| memory.read::<f32>(bias));
    let images = op.shape.samples as usize * groups;
    let y = &mut memory.write::<f32>(&op.y)[..images * sizes.filters * places];
    let pointwise = op.shape.window.is_pointwise();
    // Where there are too few images, threads share the filters of one.
    let filters = sizes
        .filters
        .div_ceil(rayon::current_num_threads().div_ceil(images));
    y.par_chunks_mut(sizes.filters * places)
        .enumerate()
        .for_each_init(Vec::new, |matrix, (image, y)| {
            let group = image % groups;
            let x = &x[image * sizes.channels * sizes.pixels..][..sizes.channels * sizes.pixels];
            for rows in sizes.blocks(taps) {
                let (first, width) = (rows.start * sizes.columns, rows.len() * sizes.columns);
                let (windows, stride) = if pointwise {
                    (&x[first.min(x.len())..], places)
                } else {
                    matrix.resize(taps * width, 0.0);
                    sizes.gather(x, rows, matrix);
                    (&matrix[..], width)
                };
                y.par_chunks_mut(filters * places)
                    .enumerate()
                    .for_each(|(part, y)| {
                        let filter = group * sizes.filters + part * filters;
                        product(Product {
                            m: y.len() / places,
                            n: width,
                            k: taps,
                            alpha: 1.0,
                            a: &weights[filter * taps..],
                            a_strides: [taps, 1],
                            b: windows,
                            b_strides: [stride, 1],
                            beta: 0.0,
                            c: &mut y[first..],
                            c_stride: places,
                        });
                        for (index, row) in y.chunks_mut(places).enumerate() {
                            let row = &mut row[first..first + width];
                            if let Some(bias) = bias {
                                row.iter_mut().for_each(|y| *y += bias[filter + index]);
                            }
                            op.activation.apply(row);
                        }
                    });
            }
        });
}

pub fn input_gradient(op: &Conv2dInputGradient, memory: &CpuMemory<'_>) {
    let sizes = op.shape.sizes();
    let (groups, places, area) = (
        op.shape.groups as usize,
        sizes.places(),
        op.shape.window.area(),
    );
    let images = op.shape.samples as usize * groups;
    let image_len = sizes.channels * sizes.pixels;
    if images * image_len == 0 {
        return;
    }
    let (dy, weights) = (memory.read::<f32>(&op.dy), memory.read::<f32>(&op.weights));
    let dx = &mut memory.write::<f32>(&op.dx)[..images * image_len];
    // Where there are too few images, threads share the channels of one.
    let channels = sizes
        .channels
        .div_ceil(rayon::current_num_threads().div_ceil(images));
    dx.par_chunks_mut(image_len)
        .enumerate()
        .for_each(|(image, dx)| {
            let weights = &weights[image % groups * sizes.filters * sizes.taps()..];
            let dy = &dy[image * sizes.filters * places..][..sizes.filters * places];
            dx.par_chunks_mut(channels * sizes.pixels)
                .enumerate()
                .for_each_init(Vec::new, |matrix, (part, dx)| {
                    dx.fill(0.0);
                    let taps = dx.len() / sizes.pixels * area;
                    // All channels' blocks, so that the number of threads does not show in the
                    // order of sums.
                    for rows in sizes.blocks(sizes.taps()) {
                        let (first, width) =
                            (rows.start * sizes.columns, rows.len() * sizes.columns);
                        matrix.resize(taps * width, 0.0);
                        product(Product {
                            m: taps,
                            n: width,
                            k: sizes.filters,
                            alpha: 1.0,
                            a: weights.get(part * channels * area..).unwrap_or_default(),
                            a_strides: [1, sizes.taps()],
                            b: dy.get(first..).unwrap_or_default(),
                            b_strides: [places, 1],
                            beta: 0.0,
                            c: matrix,
                            c_stride: width,
                        });
                        sizes.scatter(matrix, rows, dx);
                    }
                });
        });
}

pub fn weight_gradient(op: &Conv2dWeightGradient, memory: &CpuMemory<'_>) {
    let sizes = op.shape.sizes();
    let (samples, groups) = (op.shape.samples as usize, op.shape.groups as usize);
    let (places, taps) = (sizes.places(), sizes.taps());
    let (x, dy) = (memory.read::<f32>(&op.x), memory.read::<f32>(&op.dy));
    let filters = groups * sizes.filters;
    if let Some(dbias) = &op.dbias {
        let dbias = &mut memory.write::<f32>(dbias)[..filters];
        dbias.par_iter_mut().enumerate().for_each(|(filter, sum)| {
            let planes =
                (0..samples).map(|sample| &dy[(sample * filters + filter) * places..][..places]);
            *sum = planes.map(total).sum::<f64>() as f32;
        });
    }
    let len = filters * taps;
    let dweights = &mut memory.write::<f32>(&op.dweights)[..len];
    if len == 0 || samples == 0 {
        return dweights.fill(0.0);
    }
    let pointwise = op.shape.window.is_pointwise();
    // The number of parts follows from the sizes alone, so that the number of threads does not show
    // in the sums.
    let share = samples.div_ceil((PARTS / len).clamp(1, 16));
    let parts = (0..samples.div_ceil(share)).into_par_iter().map(|part| {
        let mut sums = vec![0f32; len];
        let mut matrix = Vec::new();
        for image in part * share * groups..((part + 1) * share).min(samples) * groups {
            let x = &x[image * sizes.channels * sizes.pixels..][..sizes.channels * sizes.pixels];
            let dy = &dy[image * sizes.filters * places..][..sizes.filters * places];
            let sums = &mut sums[image % groups * sizes.filters * taps..][..sizes.filters * taps];
            for rows in sizes.blocks(taps) {
                let (first, width) = (rows.start * sizes.columns, rows.len() * sizes.columns);
                let (windows, stride) = if pointwise {
                    (&x[first..], places)
                } else {
                    matrix.resize(taps * width, 0.0);
                    sizes.gather(x, rows, &mut matrix);
                    (&matrix[..], width)
                };
                product(Product {
                    m: sizes.filters,
                    n: taps,
                    k: width,
                    alpha: 1.0,
                    a: &dy[first..],
                    a_strides: [places, 1],
                    b: windows,
                    b_strides: [1, stride],
                    beta: 1.0,
                    c: sums,
                    c_stride: taps,
                });
            }
        }
        sums
    });
    let parts: Vec<Vec<f32>> = parts.collect();
    dweights
        .par_iter_mut()
        .enumerate()
        .for_each(|(at, sum)| *sum = parts.iter().map(|part| part[at]).sum());
}

/// The sum, in eight parts, so that additions need not wait for each other.
fn total(numbers: &[f32]) -> f64 {
    let mut sums = [0.0; 8];
    let eights = numbers.chunks_exact(8);
    let rest: f64 = eights
        .remainder()
        .iter()
        .map(|number| f64::from(*number))
        .sum();
    eights.for_each(|eight| {
        sums.iter_mut()
            .zip(eight)
            .for_each(|(sum, number)| *sum += f64::from(*number))
    });
    sums.iter().sum::<f64>() + rest
}

impl Sizes {
    /// Rows of the output, so many at a time that the matrix of their windows is not too large.
    fn blocks(&self, taps: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (rows, columns) = (self.rows, self.columns);
        let at_once = (BLOCK / (taps * columns).max(1)).clamp(1, rows);
        (0..rows)
            .step_by(at_once)
            .map(move |first| first..(first + at_once).min(rows))
    }

    /// The windows at these rows of the output as columns: taps × places. Padding is 0.
    fn gather(&self, x: &[f32], rows: Range<usize>, matrix: &mut [f32]) {
        let stride = self.shape.window.stride[1] as usize;
        self.walk(matrix.len(), rows, |start, inside, pixel| {
            let row = &mut matrix[start..start + self.columns];
            row[..inside.start].fill(0.0);
            row[inside.end..].fill(0.0);
            let to = &mut row[inside];
            if stride == 1 {
                to.copy_from_slice(&x[pixel..pixel + to.len()]);
            } else {
                to.iter_mut()
                    .zip(x[pixel..].iter().step_by(stride))
                    .for_each(|(to, x)| *to = *x);
            }
        });
    }

    /// Adds each element of the matrix to the pixel that `gather` takes it from.
    fn scatter(&self, matrix: &[f32], rows: Range<usize>, dx: &mut [f32]) {
        let stride = self.shape.window.stride[1] as usize;
        self.walk(matrix.len(), rows, |start, inside, pixel| {
            let from = &matrix[start + inside.start..start + inside.end];
            if stride == 1 {
                dx[pixel..]
                    .iter_mut()
                    .zip(from)
                    .for_each(|(dx, from)| *dx += from);
            } else {
                dx[pixel..]
                    .iter_mut()
                    .step_by(stride)
                    .zip(from)
                    .for_each(|(dx, from)| *dx += from);
            }
        });
    }

    /// For each tap and each of these rows of the output: where its elements begin in the matrix,
    /// those of them that are pixels of the image, and the first one's pixel; 0 where there is
    /// none.
    fn walk(
        &self,
        matrix_len: usize,
        rows: Range<usize>,
        mut visit: impl FnMut(usize, Range<usize>, usize),
    ) {
        let (window, image) = (&self.shape.window, self.shape.image);
        let (block, area) = (rows.len() * self.columns, window.area());
        let (image_width, stride) = (image[1] as usize, window.stride[0] as usize);
        for tap in 0..matrix_len / block {
            let (channel, within) = (tap / area, (tap % area) as u32);
            let (i, j) = (within / window.size[1], within % window.size[1]);
            let (rows_inside, first_row) = window.inside(0, i, image[0], self.rows as u32);
            let (inside, first_column) = window.inside(1, j, image[1], self.columns as u32);
            for row in rows.clone() {
                let start = tap * block + (row - rows.start) * self.columns;
                if rows_inside.contains(&row) && !inside.is_empty() {
                    let y = first_row + (row - rows_inside.start) * stride;
                    let pixel = channel * self.pixels + y * image_width + first_column;
                    visit(start, inside.clone(), pixel);
                } else {
                    visit(start, 0..0, 0);
                }
            }
        }
    }
}
