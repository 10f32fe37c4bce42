//! Matrix products: C = act(α op(A) op(B) + β C + bias), batched, f32 or f16 inputs, f32 sums.

use super::{
    access::{OpAccess, elements},
    activation::Activation,
    buffer::{BufferView, ElementKind},
    cpu::{CpuMemory, Product, product},
    dispatch::{Lowering, unused},
    engine::EngineError,
    op::Operation,
    shaders,
};
use half::f16;
use rayon::prelude::*;
use std::borrow::Cow;

/// `batch` products of op(A), m × k, and op(B), k × n. All matrices are row by row.
#[derive(Clone, Debug)]
pub struct Gemm {
    /// m × k, or k × m if `transpose_a`. f32 or f16.
    pub a: Matrix,
    /// k × n, or n × k if `transpose_b`. f32 or f16.
    pub b: Matrix,
    /// m × n, f32. Not read if `beta` is 0.
    pub c: Matrix,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub batch: u32,
    pub transpose_a: bool,
    pub transpose_b: bool,
    /// What the product is multiplied by.
    pub alpha: f32,
    /// What `c` is multiplied by before the product is added; 0: `c` is not read.
    pub beta: f32,
    /// n values, added to each row.
    pub bias: Option<BufferView>,
    pub activation: Activation,
}

/// Matrices of the same size in a view.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub view: BufferView,
    /// Elements from one row to the next.
    pub row_stride: u32,
    /// Elements from one matrix of a batch to the next. 0: the same one for all.
    pub batch_stride: u32,
}

impl Matrix {
    /// Rows side by side, matrices side by side. Sizes beyond 32 bits do not pass `record`.
    pub fn dense(view: BufferView, rows: u32, columns: u32) -> Self {
        Self {
            view,
            row_stride: columns,
            batch_stride: rows.saturating_mul(columns),
        }
    }

    /// Elements that `batch` matrices reach over.
    fn reach(&self, name: &str, rows: u32, columns: u32, batch: u32) -> Result<u64, String> {
        if self.row_stride < columns {
            return Err(format!(
                "`{name}` has {columns} columns but a row stride of {}",
                self.row_stride
            ));
        }
        if rows == 0 || columns == 0 || batch == 0 {
            return Ok(0);
        }
        let last =
            elements(&[batch - 1, self.batch_stride])? + elements(&[rows - 1, self.row_stride])?;
        Ok(last + u64::from(columns))
    }
}

impl Gemm {
    /// C = A B with matrices side by side.
    pub fn new(a: BufferView, b: BufferView, c: BufferView, [m, n, k]: [u32; 3]) -> Self {
        Self {
            a: Matrix::dense(a, m, k),
            b: Matrix::dense(b, k, n),
            c: Matrix::dense(c, m, n),
            m,
            n,
            k,
            batch: 1,
            transpose_a: false,
            transpose_b: false,
            alpha: 1.0,
            beta: 0.0,
            bias: None,
            activation: Activation::None,
        }
    }
}

