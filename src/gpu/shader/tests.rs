//! What shaders are taken for: their errors, their bindings and layouts, and that what comes out is
//! SPIR-V.

use super::*;
use nodectl_types::Scalar;

const HEAT: &str = "
struct Tile { origin: vec3<u32>, size: vec3<u32>, space: vec3<u32>, step: u32 }
struct Params { alpha: f32, offset: vec3<f32>, m: mat2x2<f32>, list: array<vec4<u32>, 2> }
struct Particle { at: vec3<f32>, mass: f32 }
override SIDE: u32 = 8;
override SHIFT: f32;
@group(0) @binding(0) var<uniform> tile: Tile;
@group(0) @binding(1) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> now: array<vec3<f32>>;
@group(1) @binding(0) var<storage, read_write> next: array<Particle>;
@group(1) @binding(1) var<storage, read_write> total: atomic<u32>;
@group(1) @binding(2) var<storage, read> unused: array<f32>;
var<workgroup> shared_tile: array<f32, 64>;
@compute @workgroup_size(SIDE, 4)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.y * tile.size.x + id.x;
    shared_tile[0] = params.alpha + f32(params.list[0].x);
    next[i].mass = now[i].x * SHIFT + shared_tile[1];
    atomicAdd(&total, 1u);
}
";

