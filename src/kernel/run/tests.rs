//! Plans run as workers run them, on the software device.

use super::worker::KernelWorker;
use crate::{
    KernelPlan,
    plan::{
        ArrayPlan, ArraySource, BindingPlan, Combine, Content, Extent, OutputPlan, Quantity,
        ShaderPlan, Stage, UniformValue,
    },
};
use nodectl_builtin::{BuiltinPart, Call, CallError, device};
use nodectl_formats::{Array, ArrayLocation, Info, write};
use nodectl_gpu::shader::{Element, Language, ShaderChecks};
use nodectl_types::{Scalar, Value};
use serde_json::{Value as Json, json};
use std::path::Path;

const TILE: &str = "struct Tile { origin: vec3<u32>, size: vec3<u32>, space: vec3<u32>, step: u32 }\n\
                    @group(0) @binding(0) var<uniform> tile: Tile;\n";

/// Whether this machine can run them.
fn can_run() -> bool {
    match device::open() {
        Ok(_) => true,
        Err(why) => {
            eprintln!("SKIPPED: {why}");
            false
        }
    }
}

fn f32_array(is_written: bool, extent: Extent, source: Option<ArraySource>) -> Content {
    let element = Element {
        scalar: Scalar::F32,
        components: 1,
        stride: 4,
    };
    Content::Array(ArrayPlan {
        element,
        extent,
        source,
        resumes: None,
        is_written,
    })
}

fn cells() -> Extent {
    Extent::Cells {
        per_cell: Vec::new(),
    }
}

fn file(path: &str) -> Option<ArraySource> {
    Some(ArraySource::File {
        path: path.into(),
        member: None,
        raw: None,
        convert: false,
    })
}

/// Bindings in set 0 with the names and numbers given, over a space of two dimensions, all in one
/// task.
fn plan(
    source: &str,
    space: [i64; 2],
    bindings: Vec<(&str, Content)>,
    outputs: &[&str],
) -> KernelPlan {
    let number = |n: i64| Quantity::Value(Value::Int(n));
    let binding = |(index, (name, content)): (usize, (&str, Content))| BindingPlan {
        set: 0,
        binding: index as u32,
        name: name.into(),
        content,
    };
    let output = |name: &&str| OutputPlan {
        binding: name.to_string(),
        combine: Combine::Concat,
        file: format!("{name}.npy"),
        member: None,
        scalar: Scalar::F32,
        scale: None,
    };
    KernelPlan {
        stage: Stage::Whole { steps: 1 },
        shader: ShaderPlan {
            file: "test.wgsl".into(),
            language: Language::Wgsl,
            source: format!("{TILE}{source}").into_bytes(),
            entry: "main".into(),
            checks: ShaderChecks::Full,
        },
        space: [number(space[0]), number(space[1]), number(1)],
        dimensions: 2,
        grid: [1; 3],
        halo: [0; 3],
        constants: Vec::new(),
        bindings: bindings.into_iter().enumerate().map(binding).collect(),
        swaps: Vec::new(),
        parts: Vec::new(),
        outputs: outputs.iter().map(output).collect(),
    }
}

fn call(worker: &mut KernelWorker, task: u64, dir: &Path, params: Json) -> Result<Json, CallError> {
    let params = params.as_object().expect("an object").clone();
    worker.run(&Call {
        task,
        dir: dir.to_path_buf(),
        params,
    })
}

fn run(plan: KernelPlan, dir: &Path) -> Result<Json, CallError> {
    call(&mut KernelWorker::new(plan)?, 0, dir, json!({}))
}

/// Runs the plan as a job of tiles, cut by `grid`, and one that puts them together in `dir`.
fn run_cut(plan: &KernelPlan, grid: [u32; 3], steps: u32, dir: &Path) {
    let parts: Vec<String> = plan
        .outputs
        .iter()
        .map(|output| output.binding.clone())
        .collect();
    let stage = Stage::Tiles {
        first_step: 0,
        steps,
        from: None,
    };
    let tiles = KernelPlan {
        stage,
        grid,
        parts,
        outputs: Vec::new(),
        ..plan.clone()
    };
    let mut worker = KernelWorker::new(tiles.clone()).unwrap();
    for task in 0..u64::from(tiles.tile_count()) {
        let part = dir.join("job.tiles").join(task.to_string());
        std::fs::create_dir_all(&part).unwrap();
        for entry in std::fs::read_dir(dir)
            .unwrap()
            .flatten()
            .filter(|entry| entry.path().is_file())
        {
            std::fs::copy(entry.path(), part.join(entry.file_name())).unwrap();
        }
        call(&mut worker, task, &part, json!({})).unwrap();
    }
    let stage = Stage::Assemble {
        from: "job.tiles".into(),
    };
    run(
        KernelPlan {
            stage,
            grid,
            ..plan.clone()
        },
        dir,
    )
    .unwrap();
}