impl Operation for Gemm {
    fn name(&self) -> &'static str {
        "gemm"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let (m, n, k, batch) = (self.m, self.n, self.k, self.batch);
        let (a_rows, a_columns) = if self.transpose_a { (k, m) } else { (m, k) };
        let (b_rows, b_columns) = if self.transpose_b { (n, k) } else { (k, n) };
        let a = self.a.reach("a", a_rows, a_columns, batch)?;
        let b = self.b.reach("b", b_rows, b_columns, batch)?;
        let c = self.c.reach("c", m, n, batch)?;
        elements(&[m, n, batch])?;
        if batch > 1 && u64::from(self.c.batch_stride) < u64::from(m) * u64::from(self.c.row_stride)
        {
            return Err("the matrices of `c` overlap each other".into());
        }
        let inputs = [ElementKind::F32, ElementKind::F16];
        let access = OpAccess::default()
            .read_any("a", &self.a.view, &inputs, a)?
            .read_any("b", &self.b.view, &inputs, b)?;
        let access = access.write("c", &self.c.view, ElementKind::F32, c)?;
        match &self.bias {
            Some(bias) => access.read("bias", bias, ElementKind::F32, u64::from(n)),
            None => Ok(access),
        }
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        let (m, n) = (self.m as usize, self.n as usize);
        if m == 0 || n == 0 || self.batch == 0 {
            return;
        }
        let (a, b) = (numbers(memory, &self.a.view), numbers(memory, &self.b.view));
        let bias = self
            .bias
            .as_ref()
            .map(|bias| &memory.read::<f32>(bias)[..n]);
        let c = memory.write::<f32>(&self.c.view);
        // Rows are cut so that each thread has some; a sum's order does not depend on it.
        let rows = m
            .div_ceil(rayon::current_num_threads().div_ceil(self.batch as usize))
            .next_multiple_of(8);
        let stride = self.c.row_stride as usize;
        let matrices = c
            .chunks_mut((self.c.batch_stride as usize).max(1))
            .take(self.batch as usize)
            .enumerate();
        let mut parts = Vec::new();
        for (index, matrix) in matrices {
            let end = matrix.len().min(m * stride);
            let panels = matrix[..end].chunks_mut(rows * stride).enumerate();
            parts.extend(panels.map(|(panel, c)| Panel {
                batch: index,
                row: panel * rows,
                c,
            }));
        }
        parts
            .into_par_iter()
            .for_each(|part| self.panel(&a, &b, bias, part));
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        if self.m == 0 || self.n == 0 {
            return Ok(());
        }
        // The large tiles need 16.5 and 26.5 KiB, more than Vulkan promises.
        let large = self.m > 64 && self.n > 64 && lowering.shared_bytes >= 32 << 10;
        let half = |matrix: &Matrix| matrix.view.kind == ElementKind::F16;
        let cooperative = lowering
            .cooperative
            .clone()
            .filter(|_| large && half(&self.a) && half(&self.b));
        let (shader, tile) = match cooperative {
            Some(shader) => (shader, 128),
            None if large => (shaders::gemm_large(), 128),
            None => (shaders::gemm_small(), 32),
        };
        let none = unused(&self.c.view, ElementKind::F32);
        let bias = self.bias.as_ref().unwrap_or(&none);
        let flags = [
            self.transpose_a,
            self.transpose_b,
            half(&self.a),
            half(&self.b),
            self.bias.is_some(),
        ];
        let flags = flags
            .iter()
            .enumerate()
            .fold(0, |flags, (bit, set)| flags | u32::from(*set) << bit);
        for first in (0..self.batch).step_by(65_535) {
            let parameters = [
                self.m,
                self.n,
                self.k,
                self.a.row_stride,
                self.b.row_stride,
                self.c.row_stride,
                self.a.batch_stride,
                self.b.batch_stride,
                self.c.batch_stride,
                self.alpha.to_bits(),
                self.beta.to_bits(),
                flags,
                self.activation as u32,
                first,
            ];
            let groups = [
                self.n.div_ceil(tile),
                self.m.div_ceil(tile).min(65_535),
                (self.batch - first).min(65_535),
            ];
            lowering.dispatch(
                shader.clone(),
                &[&self.a.view, &self.b.view, bias, &self.c.view],
                &parameters,
                groups,
            );
        }
        Ok(())
    }
}

/// Some rows of one product.
struct Panel<'a> {
    batch: usize,
    /// The first.
    row: usize,
    c: &'a mut [f32],
}

impl Gemm {
    fn panel(&self, a: &[f32], b: &[f32], bias: Option<&[f32]>, panel: Panel<'_>) {
        let (n, k, stride) = (self.n as usize, self.k as usize, self.c.row_stride as usize);
        let rows = panel
            .c
            .len()
            .div_ceil(stride)
            .min(self.m as usize - panel.row);
        let strides = |matrix: &Matrix, transposed: bool| match transposed {
            false => [matrix.row_stride as usize, 1],
            true => [1, matrix.row_stride as usize],
        };
        let (a_strides, b_strides) = (
            strides(&self.a, self.transpose_a),
            strides(&self.b, self.transpose_b),
        );
        product(Product {
            m: rows,
            n,
            k,
            alpha: self.alpha,
            a: a.get(panel.batch * self.a.batch_stride as usize + panel.row * a_strides[0]..)
                .unwrap_or_default(),
            a_strides,
            b: b.get(panel.batch * self.b.batch_stride as usize..)
                .unwrap_or_default(),
            b_strides,
            beta: self.beta,
            c: &mut *panel.c,
            c_stride: stride,
        });
        for row in panel
            .c
            .chunks_mut(stride)
            .take(rows)
            .map(|row| &mut row[..n])
        {
            if let Some(bias) = bias {
                row.iter_mut().zip(bias).for_each(|(c, bias)| *c += bias);
            }
            self.activation.apply(row);
        }
    }
}

/// The view's elements as f32.
fn numbers<'a>(memory: &'a CpuMemory<'_>, view: &BufferView) -> Cow<'a, [f32]> {
    match view.kind {
        ElementKind::F16 => memory
            .read::<f16>(view)
            .par_iter()
            .map(|half| half.to_f32())
            .collect::<Vec<_>>()
            .into(),
        ElementKind::F32 | ElementKind::U32 => memory.read::<f32>(view).into(),
    }
}
