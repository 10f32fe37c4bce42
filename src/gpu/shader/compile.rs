//! Values for a shader's constants, and SPIR-V for one of its entry points.

use super::{
    parse::{self, Language, Shader, ShaderError},
    reflect::{self, EntryPoint},
};
use naga::{
    ShaderStage,
    back::{
        PipelineConstants,
        pipeline_constants::{PipelineConstantError, process_overrides},
        spv::{self, PipelineOptions, WriterFlags, ZeroInitializeWorkgroupMemoryMode},
    },
    proc::{BoundsCheckPolicies, BoundsCheckPolicy},
};
use nodectl_types::Scalar;
use serde::{Deserialize, Serialize};

/// What becomes of mistakes in a shader of WGSL. Each check costs time: on some GPUs the rounds of
/// a bounded loop take many times as long. Shaders of SPIR-V run as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShaderChecks {
    /// Indices beyond an array's end do no harm, divisions by zero have a result, loops end.
    #[default]
    Full,
    /// Indices beyond an array's end do no harm. A loop without end lasts until the task's
    /// `timeout`.
    Bounds,
    /// An index beyond an array's end reads or overwrites whatever lies there in the worker's
    /// memory of the GPU.
    None,
}

/// What a device is given.
#[derive(Clone, Debug, PartialEq)]
pub struct Compiled {
    /// The SPIR-V module.
    pub words: Vec<u32>,
    /// Specialization constants by number. Empty for WGSL, whose constants are compiled in.
    pub constants: Vec<(u32, Scalar, f64)>,
    /// With the constants' values in it.
    pub entry: EntryPoint,
}

impl Shader {
    /// SPIR-V 1.3 for the entry point, with values for constants by name (see `Constant::name`).
    /// Fails on an entry point or a constant that is not there, a value that does not fit, and a
    /// constant that has neither a value nor a default.
    pub fn compile(
        &self,
        entry: &str,
        constants: &[(String, f64)],
        checks: ShaderChecks,
    ) -> Result<Compiled, ShaderError> {
        parse::with_stack(|| self.compile_here(entry, constants, checks))
    }

    fn compile_here(
        &self,
        entry: &str,
        constants: &[(String, f64)],
        checks: ShaderChecks,
    ) -> Result<Compiled, ShaderError> {
        let values: PipelineConstants = constants.iter().cloned().collect();
        let processed = process_overrides(
            &self.module,
            &self.info,
            Some((ShaderStage::Compute, entry)),
            &values,
        );
        let (module, info) = processed.map_err(unfit)?;
        let missing =
            || ShaderError::new(format!("the shader has no compute entry point `{entry}`"));
        let interface = reflect::entry(&module, &info, entry).ok_or_else(missing)?;
        if self.language == Language::SpirV {
            let known = self.constants();
            let numbered = |(name, value): &(String, f64)| {
                let scalar = known.iter().find(|constant| constant.name == *name)?.scalar;
                Some((name.parse().ok()?, scalar, *value))
            };
            let constants = constants.iter().filter_map(numbered).collect();
            return Ok(Compiled {
                words: self.words.clone(),
                constants,
                entry: interface,
            });
        }
        let pipeline = PipelineOptions {
            shader_stage: ShaderStage::Compute,
            entry_point: entry.to_string(),
        };
        let write =
            |options: &spv::Options<'_>| spv::write_vec(&module, &info, options, Some(&pipeline));
        let words = match write(&options(checks, BoundsCheckPolicy::ReadZeroSkipWrite)) {
            // naga 30 skips everything out of bounds but atomics.
            Err(spv::Error::FeatureNotImplemented(_)) => {
                write(&options(checks, BoundsCheckPolicy::Restrict))
            }
            written => written,
        };
        let words = words.map_err(|error| {
            ShaderError::new(format!("the shader cannot become SPIR-V: {error}"))
        })?;
        Ok(Compiled {
            words,
            constants: Vec::new(),
            entry: interface,
        })
    }
}

/// `buffer`: what becomes of indices out of bounds in storage buffers, where they are checked.
fn options(checks: ShaderChecks, buffer: BoundsCheckPolicy) -> spv::Options<'static> {
    let in_bounds = |policy| match checks {
        ShaderChecks::Full | ShaderChecks::Bounds => policy,
        ShaderChecks::None => BoundsCheckPolicy::Unchecked,
    };
    let is_full = checks == ShaderChecks::Full;
    spv::Options {
        lang_version: (1, 3),
        flags: WriterFlags::DEBUG,
        bounds_check_policies: BoundsCheckPolicies {
            index: in_bounds(BoundsCheckPolicy::Restrict),
            buffer: in_bounds(buffer),
            image_load: in_bounds(BoundsCheckPolicy::ReadZeroSkipWrite),
            binding_array: in_bounds(BoundsCheckPolicy::Restrict),
        },
        zero_initialize_workgroup_memory: ZeroInitializeWorkgroupMemoryMode::Polyfill,
        force_loop_bounding: is_full,
        emit_int_div_checks: is_full,
        // Of compute shaders nothing goes in or out but buffers, and not every device has it.
        use_storage_input_output_16: false,
        // Not fakes: without a map, bindings stay as the shader has them.
        fake_missing_bindings: true,
        ..Default::default()
    }
}

fn unfit(error: PipelineConstantError) -> ShaderError {
    match error {
        PipelineConstantError::MissingValue(name) => ShaderError::new(format!(
            "the shader's constant `{name}` has neither a value nor a default"
        )),
        PipelineConstantError::NotFound(name) => {
            ShaderError::new(format!("the shader has no constant `{name}`"))
        }
        PipelineConstantError::ValidationError(error) => parse::invalid(&error),
        other => ShaderError::new(format!("a constant of the shader: {other}")),
    }
}
