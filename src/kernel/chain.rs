//! The jobs that carry a kernel's plan out: one, or the rounds of its tiles and a last one that
//! puts their parts together.

use super::plan::{Combine, KernelPlan, PLAN_FILE, Stage, part_file};
use nodectl_jobfile::{
    Fault, Fields, Item, PlacedJob, PlannedJob, Upload, UploadSource,
    keys::{common, resources, work::builtin_work},
};
use nodectl_types::{Builtin, JobDraft, ParamSpace, Resources, WorkSpec, limits};
use std::ops::Range;

pub(super) struct Chain {
    pub(super) plan: KernelPlan,
    pub(super) params: ParamSpace,
    /// The files of its inputs.
    pub(super) uploads: Vec<Upload>,
    /// First step and steps of each round; none where every parameter set is one tile.
    pub(super) rounds: Vec<(u32, u32)>,
}

/// What all jobs of a chain share.
struct ChainCommon<'c> {
    fields: &'c Fields<'c, 'c>,
    name_span: Range<usize>,
    after: Vec<Item<String>>,
    chain: &'c Chain,
}

pub(super) fn build(fields: &Fields<'_, '_>, chain: Chain) -> Result<Vec<PlacedJob>, Fault> {
    let (name, name_span) = common::name(fields)?;
    let after = fields.one_or_more("after")?;
    common::check_clash(&after, &chain.uploads)?;
    if let Some(taken) = chain.uploads.iter().find(|upload| upload.path == PLAN_FILE) {
        return Err(Fault::new(
            name_span,
            format!("`{}` is the name of a file that nodectl adds", taken.path),
        ));
    }
    let tiles = (!chain.rounds.is_empty()).then(|| Item {
        value: chain.plan.tile_count(),
        span: name_span.clone(),
    });
    common::check_count(fields, &chain.params, tiles.as_ref())?;
    let common = ChainCommon {
        fields,
        name_span,
        after,
        chain: &chain,
    };
    let mut jobs = common.rounds(&name)?;
    let stage = match jobs.last() {
        None => chain.plan.stage.clone(),
        Some(last) => Stage::Assemble {
            from: last.job.name().to_string(),
        },
    };
    let outputs = chain.plan.outputs.iter();
    let files = outputs.map(|output| output.file.clone()).collect();
    let from = jobs.last().map(|last| last.job.name().to_string());
    jobs.push(common.job(name, stage, from, files)?);
    Ok(jobs)
}

impl ChainCommon<'_> {
    /// The jobs in which tiles are computed, each after the one before.
    fn rounds(&self, name: &str) -> Result<Vec<PlacedJob>, Fault> {
        let rounds = &self.chain.rounds;
        let mut jobs = Vec::with_capacity(rounds.len() + 1);
        let mut from: Option<String> = None;
        for (index, (first_step, steps)) in rounds.iter().enumerate() {
            let own = if rounds.len() == 1 {
                format!("{name}.tiles")
            } else {
                format!("{name}.round-{}", index + 1)
            };
            if own.len() > common::MAX_NAME_BYTES {
                let message = format!("`{name}` is too long: its tiles are the job `{own}`");
                let hint = format!(
                    "set `name` to at most {} characters",
                    common::MAX_NAME_BYTES - 12
                );
                return Err(Fault::new(self.name_span.clone(), message).hint(hint));
            }
            let stage = Stage::Tiles {
                first_step: *first_step,
                steps: *steps,
                from: from.clone(),
            };
            let parts = self.chain.plan.parts.iter();
            let parts = parts.map(|binding| part_file(binding)).collect();
            jobs.push(self.job(own.clone(), stage, from, parts)?);
            from = Some(own);
        }
        Ok(jobs)
    }

    /// One job of the chain, after the job `from`; the first comes after those that the job file
    /// names.
    fn job(
        &self,
        name: String,
        stage: Stage,
        from: Option<String>,
        outputs: Vec<String>,
    ) -> Result<PlacedJob, Fault> {
        let fields = self.fields;
        let is_tiled = matches!(stage, Stage::Tiles { .. });
        let (after, after_spans) = match from {
            Some(from) => (vec![from], vec![self.name_span.clone()]),
            None => self
                .after
                .iter()
                .map(|other| (other.value.clone(), other.span.clone()))
                .unzip(),
        };
        let work = self.work(&name, &stage, outputs)?;
        let into = if is_tiled {
            None
        } else {
            common::into(fields)?
        };
        let repeat = if is_tiled {
            self.chain.plan.tile_count()
        } else {
            1
        };
        let job = PlannedJob {
            after,
            uploads: self.uploads(stage),
            into,
            computing: common::computing(fields)?,
            ..PlannedJob::new(JobDraft {
                params: self.chain.params.clone(),
                repeat,
                ..common::draft(fields, work)?
            })
        };
        Ok(PlacedJob {
            job,
            name_span: self.name_span.clone(),
            after_spans,
        })
    }

    /// The plan of a stage, and the files of the inputs, which assembling does not read.
    fn uploads(&self, stage: Stage) -> Vec<Upload> {
        let mut uploads = match stage {
            Stage::Assemble { .. } => Vec::new(),
            Stage::Whole { .. } | Stage::Tiles { .. } => self.chain.uploads.clone(),
        };
        let plan = KernelPlan {
            stage,
            ..self.chain.plan.clone()
        };
        uploads.push(Upload {
            path: PLAN_FILE.into(),
            source: UploadSource::Bytes(plan.encode().into()),
            executable: false,
        });
        uploads.sort_by(|one, other| one.path.cmp(&other.path));
        uploads
    }

    fn work(&self, name: &str, stage: &Stage, mut outputs: Vec<String>) -> Result<WorkSpec, Fault> {
        // Two outputs may share a file.
        outputs.sort();
        outputs.dedup();
        let needs = resources::plan(self.fields, true)?;
        let mut combined = self.chain.plan.outputs.iter();
        let folds = combined.any(|output| matches!(output.combine, Combine::Shader(_)));
        // Putting parts together is a core's work, unless a shader does it.
        let resources = if matches!(stage, Stage::Assemble { .. }) && !folds {
            Resources::one_core()
        } else {
            needs
        };
        Ok(WorkSpec {
            is_step: matches!(stage, Stage::Tiles { .. }),
            ..builtin_work(self.fields, name, Builtin::Kernel, resources, outputs)?
        })
    }
}

const _: () = assert!(
    super::cut::MAX_ROUNDS < limits::MAX_JOBS as u32 / 8,
    "rounds leave room for other jobs"
);
