//! GLSL to SPIR-V, by glslang, in builds with the feature `glsl`: where a job is submitted, so that
//! no other node needs it.

use super::parse::ShaderError;

/// Whether the file's ending says that it is GLSL.
pub fn is_glsl(name: &str) -> bool {
    let ending = name
        .rsplit_once('.')
        .map(|(_, ending)| ending.to_ascii_lowercase());
    matches!(ending.as_deref(), Some("glsl" | "comp"))
}

/// The bytes of a compute shader's SPIR-V, for Vulkan 1.2. `name` is the file's, for hints.
///
/// # Errors
/// With its place in the text what is wrong with the shader; what to do in a build without the
/// feature.
#[cfg(feature = "glsl")]
pub fn compile(_name: &str, source: &[u8]) -> Result<Vec<u8>, ShaderError> {
    use glslang::{
        Compiler, CompilerOptions, ShaderInput, ShaderMessage, ShaderSource, ShaderStage,
        SourceLanguage, SpirvVersion, Target, VulkanVersion, error::GlslangError,
    };
    let text = std::str::from_utf8(source)
        .ok()
        .filter(|text| !text.contains('\0'));
    let text = text.ok_or_else(|| ShaderError::new("the shader is not UTF-8 text"))?;
    let failed = |error: GlslangError| match error {
        GlslangError::PreprocessError(log)
        | GlslangError::ParseError(log)
        | GlslangError::LinkError(log) => of_log(text, &log.log),
        other => ShaderError::new(format!("glslang: {other}"))
            .hint("a shader begins with its version: #version 450"),
    };
    let compiler = Compiler::acquire().ok_or_else(|| ShaderError::new("glslang does not start"))?;
    let options = CompilerOptions {
        source_language: SourceLanguage::GLSL,
        target: Target::Vulkan {
            version: VulkanVersion::Vulkan1_2,
            spirv_version: SpirvVersion::SPIRV1_3,
        },
        version_profile: None,
        messages: ShaderMessage::DISPLAY_ERROR_COLUMN,
    };
    let source = ShaderSource::from(text);
    let no_defines: Option<&[(&str, Option<&str>)]> = None;
    let input = ShaderInput::new(&source, ShaderStage::Compute, &options, no_defines, None)
        .map_err(failed)?;
    let words = compiler
        .create_shader(input)
        .and_then(|shader| shader.compile())
        .map_err(failed)?;
    Ok(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

#[cfg(not(feature = "glsl"))]
pub fn compile(name: &str, _source: &[u8]) -> Result<Vec<u8>, ShaderError> {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let hint = format!(
        "compile it first: glslangValidator -V --target-env vulkan1.2 -S comp {name} -o {stem}.spv, then shader = \
         \"{stem}.spv\"; or build nodectl with --features glsl"
    );
    Err(ShaderError::new("GLSL is not compiled here").hint(hint))
}

/// The first error of glslang's log: lines such as `ERROR: 0:LINE:COLUMN: 'name' : message`,
/// columns perhaps left out.
#[cfg(any(feature = "glsl", test))]
fn of_log(text: &str, log: &str) -> ShaderError {
    let Some(error) = log.lines().find_map(|line| line.strip_prefix("ERROR: ")) else {
        return ShaderError::new(format!("glslang: {}", log.trim()));
    };
    // The first number is that of the text, of which there is one.
    let mut parts = error.splitn(4, ':');
    let (_, line, third) = (parts.next(), parts.next(), parts.next().unwrap_or_default());
    let Some(line) = line.and_then(|line| line.trim().parse::<usize>().ok()) else {
        return ShaderError::new(error.trim());
    };
    let (column, message) = match (third.trim().parse::<usize>(), parts.next()) {
        (Ok(column), Some(rest)) => (column, rest.trim().to_string()),
        (_, rest) => (
            1,
            [Some(third), rest]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(":")
                .trim()
                .to_string(),
        ),
    };
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let start: usize = lines
        .iter()
        .take(line.saturating_sub(1))
        .map(|line| line.len())
        .sum();
    let own = lines
        .get(line.saturating_sub(1))
        .map_or("", |line| line.trim_end());
    let from = own
        .char_indices()
        .nth(column.saturating_sub(1))
        .map_or(own.len(), |(at, _)| at);
    let word = own[from..]
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(own.len() - from);
    ShaderError::new(message).at(Some(start + from..start + from + word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "#version 450\nvoid main() {\n    x = 1;\n}\n";

    #[test]
    fn errors_of_the_log_have_their_place() {
        let error = of_log(
            TEXT,
            "ERROR: 0:3:5: 'x' : undeclared identifier \nERROR: 0:3: 'y' : more\n",
        );
        assert_eq!(
            (&TEXT[error.span.unwrap()], error.message.as_str()),
            ("x", "'x' : undeclared identifier")
        );
        let error = of_log(TEXT, "ERROR: 0:2: '' : syntax error, unexpected: a thing\n");
        assert_eq!(
            (error.span, error.message.as_str()),
            (Some(13..17), "'' : syntax error, unexpected: a thing")
        );
        for log in [
            "",
            "ERROR: 1 compilation errors.",
            "ERROR: 0:99:7: far",
            "ERROR: 0:3:999: far",
            "ERROR: ::::",
        ] {
            of_log(TEXT, log);
        }
    }

    #[cfg(feature = "glsl")]
    #[test]
    fn glsl_becomes_spirv_and_mistakes_have_their_place() {
        let error = compile("x.comp", TEXT.as_bytes()).unwrap_err();
        assert_eq!(
            error.span.map(|span| &TEXT[span]),
            Some("x"),
            "{}",
            error.message
        );
        let text = "#version 450\nlayout(local_size_x = 64) in;\nlayout(set = 0, binding = 0) buffer Y { float y[]; };\n\
                    void main() { y[gl_GlobalInvocationID.x] += 1.0; }\n";
        let bytes = compile("x.comp", text.as_bytes()).unwrap();
        let shader = crate::shader::Shader::parse(crate::shader::Language::SpirV, &bytes).unwrap();
        assert_eq!(shader.entry("main").unwrap().workgroup, [64, 1, 1]);
        assert!(compile("x.comp", b"\xff").is_err() && compile("x.comp", b"a\0").is_err());
        assert!(
            compile("x.comp", b"").is_err(),
            "no version, no entry point"
        );
    }

    #[cfg(not(feature = "glsl"))]
    #[test]
    fn without_the_feature_it_is_told_what_to_do() {
        let error = compile("a/blur.comp", b"").unwrap_err().to_string();
        assert!(
            error.contains("-o a/blur.spv") && error.contains("--features glsl"),
            "{error}"
        );
    }
}
