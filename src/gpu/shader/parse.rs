//! Text or words to a validated module. Errors point into the user's own text where there is one.

use super::{glsl, nesting};
use naga::{
    Module, WithSpan,
    valid::{Capabilities, ModuleInfo, ValidationError, ValidationFlags, Validator},
};
use serde::{Deserialize, Serialize};
use std::{error::Error, ops::Range, thread};

/// The largest shader that is read, in bytes.
pub const MAX_SHADER_BYTES: usize = 4 << 20;
/// naga's parser, validator and writer call themselves for what lies within each other; its
/// documentation asks callers for room. `nesting` bounds how deep that is. Only what is used of it
/// becomes memory.
const STACK_BYTES: usize = 256 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Language {
    Wgsl,
    SpirV,
}

/// A shader that was parsed and validated.
#[derive(Debug)]
pub struct Shader {
    pub(super) module: Module,
    pub(super) info: ModuleInfo,
    pub(super) language: Language,
    /// Of SPIR-V.
    pub(super) words: Vec<u32>,
}

/// Why a shader cannot be used. `span` are bytes of the WGSL text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", hint.as_ref().map(|hint| format!("\nhint: {hint}")).unwrap_or_default())]
pub struct ShaderError {
    /// Where in the source, in bytes, if that is known.
    pub span: Option<Range<usize>>,
    pub message: String,
    pub hint: Option<String>,
}

impl Language {
    /// By the ending of a file's name. What GLSL becomes is SPIR-V, see `glsl`.
    pub fn of_file(name: &str) -> Result<Self, ShaderError> {
        let ending = name
            .rsplit_once('.')
            .map(|(_, ending)| ending.to_ascii_lowercase())
            .unwrap_or_default();
        match ending.as_str() {
            "wgsl" => Ok(Self::Wgsl),
            "spv" => Ok(Self::SpirV),
            _ if glsl::is_glsl(name) => Ok(Self::SpirV),
            "hlsl" => Err(ShaderError::new("HLSL is not compiled here")
                .hint("compile it first: dxc -spirv -T cs_6_0")),
            _ => Err(ShaderError::new(format!("`{name}` is not a shader"))
                .hint("shaders are .wgsl, .spv and .comp files")),
        }
    }
}

impl Shader {
    /// Parses and validates. `source` is WGSL text, or the words of SPIR-V in either byte order.
    pub fn parse(language: Language, source: &[u8]) -> Result<Self, ShaderError> {
        if source.len() > MAX_SHADER_BYTES {
            let message = format!(
                "a shader of {} bytes; at most {MAX_SHADER_BYTES} are read",
                source.len()
            );
            return Err(ShaderError::new(message));
        }
        let (module, info, words) = with_stack(|| match language {
            Language::Wgsl => wgsl(source),
            Language::SpirV => spirv(source),
        })?;
        Ok(Self {
            module,
            info,
            language,
            words,
        })
    }
}

/// In a thread of its own for its stack, and because a parser that panics takes only itself down.
pub(super) fn with_stack<T: Send>(
    work: impl FnOnce() -> Result<T, ShaderError> + Send,
) -> Result<T, ShaderError> {
    thread::scope(|scope| {
        let builder = thread::Builder::new()
            .name("shader".into())
            .stack_size(STACK_BYTES);
        match builder.spawn_scoped(scope, work) {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|_| Err(ShaderError::new("the shader's parser gave up on it"))),
            Err(error) => Err(ShaderError::new(format!(
                "no thread for the shader's parser: {error}"
            ))),
        }
    })
}

type Parsed = (Module, ModuleInfo, Vec<u32>);

fn wgsl(source: &[u8]) -> Result<Parsed, ShaderError> {
    let text = std::str::from_utf8(source).map_err(|error| {
        let at = error.valid_up_to();
        ShaderError::new("the shader is not UTF-8 text from here on").at(Some(at..at + 1))
    })?;
    nesting::check(text)?;
    let module = naga::front::wgsl::parse_str(text).map_err(|error| {
        let span = error.labels().find_map(|(span, _)| span.to_range());
        let label = error
            .labels()
            .map(|(_, label)| label)
            .find(|label| !label.is_empty() && *label != error.message());
        let about = label.map(|label| format!(" ({label})")).unwrap_or_default();
        let notes: Vec<&str> = error.notes().collect();
        let shader = ShaderError::new(format!("{}{about}", error.message())).at(span);
        if notes.is_empty() {
            shader
        } else {
            shader.hint(notes.join("; "))
        }
    })?;
    let info = validate(&module, offered()).map_err(|error| placed(invalid(&error), text))?;
    Ok((module, info, Vec::new()))
}

