//! The attempt of a command: equipped, prepared, launched, watched, finished.

use super::{
    attempt::{AttemptContext, Equipment, NeverRan, Remains, metric_event, started_event},
    blocking::blocking,
    checkpoints::{self, CheckpointWatch},
    collect::Verdict,
    container::{Container, GpuVendor, PodmanContainer},
    directory, environment,
    expand::Expander,
    link::{Launched, SupervisorLink},
    metrics::{self, Meter},
    protocol::ProcessEnd,
    stop::Stop,
};
use nodectl_ports::{Event, WorkerEvent, wall_ms};
use nodectl_types::{Failure, StartTask, isolation::is_apptainers};
use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A command that was handed to the supervisor.
struct LaunchedCommand {
    dir: PathBuf,
    outputs: Vec<String>,
    meter: Option<Meter>,
    checkpoints: Option<CheckpointWatch>,
    process: Launched,
    link: Arc<SupervisorLink>,
    /// What has to be removed if the command does not end by itself.
    container: Option<PodmanContainer>,
}

/// An attempt from its order to its last event, which is returned or was told already. Cheap steps
/// are done where they are, those that touch the disk on a thread that may block.
pub async fn run(
    context: &Arc<AttemptContext>,
    task: StartTask,
    stop: &Stop,
) -> Option<WorkerEvent> {
    let started_ms = wall_ms();
    let task = Arc::new(task);
    let (equipment, mut command) = match launch(context, &task, stop).await {
        Ok(launched) => launched,
        Err(why) => return Some(context.never_ran(&task, started_ms, why)),
    };
    if (&mut command.process.started).await.is_ok() {
        let event = Event::Worker(started_event(&task));
        context.node.tell(event).await;
    }
    let (end, usage) = tokio::select! {
        ended = &mut command.process.ended => ended,
        () = stop.asked() => {
            command.link.stop(command.process.id);
            (&mut command.process.ended).await
        }
        never = watch_metric(context, &task, &command.dir, &mut command.meter) => match never {},
        never = watch_checkpoints(context, &mut command.checkpoints) => match never {},
    }
    .unwrap_or((ProcessEnd::Stopped, Default::default()));
    let counts_as = stop.end_of(&end);
    let Equipment {
        staged,
        environment,
    } = equipment;
    drop(environment);
    let LaunchedCommand {
        dir,
        outputs,
        mut meter,
        checkpoints,
        container,
        ..
    } = command;
    // A process may save what it has when it is asked to end.
    if let Some(watch) = checkpoints.filter(|_| counts_as != ProcessEnd::Exited(0)) {
        tokio::select! {
            biased;
            () = stop.leaves_nothing() => {}
            () = watch.end(context) => {}
        }
    }
    let context = context.clone();
    let finish = move || {
        if let Some(container) = container.filter(|_| !matches!(end, ProcessEnd::Exited(_))) {
            container.remove();
        }
        // The last words count: a task may be over before it is looked at.
        if counts_as != ProcessEnd::Stopped {
            context.tell_metrics(&task, &mut meter, &dir);
        }
        let remains = Remains {
            dir,
            outputs,
            started_ms,
            verdict: Verdict::Process(counts_as),
            usage,
        };
        context.finish(&task, &staged, remains);
    };
    blocking(finish).await;
    None
}

async fn launch(
    context: &Arc<AttemptContext>,
    task: &Arc<StartTask>,
    stop: &Stop,
) -> Result<(Equipment, LaunchedCommand), NeverRan> {
    let equipment = context.equip(task, stop).await?;
    let saved = tokio::select! {
        saved = checkpoints::newest(context, task) => saved,
        () = stop.asked() => return Err(NeverRan::Stopped),
    };
    let preparing = {
        let (context, task, equipment) = (context.clone(), task.clone(), equipment.clone());
        move || prepare(&context, &task, &equipment, saved.as_deref())
    };
    let command = blocking(preparing).await?;
    Ok((equipment, command))
}

/// Makes the directory and hands the task to the supervisor.
fn prepare(
    context: &AttemptContext,
    task: &StartTask,
    Equipment {
        staged,
        environment,
    }: &Equipment,
    saved: Option<&Path>,
) -> Result<LaunchedCommand, Failure> {
    let dir = context.layout.task(task.job, task.task, task.attempt);
    let work = &task.work;
    let mut expander = Expander::new(task);
    let command = expander.all(&work.command)?;
    let outputs = expander.all(&work.outputs)?;
    let own = expander.env(&work.env)?;
    let env = environment::of_task(&context.base_env, &own, task, &dir);
    let env = match environment {
        Some(python) => python.variables(env),
        None => env,
    };
    let image = work.isolation.image.as_deref();
    let image = image.map(|image| container(context, image, task, &dir, &env));
    let podman = image
        .as_ref()
        .filter(|container| !is_apptainers(container.image))
        .map(|container| PodmanContainer {
            name: container.name.clone(),
            env: env.clone(),
        });
    let command = match &image {
        Some(container) => container.wrap(command),
        None => command,
    };
    directory::make(&dir, staged, &task.params)
        .and_then(|()| environment::write_hosts(&dir, task))
        .map_err(|error| context.no_directory(&dir, &error))?;
    let checkpoints = CheckpointWatch::begin(task, &dir, saved)
        .map_err(|error| context.no_directory(&dir, &error))?;
    let mut launch = context.launch(task, &dir, (command, env), environment.as_deref())?;
    launch.timeout_ms = work.timeout_ms;
    if podman.is_some() {
        // Podman unpacks images, whose files may be large.
        launch.file_limit_bytes = u64::MAX;
    }
    let link = context.supervisor()?;
    Ok(LaunchedCommand {
        dir,
        outputs,
        meter: work.sweep.as_ref().map(|sweep| Meter::new(&sweep.metric)),
        checkpoints,
        process: link.launch(launch),
        link,
        container: podman,
    })
}

fn container<'a>(
    context: &AttemptContext,
    image: &'a str,
    task: &StartTask,
    dir: &'a Path,
    env: &[Vec<u8>],
) -> Container<'a> {
    let staged =
        ["input", "after", "needs", "inputs"].map(|part| context.layout.job(task.job).join(part));
    Container {
        image,
        dir,
        read: staged.into_iter().filter(|path| path.exists()).collect(),
        variables: environment::own_names(&context.base_env, env),
        memory_bytes: task.work.resources.memory_bytes,
        gpus: if task.gpus.is_empty() {
            Vec::new()
        } else {
            GpuVendor::of_machine(Path::exists)
        },
        is_root: rustix::process::geteuid().is_root(),
        name: format!(
            "nodectl-{}-{}-{}",
            task.job,
            task.task,
            task.attempt.unique_name()
        ),
    }
}

/// Keeps what a task saves of itself while it runs.
async fn watch_checkpoints(
    context: &Arc<AttemptContext>,
    watch: &mut Option<CheckpointWatch>,
) -> Infallible {
    let Some(watch) = watch else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(checkpoints::PERIOD).await;
        watch.look(context).await;
    }
}

/// Tells what a sweep's task reports while it runs.
async fn watch_metric(
    context: &AttemptContext,
    task: &StartTask,
    dir: &Path,
    meter: &mut Option<Meter>,
) -> Infallible {
    let Some(meter) = meter else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(metrics::PERIOD).await;
        // A read of the page cache, a few times a second.
        let points = meter.read(dir);
        if !points.is_empty() {
            let event = Event::Worker(metric_event(task, points));
            context.node.tell(event).await;
        }
    }
}
