//! Layer and batch normalization, forward and backward. Both normalize groups of numbers; they
//! differ in where the numbers of a group lie, and in what has a scale and a shift of its own.

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

/// What is normalized together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Groups {
    /// Each row of rows × columns; scale and shift for each column. Ba, Kiros and Hinton, arXiv
    /// 1607.06450.
    Layer { rows: u32, columns: u32 },
    /// Each channel of samples × channels × pixels; scale and shift for each channel. Ioffe and
    /// Szegedy, arXiv 1502.03167.
    Batch {
        samples: u32,
        channels: u32,
        pixels: u32,
    },
}

/// y = (x - mean) · inverse · scale + shift, where inverse = 1 / √(variance + ε), with the variance
/// over n.
#[derive(Clone, Debug)]
pub struct Norm {
    pub groups: Groups,
    pub x: BufferView,
    pub scale: BufferView,
    pub shift: BufferView,
    pub y: BufferView,
    /// One a group, and so is `inverses`: written, or read if `given`.
    pub means: BufferView,
    pub inverses: BufferView,
    /// Whether means and deviations come from elsewhere: running averages, when a network is used.
    pub given: bool,
    /// ε: keeps the deviation of equal numbers above zero.
    pub epsilon: f32,
}

/// Gradients of `Norm` whose means and deviations were not given.
#[derive(Clone, Debug)]
pub struct NormBackward {
    pub groups: Groups,
    pub x: BufferView,
    pub scale: BufferView,
    pub dy: BufferView,
    /// As the forward op wrote them.
    pub means: BufferView,
    pub inverses: BufferView,
    pub dx: BufferView,
    pub dscale: BufferView,
    pub dshift: BufferView,
}

impl Groups {
    /// How many groups there are: so many means and deviations.
    pub fn count(self) -> u32 {
        self.layout()[0]
    }

    /// Groups, and for each of them outer × inner elements.
    fn layout(self) -> [u32; 3] {
        match self {
            Self::Layer { rows, columns } => [rows, 1, columns],
            Self::Batch {
                samples,
                channels,
                pixels,
            } => [channels, samples, pixels],
        }
    }

    fn per_element(self) -> bool {
        matches!(self, Self::Layer { .. })
    }

    /// Numbers in all, and scales.
    fn lengths(self) -> Result<(u64, u64), String> {
        let [groups, _, inner] = self.layout();
        Ok((
            elements(&self.layout())?,
            if self.per_element() { inner } else { groups }.into(),
        ))
    }

    /// The places of a group's elements, in stretches.
    fn stretches(self, group: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let [groups, outer, inner] = self.layout().map(|size| size as usize);
        (0..outer)
            .map(move |o| (o * groups + group) * inner)
            .map(move |first| first..first + inner)
    }
}

impl Operation for Norm {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let (len, scales) = self.groups.lengths()?;
        let groups = self.groups.count().into();
        let access = OpAccess::default().read("x", &self.x, ElementKind::F32, len)?;
        let access = access
            .read("scale", &self.scale, ElementKind::F32, scales)?
            .read("shift", &self.shift, ElementKind::F32, scales)?;
        let access = access.write("y", &self.y, ElementKind::F32, len)?;
        let (means, inverses) = (&self.means, &self.inverses);
        if self.given {
            return access.read("means", means, ElementKind::F32, groups)?.read(
                "inverses",
                inverses,
                ElementKind::F32,
                groups,
            );
        }
        access
            .write("means", means, ElementKind::F32, groups)?
            .write("inverses", inverses, ElementKind::F32, groups)
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        let [groups, outer, inner] = self.groups.layout().map(|size| size as usize);
        if groups * outer * inner == 0 {
            return;
        }
        let (x, scale, shift) = (
            memory.read::<f32>(&self.x),
            memory.read::<f32>(&self.scale),
            memory.read::<f32>(&self.shift),
        );
        let (means, inverses) = if self.given {
            (
                memory.read::<f32>(&self.means),
                memory.read::<f32>(&self.inverses),
            )
        } else {
            let means = memory.write::<f32>(&self.means);
            let inverses = memory.write::<f32>(&self.inverses);
            self.moments(x, &mut means[..groups], &mut inverses[..groups]);
            (&*means, &*inverses)
        };
        let y = &mut memory.write::<f32>(&self.y)[..groups * outer * inner];
        y.par_chunks_mut(inner)
            .zip(x.par_chunks(inner))
            .enumerate()
            .for_each(|(stretch, (y, x))| {
                let group = stretch % groups;
                let (mean, inverse) = (means[group], inverses[group]);
                for (j, (y, x)) in y.iter_mut().zip(x).enumerate() {
                    let own = if self.groups.per_element() { j } else { group };
                    *y = (x - mean) * inverse * scale[own] + shift[own];
                }
            });
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        let [groups, outer, inner] = self.groups.layout();
        if groups > 0 && outer > 0 && inner > 0 {
            let flags = u32::from(self.groups.per_element()) | u32::from(self.given) << 1;
            let bindings = [
                &self.x,
                &self.scale,
                &self.shift,
                &self.y,
                &self.means,
                &self.inverses,
            ];
            let parameters = [groups, outer, inner, flags, self.epsilon.to_bits()];
            lowering.dispatch(
                shaders::norm(),
                &bindings,
                &parameters,
                grid(groups.into(), 1),
            );
        }
        Ok(())
    }
}