fn read(dir: &Path, name: &str) -> (Vec<u64>, Vec<f32>) {
    let array = ArrayLocation::new(dir.join(name)).read().unwrap();
    let numbers = array
        .bytes
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    (array.info.shape, numbers.collect())
}

/// Equal, or where they differ first.
fn same(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differs = found
        .iter()
        .zip(expected)
        .position(|(found, expected)| found != expected);
    if let Some(at) = differs {
        panic!("{what}: number {at} is {}, not {}", found[at], expected[at]);
    }
}

fn save(dir: &Path, name: &str, shape: &[u64], numbers: &[f32]) {
    let bytes = numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect();
    let array = Array {
        info: Info {
            scalar: Scalar::F32,
            shape: shape.to_vec(),
        },
        bytes,
    };
    write(&dir.join(name), &[("", &array)], None).unwrap();
}

const PLACES: &str = "
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (any(id >= tile.size)) { return; }
    let cell = tile.origin + id;
    out[id.x + tile.size.x * id.y] = f32(cell.x) + 1000.0 * f32(cell.y);
}";

/// So many cells that they are computed in several slabs.
#[test]
fn every_cell_is_computed_once_at_its_place_however_the_space_is_cut() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(
        PLACES,
        [251, 300],
        vec![
            ("tile", Content::Tile),
            ("out", f32_array(true, cells(), None)),
        ],
        &["out"],
    );
    let expected: Vec<f32> = (0..300)
        .flat_map(|y| (0..251).map(move |x| x as f32 + 1000.0 * y as f32))
        .collect();
    let result = run(plan.clone(), dir.path()).unwrap();
    assert_eq!(result["items"], 251 * 300);
    assert!(
        result["gpu_seconds"].as_f64().unwrap() > 0.0
            && !result["gpu"].as_str().unwrap().is_empty(),
        "{result}"
    );
    assert_eq!(result["software"], true, "the tests have no other");
    let (shape, numbers) = read(dir.path(), "out.npy");
    assert_eq!(shape, [300, 251]);
    same(&numbers, &expected, "in one task");
    run_cut(&plan, [3, 2, 1], 1, dir.path());
    same(&read(dir.path(), "out.npy").1, &expected, "in tiles");
}

/// Four neighbours' mean, walls fixed.
const RELAX: &str = "
@group(0) @binding(1) var<storage, read> before: array<f32>;
@group(0) @binding(2) var<storage, read_write> after: array<f32>;
@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (any(id >= tile.size)) { return; }
    let at = id.x + tile.size.x * id.y;
    let cell = tile.origin + id;
    if (cell.x == 0u || cell.y == 0u || cell.x + 1u == tile.space.x || cell.y + 1u == tile.space.y) {
        after[at] = before[at];
        return;
    }
    after[at] = 0.25 * (before[at - 1u] + before[at + 1u] + before[at - tile.size.x] + before[at + tile.size.x]);
}";

fn relax(space: [i64; 2], steps: u32) -> KernelPlan {
    let bindings = vec![
        ("tile", Content::Tile),
        ("before", f32_array(false, cells(), file("start.npy"))),
        ("after", f32_array(true, cells(), None)),
    ];
    KernelPlan {
        stage: Stage::Whole { steps },
        halo: [1, 1, 0],
        swaps: vec![("before".into(), "after".into())],
        ..plan(RELAX, space, bindings, &["after"])
    }
}

