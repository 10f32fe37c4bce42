//! Pooling of images, and its gradient.

use super::{
    access::{OpAccess, elements},
    buffer::{BufferView, ElementKind},
    cpu::CpuMemory,
    dispatch::{GROUP, Lowering, grid, unused},
    engine::EngineError,
    op::Operation,
    shaders,
    window::Window,
};
use rayon::prelude::*;

/// What a window of an image becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// NaN wins; of equal maxima the first. Padding is never the maximum.
    Max,
    /// Of the pixels that are inside: padding does not count.
    Average,
}

/// Each channel of each sample is a plane: images of samples × channels × height × width have
/// samples · channels of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2dShape {
    pub planes: u32,
    /// Height and width of the input.
    pub image: [u32; 2],
    /// Without dilation; with less padding than its size, so that it always holds a pixel.
    pub window: Window,
}

/// y = the maximum or average of each window of x.
#[derive(Clone, Debug)]
pub struct Pool2d {
    pub pooling: Pooling,
    pub shape: Pool2dShape,
    /// planes × height × width, f32.
    pub x: BufferView,
    /// planes × places of the window, f32; see `Pool2dShape::places`.
    pub y: BufferView,
    /// As `y`, u32: which pixel of its plane each maximum was. For `Max` whose gradient is wanted.
    pub maxima: Option<BufferView>,
}

/// The gradient by the input. That of a maximum goes to the pixel that it was.
#[derive(Clone, Debug)]
pub struct Pool2dBackward {
    pub pooling: Pooling,
    pub shape: Pool2dShape,
    /// As `y`.
    pub dy: BufferView,
    /// As the forward op wrote them; for `Max` alone.
    pub maxima: Option<BufferView>,
    /// As `x`, overwritten.
    pub dx: BufferView,
}

impl Pool2dShape {
    /// Height and width of the output.
    pub fn places(&self) -> Result<[u32; 2], String> {
        self.window.places(self.image)
    }

    /// Elements of x and y.
    fn lengths(&self) -> Result<(u64, u64), String> {
        let [rows, columns] = self.places()?;
        let Window {
            size,
            padding,
            dilation,
            ..
        } = self.window;
        if dilation != [1; 2]
            || (0..2).any(|axis| padding[axis] >= size[axis])
            || self.image.contains(&0)
        {
            return Err(format!(
                "pooling needs pixels, no dilation, and less padding than its window: {self:?}"
            ));
        }
        let [height, width] = self.image;
        Ok((
            elements(&[self.planes, height, width])?,
            elements(&[self.planes, rows, columns])?,
        ))
    }

    /// Parameters of both shaders.
    fn parameters(&self, pooling: Pooling, maxima: bool) -> [u32; 12] {
        let [rows, columns] = self.places().expect("access() has checked it");
        let Window {
            size,
            stride,
            padding,
            ..
        } = self.window;
        let flags = u32::from(pooling == Pooling::Max) | u32::from(maxima) << 1;
        let ([height, width], [top, left]) = (self.image, padding);
        [
            self.planes,
            height,
            width,
            rows,
            columns,
            size[0],
            size[1],
            stride[0],
            stride[1],
            top,
            left,
            flags,
        ]
    }

    /// The pixels of the window at this place, along one axis.
    fn pixels(&self, axis: usize, place: usize) -> std::ops::Range<usize> {
        let Window {
            size,
            stride,
            padding,
            ..
        } = self.window;
        let (first, padding) = (place * stride[axis] as usize, padding[axis] as usize);
        first.saturating_sub(padding)
            ..(first + size[axis] as usize - padding).min(self.image[axis] as usize)
    }

    /// Numbers of a plane, of its output, and rows and columns of the output.
    fn sizes(&self) -> (usize, usize, [usize; 2]) {
        let places = self
            .places()
            .expect("access() has checked it")
            .map(|size| size as usize);
        (
            self.image[0] as usize * self.image[1] as usize,
            places[0] * places[1],
            places,
        )
    }
}

impl Operation for Pool2d {
    fn name(&self) -> &'static str {
        "pool2d"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let (x, y) = self.shape.lengths()?;
        let access = OpAccess::default()
            .read("x", &self.x, ElementKind::F32, x)?
            .write("y", &self.y, ElementKind::F32, y)?;
        match &self.maxima {
            Some(_) if self.pooling == Pooling::Average => Err("averages have no `maxima`".into()),
            Some(maxima) => access.write("maxima", maxima, ElementKind::U32, y),
            None => Ok(access),
        }
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        let (pixels, places, [_, columns]) = self.shape.sizes();
        let planes = self.shape.planes as usize;
        let x = memory.read::<f32>(&self.x);
        let y = &mut memory.write::<f32>(&self.y)[..planes * places];
        let width = self.shape.image[1] as usize;
        let window = |place: usize| {
            let plane = place / places * pixels;
            let (row, column) = (place % places / columns, place % columns);
            (
                &x[plane..plane + pixels],
                self.shape.pixels(0, row),
                self.shape.pixels(1, column),
            )
        };
        match (self.pooling, &self.maxima) {
            (Pooling::Average, _) => y.par_iter_mut().enumerate().for_each(|(place, y)| {
                let (plane, rows, columns) = window(place);
                let sum: f32 = rows
                    .clone()
                    .flat_map(|row| &plane[row * width..][columns.clone()])
                    .sum();
                *y = sum / (rows.len() * columns.len()) as f32;
            }),
            (Pooling::Max, maxima) => {
                let mut unwanted = vec![0; if maxima.is_none() { planes * places } else { 0 }];
                let maxima = maxima.as_ref().map_or(&mut unwanted[..], |at| {
                    &mut memory.write::<u32>(at)[..planes * places]
                });
                let to = y
                    .par_chunks_mut(places.max(1))
                    .zip(maxima.par_chunks_mut(places.max(1)));
                to.zip(x.par_chunks(pixels))
                    .for_each_init(Vec::new, |best, ((y, at), plane)| {
                        let each = y
                            .chunks_mut(columns)
                            .zip(at.chunks_mut(columns))
                            .enumerate();
                        each.for_each(|(row, (y, at))| self.maxima_of_row(plane, row, best, y, at));
                    });
            }
        }
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        let (_, y) = self.shape.lengths().expect("access() has checked it");
        if y > 0 {
            let none = unused(&self.y, ElementKind::U32);
            let maxima = self.maxima.as_ref().unwrap_or(&none);
            let parameters = self.shape.parameters(self.pooling, self.maxima.is_some());
            lowering.dispatch(
                shaders::pool(),
                &[&self.x, &self.y, maxima],
                &parameters,
                grid(y, GROUP),
            );
        }
        Ok(())
    }
}

