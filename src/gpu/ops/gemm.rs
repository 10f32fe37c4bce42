//! Matrix products: C = act(α op(A) op(B) + β C + bias), batched, f32 or f16 inputs, f32 sums.

use super::{
    super::device::DeviceError,
    access::{OpAccess, elements},
    activation::Activation,
    buffer::{BufferView, ElementKind},
    cpu::{CpuMemory, Product, product},
    dispatch::{Lowering, unused},
    engine::EngineError,
    op::Operation,
    tuning::ProductShader,
};
use half::f16;
use rayon::prelude::*;
use std::borrow::Cow;

/// What shaders read at once, if they can.
const VECTOR_BYTES: u64 = 16;

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
        match self.halves(lowering.bindable())? {
            Some(halves) => halves.iter().try_for_each(|half| half.lower(lowering)),
            None => self.dispatch(lowering.product(self)?, lowering),
        }
    }
}

/// Some rows of one product.
struct Panel<'a> {
    batch: usize,
    /// The first.
    row: usize,
    c: &'a mut [f32],
}

/// A dimension in which a product is cut.
#[derive(Clone, Copy, Debug)]
enum Axis {
    M,
    N,
    K,
    Batch,
}

impl Gemm {
    fn is_half(matrix: &Matrix) -> bool {
        matrix.view.kind == ElementKind::F16
    }

    /// Whether both inputs are f16.
    pub fn is_of_halves(&self) -> bool {
        Self::is_half(&self.a) && Self::is_half(&self.b)
    }

    /// Whether A and B can be read in vectors of 16 bytes: they, their rows and the matrices of a
    /// batch begin at multiples of that, and their rows are multiples of it. Products of f16 by
    /// such vectors take neither matrix transposed.
    pub fn is_of_vectors(&self) -> bool {
        let of_vectors = |matrix: &Matrix, columns: u32| {
            let bytes = matrix.view.kind.bytes();
            let numbers = [columns, matrix.row_stride, matrix.batch_stride].map(u64::from);
            let begins = matrix.view.range().start;
            begins.is_multiple_of(VECTOR_BYTES)
                && numbers
                    .iter()
                    .all(|elements| (elements * bytes).is_multiple_of(VECTOR_BYTES))
        };
        let is_turned = self.transpose_a || self.transpose_b;
        Self::is_half(&self.a) == Self::is_half(&self.b)
            && !(is_turned && Self::is_half(&self.a))
            && of_vectors(&self.a, if self.transpose_a { self.m } else { self.k })
            && of_vectors(&self.b, if self.transpose_b { self.k } else { self.n })
    }

    /// Where a matrix is more than `most` bytes, two products that do the same, one after the
    /// other.
    fn halves(&self, most: u64) -> Result<Option<[Self; 2]>, EngineError> {
        let (m, n, k) = (self.m, self.n, self.k);
        let [a, b, c] = self.axes();
        let bytes = |matrix: &Matrix, [rows, columns]: [Axis; 2], batch: u32| {
            let (rows, columns) = (self.extent(rows), self.extent(columns));
            let reach = matrix.reach("", rows, columns, batch).unwrap_or(u64::MAX);
            reach.saturating_mul(matrix.view.kind.bytes())
        };
        let all = [(&self.a, a), (&self.b, b), (&self.c, c)];
        let large = |batch: u32| {
            let mut all = all.iter();
            all.find(|(matrix, axes)| bytes(matrix, *axes, batch) > most)
        };
        if large(self.batch).is_none() {
            return Ok(None);
        }
        let axis = match large(1) {
            // One by itself would do.
            None => Axis::Batch,
            Some(_) if self.batch > 1 => Axis::Batch,
            // What lies side by side in memory are rows; of one row its columns.
            Some((_, [rows, columns])) => match self.extent(*rows) {
                0 | 1 => *columns,
                _ => *rows,
            },
        };
        if self.extent(axis) < 2 {
            let what =
                format!("a product of {m} x {k} by {k} x {n}: a row is more than {most} bytes");
            return Err(DeviceError::Invalid(what).into());
        }
        let half = self.extent(axis) / 2;
        Ok(Some([
            self.part(axis, 0, half),
            self.part(axis, half, self.extent(axis)),
        ]))
    }

    /// What the rows and the columns of A, B and C are.
    fn axes(&self) -> [[Axis; 2]; 3] {
        let turned = |axes: [Axis; 2], turn: bool| if turn { [axes[1], axes[0]] } else { axes };
        [
            turned([Axis::M, Axis::K], self.transpose_a),
            turned([Axis::K, Axis::N], self.transpose_b),
            [Axis::M, Axis::N],
        ]
    }

    fn extent(&self, axis: Axis) -> u32 {
        match axis {
            Axis::M => self.m,
            Axis::N => self.n,
            Axis::K => self.k,
            Axis::Batch => self.batch,
        }
    }

    /// What `from..to` of an axis adds to the product; of k, the first part begins it and the last
    /// one ends it.
    fn part(&self, axis: Axis, from: u32, to: u32) -> Self {
        let mut part = self.clone();
        let is_first = from == 0;
        let is_last = to == self.extent(axis);
        match axis {
            Axis::M => part.m = to - from,
            Axis::N => part.n = to - from,
            Axis::K => part.k = to - from,
            Axis::Batch => part.batch = to - from,
        }
        match axis {
            Axis::K => {
                if !is_first {
                    part.beta = 1.0;
                }
                if !is_last {
                    (part.bias, part.activation) = (None, Activation::None);
                }
            }
            Axis::N => {
                let bias = part.bias.take();
                part.bias = bias.map(|bias| bias.part(from.into(), (to - from).into()));
            }
            Axis::M | Axis::Batch => {}
        }
        let [a, b, c] = self.axes();
        let from = u64::from(from);
        for (matrix, [rows, columns]) in [(&mut part.a, a), (&mut part.b, b), (&mut part.c, c)] {
            let mut offset = 0;
            if rows as u8 == axis as u8 {
                offset += from * u64::from(matrix.row_stride);
            }
            if columns as u8 == axis as u8 {
                offset += from;
            }
            if matches!(axis, Axis::Batch) {
                offset += from * u64::from(matrix.batch_stride);
            }
            matrix.view = matrix
                .view
                .part(offset, matrix.view.len.saturating_sub(offset));
        }
        part.trim();
        part
    }

    /// Ends the views where the matrices end.
    fn trim(&mut self) {
        let (batch, axes) = (self.batch, self.axes());
        let extents = axes.map(|axes| axes.map(|axis| self.extent(axis)));
        let matrices = [&mut self.a, &mut self.b, &mut self.c];
        for (matrix, [rows, columns]) in matrices.into_iter().zip(extents) {
            if let Ok(reach) = matrix.reach("", rows, columns, batch) {
                matrix.view.len = matrix.view.len.min(reach);
            }
        }
    }

    /// The product by a shader, whatever the size of its matrices.
    pub(super) fn dispatch(
        &self,
        ProductShader {
            shader,
            rows,
            columns,
        }: ProductShader,
        lowering: &mut Lowering<'_>,
    ) -> Result<(), EngineError> {
        let half = Self::is_half;
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
                self.n.div_ceil(columns),
                self.m.div_ceil(rows).min(65_535),
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
