//! What kernels' job files mean, and what is said of wrong ones.

mod errors;

use super::{
    plan::{ArraySource as PlanSource, Combine, Content, Extent, PLAN_FILE, Stage, tile_bytes},
    *,
};
use nodectl_formats::{self as formats, Array, Info};
use nodectl_jobfile::{JobFileError, PlannedJob, UploadSource, parse};
use nodectl_types::{Scalar, WorkerSpec};
use proptest::prelude::*;

const TILE: &str = "struct Tile { origin: vec3<u32>, size: vec3<u32>, space: vec3<u32>, step: u32 }\n\
                    @group(0) @binding(0) var<uniform> tile: Tile;\n";

/// A heat equation: one array is read, one written, both cut.
const HEAT: &str = "struct Heat { alpha: f32, wind: vec2<f32> }
@group(0) @binding(1) var<uniform> heat: Heat;
@group(0) @binding(2) var<storage, read> now: array<f32>;
@group(0) @binding(3) var<storage, read_write> next: array<f32>;
override WIDTH: u32 = 8;
@compute @workgroup_size(WIDTH, 8) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let at = id.y * tile.size.x + id.x;
    next[at] = now[at] * heat.alpha + heat.wind.x;
}
";

/// Without a tile: sums in one array, a fixed one, a struct.
const FREE: &str = "struct Body { at: vec3<f32>, mass: f32 }
@group(0) @binding(0) var<storage, read> bodies: array<Body>;
@group(0) @binding(1) var<storage, read> table: array<u32, 4>;
@group(0) @binding(2) var<storage, read_write> sums: array<atomic<u32>>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    atomicAdd(&sums[0], table[1] + u32(bodies[id.x].mass));
}
@compute @workgroup_size(64) fn other() {}
";

/// A directory with shaders and arrays for jobs to name.
fn lab() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    text("heat.wgsl", &format!("{TILE}{HEAT}"));
    text("free.wgsl", FREE);
    text(
        "broken.wgsl",
        "@compute @workgroup_size(1)\nfn main() { let x: u32 = 1.5; }\n",
    );
    text("wide.wgsl", "@compute @workgroup_size(64, 64) fn main() {}");
    text(
        "tile.wgsl",
        "struct Tile { origin: vec3<u32> }\n@group(0) @binding(0) var<uniform> tile: Tile;\n@compute @workgroup_size(1) fn main() { let a = tile.origin; }",
    );
    text(
        "mixed.wgsl",
        "struct A { a: f32, b: u32 }\n@group(0) @binding(0) var<storage, read> mixed: array<A>;\n@compute @workgroup_size(1) fn main() { let a = mixed[0].a; }",
    );
    text(
        "fold.wgsl",
        "@group(0) @binding(0) var<storage, read_write> a: array<f32>;\n@group(0) @binding(1) var<storage, read> b: array<f32>;\n@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) { a[id.x] += b[id.x]; }",
    );
    text("none.wgsl", "fn main() {}");
    text("blur.comp", "void main() {}");
    text("bad.spv", "not words");
    text("short.npy", "\u{93}NUMPY");
    let array = |name: &str, scalar, shape: &[u64]| {
        let array = Array::zeros(Info {
            scalar,
            shape: shape.to_vec(),
        })
        .unwrap();
        formats::write(&dir.path().join(name), &[("data", &array)], None).unwrap();
    };
    array("field.npy", Scalar::F32, &[48, 64]);
    array("bytes.npy", Scalar::U8, &[48, 64]);
    array("doubles.npy", Scalar::F64, &[48, 64]);
    array("turned.npy", Scalar::F32, &[64, 48]);
    array("field.h5", Scalar::F32, &[48, 64]);
    array("bodies.npz", Scalar::F32, &[100, 4]);
    for k in [1, 2] {
        array(&format!("field-{k}.npy"), Scalar::F32, &[48 * k, 64]);
    }
    dir
}

