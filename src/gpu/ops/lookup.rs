//! Rows of a table by their numbers, and the gradient by the table: what an embedding is.

use super::{
    access::{OpAccess, elements},
    buffer::{BufferView, ElementKind},
    cpu::CpuMemory,
    dispatch::{GROUP, Lowering, grid},
    engine::EngineError,
    op::Operation,
};
use rayon::prelude::*;

/// `output[i, ·]` = `table[indices[i], ·]`. A number that no row has gives NaN.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// rows × columns, f32.
    pub table: BufferView,
    /// `count`, u32.
    pub indices: BufferView,
    /// count × columns, f32.
    pub output: BufferView,
    pub rows: u32,
    pub columns: u32,
    pub count: u32,
}

/// `table_gradient[r, ·]` = Σ `gradient[i, ·]` over the i with `indices[i]` = r, in the order of i.
#[derive(Clone, Debug)]
pub struct LookupBackward {
    /// count × columns, f32.
    pub gradient: BufferView,
    /// `count`, u32.
    pub indices: BufferView,
    /// rows × columns, f32, overwritten.
    pub table_gradient: BufferView,
    pub rows: u32,
    pub columns: u32,
    pub count: u32,
}

/// Elements that are worth a thread's while.
const PART: usize = 1 << 14;

impl Operation for Lookup {
    fn name(&self) -> &'static str {
        "lookup"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let access = OpAccess::default().read(
            "table",
            &self.table,
            ElementKind::F32,
            elements(&[self.rows, self.columns])?,
        )?;
        let access = access.read(
            "indices",
            &self.indices,
            ElementKind::U32,
            self.count.into(),
        )?;
        access.write(
            "output",
            &self.output,
            ElementKind::F32,
            elements(&[self.count, self.columns])?,
        )
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        let columns = self.columns as usize;
        if columns == 0 || self.count == 0 {
            return;
        }
        let table = &memory.read::<f32>(&self.table)[..self.rows as usize * columns];
        let indices = &memory.read::<u32>(&self.indices)[..self.count as usize];
        let output = memory.write::<f32>(&self.output).par_chunks_mut(columns);
        output
            .zip(indices)
            .with_min_len(PART.div_ceil(columns))
            .for_each(|(output, index)| {
                let first = *index as usize * columns;
                match table.get(first..first + columns) {
                    Some(row) => output.copy_from_slice(row),
                    None => output.fill(f32::NAN),
                }
            });
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        let len = u64::from(self.count) * u64::from(self.columns);
        if len > 0 {
            let shader = lowering.generated("lookup", LOOKUP);
            let parameters = [self.rows, self.columns, len as u32, f32::NAN.to_bits()];
            let bindings = [&self.table, &self.indices, &self.output];
            lowering.dispatch(shader, &bindings, &parameters, grid(len, GROUP));
        }
        Ok(())
    }
}

impl Operation for LookupBackward {
    fn name(&self) -> &'static str {
        "lookup backward"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let access = OpAccess::default().read(
            "gradient",
            &self.gradient,
            ElementKind::F32,
            elements(&[self.count, self.columns])?,
        )?;
        let access = access.read(
            "indices",
            &self.indices,
            ElementKind::U32,
            self.count.into(),
        )?;
        access.write(
            "table_gradient",
            &self.table_gradient,
            ElementKind::F32,
            elements(&[self.rows, self.columns])?,
        )
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        let columns = self.columns as usize;
        let gradient = memory.read::<f32>(&self.gradient);
        let indices = &memory.read::<u32>(&self.indices)[..self.count as usize];
        let table = &mut memory.write::<f32>(&self.table_gradient)[..self.rows as usize * columns];
        table.fill(0.0);
        for (row, index) in gradient.chunks_exact(columns.max(1)).zip(indices) {
            let first = *index as usize * columns;
            if let Some(sums) = table.get_mut(first..first + columns) {
                sums.iter_mut()
                    .zip(row)
                    .for_each(|(sum, value)| *sum += value);
            }
        }
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        let len = u64::from(self.rows) * u64::from(self.columns);
        if len > 0 {
            let shader = lowering.generated("lookup backward", LOOKUP_BACKWARD);
            let parameters = [self.columns, self.count, len as u32];
            let bindings = [&self.gradient, &self.indices, &self.table_gradient];
            lowering.dispatch(shader, &bindings, &parameters, grid(len, GROUP));
        }
        Ok(())
    }
}

const LOOKUP: &str = "
struct Push { table_at: u32, indices_at: u32, output_at: u32, rows: u32, columns: u32, n: u32, nan: f32 }
var<immediate> p: Push;
@group(0) @binding(0) var<storage, read> table: array<f32>;
@group(0) @binding(1) var<storage, read> indices: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < p.n; i += groups.x * 256u) {
        let row = indices[p.indices_at + i / p.columns];
        if (row < p.rows) {
            output[p.output_at + i] = table[p.table_at + row * p.columns + i % p.columns];
        } else {
            output[p.output_at + i] = p.nan;
        }
    }
}
";

/// Each sum by one invocation: no atomics, so that the order is the same each time.
const LOOKUP_BACKWARD: &str = "
struct Push { gradient_at: u32, indices_at: u32, table_at: u32, columns: u32, count: u32, n: u32 }
var<immediate> p: Push;
@group(0) @binding(0) var<storage, read> gradient: array<f32>;
@group(0) @binding(1) var<storage, read> indices: array<u32>;
@group(0) @binding(2) var<storage, read_write> table: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < p.n; i += groups.x * 256u) {
        let row = i / p.columns;
        let column = i % p.columns;
        var sum = 0.0;
        for (var j = 0u; j < p.count; j++) {
            if (indices[p.indices_at + j] == row) {
                sum += gradient[p.gradient_at + j * p.columns + column];
            }
        }
        table[p.table_at + i] = sum;
    }
}
";
