//! The worker of a kernel job: a plan, read once; then a tile or an assembly for each task.

use super::{assemble::Assembler, inputs::KernelInputs, tile::Tiles};
use crate::{
    KernelPlan, Resolved,
    plan::{MAX_PLAN_BYTES, PLAN_FILE, Stage, part_file},
    tiles::{self, Tile},
};
use data_encoding::HEXLOWER;
use nodectl_builtin::{BuiltinPart, Call, CallError, device};
use nodectl_formats::{self as formats, Array};
use nodectl_types::{Gpu, GpuKind, Params, Value, manifest::safe_path, spec::SPELLED};
use serde_json::{Map, Value as Json, json};
use std::{collections::BTreeMap, fs, path::Path, sync::Arc, time::Duration};

pub struct KernelWorker {
    plan: Arc<KernelPlan>,
    body: KernelBody,
}

/// What a stage of the plan needs to run.
enum KernelBody {
    Whole { tiles: Box<Tiles>, device: RanOn },
    Tiles { tiles: Box<Tiles>, device: RanOn },
    Assemble { assembler: Assembler, from: String },
}

/// The device, as results tell of it.
struct RanOn {
    /// The GPU's name and UUID.
    gpu: String,
    /// A processor that stands in for a GPU.
    software: bool,
}

impl BuiltinPart for KernelWorker {
    fn open(_init: Json) -> Result<Self, CallError> {
        Self::new(read_plan(Path::new(PLAN_FILE))?)
    }

    fn run(&mut self, call: &Call) -> Result<Json, CallError> {
        let plan = self.plan.clone();
        let params = params(&call.params);
        let resolved = plan
            .resolve(&params)
            .map_err(|error| CallError::Task(error.to_string()))?;
        let (set, tile) = match plan.stage {
            Stage::Tiles { .. } => (
                call.task / u64::from(plan.tile_count()),
                call.task % u64::from(plan.tile_count()),
            ),
            Stage::Whole { .. } | Stage::Assemble { .. } => (call.task, 0),
        };
        let inputs = KernelInputs {
            plan: &plan,
            resolved: &resolved,
            dir: &call.dir,
            set,
        };
        match &mut self.body {
            KernelBody::Whole { tiles, device } => {
                let names: Vec<&str> = plan
                    .outputs
                    .iter()
                    .map(|output| output.binding.as_str())
                    .collect();
                let tile = cut(&plan, resolved.space, 0);
                let computed = tiles.run(&inputs, tile, &names)?;
                write_outputs(&plan, &resolved, &call.dir, computed.arrays)?;
                Ok(result(&plan, &tile, computed.busy, device))
            }
            KernelBody::Tiles { tiles, device } => {
                let names: Vec<&str> = plan.parts.iter().map(String::as_str).collect();
                let tile = cut(&plan, resolved.space, tile as u32);
                let computed = tiles.run(&inputs, tile, &names)?;
                for (name, array) in names.iter().zip(&computed.arrays) {
                    let path = call.dir.join(part_file(name));
                    formats::write(&path, &[(name, array)], None)
                        .map_err(|error| CallError::Task(error.to_string()))?;
                }
                Ok(result(&plan, &tile, computed.busy, device))
            }
            KernelBody::Assemble { assembler, from } => {
                let (arrays, _) = assembler.run(&inputs, from)?;
                write_outputs(&plan, &resolved, &call.dir, arrays)?;
                Ok(json!({ "files": resolved.files }))
            }
        }
    }
}

impl KernelWorker {
    pub fn new(plan: KernelPlan) -> Result<Self, CallError> {
        let plan = Arc::new(plan);
        let tiles = || -> Result<(Box<Tiles>, RanOn), CallError> {
            let device = device::open()?;
            let ran_on = RanOn::new(&device.info().gpu);
            Ok((Box::new(Tiles::new(device, plan.clone())?), ran_on))
        };
        let body = match &plan.stage {
            Stage::Whole { .. } => {
                let (tiles, device) = tiles()?;
                KernelBody::Whole { tiles, device }
            }
            Stage::Tiles { .. } => {
                let (tiles, device) = tiles()?;
                KernelBody::Tiles { tiles, device }
            }
            Stage::Assemble { from } => KernelBody::Assemble {
                assembler: Assembler::new(plan.clone())?,
                from: from.clone(),
            },
        };
        Ok(Self { plan, body })
    }
}

impl RanOn {
    fn new(gpu: &Gpu) -> Self {
        Self {
            gpu: format!("{} {}", gpu.name, HEXLOWER.encode(&gpu.uuid)),
            software: gpu.kind == GpuKind::Software,
        }
    }
}

