//! The shipped shaders: every `.wgsl` in `shaders/` has beside it the `.spv` that it compiles to.
//! `UPDATE_SHADERS=1` writes them anew.

use nodectl::gpu::ops::{compile, shader_source};
use std::{
    fs,
    path::{Path, PathBuf},
};

#[test]
fn each_shader_is_what_its_source_compiles_to() {
    let update = std::env::var_os("UPDATE_SHADERS").is_some();
    let mut problems = Vec::new();
    for source in with_extension("wgsl") {
        let name = source
            .file_name()
            .expect("it was listed")
            .to_string_lossy()
            .into_owned();
        let compiled = source.with_extension("spv");
        match shader_source(&shaders(), &name).and_then(|text| compile(&name, &text)) {
            Err(message) => problems.push(message),
            Ok(words) => {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                if update {
                    fs::write(&compiled, &bytes).expect("shaders/ is writable");
                }
                if fs::read(&compiled).ok() != Some(bytes) {
                    problems.push(format!(
                        "{name}: its .spv differs; hint: UPDATE_SHADERS=1 cargo test --test shaders"
                    ));
                }
            }
        }
    }
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn each_compiled_shader_has_a_source() {
    let orphans: Vec<PathBuf> = with_extension("spv")
        .into_iter()
        .filter(|path| !path.with_extension("wgsl").exists())
        .collect();
    assert!(orphans.is_empty(), "without source: {orphans:?}");
}

fn shaders() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders")
}

fn with_extension(extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(shaders()).expect("shaders/ is there");
    let paths = entries.map(|entry| entry.expect("a readable folder").path());
    let mut found: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|has| has == extension))
        .collect();
    found.sort();
    assert!(
        extension != "wgsl" || !found.is_empty(),
        "no shaders were found"
    );
    found
}