impl Norm {
    /// Each group's mean and inverse deviation.
    fn moments(&self, x: &[f32], means: &mut [f32], inverses: &mut [f32]) {
        let [_, outer, inner] = self.groups.layout().map(|size| size as usize);
        let n = (outer * inner) as f64;
        means
            .par_iter_mut()
            .zip(inverses)
            .enumerate()
            .for_each(|(group, (mean, inverse))| {
                let sum = |of: &dyn Fn(f64) -> f64| -> f64 {
                    let stretches = self.groups.stretches(group);
                    stretches
                        .flat_map(|stretch| &x[stretch])
                        .map(|x| of(f64::from(*x)))
                        .sum()
                };
                let middle = sum(&|x| x) / n;
                let variance = sum(&|x| (x - middle) * (x - middle)) / n;
                let deviation = (variance + f64::from(self.epsilon)).sqrt();
                (*mean, *inverse) = (middle as f32, (1.0 / deviation) as f32);
            });
    }
}

/// What the gradients of a normalization are made of.
struct NormRows<'a> {
    groups: Groups,
    x: &'a [f32],
    dy: &'a [f32],
    scale: &'a [f32],
    means: &'a [f32],
    inverses: &'a [f32],
}

impl NormRows<'_> {
    /// The normalized number at a place.
    #[inline(always)]
    fn z(&self, group: usize, at: usize) -> f32 {
        (self.x[at] - self.means[group]) * self.inverses[group]
    }

    /// The scale of number `j` of a stretch.
    #[inline(always)]
    fn scale(&self, group: usize, j: usize) -> f32 {
        self.scale[if self.groups.per_element() { j } else { group }]
    }

    /// Of h, h z, dy, dy z, over each group.
    fn sums(&self) -> Vec<[f64; 4]> {
        let groups = self.groups.count() as usize;
        let sums = (0..groups).into_par_iter().map(|group| {
            let mut sums = [0f64; 4];
            for stretch in self.groups.stretches(group) {
                for (j, at) in stretch.enumerate() {
                    let (d, z) = (f64::from(self.dy[at]), f64::from(self.z(group, at)));
                    let h = d * f64::from(self.scale(group, j));
                    sums.iter_mut()
                        .zip([h, h * z, d, d * z])
                        .for_each(|(sum, value)| *sum += value);
                }
            }
            sums
        });
        sums.collect()
    }

    /// Gradients of scales and shifts that belong to columns. Columns by blocks, row after row: the
    /// same order with any number of threads.
    fn add_columns(&self, dscale: &mut [f32], dshift: &mut [f32]) {
        const COLUMNS: usize = 256;
        let [groups, _, inner] = self.groups.layout().map(|size| size as usize);
        let blocks = dscale
            .par_chunks_mut(COLUMNS)
            .zip(dshift.par_chunks_mut(COLUMNS))
            .enumerate();
        blocks.for_each(|(block, (dscale, dshift))| {
            for group in 0..groups {
                for (j, (dscale, dshift)) in dscale.iter_mut().zip(dshift.iter_mut()).enumerate() {
                    let at = group * inner + block * COLUMNS + j;
                    *dscale += self.dy[at] * self.z(group, at);
                    *dshift += self.dy[at];
                }
            }
        });
    }
}

