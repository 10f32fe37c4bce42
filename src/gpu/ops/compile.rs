//! WGSL to SPIR-V for shaders of our own, which need no protection from themselves: bounds checks,
//! zeroing of workgroup memory and loop limits cost 30 to 100 times their pipeline's compile time.
//! Users' shaders are compiled elsewhere.

use naga::{
    back::spv::{self, WriterFlags, ZeroInitializeWorkgroupMemoryMode},
    front::wgsl,
    proc::{BoundsCheckPolicies, BoundsCheckPolicy},
    valid::{Capabilities, ValidationFlags, Validator},
};
use std::{fs, path::Path};

/// The text of `name` in `folder`, then that of each file that it names in a line
/// `#include "FILE"`, once: WGSL lets things be used before they are declared. Lines of `name` keep
/// their numbers.
pub fn shader_source(folder: &Path, name: &str) -> Result<String, String> {
    let (mut files, mut text, mut next) = (vec![name.to_owned()], String::new(), 0);
    while let Some(file) = files.get(next).cloned() {
        next += 1;
        let part =
            fs::read_to_string(folder.join(&file)).map_err(|error| format!("{file}: {error}"))?;
        for line in part.lines() {
            match line
                .strip_prefix("#include \"")
                .and_then(|rest| rest.strip_suffix('"'))
            {
                Some(included) if files.iter().any(|file| file == included) => {}
                Some(included) => files.push(included.to_owned()),
                None => text.push_str(line),
            }
            text.push('\n');
        }
    }
    Ok(text)
}

/// The module's SPIR-V 1.3, all entry points, or naga's message with line and column. The same
/// source gives the same words.
pub fn compile(name: &str, source: &str) -> Result<Vec<u32>, String> {
    let module =
        wgsl::parse_str(source).map_err(|error| error.emit_to_string_with_path(source, name))?;
    let capabilities = Capabilities::IMMEDIATES
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::SHADER_FLOAT16
        | Capabilities::COOPERATIVE_MATRIX;
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .map_err(|error| error.emit_to_string_with_path(source, name))?;
    let options = spv::Options {
        lang_version: (1, 3),
        flags: WriterFlags::empty(),
        bounds_check_policies: BoundsCheckPolicies {
            index: BoundsCheckPolicy::Unchecked,
            buffer: BoundsCheckPolicy::Unchecked,
            image_load: BoundsCheckPolicy::Unchecked,
            ..BoundsCheckPolicies::default()
        },
        zero_initialize_workgroup_memory: ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        // Of compute shaders nothing goes in or out but buffers, and not every device has it.
        use_storage_input_output_16: false,
        ..spv::Options::default()
    };
    spv::write_vec(&module, &info, &options, None).map_err(|error| format!("{name}: {error}"))
}
