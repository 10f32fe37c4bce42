//! Softmax over rows, and its cross-entropy against labels. The maximum is taken off first, so that
//! nothing overflows.

use super::{
    access::{OpAccess, elements},
    buffer::{BufferView, ElementKind},
    cpu::{CpuMemory, math},
    dispatch::{Lowering, grid, unused},
    engine::EngineError,
    op::Operation,
    shaders,
};
use rayon::prelude::*;

/// y[r, j] = exp(x[r, j]) / Σ exp(x[r, ·]). A row with NaN or +∞ in it, or of -∞ alone, becomes
/// NaN.
#[derive(Clone, Debug)]
pub struct Softmax {
    /// rows × columns; may be the view of `y`.
    pub x: BufferView,
    pub y: BufferView,
    pub rows: u32,
    pub columns: u32,
}

/// dx = y (dy - Σ y dy), row by row.
#[derive(Clone, Debug)]
pub struct SoftmaxBackward {
    /// What `Softmax` gave, rows × columns.
    pub y: BufferView,
    /// May be the view of `dx`.
    pub dy: BufferView,
    pub dx: BufferView,
    pub rows: u32,
    pub columns: u32,
}

/// The cross-entropy of the softmax of each row against the row's label, and its gradient.
#[derive(Clone, Debug)]
pub struct SoftmaxCrossEntropy {
    /// rows × columns; may be the view of `gradient`.
    pub logits: BufferView,
    /// A column for each row, u32. One that does not exist makes the row's loss and gradient NaN.
    pub labels: BufferView,
    /// One a row.
    pub loss: Option<BufferView>,
    /// (softmax - one-hot) · `scale`, rows × columns.
    pub gradient: Option<BufferView>,
    /// 1 / rows where the loss that counts is the mean.
    pub scale: f32,
    pub rows: u32,
    pub columns: u32,
}

const ROW_ELEMENTS: usize = 1 << 14;

/// Rows that are worth a thread's while.
fn rows_at_once(columns: u32) -> usize {
    ROW_ELEMENTS.div_ceil(columns.max(1) as usize)
}

/// The row's maximum, NaN or infinite where softmax has no answer.
fn maximum(row: &[f32]) -> f32 {
    row.iter().fold(
        f32::NEG_INFINITY,
        |a, b| if *b > a || b.is_nan() { *b } else { a },
    )
}

/// exp(x - max) in place of x, and the sum.
fn exponentials(row: &mut [f32], max: f32) -> f32 {
    row.iter_mut().for_each(|x| *x = math::exp(*x - max));
    row.iter().map(|x| f64::from(*x)).sum::<f64>() as f32
}

impl Operation for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let len = elements(&[self.rows, self.columns])?;
        exact(&self.x, &self.y, len)?;
        OpAccess::default()
            .read_in_place("x", &self.x, ElementKind::F32, len)?
            .write("y", &self.y, ElementKind::F32, len)
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        let columns = self.columns as usize;
        if self.y.len == 0 {
            return;
        }
        let y = memory.write::<f32>(&self.y);
        if !self.x.is_same(&self.y) {
            y.copy_from_slice(memory.read::<f32>(&self.x));
        }
        y.par_chunks_mut(columns)
            .with_min_len(rows_at_once(self.columns))
            .for_each(|row| {
                let max = maximum(row);
                if !max.is_finite() {
                    return row.fill(f32::NAN);
                }
                let sum = exponentials(row, max);
                row.iter_mut().for_each(|y| *y /= sum);
            });
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        if self.y.len > 0 {
            let none = (
                unused(&self.y, ElementKind::U32),
                unused(&self.y, ElementKind::F32),
            );
            let parameters = [
                self.rows,
                self.columns,
                2,
                1f32.to_bits(),
                f32::NAN.to_bits(),
            ];
            let bindings = [&self.x, &none.0, &self.y, &none.1];
            lowering.dispatch(
                shaders::softmax(),
                &bindings,
                &parameters,
                grid(self.rows.into(), 1),
            );
        }
        Ok(())
    }
}

