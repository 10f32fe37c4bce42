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
    /// They come from elsewhere: running averages, when a network is used.
    pub given: bool,
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
        let groups = self.groups.layout()[0].into();
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

    fn cpu(&self, memory: &CpuMemory) {
        let [groups, outer, inner] = self.groups.layout().map(|size| size as usize);
        if groups * outer * inner == 0 {
            return;
        }
        let (x, scale, shift) = (
            memory.read::<f32>(&self.x),
            memory.read::<f32>(&self.scale),
            memory.read::<f32>(&self.shift),
        );
        if !self.given {
            let (means, inverses) = (
                memory.write::<f32>(&self.means),
                memory.write::<f32>(&self.inverses),
            );
            means[..groups]
                .par_iter_mut()
                .zip(&mut inverses[..groups])
                .enumerate()
                .for_each(|(group, (mean, inverse))| {
                    let sum = |of: &dyn Fn(f64) -> f64| -> f64 {
                        let stretches = self.groups.stretches(group);
                        stretches
                            .flat_map(|stretch| &x[stretch])
                            .map(|x| of(f64::from(*x)))
                            .sum()
                    };
                    let n = (outer * inner) as f64;
                    let middle = sum(&|x| x) / n;
                    let variance = sum(&|x| (x - middle) * (x - middle)) / n;
                    (*mean, *inverse) = (
                        middle as f32,
                        (1.0 / (variance + f64::from(self.epsilon)).sqrt()) as f32,
                    );
                });
        }
        let (means, inverses) = (
            memory.read::<f32>(&self.means),
            memory.read::<f32>(&self.inverses),
        );
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

impl Operation for NormBackward {
    fn name(&self) -> &'static str {
        "norm backward"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let (len, scales) = self.groups.lengths()?;
        let groups = self.groups.layout()[0].into();
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

    fn cpu(&self, memory: &CpuMemory) {
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
        let z = |group: usize, at: usize| (x[at] - means[group]) * inverses[group];
        let per_element = self.groups.per_element();
        // Of h, h z, dy, dy z, over each group.
        let sums = (0..groups).into_par_iter().map(|group| {
            let mut sums = [0f64; 4];
            for stretch in self.groups.stretches(group) {
                for (j, at) in stretch.enumerate() {
                    let (d, z) = (f64::from(dy[at]), f64::from(z(group, at)));
                    let h = d * f64::from(scale[if per_element { j } else { group }]);
                    sums.iter_mut()
                        .zip([h, h * z, d, d * z])
                        .for_each(|(sum, value)| *sum += value);
                }
            }
            sums
        });
        let sums: Vec<[f64; 4]> = sums.collect();
        let n = (outer * inner) as f64;
        let dx = &mut memory.write::<f32>(&self.dx)[..groups * outer * inner];
        dx.par_chunks_mut(inner)
            .enumerate()
            .for_each(|(stretch, dx)| {
                let group = stretch % groups;
                let (h_mean, hz_mean) = ((sums[group][0] / n) as f32, (sums[group][1] / n) as f32);
                for (j, dx) in dx.iter_mut().enumerate() {
                    let at = stretch * inner + j;
                    let h = dy[at] * scale[if per_element { j } else { group }];
                    *dx = inverses[group] * (h - h_mean - z(group, at) * hz_mean);
                }
            });
        if !per_element {
            let pairs = dscale.iter_mut().zip(dshift).zip(&sums);
            pairs.for_each(|((dscale, dshift), sums)| {
                (*dscale, *dshift) = (sums[3] as f32, sums[2] as f32)
            });
            return;
        }
        // Columns by blocks, row after row: the same order with any number of threads.
        const COLUMNS: usize = 256;
        let blocks = dscale
            .par_chunks_mut(COLUMNS)
            .zip(dshift.par_chunks_mut(COLUMNS))
            .enumerate();
        blocks.for_each(|(block, (dscale, dshift))| {
            for group in 0..groups {
                for (j, (dscale, dshift)) in dscale.iter_mut().zip(dshift.iter_mut()).enumerate() {
                    let at = group * inner + block * COLUMNS + j;
                    *dscale += dy[at] * z(group, at);
                    *dshift += dy[at];
                }
            }
        });
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
