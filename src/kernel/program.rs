//! The shader that a job file names: read, checked, its entry point chosen. Faults about it stand
//! in its own text.

use super::plan::{MAX_UNIFORM_BYTES, ShaderPlan};
use nodectl_gpu::shader::{
    Binding, BindingKind, EntryPoint, Language, Shader, ShaderChecks, ShaderError, glsl,
};
use nodectl_jobfile::{Fault, Fields, Item, UploadSource, keys::uploads};
use nodectl_types::Scalar;
use std::{io::Read, path::PathBuf};

/// The least that every Vulkan device runs as one workgroup, and along x, y and z.
const GUARANTEED_INVOCATIONS: u32 = 128;
/// More is run by no device that is known.
const MOST_INVOCATIONS: u32 = 2048;
const MOST_SHADER_BYTES: u64 = 4 << 20;
/// The uniform that the worker fills in.
pub(super) const TILE: &str = "tile";
const CHECKS: [&str; 3] = ["full", "bounds", "none"];

pub(super) struct KernelProgram {
    pub(super) plan: ShaderPlan,
    pub(super) shader: Shader,
    pub(super) entry: EntryPoint,
    path: PathBuf,
    text: String,
    /// Where the job file names it.
    named: Item<String>,
}

impl KernelProgram {
    /// Of `shader` and `entry` in a table.
    pub(super) fn load(fields: &Fields<'_, '_>) -> Result<Self, Fault> {
        let Some(named) = fields.string("shader")? else {
            let fault = Fault::new(fields.span.clone(), "the job has no `shader`");
            return Err(fault.hint("name a file beside the job file, e.g. shader = \"heat.wgsl\""));
        };
        let at_name = |error: ShaderError| fault_of(&error, named.span.clone());
        let language = Language::of_file(&named.value).map_err(at_name)?;
        let is_glsl = glsl::is_glsl(&named.value);
        if is_glsl && !cfg!(feature = "glsl") {
            glsl::compile(&named.value, &[]).map_err(at_name)?;
        }
        let upload = uploads::file(fields.context, &named)?;
        let UploadSource::File(path) = upload.source else {
            unreachable!("`uploads::file` names files")
        };
        let mut source = Vec::new();
        let read = std::fs::File::open(&path)
            .and_then(|file| file.take(MOST_SHADER_BYTES + 1).read_to_end(&mut source));
        read.map_err(|error| {
            Fault::new(
                named.span.clone(),
                format!("cannot read `{}`: {error}", named.value),
            )
        })?;
        let is_text = language == Language::Wgsl || is_glsl;
        let text = if is_text {
            String::from_utf8_lossy(&source).into_owned()
        } else {
            String::new()
        };
        let in_text = |error: ShaderError| match &error.span {
            Some(span) => fault_of(&error, span.clone()).elsewhere(&path, &text),
            None => at_name(error),
        };
        if is_glsl {
            source = glsl::compile(&named.value, &source).map_err(in_text)?;
        }
        let shader = Shader::parse(language, &source).map_err(in_text)?;
        let entry = choose_entry(fields, &shader, &named)?;
        let plan = ShaderPlan {
            file: named.value.clone(),
            language,
            source,
            entry: entry.name.clone(),
            checks: choose_checks(fields, language)?,
        };
        let program = Self {
            plan,
            shader,
            entry,
            path,
            text,
            named,
        };
        program.check()?;
        Ok(program)
    }

    /// A fault at a binding's declaration, or where the shader is named if it is no text.
    pub(super) fn fault_at(&self, binding: &Binding, message: String) -> Fault {
        match &binding.span {
            Some(span) if !self.text.is_empty() => {
                Fault::new(span.clone(), message).elsewhere(&self.path, &self.text)
            }
            _ => Fault::new(self.named.span.clone(), message),
        }
    }

    /// A fault where the job file names the shader.
    pub(super) fn fault(&self, message: impl Into<String>) -> Fault {
        Fault::new(self.named.span.clone(), message)
    }

    pub(super) fn binding(&self, name: &str) -> Option<&Binding> {
        self.entry
            .bindings
            .iter()
            .find(|binding| binding.name == name)
    }

    /// The names of bindings that are, or are not, uniforms; but for the tile.
    pub(super) fn names(&self, uniforms: bool) -> Vec<&str> {
        let is_one = |binding: &&Binding| {
            matches!(binding.kind, BindingKind::Uniform { .. }) == uniforms && binding.name != TILE
        };
        self.entry
            .bindings
            .iter()
            .filter(is_one)
            .map(|binding| binding.name.as_str())
            .collect()
    }

    /// Whether the shader knows of tiles, so that its space may be cut.
    pub(super) fn has_tile(&self) -> bool {
        self.binding(TILE).is_some()
    }

