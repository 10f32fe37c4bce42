//! Running sums.

use super::{
    access::OpAccess,
    buffer::{BufferView, ElementKind},
    cpu::CpuMemory,
    dispatch::{Lowering, grid, unused},
    engine::EngineError,
    op::Operation,
    shaders,
};
use bytemuck::Pod;
use rayon::prelude::*;

/// `output[i]` = Σ `input[..=i]`, or Σ `input[..i]` if `exclusive`. f32, or u32 modulo 2³².
#[derive(Clone, Debug)]
pub struct Scan {
    pub input: BufferView,
    /// Of the same kind and length.
    pub output: BufferView,
    /// Whether each sum leaves its own element out.
    pub exclusive: bool,
}

/// Elements that are summed one after the other; the shader knows it too.
const BLOCK: u64 = 1024;

impl Operation for Scan {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn access(&self) -> Result<OpAccess, String> {
        if self.input.len != self.output.len {
            return Err(format!(
                "input and output have {} and {} elements",
                self.input.len, self.output.len
            ));
        }
        let access = OpAccess::default().read_any(
            "input",
            &self.input,
            &[ElementKind::F32, ElementKind::U32],
            self.input.len,
        )?;
        access.write("output", &self.output, self.input.kind, self.input.len)
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        match self.input.kind {
            ElementKind::U32 => self.scan::<u32>(memory, u32::wrapping_add),
            ElementKind::F32 | ElementKind::F16 => self.scan::<f32>(memory, |a, b| a + b),
        }
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        if self.input.len == 0 {
            return Ok(());
        }
        let len = self.input.len;
        let kind = u32::from(self.input.kind == ElementKind::U32) << 1;
        let none = unused(&self.output, self.input.kind);
        let pass =
            |before: &BufferView, output: &BufferView, flags: u32, lowering: &mut Lowering<'_>| {
                let bindings = [&self.input, before, output];
                lowering.dispatch(
                    shaders::scan(),
                    &bindings,
                    &[len as u32, flags | kind],
                    grid(len, BLOCK),
                );
            };
        let last = 1 | u32::from(self.exclusive) << 2;
        if len <= BLOCK {
            pass(&none, &self.output, last, lowering);
            return Ok(());
        }
        let sums = lowering.scratch(self.input.kind, len.div_ceil(BLOCK))?;
        let before = lowering.scratch(self.input.kind, sums.len)?;
        pass(&none, &sums, 0, lowering);
        Scan {
            input: sums,
            output: before.clone(),
            exclusive: true,
        }
        .lower(lowering)?;
        pass(&before, &self.output, last | 8, lowering);
        Ok(())
    }
}

impl Scan {
    /// Sums of blocks, then each block on top of those before it: bits do not depend on the number
    /// of threads.
    fn scan<T: Pod + Default + Send + Sync>(&self, memory: &CpuMemory<'_>, add: fn(T, T) -> T) {
        const CHUNK: usize = 1 << 14;
        let (input, output) = (
            memory.read::<T>(&self.input),
            memory.write::<T>(&self.output),
        );
        let sum = |chunk: &[T]| chunk.iter().copied().fold(T::default(), add);
        let mut before: Vec<T> = input.par_chunks(CHUNK).map(sum).collect();
        let mut total = T::default();
        for chunk in &mut before {
            let next = add(total, *chunk);
            *chunk = total;
            total = next;
        }
        let chunks = output
            .par_chunks_mut(CHUNK)
            .zip(input.par_chunks(CHUNK))
            .zip(before);
        chunks.for_each(|((output, input), mut sum)| {
            for (to, value) in output.iter_mut().zip(input) {
                let next = add(sum, *value);
                *to = if self.exclusive { sum } else { next };
                sum = next;
            }
        });
    }
}
