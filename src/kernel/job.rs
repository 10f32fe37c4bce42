//! The job file of a kernel: its keys, put together to a plan and the jobs that carry it out.

use super::{
    chain::{self, Chain},
    check::{Checker, KernelNeeds},
    inputs::{self, InputSpec},
    iterate::{self, Iterate},
    outputs::{self, OutputSpec},
    plan::{ArrayPlan, BindingPlan, ConstantPlan, Content, Extent, KernelPlan, Quantity, Stage},
    program::{KernelProgram, TILE},
    uniforms,
    values::ValueReader,
};
use nodectl_gpu::shader::{Binding, BindingKind};
use nodectl_jobfile::{Fault, Fields, Item, PlacedJob, keys::params, to_i64};
use nodectl_types::{ParamSpace, Value};
use std::{collections::BTreeMap, ops::Range};
use toml::{Spanned, de::DeValue};

#[rustfmt::skip]
pub const KEYS: [&str; 30] = [
    "name", "kind", "after", "shader", "entry", "checks", "space", "tile", "halo", "inputs", "uniforms", "constants", "outputs",
    "iterate", "params", "zip", "sample", "output_limit", "log_limit", "into", "retries", "timeout", "grace", "priority",
    "min_nodes", "where", "speculate", "wait", "resources", "computing",
];

/// Plans one job: the last of those that are returned, which come in order.
pub fn plan(fields: &Fields<'_, '_>) -> Result<Vec<PlacedJob>, Fault> {
    fields.check_keys(&KEYS)?;
    let params = params::plan(fields, None)?;
    let job = KernelJob::read(fields, &params)?;
    let mut plan = job.kernel_plan()?;
    let needs = job.check(&mut plan)?;
    let workgroup = job.compile(&plan)?;
    let cut = job.choose_cut(&plan, &needs, workgroup)?;
    plan.grid = cut.grid;
    let rounds = job.divide_into_rounds(&mut plan, &cut)?;
    chain::build(
        fields,
        Chain {
            plan,
            params: params.clone(),
            uploads: needs.uploads,
            rounds,
        },
    )
}

/// A kernel's keys and tables, as the job file has them.
pub(super) struct KernelJob<'a> {
    pub(super) fields: &'a Fields<'a, 'a>,
    pub(super) params: &'a ParamSpace,
    /// Whether the keys name parameters, so that one set may be right and another wrong.
    sets_differ: bool,
    pub(super) program: KernelProgram,
    space: [Quantity; 3],
    dimensions: usize,
    inputs: Vec<InputSpec>,
    pub(super) outputs: Vec<OutputSpec>,
    uniforms: BTreeMap<String, Content>,
    constants: Vec<ConstantPlan>,
    pub(super) iterate: Option<Iterate>,
    pub(super) tile: Option<Item<[u32; 3]>>,
    halo: Option<Item<[u32; 3]>>,
}

impl<'a> KernelJob<'a> {
    fn read(fields: &'a Fields<'a, 'a>, params: &'a ParamSpace) -> Result<Self, Fault> {
        let program = KernelProgram::load(fields)?;
        let values = ValueReader::new(params);
        let (space, dimensions) = space(fields, &values)?;
        let inputs = inputs::plan(fields, &program, &values)?;
        let outputs = outputs::plan(fields, &program, &values)?;
        let uniforms = uniforms::uniforms(fields, &program, &values)?;
        let iterate = iterate::plan(fields, &program)?;
        let tile = extents(fields, "tile", dimensions, 1)?;
        let halo = extents(fields, "halo", dimensions, 0)?;
        check_tiled(&program, &inputs, tile.as_ref(), halo.as_ref())?;
        let constants = uniforms::constants(fields, &program, &values)?;
        Ok(Self {
            fields,
            params,
            sets_differ: values.depend_on_params(),
            program,
            space,
            dimensions,
            inputs,
            outputs,
            uniforms,
            constants,
            iterate,
            tile,
            halo,
        })
    }

