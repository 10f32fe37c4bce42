//! The worker of a training job: a plan, its data, a device; one task that trains.

use super::{
    checkpoints::Keeper,
    outputs::Outputs,
    training::{TrainError, Training, most_samples},
};
use crate::{
    gpu::ops::{Cpu, Engine, EngineError, Vulkan},
    workloads::{
        builtin::{Call, CallError, Part},
        kernel::run::granted_device,
        train::{
            Parameters,
            data::{Source, Split},
            file::{self, ModelFile, Note, Position},
            local::Local,
            model::{Network, NetworkError, output_shape},
            plan::{MAX_PLAN_BYTES, PLAN_FILE, TrainPlan},
        },
    },
};
use serde_json::{Value as Json, json};
use std::{fs, path::Path, sync::Arc};

/// Where checkpoints are, in the task's directory.
pub const CHECKPOINTS: &str = "checkpoints";

pub struct TrainWorker {
    plan: TrainPlan,
}

impl Part for TrainWorker {
    fn open(_init: Json) -> Result<Self, CallError> {
        let told = |why: String| CallError::Task(format!("{PLAN_FILE}: {why}"));
        let length = fs::metadata(PLAN_FILE).map_err(|error| told(error.to_string()))?.len();
        if length > MAX_PLAN_BYTES as u64 {
            return Err(told(format!("{length} bytes; a plan has at most {MAX_PLAN_BYTES}")));
        }
        let bytes = fs::read(PLAN_FILE).map_err(|error| told(error.to_string()))?;
        Ok(Self { plan: TrainPlan::decode(&bytes).map_err(told)? })
    }

    fn run(&mut self, call: &Call) -> Result<Json, CallError> {
        let split = load(&self.plan, &call.dir)?;
        let engine = engine(self.plan.threads)?;
        train(&self.plan, &split, engine, &call.dir, &call.dir).map_err(call_error)
    }
}

/// The data, checked: before any device is touched.
pub fn load(plan: &TrainPlan, base: &Path) -> Result<Split, CallError> {
    let outputs = output_shape(&plan.model).map_err(|misfit| CallError::Task(misfit.to_string()))?[0];
    plan.data.load(base, &plan.model, outputs, plan.seed).map_err(|error| CallError::Task(error.to_string()))
}

/// The GPU that was granted, or else the CPU.
fn engine(threads: u32) -> Result<Arc<dyn Engine>, CallError> {
    let failed = |error: EngineError| CallError::Device(error.to_string());
    match granted_device()? {
        Some(device) => Ok(Arc::new(Vulkan::new(device).map_err(failed)?)),
        None => Ok(Arc::new(Cpu::new(threads as usize).map_err(failed)?)),
    }
}

/// Trains, with the job's files in `base`; leaves files in `dir`. Returns the task's result.
pub fn train(
    plan: &TrainPlan,
    split: &Split,
    engine: Arc<dyn Engine>,
    base: &Path,
    dir: &Path,
) -> Result<Json, TrainError> {
    let mut network =
        Network::new(engine.clone(), &plan.model, plan.seed, most_samples(plan), split.weights.is_some())?;
    let steps_per_epoch = (split.training.len() as u64).div_ceil(plan.batch.into());
    let mut local = Local::new(plan.optimizer.training(steps_per_epoch, plan.epochs));
    let mut position = Position { seed: plan.seed, ..Position::default() };
    if let Some(path) = &plan.init_from {
        file::init_from(&base.join(path), &mut network)?;
    }
    let resumed = match &plan.resume_from {
        Some(path) => {
            let file = ModelFile::read(&base.join(path))?;
            check_resumed(&file.note, plan)?;
            file.put_into(&mut network)?;
            position = file.note.position;
            Some(file.state)
        }
        None => None,
    };
    local.register(engine.clone(), network.tensors())?;
    if let Some(state) = resumed {
        local.resume(position.steps, &state)?;
    }
    let note = Note {
        model: plan.model.clone(),
        scale: split.preparation.scale,
        names: split.training.names.clone(),
        target: match &plan.data.source {
            Source::Table { target, .. } => Some(target.clone()),
            Source::Arrays { .. } | Source::Images { .. } => None,
        },
        position,
    };
    let steps = steps_per_epoch * u64::from(plan.epochs);
    let mut outputs = Outputs::create(dir, plan.model.loss, steps, split.validation.is_some())?;
    let parameters: u64 = network.tensors().iter().map(crate::workloads::train::Tensor::len).sum();
    let (samples, held) = (split.training.len(), split.validation.as_ref().map_or(0, |data| data.len()));
    let on = engine.name();
    outputs.say(&format!("{samples} samples, {held} held back; {parameters} parameters; on {on}"))?;
    let checkpoints = dir.join(CHECKPOINTS);
    let mut training = Training {
        plan,
        split,
        network: &mut network,
        parameters: &mut local,
        outputs: &mut outputs,
        note,
        keeper: plan.checkpoints.map(|rule| Keeper::new(rule, position.steps)),
        checkpoints: &checkpoints,
    };
    let ended = training.run(position)?;
    let confusion = training.confusion()?;
    let note = training.note;
    let title = plan.model.loss.name();
    outputs.finish(title)?;
    if let Some(counts) = confusion {
        let number = |class: usize| note.names.get(class).cloned().unwrap_or_else(|| class.to_string());
        let names: Vec<String> = (0..counts.len()).map(number).collect();
        outputs.confusion("which class was taken for which", &names, &counts)?;
    }
    let model = ModelFile::of(&network, note, split.preparation.clone(), Vec::new())?;
    model.write(&dir.join(super::FILES[0]))?;
    let metric = plan.model.loss.metric();
    let (last, speed) = (ended.last, ended.samples_per_second);
    let mut result = json!({
        "loss": last.training.loss(), metric: last.training.metric(), "epochs": last.number, "steps": last.steps,
        "parameters": parameters, "samples_per_second": speed.round(), "device": on,
    });
    if let Some(validation) = &last.validation {
        result["validation_loss"] = validation.loss().into();
        result[format!("validation_{metric}")] = validation.metric().into();
    }
    Ok(result)
}

fn check_resumed(note: &Note, plan: &TrainPlan) -> Result<(), TrainError> {
    let differs = |what: &str| {
        let hint = "hint: go on with the job file that made it, or take its values alone: init_from";
        Err(NetworkError::Invalid(format!("the checkpoint is of another {what}\n{hint}")).into())
    };
    if note.model != plan.model {
        return differs("model");
    }
    if note.position.seed != plan.seed {
        return differs("seed");
    }
    Ok(())
}

/// The worker must end where its device is of no more use.
fn call_error(error: TrainError) -> CallError {
    let of_device = |error: &EngineError| matches!(error, EngineError::Device(_) | EngineError::OutOfMemory { .. });
    let is_device = match &error {
        TrainError::Network(NetworkError::Engine(error)) => of_device(error),
        TrainError::Parameters(crate::workloads::train::ParametersError::Engine(error)) => of_device(error),
        _ => false,
    };
    if is_device { CallError::Device(error.to_string()) } else { CallError::Task(error.to_string()) }
}
