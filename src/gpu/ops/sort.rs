//! Stable sorting by keys, with a payload that goes along.

use super::{
    access::OpAccess,
    buffer::{BufferView, ElementKind},
    cpu::CpuMemory,
    dispatch::{Lowering, grid, unused},
    engine::EngineError,
    op::Operation,
    scan::Scan,
    shaders,
};
use rayon::prelude::*;

/// Sorts `keys` in place, and `payload` alike. Equal keys keep their order; -0 and 0 are equal; NaN
/// comes last, ascending or descending.
#[derive(Clone, Debug)]
pub struct Sort {
    /// f32 or u32.
    pub keys: BufferView,
    /// u32, as many as keys.
    pub payload: Option<BufferView>,
    pub descending: bool,
}

/// Bits of a key that one pass sorts by, and keys that a workgroup takes: the shaders know them
/// too.
const DIGIT_BITS: u32 = 4;
const BLOCK: u64 = 2048;

impl Operation for Sort {
    fn name(&self) -> &'static str {
        "sort"
    }

    fn access(&self) -> Result<OpAccess, String> {
        let len = self.keys.len;
        let access = OpAccess::default().write_any(
            "keys",
            &self.keys,
            &[ElementKind::F32, ElementKind::U32],
            len,
        )?;
        match &self.payload {
            Some(payload) => access.write("payload", payload, ElementKind::U32, len),
            None => Ok(access),
        }
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        let keys = memory.write::<u32>(&self.keys);
        let Some(payload) = &self.payload else {
            keys.par_sort_by_key(|key| self.order(*key));
            return;
        };
        let payload = &mut memory.write::<u32>(payload)[..keys.len()];
        let mut pairs: Vec<(u32, u32)> =
            keys.iter().copied().zip(payload.iter().copied()).collect();
        pairs.par_sort_by_key(|(key, _)| self.order(*key));
        keys.iter_mut()
            .zip(payload)
            .zip(pairs)
            .for_each(|((key, payload), pair)| (*key, *payload) = pair);
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        let len = self.keys.len;
        if len < 2 {
            return Ok(());
        }
        let blocks = len.div_ceil(BLOCK);
        let none = unused(&self.keys, ElementKind::U32);
        let payload = self.payload.as_ref().unwrap_or(&none).clone();
        let spare_keys = lowering.scratch(ElementKind::U32, len)?;
        let spare_payload = if self.payload.is_some() {
            lowering.scratch(ElementKind::U32, len)?
        } else {
            none
        };
        let counts = lowering.scratch(ElementKind::U32, blocks << DIGIT_BITS)?;
        let firsts = lowering.scratch(ElementKind::U32, blocks << DIGIT_BITS)?;
        let (mut from, mut to) = ((self.keys.clone(), payload), (spare_keys, spare_payload));
        let flag = |bit: u32, set: bool| u32::from(set) << bit;
        let kind = flag(0, self.keys.kind == ElementKind::F32)
            | flag(1, self.descending)
            | flag(2, self.payload.is_some());
        // An even number of passes: the result is where the keys were.
        for shift in (0..u32::BITS).step_by(DIGIT_BITS as usize) {
            let parameters = [len as u32, shift, blocks as u32, kind];
            lowering.dispatch(
                shaders::sort_count(),
                &[&from.0, &counts],
                &parameters,
                grid(blocks, 1),
            );
            Scan {
                input: counts.clone(),
                output: firsts.clone(),
                exclusive: true,
            }
            .lower(lowering)?;
            let bindings = [&from.0, &from.1, &firsts, &to.0, &to.1];
            lowering.dispatch(
                shaders::sort_scatter(),
                &bindings,
                &parameters,
                grid(blocks, 1),
            );
            (from, to) = (to, from);
        }
        Ok(())
    }
}

impl Sort {
    /// Unsigned integers in the order of the keys' bits.
    fn order(&self, key: u32) -> u32 {
        let mut bits = key;
        if self.keys.kind == ElementKind::F32 {
            let value = f32::from_bits(key);
            if value.is_nan() {
                return u32::MAX;
            }
            bits = if value < 0.0 { !key } else { key | 1 << 31 };
        }
        if self.descending { !bits } else { bits }
    }
}