    /// The plan of the whole space as one tile.
    fn kernel_plan(&self) -> Result<KernelPlan, Fault> {
        let swaps = self.iterate.as_ref().map(|iterate| iterate.swaps.clone());
        let outputs = self.outputs.iter().map(|output| output.plan.clone());
        Ok(KernelPlan {
            stage: Stage::Whole {
                steps: self.steps(),
            },
            shader: self.program.plan.clone(),
            space: self.space.clone(),
            dimensions: self.dimensions,
            grid: [1; 3],
            halo: self.halo.as_ref().map_or([0; 3], |halo| halo.value),
            constants: self.constants.clone(),
            bindings: self.bindings()?,
            swaps: swaps.unwrap_or_default(),
            parts: Vec::new(),
            outputs: outputs.collect(),
        })
    }

    pub(super) fn steps(&self) -> u32 {
        self.iterate.as_ref().map_or(1, |iterate| iterate.steps)
    }

    /// Every binding of the entry point, with its content.
    fn bindings(&self) -> Result<Vec<BindingPlan>, Fault> {
        let content = |binding: &Binding| match &binding.kind {
            _ if binding.name == TILE => Ok(Content::Tile),
            BindingKind::Uniform { .. } => Ok(self.uniforms[&binding.name].clone()),
            _ => self.array(binding).map(Content::Array),
        };
        let plan = |binding: &Binding| {
            Ok(BindingPlan {
                set: binding.set,
                binding: binding.binding,
                name: binding.name.clone(),
                content: content(binding)?,
            })
        };
        self.program.entry.bindings.iter().map(plan).collect()
    }

    fn array(&self, binding: &Binding) -> Result<ArrayPlan, Fault> {
        let BindingKind::Storage {
            element,
            is_written,
            ..
        } = binding.kind
        else {
            let message = format!("nothing can be bound to `{}`", binding.name);
            return Err(self.program.fault_at(binding, message));
        };
        let extent = self.extent(binding, is_written)?;
        let input = self.input(&binding.name);
        Ok(ArrayPlan {
            element,
            extent,
            source: input.map(|input| input.source.clone()),
            resumes: None,
            is_written,
        })
    }

    fn extent(&self, binding: &Binding, is_written: bool) -> Result<Extent, Fault> {
        let name = binding.name.as_str();
        let mut outputs = self.outputs.iter();
        let output = outputs.find(|output| output.plan.binding == name);
        let swaps = || self.iterate.iter().flat_map(|iterate| &iterate.swaps);
        let is_second = swaps().any(|(_, written)| written == name);
        match (self.input(name), output) {
            (Some(input), _) if is_second => {
                let message = format!("`{name}` is what a step writes: it has no content before");
                let fault = Fault::new(input.span.clone(), message);
                Err(fault.hint("the input is the first of the pair"))
            }
            (Some(input), _) if input.is_cut => Ok(Extent::Cells {
                per_cell: input.shape.clone(),
            }),
            (Some(input), Some(output)) if output.shape.is_none() && self.program.has_tile() => {
                let message = format!("`{name}` is put together by its cells, but not cut");
                let fault = Fault::new(input.span.clone(), message);
                Err(fault.hint("add cut = \"tile\" to the input"))
            }
            (Some(input), _) => Ok(Extent::Whole {
                shape: input.shape.clone(),
            }),
            (None, Some(output)) => Ok(match &output.shape {
                Some(shape) => Extent::Whole {
                    shape: shape.clone(),
                },
                None => Extent::Cells {
                    per_cell: output.per_cell.clone(),
                },
            }),
            (None, None) if is_second => Ok(Extent::Cells {
                per_cell: Vec::new(),
            }),
            (None, None) => Err(self.unused(binding, is_written)),
        }
    }

    /// The job file does not say what an array of the shader is for.
    fn unused(&self, binding: &Binding, is_written: bool) -> Fault {
        let name = &binding.name;
        if is_written {
            let message = format!("nothing is done with what the shader writes into `{name}`");
            let hint = format!(
                "add it to the job file: [outputs] {name} = \"{name}.npy\"; or as scratch, \
                 [inputs] {name} = {{ zeros = […] }}"
            );
            return self.program.fault_at(binding, message).hint(hint);
        }
        let message = format!("the array `{name}` has no input");
        let hint = format!("add it to the job file: [inputs] {name} = \"{name}.npy\"");
        self.program.fault_at(binding, message).hint(hint)
    }

    fn input(&self, name: &str) -> Option<&InputSpec> {
        self.inputs.iter().find(|input| input.binding == name)
    }