impl Operation for SoftmaxBackward {
    fn name(&self) -> &'static str {
        "softmax backward"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let len = elements(&[self.rows, self.columns])?;
        exact(&self.dy, &self.dx, len)?;
        let access = OpAccess::default().read("y", &self.y, ElementKind::F32, len)?;
        access
            .read_in_place("dy", &self.dy, ElementKind::F32, len)?
            .write("dx", &self.dx, ElementKind::F32, len)
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        let columns = self.columns as usize;
        if self.dx.len == 0 {
            return;
        }
        let dx = memory.write::<f32>(&self.dx);
        if !self.dy.is_same(&self.dx) {
            dx.copy_from_slice(memory.read::<f32>(&self.dy));
        }
        let y = memory.read::<f32>(&self.y)[..dx.len()].par_chunks(columns);
        dx.par_chunks_mut(columns)
            .zip(y)
            .with_min_len(rows_at_once(self.columns))
            .for_each(|(dx, y)| {
                let sum = dx
                    .iter()
                    .zip(y)
                    .map(|(dy, y)| f64::from(*dy) * f64::from(*y))
                    .sum::<f64>() as f32;
                dx.iter_mut()
                    .zip(y)
                    .for_each(|(dx, y)| *dx = y * (*dx - sum));
            });
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        if self.dx.len > 0 {
            let bindings = [&self.y, &self.dy, &self.dx];
            let groups = grid(self.rows.into(), 1);
            lowering.dispatch(
                shaders::softmax_backward(),
                &bindings,
                &[self.rows, self.columns],
                groups,
            );
        }
        Ok(())
    }
}

impl Operation for SoftmaxCrossEntropy {
    fn name(&self) -> &'static str {
        "softmax cross-entropy"
    }

    fn access(&self) -> Result<OpAccess, String> {
        if self.columns == 0 && self.rows > 0 {
            return Err("there are no classes".into());
        }
        let len = elements(&[self.rows, self.columns])?;
        let access =
            OpAccess::default().read("labels", &self.labels, ElementKind::U32, self.rows.into())?;
        let mut access = access.read_in_place("logits", &self.logits, ElementKind::F32, len)?;
        if let Some(loss) = &self.loss {
            access = access.write("loss", loss, ElementKind::F32, self.rows.into())?;
        }
        if let Some(gradient) = &self.gradient {
            exact(&self.logits, gradient, len)?;
            access = access.write("gradient", gradient, ElementKind::F32, len)?;
        }
        // Only the gradient may take the logits' place: it has their shape.
        match &self.loss {
            Some(loss) if loss.overlaps(&self.logits) => Err("`loss` overlaps `logits`".into()),
            _ => Ok(access),
        }
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        let (rows, columns) = (self.rows as usize, self.columns as usize);
        if rows == 0 {
            return;
        }
        let labels = &memory.read::<u32>(&self.labels)[..rows];
        let losses = self
            .loss
            .as_ref()
            .map(|loss| &mut memory.write::<f32>(loss)[..rows]);
        let mut no_losses = vec![0.0; if losses.is_none() { rows } else { 0 }];
        let losses = losses.unwrap_or(&mut no_losses);
        let same = self
            .gradient
            .as_ref()
            .is_some_and(|gradient| gradient.is_same(&self.logits));
        let mut no_gradient = Vec::new();
        let gradient = match &self.gradient {
            Some(gradient) => memory.write::<f32>(gradient),
            None => {
                no_gradient.resize(rows * columns, 0.0);
                &mut no_gradient[..]
            }
        };
        if !same {
            gradient.copy_from_slice(&memory.read::<f32>(&self.logits)[..rows * columns]);
        }
        let each = gradient
            .par_chunks_mut(columns)
            .zip(losses)
            .zip(labels)
            .with_min_len(rows_at_once(self.columns));
        each.for_each(|((row, loss), label)| {
            let max = maximum(row);
            let Some(logit) = row
                .get(*label as usize)
                .copied()
                .filter(|_| max.is_finite())
            else {
                *loss = f32::NAN;
                return row.fill(f32::NAN);
            };
            let sum = exponentials(row, max);
            *loss = sum.ln() + (max - logit);
            let scale = self.scale;
            row.iter_mut().for_each(|y| *y = *y / sum * scale);
            // Not y·scale - scale: that would lose what is left of y near 1.
            row[*label as usize] = (math::exp(logit - max) / sum - 1.0) * scale;
        });
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        if self.rows == 0 {
            return Ok(());
        }
        let none = unused(&self.logits, ElementKind::F32);
        let flags =
            1 | u32::from(self.gradient.is_some()) << 1 | u32::from(self.loss.is_some()) << 2;
        let parameters = [
            self.rows,
            self.columns,
            flags,
            self.scale.to_bits(),
            f32::NAN.to_bits(),
        ];
        let (gradient, loss) = (
            self.gradient.as_ref().unwrap_or(&none),
            self.loss.as_ref().unwrap_or(&none),
        );
        let bindings = [&self.logits, &self.labels, gradient, loss];
        lowering.dispatch(
            shaders::softmax(),
            &bindings,
            &parameters,
            grid(self.rows.into(), 1),
        );
        Ok(())
    }
}

/// Views that may be one and the same must have exactly the op's length.
fn exact(input: &BufferView, output: &BufferView, len: u64) -> Result<(), String> {
    if input.len == len && output.len == len {
        return Ok(());
    }
    Err(format!(
        "input and output have {} and {} elements, not {len}",
        input.len, output.len
    ))
}