fn heat() -> Shader {
    Shader::parse(Language::Wgsl, HEAT.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn an_entry_point_is_described() {
    let shader = heat();
    assert_eq!(shader.entry_points(), ["main"]);
    let entry = shader.entry("main").unwrap();
    assert!(shader.entry("nothing").is_none());
    assert_eq!((entry.workgroup, entry.shared_bytes), ([8, 4, 1], 256));
    assert_eq!(entry.features, []);
    let bindings = entry.bindings.iter();
    let names: Vec<_> = bindings
        .map(|binding| (binding.set, binding.binding, binding.name.as_str()))
        .collect();
    let expected = [
        (0, 0, "tile"),
        (0, 1, "params"),
        (0, 2, "now"),
        (1, 0, "next"),
        (1, 1, "total"),
    ];
    assert_eq!(names, expected);
    let span = entry.bindings[2].span.clone().unwrap();
    assert!(HEAT[span].contains("now"), "the place of the declaration");
}

#[test]
fn members_of_uniforms_are_described() {
    let entry = heat().entry("main").unwrap();
    let uniform = |binding: usize| match &entry.bindings[binding].kind {
        BindingKind::Uniform { bytes, fields } => {
            let fields = fields.iter();
            let places = fields.map(|field| (field.name.clone(), field.places.clone()));
            (*bytes, places.collect::<Vec<_>>())
        }
        other => panic!("{other:?}"),
    };
    let named = |fields: &[(&str, &[u32])]| -> Vec<(String, Vec<u32>)> {
        let fields = fields.iter();
        fields
            .map(|(name, places)| (name.to_string(), places.to_vec()))
            .collect()
    };
    let tile = named(&[
        ("origin", &[0, 4, 8]),
        ("size", &[16, 20, 24]),
        ("space", &[32, 36, 40]),
        ("step", &[44]),
    ]);
    assert_eq!(uniform(0), (48, tile));
    let params = named(&[
        ("alpha", &[0]),
        ("offset", &[16, 20, 24]),
        ("m", &[32, 36, 40, 44]),
        ("list", &[48, 52, 56, 60, 64, 68, 72, 76]),
    ]);
    assert_eq!(uniform(1), (80, params));
}

#[test]
fn arrays_are_described() {
    let entry = heat().entry("main").unwrap();
    let array = |scalar, [components, stride]: [u32; 2], count, is_written| BindingKind::Storage {
        element: Element {
            scalar,
            components,
            stride,
        },
        count,
        is_written,
    };
    let kind = |binding: usize| &entry.bindings[binding].kind;
    assert_eq!(*kind(2), array(Scalar::F32, [3, 16], None, false));
    assert_eq!(*kind(3), array(Scalar::F32, [4, 16], None, true));
    assert_eq!(*kind(4), array(Scalar::U32, [1, 4], Some(1), true));
}

#[test]
fn constants_are_compiled_in() {
    let shader = heat();
    let names: Vec<_> = shader
        .constants()
        .into_iter()
        .map(|c| (c.name, c.scalar, c.has_default))
        .collect();
    assert_eq!(
        names,
        [
            ("SIDE".into(), Scalar::U32, true),
            ("SHIFT".into(), Scalar::F32, false)
        ]
    );
    let values = |values: &[(&str, f64)]| {
        values
            .iter()
            .map(|(name, value)| (name.to_string(), *value))
            .collect::<Vec<_>>()
    };
    let compiled = shader
        .compile(
            "main",
            &values(&[("SIDE", 16.0), ("SHIFT", 0.5)]),
            ShaderChecks::Full,
        )
        .unwrap();
    assert_eq!(
        (compiled.entry.workgroup, compiled.words[0]),
        ([16, 4, 1], 0x0723_0203)
    );
    let error = |given: &[(&str, f64)]| {
        shader
            .compile("main", &values(given), ShaderChecks::Full)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error(&[]),
        "the shader's constant `SHIFT` has neither a value nor a default"
    );
    assert_eq!(
        error(&[("SHIFT", 1.0), ("SIED", 1.0)]),
        "the shader has no constant `SIED`"
    );
    assert!(
        error(&[("SHIFT", 1.0), ("SIDE", 0.0)]).contains("workgroup_size"),
        "{}",
        error(&[("SHIFT", 1.0), ("SIDE", 0.0)])
    );
}

#[test]
fn errors_point_into_the_text() {
    for (text, place, said) in [
        ("fn main() { let x = 1 + ; }", ";", "expected"),
        (
            "@compute @workgroup_size(1) fn main() { let x: u32 = 1.5; }",
            "x",
            "type",
        ),
        (
            "@compute @workgroup_size(1) fn main() { undeclared(); }",
            "undeclared",
            "no definition",
        ),
        (
            "@group(0) @binding(0) var<storage, read> a: array<f32>;\n@compute @workgroup_size(1) fn main() { a[0] = 1.0; }",
            "a[0]",
            "",
        ),
        (
            "@compute @workgroup_size(1) fn main() { var b: bool = 1; }",
            "b",
            "type",
        ),
    ] {
        let error = Shader::parse(Language::Wgsl, text.as_bytes()).unwrap_err();
        let span = error
            .span
            .clone()
            .unwrap_or_else(|| panic!("no place: {error}"));
        assert!(
            text[span.clone()].contains(place) || place.contains(&text[span]),
            "{error:?}"
        );
        assert!(error.message.contains(said), "{error}");
    }
    let error = Shader::parse(Language::Wgsl, b"fn \xff").unwrap_err();
    assert_eq!(error.span, Some(3..4));
}

#[test]
fn features_are_what_validation_asks_for() {
    let features = |text: &str| {
        let shader = Shader::parse(Language::Wgsl, text.as_bytes())
            .unwrap_or_else(|error| panic!("{error}"));
        shader.entry("main").unwrap().features
    };
    let main = "@compute @workgroup_size(1) fn main() { a[0] += a[1]; }";
    let array = |ty: &str| {
        format!("@group(0) @binding(0) var<storage, read_write> a: array<{ty}>;\n{main}")
    };
    assert_eq!(features(&array("f32")), []);
    assert_eq!(features(&array("f64")), [Feature::F64]);
    assert_eq!(features(&array("i64")), [Feature::I64]);
    assert_eq!(
        features(&format!("enable f16;\n{}", array("f16"))),
        [Feature::F16]
    );
    let subgroups = "@compute @workgroup_size(1) fn main() { let a = subgroupAdd(1u); }";
    assert_eq!(features(subgroups), [Feature::Subgroups]);
}

#[test]
fn spir_v_is_understood_and_handed_on() {
    let text = "
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(32) fn go(@builtin(global_invocation_id) id: vec3<u32>) { out[id.x] = id.x; }";
    let words = Shader::parse(Language::Wgsl, text.as_bytes())
        .unwrap()
        .compile("go", &[], ShaderChecks::Full)
        .unwrap()
        .words;
    for bytes in [
        words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect::<Vec<_>>(),
        words.iter().flat_map(|word| word.to_be_bytes()).collect(),
    ] {
        let shader =
            Shader::parse(Language::SpirV, &bytes).unwrap_or_else(|error| panic!("{error}"));
        let compiled = shader.compile("go", &[], ShaderChecks::Full).unwrap();
        assert_eq!(compiled.words, words);
        assert_eq!(
            (
                compiled.entry.workgroup,
                compiled.entry.bindings[0].name.as_str()
            ),
            ([32, 1, 1], "out")
        );
        let element = Element {
            scalar: Scalar::U32,
            components: 1,
            stride: 4,
        };
        assert_eq!(
            compiled.entry.bindings[0].kind,
            BindingKind::Storage {
                element,
                count: None,
                is_written: true
            }
        );
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(
        Shader::parse(Language::SpirV, &bytes[..7])
            .unwrap_err()
            .message,
        "the file is not SPIR-V"
    );
    assert!(Shader::parse(Language::SpirV, &bytes[..(bytes.len() / 2) & !3]).is_err());
    assert!(Shader::parse(Language::SpirV, b"").is_err());
}

#[test]
fn atomics_are_compiled_too() {
    let text = "
@group(0) @binding(0) var<storage, read_write> bins: array<atomic<u32>>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) { atomicAdd(&bins[id.x % 7u], 1u); }";
    let shader = Shader::parse(Language::Wgsl, text.as_bytes()).unwrap();
    assert!(
        !shader
            .compile("main", &[], ShaderChecks::Full)
            .unwrap()
            .words
            .is_empty()
    );
}

#[test]
fn other_languages_are_named() {
    assert_eq!(Language::of_file("a/b.WGSL"), Ok(Language::Wgsl));
    assert_eq!(Language::of_file("b.spv"), Ok(Language::SpirV));
    assert_eq!(
        Language::of_file("dir/blur.comp"),
        Ok(Language::SpirV),
        "what it becomes"
    );
    assert!(Language::of_file("blur").is_err() && Language::of_file("blur.hlsl").is_err());
}

#[test]
fn deep_nesting_is_an_error() {
    let text = format!(
        "@compute @workgroup_size(1) fn main() {{ let x = {}1{}; }}",
        "(".repeat(100_000),
        ")".repeat(100_000)
    );
    assert!(Shader::parse(Language::Wgsl, text.as_bytes()).is_err());
}

/// Fewer checks are fewer instructions; the entry point stays the same.
#[test]
fn checks_are_what_was_asked_for() {
    let text = "@group(0) @binding(0) var<storage, read_write> out: array<u32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            var sum = 0u;
            for (var i = 0u; i < out[0]; i++) { sum += i / out[i]; }
            out[id.x] = sum;
        }";
    let shader = Shader::parse(Language::Wgsl, text.as_bytes()).unwrap();
    let compiled = [ShaderChecks::Full, ShaderChecks::Bounds, ShaderChecks::None]
        .map(|checks| shader.compile("main", &[], checks).unwrap());
    let words = compiled.each_ref().map(|compiled| compiled.words.len());
    assert!(words[0] > words[1] && words[1] > words[2], "{words:?}");
    assert!(
        compiled
            .iter()
            .all(|other| other.entry == compiled[0].entry)
    );
}