    fn check(&self, plan: &mut KernelPlan) -> Result<KernelNeeds, Fault> {
        if plan.swaps.is_empty() {
            return self.checker().check(plan, self.params, self.sets_differ);
        }
        // What is written in turn has for each cell what is read in turn has, which a file may say.
        let needs = self.checker().check(plan, self.params, false)?;
        self.extend_swapped(plan, &needs);
        self.checker().check(plan, self.params, self.sets_differ)
    }

    /// Gives the second binding of each swapped pair what each cell has of the first, where the
    /// job file leaves it open.
    fn extend_swapped(&self, plan: &mut KernelPlan, needs: &KernelNeeds) {
        for (read, written) in &plan.swaps {
            let mut outputs = self.outputs.iter();
            if outputs.any(|output| output.plan.binding == *written && !output.per_cell.is_empty())
            {
                continue;
            }
            let extents = needs.per_cell.get(read).map_or(&[][..], Vec::as_slice);
            let extents = extents
                .iter()
                .map(|extent| Quantity::Value(Value::Int(*extent as i64)));
            let mut bindings = plan.bindings.iter_mut();
            if let Some(BindingPlan {
                content:
                    Content::Array(ArrayPlan {
                        extent: Extent::Cells { per_cell },
                        ..
                    }),
                ..
            }) = bindings.find(|binding| binding.name == *written)
            {
                *per_cell = extents.collect();
            }
        }
    }

    fn checker(&self) -> Checker<'_, 'a> {
        let count = |binding: &Binding| match binding.kind {
            BindingKind::Storage {
                count: Some(count), ..
            } => Some((binding.name.clone(), count)),
            _ => None,
        };
        Checker {
            context: self.fields.context,
            spans: self.spans(),
            space: self.span("space").unwrap_or_default(),
            counts: self
                .program
                .entry
                .bindings
                .iter()
                .filter_map(count)
                .collect(),
            has_tile: self.program.has_tile(),
            headers: BTreeMap::new(),
            files: BTreeMap::new(),
        }
    }

    /// Where the job file has what faults are about, by name.
    fn spans(&self) -> BTreeMap<String, Range<usize>> {
        let mut spans = BTreeMap::new();
        for output in &self.outputs {
            let (name, span) = (&output.plan.binding, &output.span);
            spans.insert(format!("[outputs] {name}"), span.clone());
            spans.insert(name.clone(), span.clone());
        }
        for input in &self.inputs {
            spans.insert(input.binding.clone(), input.span.clone());
        }
        if let Some(span) = self.span("uniforms") {
            spans.extend(
                self.uniforms
                    .keys()
                    .map(|name| (name.clone(), span.clone())),
            );
        }
        if let Some(span) = self.span("constants") {
            let constants = self.constants.iter();
            spans.extend(constants.map(|constant| (constant.name.clone(), span.clone())));
        }
        spans
    }

    pub(super) fn span(&self, key: &str) -> Option<Range<usize>> {
        self.fields.get(key).map(Spanned::span)
    }

    /// Compiles the shader with the constants of the first sets, as workers will; returns the
    /// largest workgroup.
    fn compile(&self, plan: &KernelPlan) -> Result<[u32; 3], Fault> {
        /// More sets seldom differ in more than a number.
        const MOST_SETS: u64 = 16;
        let program = &self.program;
        let mut workgroup = [1; 3];
        let mut tried: Vec<Vec<(String, f64)>> = Vec::new();
        for index in 0..self.params.len().min(MOST_SETS) {
            let resolved = plan
                .resolve(&self.params.get(index))
                .map_err(|error| program.fault(error.to_string()))?;
            let constants = resolved.shader_constants();
            if tried.contains(&constants) {
                continue;
            }
            let compiled =
                program
                    .shader
                    .compile(&plan.shader.entry, &constants, plan.shader.checks);
            let entry = compiled
                .map_err(|error| program.fault(error.message))?
                .entry;
            workgroup = std::array::from_fn(|axis| workgroup[axis].max(entry.workgroup[axis]));
            tried.push(constants);
        }
        Ok(workgroup)
    }
}