    fn check(&self) -> Result<(), Fault> {
        let invocations = self
            .entry
            .workgroup
            .iter()
            .try_fold(1u32, |product, n| product.checked_mul(*n));
        if invocations.is_none_or(|count| count == 0 || count > MOST_INVOCATIONS) {
            let size = self.entry.workgroup;
            let message = format!("workgroups of {size:?} invocations are too large");
            let hint = format!(
                "every device runs {GUARANTEED_INVOCATIONS} as one workgroup, most 1024: make @workgroup_size smaller"
            );
            return Err(self.fault(message).hint(hint));
        }
        for binding in &self.entry.bindings {
            if let BindingKind::Other(why) = &binding.kind {
                let message = format!("nothing can be bound to `{}`: {why}", binding.name);
                let hint = "arrays of numbers, vectors or structs of one type of number can";
                return Err(self.fault_at(binding, message).hint(hint));
            }
            if let BindingKind::Uniform { bytes, .. } = binding.kind
                && bytes > MAX_UNIFORM_BYTES
            {
                let message = format!("the uniform `{}` has {bytes} bytes", binding.name);
                let hint = format!(
                    "most devices take {MAX_UNIFORM_BYTES}: make it an array, var<storage, read>"
                );
                return Err(self.fault_at(binding, message).hint(hint));
            }
            if let BindingKind::Storage { element, .. } = binding.kind
                && element.scalar == Scalar::Bool
            {
                return Err(self.fault_at(
                    binding,
                    format!("`{}` is an array of truth values", binding.name),
                ));
            }
        }
        self.check_tile()
    }

    fn check_tile(&self) -> Result<(), Fault> {
        let Some(binding) = self.binding(TILE) else {
            return Ok(());
        };
        if let BindingKind::Uniform { fields, .. } = &binding.kind {
            let layout: Vec<_> = fields
                .iter()
                .map(|field| (field.name.as_str(), field.places.as_slice()))
                .collect();
            let expected: [(&str, &[u32]); 4] = [
                ("origin", &[0, 4, 8]),
                ("size", &[16, 20, 24]),
                ("space", &[32, 36, 40]),
                ("step", &[44]),
            ];
            if layout == expected && fields.iter().all(|field| field.scalar == Scalar::U32) {
                return Ok(());
            }
        }
        let fault = self.fault_at(
            binding,
            "`tile` is not the uniform by which a shader knows its tile".into(),
        );
        Err(fault.hint(
            "struct Tile { origin: vec3<u32>, size: vec3<u32>, space: vec3<u32>, step: u32 } in var<uniform> tile: Tile",
        ))
    }
}

fn fault_of(error: &ShaderError, span: std::ops::Range<usize>) -> Fault {
    let fault = Fault::new(span, error.message.clone());
    match &error.hint {
        Some(hint) => fault.hint(hint.clone()),
        None => fault,
    }
}

/// `checks`: of shaders that are compiled here.
fn choose_checks(fields: &Fields<'_, '_>, language: Language) -> Result<ShaderChecks, Fault> {
    let Some(checks) = fields.string("checks")? else {
        return Ok(ShaderChecks::default());
    };
    if language == Language::SpirV {
        let message = "`checks` is for shaders in WGSL: GLSL and SPIR-V run as they are";
        return Err(Fault::new(checks.span, message).hint("leave `checks` out"));
    }
    match checks.value.as_str() {
        "full" => Ok(ShaderChecks::Full),
        "bounds" => Ok(ShaderChecks::Bounds),
        "none" => Ok(ShaderChecks::None),
        other => {
            let fault = Fault::new(checks.span, format!("`checks` cannot be `{other}`"));
            Err(fault.suggest(other, &CHECKS))
        }
    }
}

/// `entry`, which may be left out of a shader with one.
fn choose_entry(
    fields: &Fields<'_, '_>,
    shader: &Shader,
    named: &Item<String>,
) -> Result<EntryPoint, Fault> {
    let known = shader.entry_points();
    let missing = |name: &str| {
        Fault::new(
            named.span.clone(),
            format!("the shader has no entry point `{name}`"),
        )
    };
    match (fields.string("entry")?, known.as_slice()) {
        (Some(name), _) => shader.entry(&name.value).ok_or_else(|| {
            let fault = Fault::new(
                name.span,
                format!("the shader has no compute entry point `{}`", name.value),
            );
            fault.suggest(&name.value, &known)
        }),
        (None, [only]) => shader.entry(only).ok_or_else(|| missing(only)),
        (None, []) => {
            let fault = Fault::new(named.span.clone(), "the shader has no compute entry point");
            Err(fault.hint("e.g. @compute @workgroup_size(8, 8) fn main(…)"))
        }
        (None, several) => {
            let fault = Fault::new(
                named.span.clone(),
                format!("the shader has {} entry points", several.len()),
            );
            Err(fault.hint(format!(
                "choose one: entry = \"{}\"; there are {}",
                several[0],
                several.join(", ")
            )))
        }
    }
}
