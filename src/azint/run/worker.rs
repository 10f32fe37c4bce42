//! The worker of an integration: a plan, read once; then some frames, or a dataset's results, for
//! each task.

use super::{
    engine::{self, SharedEngine},
    input,
    kept::{Kept, PatternsFile, fingerprint},
    output::OutputFiles,
    pipeline::{self, Spent},
};
use crate::{
    frames::Stack,
    plan::{
        DatasetPlan, Existing, FramesOutcome, IntegratePlan, IntegrateStage, Integrated,
        MAX_PLAN_BYTES, PART_FILE, PLAN_FILE,
    },
    results::{Part, nexus::Origin},
};
use nodectl_builtin::{BuiltinPart, Call, CallError};
use nodectl_ports::say;
use nodectl_types::text;
use serde_json::{Value as Json, json};
use std::{
    fs,
    ops::Range,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// The largest part that is read: a task's frames have no more patterns.
const MAX_PART_BYTES: u64 = 4 << 30;

pub struct IntegrateWorker {
    plan: Arc<IntegratePlan>,
    /// Opened by the first task that integrates: building a matrix takes a while, and putting parts
    /// together needs none.
    engine: Option<SharedEngine>,
}

impl BuiltinPart for IntegrateWorker {
    fn open(_init: Json) -> Result<Self, CallError> {
        Ok(Self {
            plan: Arc::new(read_plan(Path::new(PLAN_FILE))?),
            engine: None,
        })
    }

    fn run(&mut self, call: &Call) -> Result<Json, CallError> {
        let plan = self.plan.clone();
        match &plan.stage {
            IntegrateStage::Frames => self.frames(&plan, call),
            IntegrateStage::Write { from } => self.write(&plan, call, from.as_deref()),
        }
    }
}

impl IntegrateWorker {
    /// Some frames of a dataset. What is wrong with the dataset is told where its results are
    /// written.
    fn frames(&mut self, plan: &IntegratePlan, call: &Call) -> Result<Json, CallError> {
        let (index, range) = usize::try_from(call.task)
            .ok()
            .and_then(|task| plan.tasks().nth(task))
            .ok_or_else(|| {
                CallError::Task(format!("there is no task {} in the plan", call.task))
            })?;
        let dataset = &plan.datasets[index];
        let mut value = json!({ "dataset": dataset.name, "frames": range.end - range.start });
        let begin = Instant::now();
        let outcome: FramesOutcome = match self.integrated(plan, dataset, call, range) {
            Ok((integrated, spent)) => {
                tell(&mut value, &spent, begin.elapsed());
                Ok(integrated)
            }
            Err(CallError::Task(why)) => {
                value["problem"] = why.as_str().into();
                Err(why)
            }
            Err(error) => return Err(error),
        };
        let bytes = postcard::to_stdvec(&outcome).expect("plain data always encodes");
        fs::write(call.dir.join(PART_FILE), bytes)
            .map_err(|error| CallError::Task(format!("{PART_FILE}: {error}")))?;
        Ok(value)
    }

    fn integrated(
        &mut self,
        plan: &IntegratePlan,
        dataset: &DatasetPlan,
        call: &Call,
        range: Range<u64>,
    ) -> Result<(Integrated, Spent), CallError> {
        let stack = input::open(dataset, &plan.directories, &call.dir).map_err(CallError::Task)?;
        let mut kept = Kept::beside_results(plan, dataset, &stack, &call.dir);
        let before = kept.as_ref().and_then(|kept| {
            let found = kept.within(&range);
            found
                .first()
                .filter(|found| found.frames == range)
                .and_then(|found| kept.read(found))
        });
        if let Some(integrated) = before {
            return Ok((integrated, Spent::default()));
        }
        let monitors = monitors(plan, dataset, &stack)?;
        let engine = self.engine(plan, call, &stack)?;
        let mut found: Vec<Part> = Vec::new();
        let spent = pipeline::integrate(
            &stack,
            std::slice::from_ref(&range),
            engine,
            monitors.as_deref(),
            |part| {
                found.push(part);
                Ok(())
            },
        )?;
        found.sort_by_key(|part| part.first);
        let integrated = Integrated {
            part: joined(range.start, found),
            axes: engine.axes(),
            engine: engine.name(),
        };
        if let Some(kept) = &mut kept {
            kept.keep(
                integrated.part.clone(),
                &integrated.axes,
                &integrated.engine,
                &stack,
            );
            kept.flush(&integrated.axes, &integrated.engine, &stack);
        }
        Ok((integrated, spent))
    }

    /// A dataset's results: the parts that there are, and the frames that have none.
    fn write(
        &mut self,
        plan: &IntegratePlan,
        call: &Call,
        from: Option<&str>,
    ) -> Result<Json, CallError> {
        let begin = Instant::now();
        let index = usize::try_from(call.task).unwrap_or(usize::MAX);
        let dataset = plan.datasets.get(index).ok_or_else(|| {
            CallError::Task(format!("there is no dataset {} in the plan", call.task))
        })?;
        let stack = input::open(dataset, &plan.directories, &call.dir).map_err(CallError::Task)?;
        if let Some(value) = existing(plan, dataset, &stack, &call.dir)? {
            return Ok(value);
        }
        let monitors = monitors(plan, dataset, &stack)?;
        let failed = |why: String| CallError::Task(format!("{}: {why}", dataset.name));
        let parts = |(number, range): (u64, &Range<u64>)| {
            let task = call.dir.join(from?).join(number.to_string());
            read_part(&task.join(PART_FILE), range).filter(|_| range.end <= stack.frames)
        };
        let mut kept = Kept::anywhere(plan, dataset, &stack, &call.dir);
        let ranges: Vec<Range<u64>> = dataset.ranges().collect();
        let tasks = || (plan.first_task(index)..).zip(&ranges);
        let mut missing: Vec<Range<u64>> = Vec::new();
        for task in tasks().filter(|task| parts(*task).is_none()) {
            missing.push(task.1.start..task.1.end.min(stack.frames));
        }
        // Without a job before, that is everything.
        missing.push(ranges.last().map_or(0, |last| last.end)..stack.frames);
        let before = kept
            .as_ref()
            .map(|kept| from_before(kept, &mut missing))
            .unwrap_or_default();
        missing.retain(|range| range.start < range.end);
        // Where all is there, nothing is integrated, and no matrix is needed.
        let (axes, told) = match tasks().find_map(parts) {
            Some(integrated) if missing.is_empty() => (integrated.axes, integrated.engine),
            _ => {
                let engine = self.engine(plan, call, &stack)?;
                (engine.axes(), engine.name())
            }
        };
        let mut output = OutputFiles::create(plan, dataset, &stack, &call.dir, axes.clone(), &told)
            .map_err(failed)?;
        let again = |found: &PatternsFile| kept.as_ref().and_then(|kept| kept.read(found));
        for integrated in tasks()
            .filter_map(parts)
            .chain(before.iter().filter_map(again))
        {
            output.write(&integrated.part).map_err(failed)?;
        }
        let mut spent = Spent::default();
        if !missing.is_empty() {
            let take = |part: Part| {
                output.write(&part).map_err(failed)?;
                if let Some(kept) = &mut kept {
                    kept.keep(part, &axes, &told, &stack);
                }
                Ok(())
            };
            let engine = self.engine(plan, call, &stack)?;
            spent = pipeline::integrate(&stack, &missing, engine, monitors.as_deref(), take)?;
        }
        let text = output
            .finish(begin.elapsed(), spent.frames)
            .map_err(failed)?;
        if let Some(kept) = kept {
            kept.remove();
        }
        say::out(&text);
        let mut value =
            json!({ "dataset": dataset.name, "frames": stack.frames, "files": dataset.files() });
        tell(&mut value, &spent, begin.elapsed());
        Ok(value)
    }

    fn engine(
        &mut self,
        plan: &IntegratePlan,
        call: &Call,
        stack: &Stack,
    ) -> Result<&SharedEngine, CallError> {
        // Frames of another type may have other dead values.
        if self
            .engine
            .as_ref()
            .is_none_or(|engine| !engine.suits(stack))
        {
            self.engine = Some(engine::open(plan, &call.dir, stack)?);
        }
        Ok(self.engine.as_ref().expect("just made"))
    }
}

/// Files that an interrupted attempt or run has left of frames that lack, which then lack no more.
fn from_before(kept: &Kept<'_>, missing: &mut Vec<Range<u64>>) -> Vec<PatternsFile> {
    let mut files = Vec::new();
    let mut rest = Vec::new();
    for range in missing.drain(..) {
        let mut next = range.start;
        for found in kept.within(&range) {
            if kept.read(&found).is_some() {
                rest.push(next..found.frames.start);
                next = found.frames.end;
                files.push(found);
            }
        }
        rest.push(next..range.end);
    }
    *missing = rest;
    files
}

/// What becomes of a dataset whose results are there: nothing more to do, or an error.
fn existing(
    plan: &IntegratePlan,
    dataset: &DatasetPlan,
    stack: &Stack,
    dir: &Path,
) -> Result<Option<Json>, CallError> {
    let Some(location) = &plan.location else {
        return Ok(None);
    };
    let path = location.join(&dataset.files()[0]);
    if plan.existing == Existing::Overwrite || !path.exists() {
        return Ok(None);
    }
    let fails = |what: String, hint: &str| {
        let message = format!("{} {what}\nhint: {hint}", path.display());
        Err(CallError::Task(message))
    };
    if plan.existing == Existing::Error {
        let hint =
            "remove it and retry, or say existing_output = \"skip\", \"outdated\" or \"overwrite\"";
        return fails("exists".into(), hint);
    }
    let another = "give the results another directory as `output`, or remove the file";
    let Some(origin) = Origin::of(&path) else {
        return fails(
            "exists, and does not say what it was made of".into(),
            another,
        );
    };
    if Path::new(&origin.source_file) != dataset.path {
        let what = format!("has the results of {}", text::one_line(&origin.source_file));
        return fails(what, another);
    }
    if fingerprint(plan, dataset, stack, dir).as_deref() == Some(&*origin.fingerprint) {
        let told = format!("{}: {} is there already\n", dataset.name, path.display());
        say::out(&told);
        let log = dir.join(dataset.files().last().expect("five files"));
        let written =
            fs::create_dir_all(log.parent().unwrap_or(dir)).and_then(|()| fs::write(&log, told));
        written.map_err(|error| CallError::Task(error.to_string()))?;
        return Ok(Some(
            json!({ "dataset": dataset.name, "frames": 0, "files": [] }),
        ));
    }
    if plan.existing == Existing::Outdated {
        return Ok(None);
    }
    fails(
        "was made with other settings, or before its data changed".into(),
        "existing_output = \"outdated\" integrates such datasets again, \"overwrite\" all",
    )
}

fn monitors(
    plan: &IntegratePlan,
    dataset: &DatasetPlan,
    stack: &Stack,
) -> Result<Option<Vec<f64>>, CallError> {
    let member = plan.monitor.as_deref();
    member
        .map(|member| input::monitors(stack, dataset.entry.as_deref(), member))
        .transpose()
        .map_err(CallError::Task)
}

/// Parts that follow each other as one.
fn joined(first: u64, parts: Vec<Part>) -> Part {
    let mut parts = parts.into_iter();
    let mut whole = parts.next().unwrap_or(Part {
        first,
        ..Part::default()
    });
    for part in parts {
        whole.frames += part.frames;
        for (region, more) in whole.regions.iter_mut().zip(part.regions) {
            region.intensity.extend(more.intensity);
            if let (Some(sigma), Some(more)) = (&mut region.sigma, more.sigma) {
                sigma.extend(more);
            }
            region.total.join(&more.total);
        }
    }
    whole
}

/// The part of these frames, if it is there and holds patterns.
fn read_part(path: &Path, range: &Range<u64>) -> Option<Integrated> {
    let length = fs::metadata(path).ok()?.len();
    if length > MAX_PART_BYTES {
        return None;
    }
    let outcome: FramesOutcome = postcard::from_bytes(&fs::read(path).ok()?).ok()?;
    let is_meant =
        |part: &Part| (part.first, part.frames) == (range.start, range.end - range.start);
    outcome.ok().filter(|integrated| is_meant(&integrated.part))
}

fn tell(value: &mut Json, spent: &Spent, took: Duration) {
    let seconds = |time: Duration| (time.as_secs_f64() * 1e4).round() / 1e4;
    value["integrated"] = spent.frames.into();
    value["frames_per_second"] =
        ((spent.frames as f64 / took.as_secs_f64().max(1e-9) * 10.0).round() / 10.0).into();
    value["read_seconds"] = seconds(spent.read).into();
    value["decode_seconds"] = seconds(spent.decode).into();
    value["integrate_seconds"] = seconds(spent.integrate).into();
}

fn read_plan(path: &Path) -> Result<IntegratePlan, CallError> {
    let told = |why: String| CallError::Task(format!("{}: {why}", path.display()));
    let length = fs::metadata(path)
        .map_err(|error| told(error.to_string()))?
        .len();
    if length > MAX_PLAN_BYTES {
        return Err(told(format!(
            "{length} bytes; a plan has at most {MAX_PLAN_BYTES}"
        )));
    }
    let bytes = fs::read(path).map_err(|error| told(error.to_string()))?;
    IntegratePlan::decode(&bytes).map_err(told)
}
