//! A plan's shader as kernels of a device: one for each set of constants.

use super::fit;
use crate::plan::ShaderPlan;
use half::f16;
use nodectl_builtin::{CallError, device::failed};
use nodectl_gpu::{
    device::{Constant, Device, Kernel, KernelSource},
    shader::{EntryPoint, Shader},
};
use nodectl_types::Scalar;
use std::{collections::BTreeMap, sync::Arc};

/// Kernels that are kept; then all are compiled anew.
const MAX_KERNELS: usize = 64;

pub struct DeviceKernels {
    plan: ShaderPlan,
    shader: Shader,
    known: BTreeMap<String, Arc<PreparedKernel>>,
}

/// A kernel that fits the device.
pub struct PreparedKernel {
    pub kernel: Kernel,
    pub entry: EntryPoint,
}

impl DeviceKernels {
    pub fn new(plan: &ShaderPlan) -> Result<Self, CallError> {
        let shader = Shader::parse(plan.language, &plan.source)
            .map_err(|error| CallError::Task(format!("{}: {error}", plan.file)))?;
        Ok(Self {
            plan: plan.clone(),
            shader,
            known: BTreeMap::new(),
        })
    }

    /// The kernel with these values of constants, by name.
    pub fn get(
        &mut self,
        device: &Device,
        constants: &[(String, f64)],
    ) -> Result<Arc<PreparedKernel>, CallError> {
        let key = format!("{constants:?}");
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let fault = |why: String| CallError::Task(format!("{}: {why}", self.plan.file));
        let compiled = self
            .shader
            .compile(&self.plan.entry, constants, self.plan.checks)
            .map_err(|error| fault(error.to_string()))?;
        fit::check(&compiled.entry, device.info()).map_err(fault)?;
        let constants: Vec<_> = compiled
            .constants
            .iter()
            .map(|(id, scalar, value)| (*id, constant(*scalar, *value)))
            .collect();
        let (spirv, entry) = (&compiled.words[..], self.plan.entry.as_str());
        let source = KernelSource {
            spirv,
            entry,
            constants: &constants,
            name: &self.plan.file,
        };
        let kernel = device.kernel(&source).map_err(failed)?;
        let prepared = Arc::new(PreparedKernel {
            kernel,
            entry: compiled.entry,
        });
        if self.known.len() >= MAX_KERNELS {
            self.known.clear();
        }
        self.known.insert(key, prepared.clone());
        Ok(prepared)
    }
}

/// A number that was checked to be one of `scalar`.
fn constant(scalar: Scalar, value: f64) -> Constant {
    match scalar {
        Scalar::Bool => Constant::Bool(value != 0.0),
        Scalar::U8 => Constant::U8(value as u8),
        Scalar::I8 => Constant::I8(value as i8),
        Scalar::U16 => Constant::U16(value as u16),
        Scalar::I16 => Constant::I16(value as i16),
        Scalar::F16 => Constant::F16(f16::from_f64(value)),
        Scalar::U32 => Constant::U32(value as u32),
        Scalar::I32 => Constant::I32(value as i32),
        Scalar::F32 => Constant::F32(value as f32),
        Scalar::U64 => Constant::U64(value as u64),
        Scalar::I64 => Constant::I64(value as i64),
        Scalar::F64 => Constant::F64(value),
    }
}
