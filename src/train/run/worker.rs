//! The worker of a training job: a plan, its data, a device; one task that trains.

use super::{
    checkpoints::Checkpointer,
    history::History,
    outputs::Outputs,
    passes::{most_samples, steps_per_epoch, which_for_which},
    together::{Together, clocks, fragments_of, sums},
    training::{Ended, TrainError, TrainingRun},
};
use crate::{
    Parameters, ParametersError,
    data::{Source, Split},
    exchange,
    file::{self, FileNote, Hyperparameters, ModelFile},
    local::Local,
    model::{NetworkError, NeuralNetwork, output_shape},
    plan::{MAX_PLAN_BYTES, PLAN_FILE, TrainPlan},
    served::{Served, ServedOptions},
    team::Team,
};
use nodectl_builtin::{BuiltinPart, Call, CallError, device};
use nodectl_gpu::{
    device::DeviceError,
    ops::{Cpu, Engine, EngineError, Vulkan},
};
use nodectl_types::servers::{Consistency, SOCKET_VARIABLE, ServerSettings};
use serde_json::{Value as Json, json};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// What one of several workers did, clock by clock.
pub const WORKER_FILE: &str = "worker.csv";

pub struct TrainWorker {
    plan: TrainPlan,
    /// The task in which this worker left the model, and the connection to the others: the worker
    /// stays the first of them, so that no other leaves a model too.
    left: Option<(u64, Served)>,
}

impl BuiltinPart for TrainWorker {
    fn open(_init: Json) -> Result<Self, CallError> {
        let failed = |why: String| CallError::Task(format!("{PLAN_FILE}: {why}"));
        let length = fs::metadata(PLAN_FILE)
            .map_err(|error| failed(error.to_string()))?
            .len();
        if length > MAX_PLAN_BYTES as u64 {
            return Err(failed(format!(
                "{length} bytes; a plan has at most {MAX_PLAN_BYTES}"
            )));
        }
        let bytes = fs::read(PLAN_FILE).map_err(|error| failed(error.to_string()))?;
        Ok(Self {
            plan: TrainPlan::decode(&bytes).map_err(failed)?,
            left: None,
        })
    }

    fn run(&mut self, call: &Call) -> Result<Json, CallError> {
        if self
            .left
            .as_ref()
            .is_some_and(|(task, _)| *task != call.task)
        {
            // A task for which there was no room before.
            fs::write(call.dir.join(WORKER_FILE), "")
                .map_err(|error| CallError::Task(error.to_string()))?;
            return Ok(json!({}));
        }
        self.close();
        let split = load(&self.plan, &call.dir)?;
        let node = NodeConnection::of(call).map_err(CallError::Task)?;
        let engine = engine(self.plan.threads)?;
        let trained =
            train(&self.plan, &split, engine, (&call.dir, &call.dir), node).map_err(call_error)?;
        self.left = trained.served.map(|served| (call.task, served));
        Ok(trained.result)
    }
}

impl TrainWorker {
    fn close(&mut self) {
        if let Some((_, served)) = self.left.take() {
            served.close();
        }
    }
}

impl Drop for TrainWorker {
    fn drop(&mut self) {
        self.close();
    }
}

/// What a training leaves besides files.
pub struct Trained {
    pub result: Json,
    /// The connection to the others, of the worker that left the model.
    served: Option<Served>,
}

/// How a worker reaches its node, and through it those that it trains with.
pub struct NodeConnection {
    pub socket: PathBuf,
    /// The job's id.
    pub job: String,
    pub worker: u32,
    pub team: Team,
}

impl NodeConnection {
    /// None of a job that knows nothing of teams.
    fn of(call: &Call) -> Result<Option<Self>, String> {
        let Some(team) = Team::of_environment()? else {
            return Ok(None);
        };
        let variable = |name: &str| std::env::var(name).map_err(|error| format!("{name}: {error}"));
        let worker = u32::try_from(call.task)
            .map_err(|_| format!("{} is not the number of a worker", call.task))?;
        let socket = variable(SOCKET_VARIABLE)?.into();
        Ok(Some(Self {
            socket,
            job: variable("NODECTL_JOB_ID")?,
            worker,
            team,
        }))
    }

    /// Whether its parameter servers have the parameters.
    fn serves(&self, plan: &TrainPlan) -> bool {
        self.team.workers > 1 || matches!(plan.sharing.consistency, Consistency::Local { .. })
    }
}

/// The data, checked: before any device is touched.
pub fn load(plan: &TrainPlan, base: &Path) -> Result<Split, CallError> {
    let outputs =
        output_shape(&plan.model).map_err(|misfit| CallError::Task(misfit.to_string()))?[0];
    plan.data
        .load(base, &plan.model, outputs, plan.seed)
        .map_err(|error| CallError::Task(error.to_string()))
}