fn relaxed(start: &[f32], [width, height]: [usize; 2], steps: u32) -> Vec<f32> {
    let mut cells = start.to_vec();
    for _ in 0..steps {
        let before = cells.clone();
        for y in 1..height - 1 {
            for x in 1..width - 1 {
                let at = x + width * y;
                cells[at] = 0.25
                    * (before[at - 1] + before[at + 1] + before[at - width] + before[at + width]);
            }
        }
    }
    cells
}

#[test]
fn steps_with_exchanged_buffers_are_those_of_the_cpu_also_with_halos() {
    if !can_run() {
        return;
    }
    let (space, size) = ([37, 29], [37, 29]);
    let start: Vec<f32> = (0..37 * 29)
        .map(|cell| ((cell * 7919) % 1000) as f32)
        .collect();
    for steps in [1, 2, 7, 40] {
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), "start.npy", &[29, 37], &start);
        let plan = relax(space, steps);
        let expected = relaxed(&start, size, steps);
        run(plan.clone(), dir.path()).unwrap();
        same(
            &read(dir.path(), "after.npy").1,
            &expected,
            &format!("{steps} steps"),
        );
        run_cut(&plan, [2, 3, 1], steps, dir.path());
        same(
            &read(dir.path(), "after.npy").1,
            &expected,
            &format!("{steps} steps in tiles"),
        );
    }
}

#[test]
fn rounds_go_on_from_what_the_one_before_left() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let start: Vec<f32> = (0..37 * 29)
        .map(|cell| ((cell * 7919) % 1000) as f32)
        .collect();
    save(dir.path(), "start.npy", &[29, 37], &start);
    let grid = [2, 2, 1];
    let whole = relax([37, 29], 1);
    for round in 0..3u32 {
        let from = (round > 0).then(|| format!("round-{}", round - 1));
        let mut plan = KernelPlan {
            stage: Stage::Tiles {
                first_step: round * 2,
                steps: 2,
                from,
            },
            grid,
            parts: vec!["after".into()],
            outputs: Vec::new(),
            ..whole.clone()
        };
        if let Content::Array(before) = &mut plan.bindings[1].content {
            before.resumes = (round > 0).then(|| "after".into());
        }
        let mut worker = KernelWorker::new(plan).unwrap();
        for task in 0..4 {
            let task_dir = dir
                .path()
                .join(format!("round-{round}"))
                .join(task.to_string());
            std::fs::create_dir_all(&task_dir).unwrap();
            std::fs::copy(dir.path().join("start.npy"), task_dir.join("start.npy")).unwrap();
            if round > 0 {
                let before = format!("round-{}", round - 1);
                std::os::unix::fs::symlink(dir.path().join(&before), task_dir.join(&before))
                    .unwrap();
            }
            call(&mut worker, task, &task_dir, json!({})).unwrap();
        }
    }
    run(
        KernelPlan {
            stage: Stage::Assemble {
                from: "round-2".into(),
            },
            grid,
            ..whole
        },
        dir.path(),
    )
    .unwrap();
    same(
        &read(dir.path(), "after.npy").1,
        &relaxed(&start, [37, 29], 6),
        "three rounds of two steps",
    );
}

const COUNT: &str = "
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;
@group(0) @binding(2) var<uniform> gain: f32;
@compute @workgroup_size(1)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (any(id > vec3(0u))) { return; }
    sums[0] = gain * f32(tile.size.x * tile.size.y);
    sums[1] = f32(tile.origin.x);
    sums[2] = -f32(tile.origin.y);
}";

const FOLD: &str = "
@group(0) @binding(0) var<storage, read_write> whole: array<f32>;
@group(0) @binding(1) var<storage, read> part: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&whole)) { whole[id.x] = whole[id.x] + 2.0 * part[id.x]; }
}";

