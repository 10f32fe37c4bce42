//! The worker of an integration: a plan, read once; then some frames, or a dataset's results, for
//! each task.

use super::{
    engine::{self, SharedEngine},
    input,
    kept::{Kept, fingerprint},
    output::OutputFiles,
    pipeline::{self, Integration, Spent},
};
use crate::{
    frames::Stack,
    plan::{
        DatasetPlan, Existing, FramesOutcome, IntegratePlan, IntegrateStage, Integrated,
        MAX_PLAN_BYTES, OnBadFrames, PART_FILE, PLAN_FILE, PREVIEW_FILE,
    },
    results::{
        BadFrames, HeatMap, Part, Preview,
        nexus::{PatternOrigin, RegionAxes},
    },
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
                tell_bad(&mut value, &integrated.part.bad);
                write_preview(plan, dataset, &integrated, &call.dir)?;
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
        let job = Integration {
            stack: &stack,
            engine,
            monitors: monitors.as_deref(),
            on_bad_frames: plan.on_bad_frames,
        };
        let spent = pipeline::integrate(job, std::slice::from_ref(&range), |part| {
            found.push(part);
            Ok(())
        })?;
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
        let mut kept = Kept::anywhere(plan, dataset, &stack, &call.dir);
        let mut results = DatasetResults {
            plan,
            dataset,
            stack: &stack,
            dir: &call.dir,
            output: None,
        };
        let missing = results
            .finished(from, plan.first_task(index), kept.as_ref())
            .map_err(failed)?;
        let mut spent = Spent::default();
        if !missing.is_empty() {
            let engine = self.engine(plan, call, &stack)?;
            let (axes, told) = (engine.axes(), engine.name());
            let output = results.output(&axes, &told).map_err(failed)?;
            let take = |part: Part| {
                output.write(&part).map_err(failed)?;
                if let Some(kept) = &mut kept {
                    kept.keep(part, &axes, &told, &stack);
                }
                Ok(())
            };
            let job = Integration {
                stack: &stack,
                engine,
                monitors: monitors.as_deref(),
                on_bad_frames: plan.on_bad_frames,
            };
            spent = pipeline::integrate(job, &missing, take)?;
        }
        let mut output = results
            .output
            .ok_or_else(|| failed("it has no frames".into()))?;
        let bad = output.bad().to_vec();
        let lost: u64 = bad.iter().map(|bad| bad.frames).sum();
        // What is wrong with all of them is wrong with the dataset.
        if let Some(first) = bad.first().filter(|_| lost >= stack.frames) {
            return Err(CallError::Task(first.why.clone()));
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
        tell_bad(&mut value, &bad);
        Ok(value)
    }

    fn engine(
        &mut self,
        plan: &IntegratePlan,
        call: &Call,
        stack: &Arc<Stack>,
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

/// A dataset's results while they come together. Each part is read once, and written at once.
struct DatasetResults<'r> {
    plan: &'r IntegratePlan,
    dataset: &'r DatasetPlan,
    stack: &'r Stack,
    dir: &'r Path,
    /// Begun with the first patterns, whose axes those of all are.
    output: Option<OutputFiles<'r>>,
}

impl<'r> DatasetResults<'r> {
    fn output(
        &mut self,
        axes: &[RegionAxes],
        engine: &str,
    ) -> Result<&mut OutputFiles<'r>, String> {
        if self.output.is_none() {
            let (plan, dataset, axes) = (self.plan, self.dataset, axes.to_vec());
            let begun = OutputFiles::create(plan, dataset, self.stack, self.dir, axes, engine)?;
            self.output = Some(begun);
        }
        Ok(self.output.as_mut().expect("just made"))
    }

    fn write(&mut self, integrated: &Integrated) -> Result<(), String> {
        self.output(&integrated.axes, &integrated.engine)?
            .write(&integrated.part)
    }

    /// Writes the patterns that the tasks of the job `from` have left, the first of which is task
    /// `first`, and those that an interrupted attempt or run has left. Returns the frames that
    /// have none.
    fn finished(
        &mut self,
        from: Option<&str>,
        first: u64,
        kept: Option<&Kept<'_>>,
    ) -> Result<Vec<Range<u64>>, String> {
        let frames = self.stack.frames;
        let mut missing: Vec<Range<u64>> = Vec::new();
        let mut end = 0;
        for (task, range) in (first..).zip(self.dataset.ranges()) {
            end = range.end;
            let place = from.map(|from| self.dir.join(from).join(task.to_string()));
            let part = place.and_then(|place| read_part(&place.join(PART_FILE), &range));
            match part.filter(|_| range.end <= frames) {
                Some(integrated) => self.write(&integrated)?,
                None => missing.push(range.start..range.end.min(frames)),
            }
        }
        // Without a job before, that is everything.
        missing.push(end..frames);
        let mut rest = Vec::new();
        for range in missing {
            let mut next = range.start;
            for found in kept.map(|kept| kept.within(&range)).unwrap_or_default() {
                if let Some(integrated) = kept.and_then(|kept| kept.read(&found)) {
                    rest.push(next..found.frames.start);
                    next = found.frames.end;
                    self.write(&integrated)?;
                }
            }
            rest.push(next..range.end);
        }
        rest.retain(|range| range.start < range.end);
        Ok(rest)
    }
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
    let Some(origin) = PatternOrigin::of(&path) else {
        return fails(
            "exists, and does not say what it was made of".into(),
            another,
        );
    };
    if Path::new(&origin.source_file) != dataset.path {
        let what = format!("has the results of {}", text::one_line(&origin.source_file));
        return fails(what, another);
    }
    let is_same = fingerprint(plan, dataset, stack, dir).as_deref() == Some(&*origin.fingerprint);
    let is_wanted = plan.on_bad_frames == OnBadFrames::Mark || !origin.has_bad_frames;
    if is_same && is_wanted {
        let told = format!("{}: {} is there already\n", dataset.name, path.display());
        say::out(&told);
        let log = dir.join(dataset.files().last().expect("six files"));
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

/// What whoever watches sees of a task's frames.
fn write_preview(
    plan: &IntegratePlan,
    dataset: &DatasetPlan,
    integrated: &Integrated,
    dir: &Path,
) -> Result<(), CallError> {
    let part = &integrated.part;
    let (Some(axes), Some(region)) = (integrated.axes.first(), part.regions.first()) else {
        return Ok(());
    };
    let mut map = HeatMap::new(part.first, part.frames, axes.radial.len());
    map.add(part);
    let preview = Preview::new(plan, &dataset.name, axes, (&map, &region.total));
    fs::write(dir.join(PREVIEW_FILE), preview.json())
        .map_err(|error| CallError::Task(format!("{PREVIEW_FILE}: {error}")))
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
        whole.bad.extend(part.bad);
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

fn tell_bad(value: &mut Json, bad: &[BadFrames]) {
    let count: u64 = bad.iter().map(|bad| bad.frames).sum();
    if count > 0 {
        value["bad_frames"] = count.into();
    }
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
