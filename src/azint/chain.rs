//! The jobs that carry an integration out (`plan` says what each does).

use super::{
    counts::{self, Count},
    datasets::{self, DatasetFiles, DatasetProbe, Named},
    engine::IntegrationSettings,
    job::DEFAULT_WORKERS_PER_GPU,
    plan::{
        DatasetPlan, EngineRequest, Existing, INPUT, IntegratePlan, IntegrateStage, OnBadFrames,
        PART_FILE, PLAN_FILE, PLAN_VERSION, PREVIEW_FILE,
    },
    results::Calibrant,
    settings::Pictures,
};
use nodectl_jobfile::{
    Delivery, Fault, PlacedJob, PlannedJob, Upload, UploadSource, keys::common::MAX_NAME_BYTES,
};
use nodectl_types::{
    JobDraft, ParamSpace, Resources, Value, WorkSpec, limits, manifest::safe_path, text::escaped,
};
use std::{
    collections::BTreeSet,
    ops::Range,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// More datasets than so many that are split share their jobs: each pair of jobs has worker
/// processes of its own.
const MAX_GROUPS: usize = 16;

/// What is to be integrated, and how.
pub(super) struct IntegrationRequest {
    pub(super) named: Vec<Named>,
    /// Where the file says which detector it is.
    pub(super) place: Range<usize>,
    /// Where the files may lead, besides their own directories.
    pub(super) directories: Vec<PathBuf>,
    /// Path within the files.
    pub(super) dataset: Option<String>,
    pub(super) entry: Option<String>,
    pub(super) monitor: Option<String>,
    pub(super) calibrant: Option<Calibrant>,
    pub(super) settings: IntegrationSettings,
    pub(super) pictures: Pictures,
    pub(super) strategy: Strategy,
    /// The most at the same time, and for how many it is planned; None: as many as there is room
    /// for, and cores of this machine.
    pub(super) workers: Option<u32>,
    pub(super) threads: Count,
    pub(super) workers_per_gpu: Count,
    pub(super) engine: EngineRequest,
    pub(super) frames_per_task: Option<u64>,
    pub(super) input: InputFiles,
    pub(super) location: Option<PathBuf>,
    /// Where the file says that.
    pub(super) location_place: Range<usize>,
    pub(super) existing: Existing,
    pub(super) on_bad_frames: OnBadFrames,
    /// What is to be said of the file when the jobs are submitted.
    pub(super) notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Strategy {
    /// `Split` while there are fewer datasets than workers.
    #[default]
    Auto,
    /// Each dataset over all workers, one after the other.
    Split,
    /// A dataset a worker, many at once.
    Whole,
}

/// How nodes come by the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum InputFiles {
    /// Alone, a node reads them where they lie; in a cluster they travel.
    #[default]
    Auto,
    /// Every node sees them where they lie.
    Shared,
    /// Files travel.
    Upload,
}

/// What jobs of every kind have.
pub(super) struct CommonKeys {
    /// The job that the user means. Those on the way to it are like it.
    pub(super) draft: JobDraft,
    /// None: what `threads` and `engine` ask for.
    pub(super) resources: Option<Resources>,
    pub(super) name_span: Range<usize>,
    pub(super) into: Option<PathBuf>,
    pub(super) computing: Option<PathBuf>,
}

impl CommonKeys {
    pub(super) fn name(&self) -> &str {
        &self.draft.work.name
    }
}

pub(super) fn build(
    request: IntegrationRequest,
    common: &CommonKeys,
) -> Result<Vec<PlacedJob>, Fault> {
    let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let workers = request.workers.unwrap_or_else(cores);
    let is_split = match request.strategy {
        Strategy::Split => true,
        Strategy::Whole => false,
        Strategy::Auto => (request.named.len() as u64) < u64::from(workers),
    };
    let look = DatasetProbe {
        dataset: request.dataset.as_deref(),
        entry: request.entry.as_deref(),
        directories: &request.directories,
        location: request.location.as_deref(),
        existing: request.existing,
        workers,
        frames_per_task: request.frames_per_task,
        is_split,
    };
    let seen = datasets::look(&request.named, &look);
    check_shape(&request, &seen)?;
    let shape = request.pictures.detector_shape(&request.settings).ok();
    let of_frames = || seen.iter().find_map(|seen| seen.shape);
    request.pictures.check(shape.or_else(of_frames))?;
    check_output(&request, &seen)?;
    let (request, measured) = counts::measured(request, &seen, cores());
    let mut notes = request.notes.clone();
    notes.extend([measured, others(&request, &seen)].into_iter().flatten());
    let mut jobs = jobs(request, seen, is_split, common)?;
    if let Some(first) = jobs.first_mut() {
        first.job.note = (!notes.is_empty()).then(|| notes.join("\n"));
    }
    Ok(jobs)
}

/// Fails where no dataset is of the detector: that is what was said of it, and not of one of them.
fn check_shape(request: &IntegrationRequest, seen: &[DatasetFiles]) -> Result<(), Fault> {
    // A detector that cannot be made out is told of when it is used.
    let Ok(wanted) = request.pictures.detector_shape(&request.settings) else {
        return Ok(());
    };
    let mut shapes = seen
        .iter()
        .filter_map(|seen| Some((&seen.plan.path, seen.shape?)));
    let Some((path, found)) = shapes.next() else {
        return Ok(());
    };
    if found == wanted || shapes.any(|(_, shape)| shape == wanted) {
        return Ok(());
    }
    let [rows, columns] = found;
    let message = format!(
        "the detector has {} × {} pixels, the frames of `{}` {rows} × {columns}",
        wanted[0],
        wanted[1],
        path.display()
    );
    let hint = "another `detector`, or a .poni file of this one; of binned frames, with the size of their pixels";
    Err(Fault::new(request.place.clone(), message).hint(hint))
}

/// Fails where results would have the place of what they are made of: measured data are never
/// replaced, whatever is said of results that are there.
fn check_output(request: &IntegrationRequest, seen: &[DatasetFiles]) -> Result<(), Fault> {
    let Some(location) = &request.location else {
        return Ok(());
    };
    let file = |path: &Path| path.metadata().ok().map(|file| (file.dev(), file.ino()));
    let named = seen.iter().map(|seen| seen.plan.path.as_path());
    let others = seen
        .iter()
        .flat_map(|seen| &seen.files)
        .map(PathBuf::as_path);
    let inputs: BTreeSet<(u64, u64)> = named.chain(others).filter_map(file).collect();
    let results = seen.iter().flat_map(|seen| seen.plan.files());
    let mut targets = results.map(|name| location.join(name));
    let is_input = |target: &PathBuf| file(target).is_some_and(|target| inputs.contains(&target));
    let Some(target) = targets.find(is_input) else {
        return Ok(());
    };
    let message = format!(
        "the results would replace the data that they are made of: {}",
        target.display()
    );
    let hint = "name another directory; data are never replaced";
    Err(Fault::new(request.location_place.clone(), message).hint(hint))
}

/// The files that datasets lead to: nobody named them, and they are read and travel like those that
/// were.
fn others(request: &IntegrationRequest, seen: &[DatasetFiles]) -> Option<String> {
    const LISTED: usize = 8;
    // Without the `.` that names in files begin with.
    let clean = |path: &Path| path.components().collect::<PathBuf>();
    let named: BTreeSet<PathBuf> = seen.iter().map(|seen| clean(&seen.plan.path)).collect();
    let all = seen
        .iter()
        .flat_map(|seen| &seen.files)
        .map(|file| clean(file));
    let others: BTreeSet<PathBuf> = all.filter(|file| !named.contains(file)).collect();
    let listed: Vec<String> = others
        .iter()
        .take(LISTED)
        .map(|file| escaped(&file.to_string_lossy()).into_owned())
        .collect();
    let more = if others.len() > LISTED {
        format!(" and {} more", others.len() - LISTED)
    } else {
        String::new()
    };
    let what = if request.input == InputFiles::Shared {
        "are read"
    } else {
        "are read, and travel to other nodes"
    };
    (!others.is_empty()).then(|| {
        format!(
            "files that the datasets lead to {what}: {}{more}",
            listed.join(", ")
        )
    })
}

fn jobs(
    request: IntegrationRequest,
    seen: Vec<DatasetFiles>,
    is_split: bool,
    common: &CommonKeys,
) -> Result<Vec<PlacedJob>, Fault> {
    if !is_split {
        let (plan, inputs) = plan(&request, seen, common)?;
        return Ok(vec![job(
            &request,
            common,
            common.name(),
            &plan,
            &inputs,
            0,
        )?]);
    }
    let groups = seen.len().min(MAX_GROUPS);
    let mut jobs = Vec::with_capacity(2 * groups);
    let mut rest = seen;
    // The groups before this one, the last of them last.
    let mut before: Vec<DatasetGroup> = Vec::new();
    for group in 0..groups {
        // As even as whole numbers are.
        let behind = rest.split_off(rest.len().div_ceil(groups - group));
        let (mut plan, inputs) = plan(&request, std::mem::replace(&mut rest, behind), common)?;
        let name = if groups == 1 {
            common.name().to_string()
        } else {
            format!("{}.{}", common.name(), group + 1)
        };
        // The first dataset's frames come first, and its results before the next one's frames.
        let lead = (groups - group) as i32 * 2;
        let from = (plan.tasks().next().is_some()).then(|| format!("{name}.frames"));
        let first = jobs.len();
        if let Some(frames) = &from {
            plan.stage = IntegrateStage::Frames;
            jobs.push(job(&request, common, frames, &plan, &inputs, lead)?);
        }
        plan.stage = IntegrateStage::Write { from: from.clone() };
        jobs.push(job(&request, common, &name, &plan, &inputs, lead + 1)?);
        if request.workers.is_some() {
            share_workers(&mut jobs[first..], &before);
        }
        before.push(DatasetGroup {
            frames: from,
            write: name,
        });
    }
    Ok(jobs)
}

/// The jobs of some datasets.
struct DatasetGroup {
    frames: Option<String>,
    write: String,
}

/// `workers` counts those of all jobs. The frames of a group come after those of the group before,
/// and beside the writing of its results, which leaves most workers idle: what is open there counts
/// here. Nothing is left of groups before that one then.
fn share_workers(group: &mut [PlacedJob], before: &[DatasetGroup]) {
    let [earlier @ .., last] = before else {
        return;
    };
    for placed in &mut *group {
        placed.job.beside.push(last.write.clone());
    }
    let first = &mut group[0].job;
    first.follows.extend(last.frames.clone());
    first
        .follows
        .extend(earlier.last().map(|group| group.write.clone()));
}

fn plan(
    request: &IntegrationRequest,
    seen: Vec<DatasetFiles>,
    common: &CommonKeys,
) -> Result<(IntegratePlan, Vec<Upload>), Fault> {
    let mut datasets: Vec<DatasetPlan> = Vec::with_capacity(seen.len());
    let mut inputs: Vec<Upload> = Vec::new();
    let root = root(&seen);
    for DatasetFiles {
        mut plan, files, ..
    } in seen
    {
        for file in files.iter().filter(|_| request.input != InputFiles::Shared) {
            let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            let Ok(below) = file.strip_prefix(&root) else {
                continue;
            };
            let path = format!("{INPUT}/{}", below.display());
            if !file.is_file() {
                continue;
            }
            if !safe_path(&path) {
                let fault = Fault::new(
                    common.name_span.clone(),
                    format!("{} has a name that cannot be sent to nodes", file.display()),
                );
                return Err(
                    fault.hint("rename it, or say input = \"shared\" if every node sees it there")
                );
            }
            if file == plan.path {
                plan.upload = Some(path.clone());
            }
            if !inputs.iter().any(|known| known.path == path) {
                inputs.push(Upload {
                    path,
                    source: UploadSource::File(file),
                    executable: false,
                });
            }
        }
        datasets.push(plan);
    }
    let asked = asked_resources(request, common);
    // Cores that the job names for a worker on a GPU are there for its threads.
    let is_named = common.resources.is_some()
        && request.engine != EngineRequest::Cpu
        && asked.gpu_milli > 0
        && asked.cpu_milli >= 2000;
    let own_cores = is_named.then_some(asked.cpu_milli / 1000);
    let plan = IntegratePlan {
        version: PLAN_VERSION,
        stage: IntegrateStage::Write { from: None },
        datasets,
        directories: request.directories.clone(),
        settings: request.settings.clone(),
        images: request.pictures.files.clone(),
        monitor: request.monitor.clone(),
        engine: request.engine,
        threads: request.threads.given().or(own_cores),
        is_alone_on_gpu: asked.gpu_milli > 500,
        calibrant: request.calibrant,
        location: request.location.clone(),
        existing: request.existing,
        on_bad_frames: request.on_bad_frames,
    };
    Ok((plan, inputs))
}

/// The deepest directory that all files are below.
fn root(seen: &[DatasetFiles]) -> PathBuf {
    let parents = seen.iter().flat_map(|seen| &seen.files).filter_map(|file| {
        std::path::absolute(file)
            .ok()
            .and_then(|file| file.parent().map(Path::to_path_buf))
    });
    let common = |one: PathBuf, other: PathBuf| {
        one.components()
            .zip(other.components())
            .take_while(|(one, other)| one == other)
            .map(|(part, _)| part)
            .collect()
    };
    parents.reduce(common).unwrap_or_default()
}

/// One job of the chain.
fn job(
    request: &IntegrationRequest,
    common: &CommonKeys,
    name: &str,
    plan: &IntegratePlan,
    inputs: &[Upload],
    lead: i32,
) -> Result<PlacedJob, Fault> {
    let is_step = plan.stage == IntegrateStage::Frames;
    let params = params(plan);
    check_size(common, name, &params)?;
    let (after, after_spans) = match &plan.stage {
        IntegrateStage::Write { from: Some(from) } => {
            (vec![from.clone()], vec![common.name_span.clone()])
        }
        _ => (Vec::new(), Vec::new()),
    };
    let outputs = if is_step {
        // Of frames that could not be integrated there is no preview.
        vec![format!("{{{{{PART_FILE},{PREVIEW_FILE}}}}}")]
    } else {
        outputs(plan)
    };
    let mut draft = JobDraft {
        params,
        at_once: request.workers,
        ..common.draft.clone()
    };
    draft.work = WorkSpec {
        name: name.to_string(),
        resources: asked_resources(request, common),
        priority: draft.work.priority.saturating_add(lead),
        outputs,
        is_step,
        ..draft.work
    };
    let job = PlannedJob {
        after,
        uploads: uploads(request, plan, inputs),
        cluster_uploads: if request.input == InputFiles::Auto {
            inputs.to_vec()
        } else {
            Vec::new()
        },
        delivery: request
            .location
            .clone()
            .filter(|_| !is_step)
            .map(|directory| Delivery {
                directory,
                replaces: matches!(request.existing, Existing::Overwrite | Existing::Outdated),
            }),
        into: if is_step { None } else { common.into.clone() },
        computing: common.computing.clone(),
        ..PlannedJob::new(draft)
    };
    Ok(PlacedJob {
        job,
        name_span: common.name_span.clone(),
        after_spans,
    })
}

/// Fails where a job has a name too long, or too many tasks.
fn check_size(common: &CommonKeys, name: &str, params: &ParamSpace) -> Result<(), Fault> {
    let fault = |message: String| Fault::new(common.name_span.clone(), message);
    if name.len() > MAX_NAME_BYTES {
        let message = format!(
            "`{}` is too long: one of its jobs is `{name}`",
            common.name()
        );
        let most = MAX_NAME_BYTES - 12;
        return Err(fault(message).hint(format!("set `name` to at most {most} characters")));
    }
    if params.len() > limits::MAX_TASKS {
        let most = limits::MAX_TASKS;
        let message = format!("{} tasks; at most {most} are possible", params.len());
        return Err(fault(message).hint("raise frames_per_task"));
    }
    Ok(())
}

/// What travels with every task: images, the plan, and the data where the file says so.
fn uploads(request: &IntegrationRequest, plan: &IntegratePlan, inputs: &[Upload]) -> Vec<Upload> {
    let mut uploads = request.pictures.uploads.clone();
    uploads.push(Upload {
        path: PLAN_FILE.into(),
        source: UploadSource::Bytes(plan.encode().into()),
        executable: false,
    });
    if request.input == InputFiles::Upload {
        uploads.extend_from_slice(inputs);
    }
    uploads.sort_by(|one, other| one.path.cmp(&other.path));
    uploads
}

/// Patterns for the results, which may be in directories.
fn outputs(plan: &IntegratePlan) -> Vec<String> {
    let directory = |dataset: &DatasetPlan| match dataset.name.rsplit_once('/') {
        Some((directory, _)) => format!("{directory}/"),
        None => String::new(),
    };
    let directories: BTreeSet<String> = plan.datasets.iter().map(directory).collect();
    let pattern = |directory| format!("{directory}*.{{{{h5,png,csv,svg,json,log}}}}");
    directories.into_iter().map(pattern).collect()
}

/// The tasks as users see them.
fn params(plan: &IntegratePlan) -> ParamSpace {
    let name = |index: usize| Value::Text(plan.datasets[index].name.as_str().into());
    let number = |value: u64| Value::Int(i64::try_from(value).unwrap_or(i64::MAX));
    match plan.stage {
        IntegrateStage::Frames => ParamSpace::Rows {
            columns: vec!["dataset".into(), "first".into(), "end".into()],
            cells: plan
                .tasks()
                .flat_map(|(index, range)| [name(index), number(range.start), number(range.end)])
                .collect(),
        },
        IntegrateStage::Write { .. } => ParamSpace::Rows {
            columns: vec!["dataset".into()],
            cells: (0..plan.datasets.len()).map(name).collect(),
        },
    }
}

/// What a worker gets.
fn asked_resources(request: &IntegrationRequest, common: &CommonKeys) -> Resources {
    let named = common.resources.clone();
    named.unwrap_or_else(|| resources(request))
}

/// Without `[resources]`: a share of a GPU for Vulkan, a core for each thread; if nothing was said,
/// what a node has.
fn resources(request: &IntegrationRequest) -> Resources {
    let cores = |threads: u32| Resources {
        cpu_milli: threads.saturating_mul(1000),
        ..Resources::default()
    };
    let share = request
        .workers_per_gpu
        .given()
        .unwrap_or(DEFAULT_WORKERS_PER_GPU)
        .max(1);
    match (request.engine, request.threads.given()) {
        (EngineRequest::Vulkan, threads) => Resources {
            gpu_milli: (1000 / share).max(1),
            ..cores(threads.unwrap_or(1))
        },
        (EngineRequest::Cpu, threads) => cores(threads.unwrap_or(1)),
        (EngineRequest::Auto, Some(threads)) => cores(threads),
        (EngineRequest::Auto, None) => Resources::default(),
    }
}