impl Operation for NormBackward {
    fn name(&self) -> &'static str {
        "norm backward"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let (len, scales) = self.groups.lengths()?;
        let groups = self.groups.count().into();
        let access = OpAccess::default()
            .read("x", &self.x, ElementKind::F32, len)?
            .read("dy", &self.dy, ElementKind::F32, len)?;
        let access = access.read("scale", &self.scale, ElementKind::F32, scales)?;
        let access = access.read("means", &self.means, ElementKind::F32, groups)?;
        let access = access
            .read("inverses", &self.inverses, ElementKind::F32, groups)?
            .write("dx", &self.dx, ElementKind::F32, len)?;
        access
            .write("dscale", &self.dscale, ElementKind::F32, scales)?
            .write("dshift", &self.dshift, ElementKind::F32, scales)
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        let [groups, outer, inner] = self.groups.layout().map(|size| size as usize);
        let scales = if self.groups.per_element() {
            inner
        } else {
            groups
        };
        let dscale = &mut memory.write::<f32>(&self.dscale)[..scales];
        let dshift = &mut memory.write::<f32>(&self.dshift)[..scales];
        dscale.fill(0.0);
        dshift.fill(0.0);
        if groups * outer * inner == 0 {
            return;
        }
        let (x, dy, scale) = (
            memory.read::<f32>(&self.x),
            memory.read::<f32>(&self.dy),
            memory.read::<f32>(&self.scale),
        );
        let (means, inverses) = (
            memory.read::<f32>(&self.means),
            memory.read::<f32>(&self.inverses),
        );
        let rows = NormRows {
            groups: self.groups,
            x,
            dy,
            scale,
            means,
            inverses,
        };
        let sums = rows.sums();
        let n = (outer * inner) as f64;
        let dx = &mut memory.write::<f32>(&self.dx)[..groups * outer * inner];
        dx.par_chunks_mut(inner)
            .enumerate()
            .for_each(|(stretch, dx)| {
                let group = stretch % groups;
                let (h_mean, hz_mean) = ((sums[group][0] / n) as f32, (sums[group][1] / n) as f32);
                for (j, dx) in dx.iter_mut().enumerate() {
                    let at = stretch * inner + j;
                    let h = dy[at] * rows.scale(group, j);
                    *dx = inverses[group] * (h - h_mean - rows.z(group, at) * hz_mean);
                }
            });
        if self.groups.per_element() {
            rows.add_columns(dscale, dshift);
        } else {
            let pairs = dscale.iter_mut().zip(dshift).zip(&sums);
            pairs.for_each(|((dscale, dshift), sums)| {
                (*dscale, *dshift) = (sums[3] as f32, sums[2] as f32)
            });
        }
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        let [groups, outer, inner] = self.groups.layout();
        let per_element = self.groups.per_element();
        let (_, scales) = self.groups.lengths().expect("access() has checked it");
        if groups == 0 || outer == 0 || inner == 0 {
            lowering.fill(&self.dscale.part(0, scales), 0);
            lowering.fill(&self.dshift.part(0, scales), 0);
            return Ok(());
        }
        let none = unused(&self.dx, ElementKind::F32);
        let (dscale, dshift) = if per_element {
            (&none, &none)
        } else {
            (&self.dscale, &self.dshift)
        };
        let bindings = [
            &self.x,
            &self.scale,
            &self.dy,
            &self.means,
            &self.inverses,
            &self.dx,
            dscale,
            dshift,
        ];
        let parameters = [groups, outer, inner, u32::from(per_element)];
        lowering.dispatch(
            shaders::norm_backward(),
            &bindings,
            &parameters,
            grid(groups.into(), 1),
        );
        if per_element {
            let bindings = [
                &self.x,
                &self.dy,
                &self.means,
                &self.inverses,
                &self.dscale,
                &self.dshift,
            ];
            lowering.dispatch(
                shaders::norm_columns(),
                &bindings,
                &[groups, inner],
                grid(inner.into(), 32),
            );
        }
        Ok(())
    }
}