fn plan_all(text: &str) -> Result<Vec<PlannedJob>, JobFileError> {
    let dir = lab();
    parse(
        &format!("kind = \"kernel\"\n{text}"),
        &dir.path().join("job.toml"),
        plan,
    )
}

fn jobs(text: &str) -> Vec<PlannedJob> {
    plan_all(text).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

/// The plan that a job carries.
fn carried(job: &PlannedJob) -> KernelPlan {
    let upload = job
        .uploads
        .iter()
        .find(|upload| upload.path == PLAN_FILE)
        .expect("every job has its plan");
    let UploadSource::Bytes(bytes) = &upload.source else {
        panic!("a plan is no file")
    };
    KernelPlan::decode(bytes).unwrap()
}

const JOB: &str = "shader = \"heat.wgsl\"\nspace = [64, 48]\n\
    inputs.now = { file = \"field.npy\", cut = \"tile\" }\nuniforms = { alpha = 0.5, wind = [1, 2] }\n\
    outputs.next = \"heat.npy\"\n";

#[test]
fn a_small_space_is_one_job() {
    let [job] = jobs(&format!("{JOB}params = {{ k = [1, 2, 3] }}"))
        .try_into()
        .unwrap();
    assert_eq!(
        (
            job.name(),
            job.task_count(),
            job.draft.retries,
            job.is_step()
        ),
        ("job", 3, 3, false)
    );
    assert_eq!(job.draft.work.outputs, ["heat.npy"]);
    assert!(
        matches!(job.draft.work.worker, Some(WorkerSpec::Builtin(_)))
            && job.draft.work.has_default_needs()
    );
    let paths: Vec<&str> = job
        .uploads
        .iter()
        .map(|upload| upload.path.as_str())
        .collect();
    assert_eq!(paths, ["field.npy", "kernel.plan"]);
    let plan = carried(&job);
    assert_eq!(
        (plan.stage.clone(), plan.dimensions, plan.tile_count()),
        (Stage::Whole { steps: 1 }, 2, 1)
    );
    let names: Vec<&str> = plan
        .bindings
        .iter()
        .map(|binding| binding.name.as_str())
        .collect();
    assert_eq!(names, ["tile", "heat", "now", "next"]);
    let resolved = plan.resolve(&job.draft.params.get(1)).unwrap();
    assert_eq!(resolved.space, [64, 48, 1]);
    let floats = |numbers: [f32; 4]| {
        numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    assert_eq!(
        resolved.bindings[1],
        ResolvedContent::Uniform(floats([0.5, 0.0, 1.0, 2.0]))
    );
    let spec = job
        .complete(None, Vec::new())
        .submitted(nodectl_types::NodeId([0; 32]), 0);
    assert_eq!(nodectl_wire::control::validate_spec(&spec), Ok(()));
}

#[test]
fn tiles_are_a_job_and_their_assembly_another() {
    let text = format!(
        "name = \"heat\"\ntile = [32, 16]\nhalo = [1, 2]\npriority = 3\n{JOB}params = {{ k = [1, 2] }}"
    );
    let [tiles, whole] = jobs(&text).try_into().unwrap();
    assert_eq!(
        (
            tiles.name(),
            tiles.draft.repeat,
            tiles.task_count(),
            tiles.is_step()
        ),
        ("heat.tiles", 6, 12, true)
    );
    assert_eq!(
        (whole.name(), whole.task_count(), whole.is_step()),
        ("heat", 2, false)
    );
    assert_eq!(
        (
            whole.after.as_slice(),
            tiles.draft.work.priority,
            whole.draft.work.priority
        ),
        (&["heat.tiles".to_string()][..], 3, 3)
    );
    assert_eq!(
        (
            tiles.draft.work.outputs.as_slice(),
            whole.draft.work.outputs.as_slice()
        ),
        (
            &["next.part.npy".to_string()][..],
            &["heat.npy".to_string()][..]
        )
    );
    assert_eq!(
        (whole.uploads.len(), whole.draft.work.resources.cpu_milli),
        (1, 1000),
        "parts are put together by a core"
    );
    let plan = carried(&tiles);
    assert_eq!(
        (plan.grid, plan.halo, plan.parts.as_slice()),
        ([2, 3, 1], [1, 2, 0], &["next".to_string()][..])
    );
    assert_eq!(
        plan.stage,
        Stage::Tiles {
            first_step: 0,
            steps: 1,
            from: None
        }
    );
    assert_eq!(
        carried(&whole).stage,
        Stage::Assemble {
            from: "heat.tiles".into()
        }
    );
}

#[test]
fn iterations_are_a_chain_of_rounds() {
    let text = format!(
        "name = \"heat\"\ntile = 32\nhalo = 1\n{JOB}iterate = {{ steps = 10, swap = [[\"now\", \"next\"]], steps_per_round = 4 }}"
    );
    let all = jobs(&text);
    let names: Vec<&str> = all.iter().map(|job| job.name()).collect();
    assert_eq!(
        names,
        ["heat.round-1", "heat.round-2", "heat.round-3", "heat"]
    );
    let stages: Vec<Stage> = all.iter().map(|job| carried(job).stage).collect();
    let round = |first_step, steps, from: Option<&str>| Stage::Tiles {
        first_step,
        steps,
        from: from.map(str::to_string),
    };
    let expected = [
        round(0, 4, None),
        round(4, 4, Some("heat.round-1")),
        round(8, 2, Some("heat.round-2")),
    ];
    assert_eq!(stages[..3], expected);
    let plan = carried(&all[1]);
    let Content::Array(now) = &plan.binding("now").unwrap().content else {
        panic!("no array")
    };
    assert_eq!(
        (now.resumes.as_deref(), plan.parts.as_slice()),
        (Some("next"), &["next".to_string()][..])
    );
    // In one tile all steps are one task.
    let whole = jobs(&format!(
        "{JOB}iterate = {{ steps = 10, swap = [[\"now\", \"next\"]] }}"
    ));
    assert_eq!(
        (whole.len(), carried(&whole[0]).steps()),
        (1, Some((0, 10)))
    );
    // Who looks at everything waits for everything.
    let text = format!("tile = 32\n{JOB}iterate = {{ steps = 3, swap = [[\"now\", \"next\"]] }}")
        .replace("cut = \"tile\"", "cut = \"whole\"");
    assert_eq!(jobs(&text).len(), 4);
}

#[test]
fn every_kind_of_content_reaches_the_plan() {
    let text = "shader = 'free.wgsl'\nentry = 'main'\nspace = '{n}'\nparams = { n = [10, 100], s = [1] }\n\
        inputs.bodies = 'bodies.npz:data'\ninputs.table = { range = [0, 4] }\n\
        outputs.sums = { file = 'all-{n}.h5:/entry/sums', shape = ['{n}'], type = 'u64' }\n";
    let [job] = jobs(text).try_into().unwrap();
    let plan = carried(&job);
    let sources: Vec<_> = plan
        .bindings
        .iter()
        .map(|binding| match &binding.content {
            Content::Array(array) => (
                binding.name.as_str(),
                array.element.components,
                array.source.is_some(),
            ),
            _ => panic!("only arrays"),
        })
        .collect();
    assert_eq!(
        sources,
        [("bodies", 4, true), ("table", 1, true), ("sums", 1, false)]
    );
    let output = &plan.outputs[0];
    assert_eq!(
        (
            output.combine.clone(),
            output.member.as_deref(),
            output.scalar
        ),
        (Combine::Sum, Some("/entry/sums"), Scalar::U64)
    );
    let resolved = plan.resolve(&job.draft.params.get(1)).unwrap();
    assert_eq!(
        (resolved.space, resolved.files.as_slice()),
        ([100, 1, 1], &["all-100.h5".to_string()][..])
    );
    let ResolvedContent::Array(sums) = &resolved.bindings[2] else {
        panic!("no array")
    };
    assert_eq!(sums.shape, [100]);
    assert_eq!(job.draft.work.outputs, ["all-{n}.h5"]);
}

#[test]
fn files_of_all_parameter_sets_travel() {
    let text = "shader = 'heat.wgsl'\nspace = [64, '{h}']\nzip = true\nparams = { k = [1, 2], h = [48, 96] }\n\
        inputs.now = { file = 'field-{k}.npy', cut = 'tile' }\nuniforms = { alpha = '{k}', wind = [0, 0] }\n\
        constants.WIDTH = 4\noutputs.next = { file = '{k}.png', scale = [0, 10] }";
    let [job] = jobs(text).try_into().unwrap();
    let paths: Vec<&str> = job
        .uploads
        .iter()
        .map(|upload| upload.path.as_str())
        .collect();
    assert_eq!(paths, ["field-1.npy", "field-2.npy", "kernel.plan"]);
    let resolved = carried(&job).resolve(&job.draft.params.get(1)).unwrap();
    assert_eq!(
        (resolved.space, resolved.shader_constants()),
        ([64, 96, 1], vec![("WIDTH".into(), 4.0)])
    );
    let bytes = jobs(&JOB.replace("field.npy", "bytes.npy"));
    assert_eq!(bytes.len(), 1, "u8 fits into f32");
    assert_eq!(
        jobs(&JOB.replace(
            "{ file = \"field.npy\",",
            "{ file = \"doubles.npy\", convert = true,"
        ))
        .len(),
        1
    );
    assert_eq!(jobs(&JOB.replace("field.npy", "field.h5:/data")).len(), 1);
}

#[test]
fn generated_arrays_have_their_shapes() {
    let source = |text: &str| {
        let [job] = jobs(&JOB.replace("{ file = \"field.npy\", cut = \"tile\" }", text))
            .try_into()
            .unwrap();
        match &carried(&job).binding("now").unwrap().content {
            Content::Array(array) => (array.source.clone().unwrap(), array.extent.clone()),
            _ => panic!("an array"),
        }
    };
    assert!(matches!(
        source("{ zeros = true, cut = \"tile\" }"),
        (PlanSource::Fill { .. }, Extent::Cells { .. })
    ));
    assert!(
        matches!(source("{ zeros = [3, 4] }"), (PlanSource::Fill { .. }, Extent::Whole { shape }) if shape.len() == 2)
    );
    assert!(matches!(
        source("{ random = { seed = 1 }, cut = \"tile\" }"),
        (PlanSource::Random { .. }, Extent::Cells { .. })
    ));
    assert!(matches!(
        source("{ linspace = [0, 1, 50] }"),
        (PlanSource::Linspace { .. }, Extent::Whole { .. })
    ));
}

#[test]
fn plans_of_other_versions_are_refused() {
    let [job] = jobs(JOB).try_into().unwrap();
    let plan = carried(&job);
    let bytes = plan.encode();
    assert_eq!(KernelPlan::decode(&bytes), Ok(plan));
    let mut newer = bytes.clone();
    newer[0] += 1;
    assert!(
        KernelPlan::decode(&newer)
            .unwrap_err()
            .to_string()
            .contains("of version 3")
    );
    assert!(KernelPlan::decode(&bytes[..bytes.len() / 2]).is_err());
    assert!(KernelPlan::decode(&[]).is_err());
}

#[test]
fn the_tile_is_laid_out_as_wgsl_has_it() {
    let bytes = tile_bytes([1, 2, 3], [4, 5, 6], [7, 8, 9], 10);
    let words: Vec<u32> = bytes
        .chunks(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect();
    assert_eq!(words, [1, 2, 3, 0, 4, 5, 6, 0, 7, 8, 9, 10]);
}

proptest! {
    #[test]
    fn no_plan_makes_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>()) {
        let _ = KernelPlan::decode(&bytes);
        let [job] = jobs(JOB).try_into().unwrap();
        let mut plan = carried(&job).encode();
        let at = at.index(plan.len());
        plan[at] ^= bytes.first().copied().unwrap_or(1);
        if let Ok(plan) = KernelPlan::decode(&plan) {
            let _ = plan.resolve(&Vec::new());
        }
    }
}
