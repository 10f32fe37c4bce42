//! The jobs that carry a kernel's plan out: one, or the rounds of its tiles and a last one that
//! puts their parts together.

use super::plan::{KernelPlan, PLAN_FILE, Stage, part_file};
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
struct Common<'c> {
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
    let common = Common {
        fields,
        name_span: name_span.clone(),
        after,
        chain: &chain,
    };
    let files: Vec<String> = chain
        .plan
        .outputs
        .iter()
        .map(|output| output.file.clone())
        .collect();
    let Some(last) = chain.rounds.len().checked_sub(1) else {
        common::check_count(fields, &chain.params, None)?;
        return Ok(vec![common.job(
            name,
            chain.plan.stage.clone(),
            None,
            files,
        )?]);
    };
    let tiles = chain.plan.tile_count();
    common::check_count(
        fields,
        &chain.params,
        Some(&Item {
            value: tiles,
            span: name_span.clone(),
        }),
    )?;
    let mut jobs = Vec::with_capacity(chain.rounds.len() + 1);
    let mut from: Option<String> = None;
    for (index, (first_step, steps)) in chain.rounds.iter().enumerate() {
        let own = if last == 0 {
            format!("{name}.tiles")
        } else {
            format!("{name}.round-{}", index + 1)
        };
        if own.len() > common::MAX_NAME_BYTES {
            let fault = Fault::new(
                name_span,
                format!("`{name}` is too long: its tiles are the job `{own}`"),
            );
            return Err(fault.hint(format!(
                "set `name` to at most {} characters",
                common::MAX_NAME_BYTES - 12
            )));
        }
        let stage = Stage::Tiles {
            first_step: *first_step,
            steps: *steps,
            from: from.clone(),
        };
        let parts = chain
            .plan
            .parts
            .iter()
            .map(|binding| part_file(binding))
            .collect();
        jobs.push(common.job(own.clone(), stage, from, parts)?);
        from = Some(own);
    }
    let stage = Stage::Assemble {
        from: from.clone().unwrap_or_default(),
    };
    jobs.push(common.job(name, stage, from, files)?);
    Ok(jobs)
}

impl Common<'_> {
    /// One job of the chain, after the one before it, which the first has in the job file.
    fn job(
        &self,
        name: String,
        stage: Stage,
        from: Option<String>,
        mut outputs: Vec<String>,
    ) -> Result<PlacedJob, Fault> {
        let (fields, chain) = (self.fields, self.chain);
        let is_assembly = matches!(stage, Stage::Assemble { .. });
        let is_tiled = matches!(stage, Stage::Tiles { .. });
        let plan = KernelPlan {
            stage,
            ..chain.plan.clone()
        };
        // Two outputs may share a file.
        outputs.sort();
        outputs.dedup();
        let (after, after_spans): (Vec<String>, Vec<Range<usize>>) = match from {
            Some(from) => (vec![from], vec![self.name_span.clone()]),
            None => self
                .after
                .iter()
                .map(|other| (other.value.clone(), other.span.clone()))
                .unzip(),
        };
        let plan = Upload {
            path: PLAN_FILE.into(),
            source: UploadSource::Bytes(plan.encode().into()),
            executable: false,
        };
        let mut uploads = if is_assembly {
            Vec::new()
        } else {
            chain.uploads.clone()
        };
        uploads.push(plan);
        uploads.sort_by(|one, other| one.path.cmp(&other.path));
        let work = WorkSpec {
            is_step: is_tiled,
            ..self.work(&name, is_assembly, outputs)?
        };
        let job = PlannedJob {
            after,
            uploads,
            into: if is_tiled {
                None
            } else {
                common::into(fields)?
            },
            computing: common::computing(fields)?,
            ..PlannedJob::new(JobDraft {
                params: chain.params.clone(),
                repeat: if is_tiled { chain.plan.tile_count() } else { 1 },
                ..common::draft(fields, work)?
            })
        };
        Ok(PlacedJob {
            job,
            name_span: self.name_span.clone(),
            after_spans,
        })
    }

    fn work(&self, name: &str, is_assembly: bool, outputs: Vec<String>) -> Result<WorkSpec, Fault> {
        let fields = self.fields;
        let needs = resources::plan(fields, true)?;
        let folds = self
            .chain
            .plan
            .outputs
            .iter()
            .any(|output| matches!(output.combine, super::plan::Combine::Shader(_)));
        // Putting parts together is a core's work, unless a shader does it.
        let resources = if is_assembly && !folds {
            Resources::one_core()
        } else {
            needs
        };
        builtin_work(fields, name, Builtin::Kernel, resources, outputs)
    }
}

const _: () = assert!(
    super::cut::MAX_ROUNDS < limits::MAX_JOBS as u32 / 8,
    "rounds leave room for other jobs"
);
