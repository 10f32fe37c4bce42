//! A plan's shader as kernels of a device: one for each set of constants.

use super::{device::failed, fit};
use crate::{
    gpu::{
        device::{Constant, Device, Kernel, KernelSource},
        shader::{EntryPoint, Shader},
    },
    types::Scalar,
    workloads::{
        builtin::CallError,
        kernel::{Number, plan::ShaderPlan},
    },
};
use half::f16;
use std::{collections::BTreeMap, sync::Arc};

/// Kernels that are kept; then all are compiled anew.
const MAX_KERNELS: usize = 64;

pub struct Kernels {
    plan: ShaderPlan,
    shader: Shader,
    known: BTreeMap<String, Arc<Prepared>>,
}

/// A kernel that fits the device.
pub struct Prepared {
    pub kernel: Kernel,
    pub entry: EntryPoint,
}

impl Kernels {
    pub fn new(plan: &ShaderPlan) -> Result<Self, CallError> {
        let shader = Shader::parse(plan.language, &plan.source)
            .map_err(|error| CallError::Task(format!("{}: {error}", plan.file)))?;
        Ok(Self { plan: plan.clone(), shader, known: BTreeMap::new() })
    }

    /// The kernel with these values of constants.
    pub fn get(&mut self, device: &Device, constants: &[(String, Number)]) -> Result<Arc<Prepared>, CallError> {
        let key = format!("{constants:?}");
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let told = |why: String| CallError::Task(format!("{}: {why}", self.plan.file));
        let values: Vec<_> = constants.iter().map(|(name, number)| (name.clone(), value(number))).collect();
        let compiled = self.shader.compile(&self.plan.entry, &values).map_err(|error| told(error.to_string()))?;
        fit::check(&compiled.entry, device.info()).map_err(told)?;
        let constants: Vec<_> =
            compiled.constants.iter().map(|(id, scalar, value)| (*id, constant(*scalar, *value))).collect();
        let (spirv, entry) = (&compiled.words[..], self.plan.entry.as_str());
        let source = KernelSource { spirv, entry, constants: &constants, name: &self.plan.file };
        let kernel = device.kernel(&source).map_err(failed)?;
        let prepared = Arc::new(Prepared { kernel, entry: compiled.entry });
        if self.known.len() >= MAX_KERNELS {
            self.known.clear();
        }
        self.known.insert(key, prepared.clone());
        Ok(prepared)
    }
}

fn value(number: &Number) -> f64 {
    let bytes = number.bytes;
    let [b0, b1, b2, b3, ..] = bytes;
    match number.scalar {
        Scalar::Bool => f64::from(u8::from(bytes != [0; 8])),
        Scalar::U8 => f64::from(b0),
        Scalar::I8 => f64::from(b0 as i8),
        Scalar::U16 => f64::from(u16::from_le_bytes([b0, b1])),
        Scalar::I16 => f64::from(i16::from_le_bytes([b0, b1])),
        Scalar::F16 => f16::from_le_bytes([b0, b1]).to_f64(),
        Scalar::U32 => f64::from(u32::from_le_bytes([b0, b1, b2, b3])),
        Scalar::I32 => f64::from(i32::from_le_bytes([b0, b1, b2, b3])),
        Scalar::F32 => f64::from(f32::from_le_bytes([b0, b1, b2, b3])),
        Scalar::U64 => u64::from_le_bytes(bytes) as f64,
        Scalar::I64 => i64::from_le_bytes(bytes) as f64,
        Scalar::F64 => f64::from_le_bytes(bytes),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Value;

    #[test]
    fn a_constant_keeps_its_value() {
        let of = |value: Value, scalar| self::value(&Number::new(&value, scalar).unwrap());
        assert_eq!(of(Value::Int(-3), Scalar::I8), -3.0);
        assert_eq!(of(Value::Int(60_000), Scalar::U16), 60_000.0);
        assert_eq!(of(Value::Float(0.5), Scalar::F16), 0.5);
        assert_eq!(of(Value::Bool(true), Scalar::Bool), 1.0);
        assert_eq!(constant(Scalar::I32, -7.0), Constant::I32(-7));
    }
}