fn read_plan(path: &Path) -> Result<KernelPlan, CallError> {
    let failed = |why: String| CallError::Task(format!("{}: {why}", path.display()));
    let length = fs::metadata(path)
        .map_err(|error| failed(error.to_string()))?
        .len();
    if length > MAX_PLAN_BYTES as u64 {
        return Err(failed(format!(
            "{length} bytes; a plan has at most {MAX_PLAN_BYTES}"
        )));
    }
    let bytes = fs::read(path).map_err(|error| failed(error.to_string()))?;
    KernelPlan::decode(&bytes).map_err(|error| failed(error.to_string()))
}

/// As the node's JSON has them: numbers that JSON lacks are text there.
fn params(json: &Map<String, Json>) -> Params {
    let value = |value: &Json| match value {
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match number.as_i64() {
            Some(number) => Value::Int(number),
            None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) if matches!(text.as_str(), "NaN" | "inf" | "-inf") => {
            Value::Float(text.parse().expect("how Rust writes them"))
        }
        Json::String(text) => Value::Text(text.as_str().into()),
        Json::Object(object) if object.get(SPELLED).is_some_and(Json::is_string) => {
            Value::Spelled(object[SPELLED].as_str().unwrap_or_default().into())
        }
        other => Value::Text(other.to_string().into()),
    };
    json.iter()
        .map(|(name, json)| (name.clone(), value(json)))
        .collect()
}

fn cut(plan: &KernelPlan, space: [u32; 3], index: u32) -> Tile {
    let steps = plan.steps().map_or(0, |(_, steps)| steps);
    tiles::tile(
        space,
        plan.grid,
        plan.halo.map(|halo| halo.saturating_mul(steps)),
        index,
    )
}

/// The task's result: what `nodectl run` sums up.
fn result(plan: &KernelPlan, tile: &Tile, busy: Duration, device: &RanOn) -> Json {
    let steps = plan.steps().map_or(1, |(_, steps)| steps);
    json!({
        "items": tile.own.count() * u64::from(steps),
        "gpu_seconds": busy.as_secs_f64(),
        "gpu": device.gpu,
        "software": device.software,
    })
}

/// Writes each file once, with all outputs that go into it. `arrays` are in the order of the plan's
/// outputs.
fn write_outputs(
    plan: &KernelPlan,
    resolved: &Resolved,
    dir: &Path,
    arrays: Vec<Array>,
) -> Result<(), CallError> {
    let mut files: BTreeMap<&str, Vec<(&str, Array)>> = BTreeMap::new();
    let mut scales = BTreeMap::new();
    for ((output, file), mut array) in plan.outputs.iter().zip(&resolved.files).zip(arrays) {
        array.bytes = formats::convert(array.bytes, array.info.scalar, output.scalar);
        array.info.scalar = output.scalar;
        files
            .entry(file)
            .or_default()
            .push((output.member.as_deref().unwrap_or(&output.binding), array));
        scales.insert(file.as_str(), output.scale);
    }
    for (file, arrays) in files {
        let failed = |why: String| CallError::Task(format!("output `{file}`: {why}"));
        if !safe_path(file) {
            return Err(failed("it lies outside of the task's directory".into()));
        }
        let path = dir.join(file);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| failed(error.to_string()))?;
        }
        let arrays: Vec<(&str, &Array)> =
            arrays.iter().map(|(name, array)| (*name, array)).collect();
        formats::write(&path, &arrays, scales[file]).map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_come_back_as_the_node_was_given_them() {
        let json =
            json!({ "a": 1, "b": 1.5, "c": "x", "d": true, "e": "NaN", "f": "-inf", "g": 2.0 });
        let params = params(json.as_object().unwrap());
        let of = |name: &str| {
            params
                .iter()
                .find(|(known, _)| known == name)
                .unwrap()
                .1
                .clone()
        };
        assert_eq!(
            (of("a"), of("b"), of("c")),
            (Value::Int(1), Value::Float(1.5), Value::Text("x".into()))
        );
        assert_eq!(
            (of("d"), of("f"), of("g")),
            (
                Value::Bool(true),
                Value::Float(f64::NEG_INFINITY),
                Value::Float(2.0)
            )
        );
        assert!(matches!(of("e"), Value::Float(number) if number.is_nan()));
    }

    #[test]
    fn a_plan_that_is_none_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(PLAN_FILE);
        assert!(
            read_plan(&path)
                .unwrap_err()
                .to_string()
                .contains("No such file")
        );
        fs::write(&path, "no plan").unwrap();
        assert!(matches!(read_plan(&path), Err(CallError::Task(_))));
    }
}