#[test]
fn partial_outputs_are_folded_as_the_plan_says() {
    if !can_run() {
        return;
    }
    let whole = Extent::Whole {
        shape: vec![Quantity::Value(Value::Int(3))],
    };
    let value = UniformValue {
        offset: 0,
        scalar: Scalar::F32,
        value: Quantity::Value(Value::Float(2.0)),
    };
    let bindings = vec![
        ("tile", Content::Tile),
        ("sums", f32_array(true, whole, None)),
        (
            "gain",
            Content::Uniform {
                bytes: 4,
                values: vec![value],
            },
        ),
    ];
    let shader = ShaderPlan {
        file: "fold.wgsl".into(),
        language: Language::Wgsl,
        source: FOLD.into(),
        entry: "main".into(),
        checks: ShaderChecks::Full,
    };
    // Four tiles of 5 x 3 cells.
    for (combine, expected) in [
        (Combine::Sum, [120.0, 10.0, -6.0]),
        (Combine::Min, [30.0, 0.0, -3.0]),
        (Combine::Max, [30.0, 5.0, 0.0]),
        (Combine::Shader(shader), [210.0, 20.0, -12.0]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut plan = plan(COUNT, [10, 6], bindings.clone(), &["sums"]);
        plan.outputs[0].combine = combine.clone();
        run_cut(&plan, [2, 2, 1], 1, dir.path());
        assert_eq!(read(dir.path(), "sums.npy").1, expected, "{combine:?}");
    }
}

#[test]
fn parameters_are_uniforms_constants_and_names_of_files() {
    if !can_run() {
        return;
    }
    let source = "
override power: u32 = 1u;
@group(0) @binding(1) var<storage, read_write> out: array<vec3<f32>>;
@group(0) @binding(2) var<uniform> factor: f32;
@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (any(id >= tile.size)) { return; }
    let number = f32(id.x) * factor * f32(power);
    out[id.x + tile.size.x * id.y] = vec3(number, number + 1.0, number + 2.0);
}";
    let element = Element {
        scalar: Scalar::F32,
        components: 3,
        stride: 16,
    };
    let out = ArrayPlan {
        element,
        extent: cells(),
        source: None,
        resumes: None,
        is_written: true,
    };
    let value = UniformValue {
        offset: 0,
        scalar: Scalar::F32,
        value: Quantity::Param("factor".into()),
    };
    let bindings = vec![
        ("tile", Content::Tile),
        ("out", Content::Array(out)),
        (
            "factor",
            Content::Uniform {
                bytes: 4,
                values: vec![value],
            },
        ),
    ];
    let mut plan = plan(source, [3, 2], bindings, &["out"]);
    plan.constants.push(crate::plan::ConstantPlan {
        name: "power".into(),
        scalar: Scalar::U32,
        value: Quantity::Param("power".into()),
    });
    plan.outputs[0].file = "deep/{factor}.npy".into();
    let dir = tempfile::tempdir().unwrap();
    let mut worker = KernelWorker::new(plan).unwrap();
    for (task, factor, power) in [(0, 2.0, 1), (1, 0.5, 3)] {
        call(
            &mut worker,
            task,
            dir.path(),
            json!({ "factor": factor, "power": power }),
        )
        .unwrap();
        let (shape, numbers) = read(dir.path(), &format!("deep/{factor}.npy"));
        assert_eq!(shape, [2, 3, 3]);
        let one = factor as f32 * power as f32;
        assert_eq!(numbers[..6], [0.0, 1.0, 2.0, one, one + 1.0, one + 2.0]);
    }
}

#[test]
fn what_does_not_fit_is_told_with_names_and_numbers() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let bindings = || {
        vec![
            ("tile", Content::Tile),
            ("out", f32_array(true, cells(), None)),
        ]
    };
    let refused = |plan: KernelPlan| match run(plan, dir.path()) {
        Err(CallError::Task(why)) => why,
        other => panic!("{other:?}"),
    };
    let huge = refused(plan(
        &PLACES.replace("8, 8", "4096, 4096"),
        [8, 8],
        bindings(),
        &["out"],
    ));
    assert!(
        huge.contains("test.wgsl") && huge.contains("workgroup"),
        "{huge}"
    );
    let mut uncut = plan(PLACES, [1 << 14, 1 << 14], bindings(), &["out"]);
    uncut.stage = Stage::Whole { steps: 2 };
    let large = refused(uncut);
    assert!(
        large.contains("`out` has 1073741824 bytes") && large.contains("hint"),
        "{large}"
    );
    let missing = refused(plan(
        PLACES,
        [8, 8],
        [
            bindings(),
            vec![("more", f32_array(false, cells(), file("none.npy")))],
        ]
        .concat(),
        &["out"],
    ));
    assert!(
        missing.contains("`more`") && missing.contains("none.npy"),
        "{missing}"
    );
}