fn spirv(source: &[u8]) -> Result<Parsed, ShaderError> {
    const MAGIC: u32 = 0x0723_0203;
    let not = || {
        ShaderError::new("the file is not SPIR-V")
            .hint("a .spv file begins with the magic number 0x07230203")
    };
    let (chunks, rest) = source.as_chunks::<4>();
    let order: fn([u8; 4]) -> u32 = match chunks.first() {
        Some(first) if rest.is_empty() && u32::from_le_bytes(*first) == MAGIC => u32::from_le_bytes,
        Some(first) if rest.is_empty() && u32::from_be_bytes(*first) == MAGIC => u32::from_be_bytes,
        _ => return Err(not()),
    };
    let words: Vec<u32> = chunks.iter().map(|word| order(*word)).collect();
    let options = naga::front::spv::Options {
        adjust_coordinate_space: false,
        ..Default::default()
    };
    let module = naga::front::spv::Frontend::new(words.iter().copied(), &options).parse().map_err(|error| {
        ShaderError::new(format!("the SPIR-V cannot be checked: {error}"))
            .hint("what WGSL can say is understood, of Vulkan 1.2; `spirv-val` shows whether the file itself is valid")
    })?;
    let info = validate(&module, offered()).map_err(|error| ShaderError {
        span: None,
        ..invalid(&error)
    })?;
    Ok((module, info, words))
}

/// A problem of an entry point has no place: what naga says it about stands in the text.
fn placed(error: ShaderError, text: &str) -> ShaderError {
    const WORD: &str = "@workgroup_size";
    let mut places = text.match_indices(WORD).map(|(at, _)| at);
    match (
        &error.span,
        error.message.contains("Workgroup size"),
        places.next(),
        places.next(),
    ) {
        (None, true, Some(at), None) => {
            let length = text[at..].find(')').map_or(WORD.len(), |end| end + 1);
            error
                .at(Some(at..at + length))
                .hint("from 1 to 16384 along each axis; every device runs 128 in all, most 1024")
        }
        _ => error,
    }
}

/// What compute devices may offer; what a given one lacks is found when an entry point's features
/// are compared with it.
pub(super) fn offered() -> Capabilities {
    Capabilities::FLOAT64
        | Capabilities::SHADER_INT64
        | Capabilities::SHADER_INT16
        | Capabilities::SHADER_FLOAT16
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::SUBGROUP
        | Capabilities::SUBGROUP_BARRIER
        | Capabilities::SHADER_INT64_ATOMIC_MIN_MAX
        | Capabilities::SHADER_INT64_ATOMIC_ALL_OPS
        | Capabilities::SHADER_FLOAT32_ATOMIC
        | Capabilities::COOPERATIVE_MATRIX
        | Capabilities::MEMORY_DECORATION_COHERENT
        | Capabilities::MEMORY_DECORATION_VOLATILE
}

pub(super) fn validate(
    module: &Module,
    allowed: Capabilities,
) -> Result<ModuleInfo, Box<WithSpan<ValidationError>>> {
    Validator::new(ValidationFlags::all(), allowed)
        .validate(module)
        .map_err(Box::new)
}

/// The innermost reason, at the innermost place.
pub(super) fn invalid(error: &WithSpan<ValidationError>) -> ShaderError {
    let mut reason: &dyn Error = error.as_inner();
    while let Some(next) = reason.source() {
        reason = next;
    }
    let span = error
        .spans()
        .filter_map(|(span, _)| span.to_range())
        .min_by_key(|span| span.len());
    ShaderError::new(format!("the shader is not valid: {reason}")).at(span)
}

impl ShaderError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            span: None,
            message: message.into(),
            hint: None,
        }
    }

    pub(super) fn at(self, span: Option<Range<usize>>) -> Self {
        Self { span, ..self }
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }
}