/// The GPU that was granted, or else the CPU.
fn engine(threads: u32) -> Result<Arc<dyn Engine>, CallError> {
    let failed = |error: EngineError| CallError::Device(error.to_string());
    match device::granted()? {
        Some(device) => Ok(Arc::new(Vulkan::new(device).map_err(failed)?)),
        None => Ok(Arc::new(Cpu::new(threads as usize).map_err(failed)?)),
    }
}

/// Trains, with the job's files in the first directory; leaves files in the second.
pub fn train(
    plan: &TrainPlan,
    split: &Split,
    engine: Arc<dyn Engine>,
    (base, dir): (&Path, &Path),
    node: Option<NodeConnection>,
) -> Result<Trained, TrainError> {
    let device = engine.name();
    let mut network = NeuralNetwork::new(
        engine,
        &plan.model,
        plan.seed,
        most_samples(plan),
        split.weights.is_some(),
    )?;
    if let Some(path) = &plan.init_from {
        file::init_from(&base.join(path), &mut network)?;
    }
    let steps = steps_per_epoch(plan, split.training.len()) * u64::from(plan.epochs);
    let mut outputs = Outputs::create(dir, plan.model.loss, steps, split.validation.is_some())?;
    let parameters: u64 = network.tensors().iter().map(crate::Tensor::len).sum();
    let held_back = split.validation.as_ref().map_or(0, |data| data.len());
    outputs.say(&format!(
        "{} samples, {held_back} held back; {parameters} parameters; on {device}",
        split.training.len()
    ))?;
    let workers = node.as_ref().map_or(1, |node| node.team.workers);
    let worker_file = dir.join(WORKER_FILE);
    let (ended, served) = match node {
        Some(node) if node.serves(plan) => {
            let mut served = serve(plan, split, &mut network, &outputs, base, node)?;
            let job = (plan, split);
            let mut together =
                Together::new(job, &mut network, &mut served, &mut outputs, &worker_file)?;
            let ended = together.run()?;
            drop(together);
            let Some(ended) = ended else {
                outputs.discard()?;
                served.close();
                let result = json!({ "workers": workers, "device": device });
                let served = None;
                return Ok(Trained { result, served });
            };
            (ended, Some(served))
        }
        node => {
            fs::write(worker_file, "")?;
            let ended = train_alone(plan, split, &mut network, &mut outputs, base, node)?;
            (ended, None)
        }
    };
    write_model(plan, split, &mut network, &mut outputs, dir)?;
    let result = result(plan, &ended, parameters, workers, &device);
    Ok(Trained { result, served })
}

/// The files of a training that has ended: its curves, which class was taken for which, the model.
fn write_model(
    plan: &TrainPlan,
    split: &Split,
    network: &mut NeuralNetwork,
    outputs: &mut Outputs,
    dir: &Path,
) -> Result<(), TrainError> {
    let note = note(plan, split);
    outputs.finish(plan.model.loss.name())?;
    if let Some(counts) = which_for_which(network, split)? {
        let name = |class: usize| note.names.get(class).cloned();
        let names: Vec<String> = (0..counts.len())
            .map(|class| name(class).unwrap_or_else(|| class.to_string()))
            .collect();
        outputs.confusion("which class was taken for which", &names, &counts)?;
    }
    let model = ModelFile::of(network, note, split.preparation.clone(), None)?;
    model.write(&dir.join(super::FILES[0]))?;
    Ok(())
}

/// The task's result.
fn result(plan: &TrainPlan, ended: &Ended, parameters: u64, workers: u32, device: &str) -> Json {
    let metric = plan.model.loss.metric();
    let last = &ended.last;
    let mut result = json!({
        "loss": last.training.loss(),
        metric: last.training.metric(),
        "epochs": last.number,
        "steps": last.steps,
        "parameters": parameters,
        "samples_per_second": ended.samples_per_second.round(),
        "workers": workers,
        "device": device,
    });
    if let Some(validation) = &last.validation {
        result["validation_loss"] = validation.loss().into();
        result[format!("validation_{metric}")] = validation.metric().into();
    }
    result
}