/// `space`: one to three extents along x, y and z.
fn space(
    fields: &Fields<'_, '_>,
    values: &ValueReader<'_>,
) -> Result<([Quantity; 3], usize), Fault> {
    let Some(value) = fields.get("space") else {
        let fault = Fault::new(fields.span.clone(), "the job has no `space`");
        return Err(
            fault.hint("how many cells there are along x, y and z, e.g. space = [1024, 768]")
        );
    };
    if let DeValue::Array(items) = value.get_ref()
        && let Some(inner) = items.iter().find(|item| item.get_ref().is_array())
    {
        let fault = Fault::new(inner.span(), "`space` has numbers, not lists of them");
        return Err(fault.hint("along x, y and z, e.g. space = [1024, 768]"));
    }
    let given = values.quantities("space", value)?;
    let dimensions = given.len();
    if !(1..=3).contains(&dimensions) {
        let fault = Fault::new(
            value.span(),
            format!("`space` has one to three extents, not {dimensions}"),
        );
        return Err(fault.hint("along x, y and z, e.g. space = [1024, 768]"));
    }
    let one = || Quantity::Value(Value::Int(1));
    let mut extents = given.into_iter();
    Ok((
        std::array::from_fn(|_| extents.next().unwrap_or_else(one)),
        dimensions,
    ))
}

/// `tile` and `halo`: a number for all axes of the space, or one for each. Other axes have `least`.
fn extents(
    fields: &Fields<'_, '_>,
    key: &str,
    dimensions: usize,
    least: u32,
) -> Result<Option<Item<[u32; 3]>>, Fault> {
    let Some(value) = fields.get(key) else {
        return Ok(None);
    };
    let wrong = |span| {
        let axes = if dimensions == 1 {
            "one number".into()
        } else {
            format!("one number, or one for each of the {dimensions} axes")
        };
        Fault::new(span, format!("`{key}` is {axes}, from {least} on"))
    };
    let number = |item: &Spanned<DeValue<'_>>| {
        let number = item
            .get_ref()
            .as_integer()
            .and_then(to_i64)
            .and_then(|number| u32::try_from(number).ok());
        number
            .filter(|number| *number >= least)
            .ok_or_else(|| wrong(item.span()))
    };
    let mut extents = [least; 3];
    match value.get_ref() {
        DeValue::Array(items) if items.len() == dimensions => {
            for (extent, item) in extents.iter_mut().zip(items.iter()) {
                *extent = number(item)?;
            }
        }
        DeValue::Integer(_) => extents[..dimensions].fill(number(value)?),
        _ => return Err(wrong(value.span())),
    }
    Ok(Some(Item {
        value: extents,
        span: value.span(),
    }))
}

/// What only goes with a shader that knows of tiles.
fn check_tiled(
    program: &KernelProgram,
    inputs: &[InputSpec],
    tile: Option<&Item<[u32; 3]>>,
    halo: Option<&Item<[u32; 3]>>,
) -> Result<(), Fault> {
    const HINT: &str = "declare struct Tile { origin: vec3<u32>, size: vec3<u32>, space: vec3<u32>, step: u32 } and \
                        var<uniform> tile: Tile; `nodectl init kernel` shows how";
    for (key, given) in [("tile", tile), ("halo", halo)] {
        if let Some(given) = given.filter(|_| !program.has_tile()) {
            let message = format!(
                "`{key}` is for shaders that work on tiles, and this one does not declare `tile`"
            );
            return Err(Fault::new(given.span.clone(), message).hint(HINT));
        }
    }
    if let (Some(tile), Some(halo)) = (tile, halo)
        && let Some(axis) = (0..3).find(|axis| halo.value[*axis] > tile.value[*axis])
    {
        let axes = ["x", "y", "z"];
        let message = format!(
            "the halo of {} cells along {} is wider than the tile",
            halo.value[axis], axes[axis]
        );
        return Err(Fault::new(halo.span.clone(), message).hint("larger tiles, or a smaller halo"));
    }
    if let Some(halo) = halo.filter(|halo| halo.value != [0; 3])
        && !inputs.iter().any(|input| input.is_cut)
    {
        let fault = Fault::new(
            halo.span.clone(),
            "no input is cut, so there is nothing to widen by a halo",
        );
        return Err(
            fault.hint("add cut = \"tile\" to the inputs whose neighbours the shader looks at")
        );
    }
    Ok(())
}