impl Pool2d {
    /// A row of maxima: first down the columns of the image, side by side, then along them. Of
    /// `best` the memory is used.
    fn maxima_of_row(
        &self,
        plane: &[f32],
        row: usize,
        best: &mut Vec<(f32, u32)>,
        y: &mut [f32],
        at: &mut [u32],
    ) {
        let width = self.shape.image[1] as usize;
        let rows = self.shape.pixels(0, row);
        let first = rows.start * width;
        best.clear();
        best.extend(
            plane[first..first + width]
                .iter()
                .zip(first as u32..)
                .map(|(value, at)| (*value, at)),
        );
        for row in rows.skip(1) {
            let first = row * width;
            let values = plane[first..first + width].iter().zip(first as u32..);
            best.iter_mut()
                .zip(values)
                .for_each(|(best, (value, at))| *best = larger(*best, (*value, at)));
        }
        for (column, (y, at)) in y.iter_mut().zip(at).enumerate() {
            let columns = self.shape.pixels(1, column);
            let best = &best[columns];
            (*y, *at) = best[1..]
                .iter()
                .fold(best[0], |best, other| larger(best, *other));
        }
    }
}

/// The larger of two pixels; of equal ones, or of two that are NaN, the one that comes first in the
/// plane.
#[inline(always)]
fn larger(one: (f32, u32), other: (f32, u32)) -> (f32, u32) {
    let is_larger = other.0 > one.0 || (other.0.is_nan() && !one.0.is_nan());
    let is_equal = other.0 == one.0 || (other.0.is_nan() && one.0.is_nan());
    if is_larger || (is_equal && other.1 < one.1) {
        other
    } else {
        one
    }
}

impl Operation for Pool2dBackward {
    fn name(&self) -> &'static str {
        "pool2d backward"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let (x, y) = self.shape.lengths()?;
        let access = OpAccess::default()
            .read("dy", &self.dy, ElementKind::F32, y)?
            .write("dx", &self.dx, ElementKind::F32, x)?;
        match (self.pooling, &self.maxima) {
            (Pooling::Max, Some(maxima)) => access.read("maxima", maxima, ElementKind::U32, y),
            (Pooling::Average, None) => Ok(access),
            (Pooling::Max, None) => Err("the gradient of maxima needs `maxima`".into()),
            (Pooling::Average, Some(_)) => Err("averages have no `maxima`".into()),
        }
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        let (pixels, places, [_, columns]) = self.shape.sizes();
        let planes = self.shape.planes as usize;
        let dy = &memory.read::<f32>(&self.dy)[..planes * places];
        let dx = &mut memory.write::<f32>(&self.dx)[..planes * pixels];
        let maxima = self
            .maxima
            .as_ref()
            .map(|maxima| &memory.read::<u32>(maxima)[..planes * places]);
        let width = self.shape.image[1] as usize;
        dx.par_chunks_mut(pixels)
            .zip(dy.par_chunks(places))
            .enumerate()
            .for_each(|(plane, (dx, dy))| {
                dx.fill(0.0);
                if let Some(maxima) = maxima {
                    // A place that no forward op wrote is nobody's.
                    let pairs = dy.iter().zip(&maxima[plane * places..]);
                    pairs.for_each(|(dy, at)| {
                        dx.get_mut(*at as usize)
                            .into_iter()
                            .for_each(|dx| *dx += dy)
                    });
                    return;
                }
                for (place, dy) in dy.iter().enumerate() {
                    let (rows, columns) = (
                        self.shape.pixels(0, place / columns),
                        self.shape.pixels(1, place % columns),
                    );
                    let share = dy / (rows.len() * columns.len()) as f32;
                    rows.for_each(|row| {
                        dx[row * width..][columns.clone()]
                            .iter_mut()
                            .for_each(|dx| *dx += share)
                    });
                }
            });
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        let (x, _) = self.shape.lengths().expect("access() has checked it");
        if x > 0 {
            let none = unused(&self.dx, ElementKind::U32);
            let maxima = self.maxima.as_ref().unwrap_or(&none);
            let parameters = self.shape.parameters(self.pooling, self.maxima.is_some());
            lowering.dispatch(
                shaders::pool_backward(),
                &[&self.dy, maxima, &self.dx],
                &parameters,
                grid(x, GROUP),
            );
        }
        Ok(())
    }
}