/// With parameters in this process.
fn train_alone(
    plan: &TrainPlan,
    split: &Split,
    network: &mut NeuralNetwork,
    outputs: &mut Outputs,
    base: &Path,
    node: Option<NodeConnection>,
) -> Result<Ended, TrainError> {
    let (mut checkpointer, mut newest) = (None, None);
    if let Some(rule) = plan.checkpoints {
        let node = node.ok_or_else(|| {
            ParametersError::Invalid("no node is there to keep checkpoints".into())
        })?;
        let (opened, found) = Checkpointer::open(&node.socket, &node.job, rule, outputs.sayer()?)?;
        (checkpointer, newest) = (Some(opened), found);
    }
    let note = note(plan, split);
    let steps = steps_per_epoch(plan, split.training.len());
    let mut local = Local::new(plan.optimizer.training(steps, plan.epochs));
    let (mut step, mut history) = (0, History::new(plan.epochs));
    let from = newest.or_else(|| plan.resume_from.as_ref().map(|path| base.join(path)));
    let state = match from {
        Some(path) => {
            let progress = ModelFile::resume(&path, &note, network)?;
            (step, history) = (
                progress.step,
                History::of(progress.history).resized(plan.epochs),
            );
            let name = path.file_name().unwrap_or_default().display();
            outputs.say(&format!("going on at step {step} with {name}"))?;
            Some(progress.state)
        }
        None => None,
    };
    local.register(network.engine().clone(), network.tensors())?;
    if let Some(state) = state {
        local.resume(step, &state)?;
    }
    if let Some(checkpointer) = &mut checkpointer {
        checkpointer.goes_on(step);
    }
    TrainingRun {
        plan,
        split,
        network,
        parameters: &mut local,
        outputs,
        note,
        checkpointer,
        history,
    }
    .run(step)
}

/// With parameters that the workers' nodes keep. Returns when all workers are there.
fn serve(
    plan: &TrainPlan,
    split: &Split,
    network: &mut NeuralNetwork,
    outputs: &Outputs,
    base: &Path,
    node: NodeConnection,
) -> Result<Served, TrainError> {
    let NodeConnection {
        socket,
        job,
        worker,
        team,
    } = node;
    let samples = split.training.len();
    let training = plan
        .optimizer
        .training(steps_per_epoch(plan, samples), plan.epochs);
    let settings =
        plan.sharing
            .settings(team.workers, team.servers, training, clocks(plan, samples));
    let factored = exchange::factored(plan, &team);
    network.set_factored(factored.iter().map(|tensor| *tensor as usize));
    let cuts = match plan.sharing.streams() {
        true => cuts(plan, network),
        false => Vec::new(),
    };
    let settings = ServerSettings {
        factored,
        cuts,
        checkpoints: plan.checkpoints,
        ..settings
    };
    let note = note(plan, split);
    let resume_from = plan
        .resume_from
        .as_ref()
        .map(|path| base.join(path).canonicalize())
        .transpose()?;
    if let Some(path) = &resume_from {
        note.check_resumed(path)?;
    }
    let options = ServedOptions {
        socket,
        job,
        worker,
        settings,
        note: note.encode(),
        resume_from,
        memory_bytes: team.memory_bytes,
        streams: plan.sharing.streams(),
    };
    let mut served = Served::new(options, sums(plan, split, network)?, outputs.sayer()?);
    served.register(network.engine().clone(), network.tensors())?;
    Ok(served)
}

/// The first tensor of each fragment but the first, and the first sum: no block has numbers of two.
fn cuts(plan: &TrainPlan, network: &NeuralNetwork) -> Vec<u32> {
    let fragments = fragments_of(plan, network).into_iter();
    fragments.map(|fragment| fragment.end as u32).collect()
}

/// What files say of the model.
fn note(plan: &TrainPlan, split: &Split) -> FileNote {
    let samples = split.training.len();
    let training = plan
        .optimizer
        .training(steps_per_epoch(plan, samples), plan.epochs);
    let clocks = clocks(plan, samples);
    let settings = plan.sharing.settings(1, None, training, clocks);
    FileNote {
        model: plan.model.clone(),
        scale: split.preparation.scale,
        names: split.training.names.clone(),
        target: match &plan.data.source {
            Source::Table { target, .. } => Some(target.clone()),
            Source::Arrays { .. } | Source::Images { .. } => None,
        },
        hyperparameters: Hyperparameters {
            seed: plan.seed,
            steps: clocks,
            batches: steps_per_epoch(plan, samples),
            batches_per_step: plan.sharing.steps(),
            optimizer: settings.training.optimizer,
        },
    }
}

/// The worker must end where its device is of no more use.
fn call_error(error: TrainError) -> CallError {
    let text = error.to_string();
    let of_engine = match &error {
        TrainError::Network(NetworkError::Engine(error)) => Some(error),
        TrainError::Parameters(ParametersError::Engine(error)) => Some(error),
        _ => None,
    };
    match of_engine {
        Some(EngineError::Device(DeviceError::Lost { .. })) => CallError::LostDevice(text),
        Some(EngineError::Device(_) | EngineError::OutOfMemory { .. }) => CallError::Device(text),
        _ => CallError::Task(text),
    }
}
