//! Convolutions of images with filters, and their gradients. Images lie as samples × channels ×
//! height × width, filters as filters × channels of a group × height × width. What networks call so
//! is a correlation: the filter is not mirrored.
//!
//! | file | owns |
//! |---|---|
//! | `columns` | the CPU: images as matrices whose columns are windows, then matrix products |
//! | `gather` | the GPU: the same products, with the windows read in place |

mod columns;
mod gather;

use super::{
    access::{OpAccess, elements},
    activation::Activation,
    buffer::{BufferView, ElementKind},
    cpu::CpuMemory,
    dispatch::Lowering,
    engine::EngineError,
    op::Operation,
    window::Window,
};

/// Sizes of a convolution and of its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dShape {
    pub samples: u32,
    /// Of the input.
    pub channels: u32,
    /// Channels of the output.
    pub filters: u32,
    /// Height and width of the input.
    pub image: [u32; 2],
    pub window: Window,
    /// Channels and filters are cut into so many groups; filters see the channels of their own
    /// group. 1: all of them.
    pub groups: u32,
}

/// y = act(x ∗ weights + bias). Padding is zeros, with which weights are multiplied: infinite ones
/// give NaN there.
#[derive(Clone, Debug)]
pub struct Conv2d {
    pub shape: Conv2dShape,
    /// samples × channels × height × width, f32.
    pub x: BufferView,
    /// filters × channels / groups × window, f32.
    pub weights: BufferView,
    /// One for each filter.
    pub bias: Option<BufferView>,
    /// samples × filters × places of the window, see `Conv2dShape::places`.
    pub y: BufferView,
    pub activation: Activation,
}

/// Gradient by the input of a `Conv2d` without activation. A weight that is not finite may make
/// pixels NaN that it does not reach.
#[derive(Clone, Debug)]
pub struct Conv2dInputGradient {
    pub shape: Conv2dShape,
    /// As `y`.
    pub dy: BufferView,
    pub weights: BufferView,
    /// As `x`, overwritten.
    pub dx: BufferView,
}

/// Gradients by the weights and the bias of a `Conv2d` without activation.
#[derive(Clone, Debug)]
pub struct Conv2dWeightGradient {
    pub shape: Conv2dShape,
    pub x: BufferView,
    /// As `y`.
    pub dy: BufferView,
    /// As `weights`, overwritten.
    pub dweights: BufferView,
    /// One for each filter, overwritten.
    pub dbias: Option<BufferView>,
}

impl Conv2dShape {
    /// Height and width of the output.
    pub fn places(&self) -> Result<[u32; 2], String> {
        self.window.places(self.image)
    }

    /// Elements of x, weights and y.
    fn lengths(&self) -> Result<[u64; 3], String> {
        let [rows, columns] = self.places()?;
        if self.groups == 0
            || !self.channels.is_multiple_of(self.groups)
            || !self.filters.is_multiple_of(self.groups)
        {
            let Self {
                channels,
                filters,
                groups,
                ..
            } = self;
            return Err(format!(
                "{channels} channels and {filters} filters cannot be cut into {groups} groups"
            ));
        }
        let [height, width] = self.window.size;
        // Shaders count images and places in 32 bits, also where an empty side leaves nothing to
        // compute.
        elements(&[height, width])?;
        elements(&[self.samples, self.channels])?;
        elements(&[self.samples, self.filters])?;
        Ok([
            elements(&[self.samples, self.channels, self.image[0], self.image[1]])?,
            elements(&[self.filters, self.channels / self.groups, height, width])?,
            elements(&[self.samples, self.filters, rows, columns])?,
        ])
    }

    /// Only after `lengths` found nothing wrong.
    fn sizes(&self) -> Sizes {
        let [rows, columns] = self.places().expect("access() has checked it");
        Sizes {
            shape: *self,
            channels: (self.channels / self.groups) as usize,
            filters: (self.filters / self.groups) as usize,
            pixels: self.image[0] as usize * self.image[1] as usize,
            rows: rows as usize,
            columns: columns as usize,
        }
    }
}

/// What follows from a shape.
struct Sizes {
    shape: Conv2dShape,
    /// Of a group.
    channels: usize,
    /// Of a group.
    filters: usize,
    /// Of a channel of the input.
    pixels: usize,
    /// Of the output.
    rows: usize,
    columns: usize,
}

impl Sizes {
    /// Of a channel of the output.
    fn places(&self) -> usize {
        self.rows * self.columns
    }

    /// Elements of a filter.
    fn taps(&self) -> usize {
        self.channels * self.shape.window.area()
    }
}

impl Operation for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let [x, weights, y] = self.shape.lengths()?;
        let access = OpAccess::default().read("x", &self.x, ElementKind::F32, x)?;
        let access = access
            .read("weights", &self.weights, ElementKind::F32, weights)?
            .write("y", &self.y, ElementKind::F32, y)?;
        match &self.bias {
            Some(bias) => access.read("bias", bias, ElementKind::F32, self.shape.filters.into()),
            None => Ok(access),
        }
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        columns::forward(self, memory);
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        gather::forward(self, lowering);
        Ok(())
    }
}

impl Operation for Conv2dInputGradient {
    fn name(&self) -> &'static str {
        "conv2d input gradient"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let [x, weights, y] = self.shape.lengths()?;
        let access = OpAccess::default().read("dy", &self.dy, ElementKind::F32, y)?;
        access
            .read("weights", &self.weights, ElementKind::F32, weights)?
            .write("dx", &self.dx, ElementKind::F32, x)
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        columns::input_gradient(self, memory);
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        gather::input_gradient(self, lowering);
        Ok(())
    }
}

impl Operation for Conv2dWeightGradient {
    fn name(&self) -> &'static str {
        "conv2d weight gradient"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let [x, weights, y] = self.shape.lengths()?;
        let access = OpAccess::default()
            .read("x", &self.x, ElementKind::F32, x)?
            .read("dy", &self.dy, ElementKind::F32, y)?;
        let access = access.write("dweights", &self.dweights, ElementKind::F32, weights)?;
        match &self.dbias {
            Some(dbias) => {
                access.write("dbias", dbias, ElementKind::F32, self.shape.filters.into())
            }
            None => Ok(access),
        }
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        columns::weight_gradient(self, memory);
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        gather::weight_gradient(self, lowering)
    }
}
