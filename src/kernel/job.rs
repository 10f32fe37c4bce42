//! The job file of a kernel: its keys, put together to a plan and the jobs that carry it out.

use super::{
    chain::{self, Chain},
    check::{Checker, Needs},
    cut::{self, Cut, Demand},
    inputs::{self, InputSpec},
    iterate::{self, Iterate},
    outputs::{self, OutputSpec},
    plan::{ArrayPlan, BindingPlan, Combine, Content, Extent, KernelPlan, Quantity, Stage},
    program::{KernelProgram, TILE},
    uniforms,
    values::ValueReader,
};
use nodectl_gpu::shader::{Binding, BindingKind};
use nodectl_jobfile::{Fault, Fields, Item, PlacedJob, keys::params, to_i64};
use nodectl_types::{ParamSpace, Value};
use std::collections::BTreeMap;
use toml::{Spanned, de::DeValue};

#[rustfmt::skip]
pub const KEYS: [&str; 29] = [
    "name", "kind", "after", "shader", "entry", "space", "tile", "halo", "inputs", "uniforms", "constants", "outputs",
    "iterate", "params", "zip", "sample", "output_limit", "log_limit", "into", "retries", "timeout", "grace", "priority",
    "min_nodes", "where", "speculate", "wait", "resources", "computing",
];

/// Plans one job: the last of those that are returned, which come in order.
pub fn plan(fields: &Fields<'_, '_>) -> Result<Vec<PlacedJob>, Fault> {
    fields.check_keys(&KEYS)?;
    let params = params::plan(fields, None)?;
    let program = KernelProgram::load(fields)?;
    let values = ValueReader::new(&params);
    let (space, dimensions) = space(fields, &values)?;
    let parts = JobTables {
        inputs: inputs::plan(fields, &program, &values)?,
        outputs: outputs::plan(fields, &program, &values)?,
        uniforms: uniforms::uniforms(fields, &program, &values)?,
        iterate: iterate::plan(fields, &program)?,
    };
    let tile = extents(fields, "tile", dimensions, 1)?;
    let halo = extents(fields, "halo", dimensions, 0)?;
    check_tiled(&program, &parts, tile.as_ref(), halo.as_ref())?;
    let mut plan = KernelPlan {
        stage: Stage::Whole {
            steps: parts.iterate.as_ref().map_or(1, |iterate| iterate.steps),
        },
        shader: program.plan.clone(),
        space,
        dimensions,
        grid: [1; 3],
        halo: halo.as_ref().map_or([0; 3], |halo| halo.value),
        constants: uniforms::constants(fields, &program, &values)?,
        bindings: bindings(&program, &parts)?,
        swaps: parts
            .iterate
            .as_ref()
            .map_or(Vec::new(), |iterate| iterate.swaps.clone()),
        parts: Vec::new(),
        outputs: parts
            .outputs
            .iter()
            .map(|output| output.plan.clone())
            .collect(),
    };
    let needs = check(
        fields,
        &mut plan,
        &program,
        &parts,
        &params,
        values.depend_on_params(),
    )?;
    let compiled = compile(&plan, &program, &params)?;
    let cut = choose(
        fields,
        &plan,
        &program,
        &parts,
        &needs,
        &params,
        tile.as_ref(),
        compiled,
    )?;
    plan.grid = cut.grid;
    let rounds = exchange(&mut plan, &parts, cut)?;
    chain::build(
        fields,
        Chain {
            plan,
            params,
            uploads: needs.uploads,
            rounds,
        },
    )
}

/// What the tables of the job file say.
struct JobTables {
    inputs: Vec<InputSpec>,
    outputs: Vec<OutputSpec>,
    uniforms: BTreeMap<String, Content>,
    iterate: Option<Iterate>,
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
    parts: &JobTables,
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
        && !parts.inputs.iter().any(|input| input.is_cut)
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

/// Every binding of the entry point, with its content.
fn bindings(program: &KernelProgram, parts: &JobTables) -> Result<Vec<BindingPlan>, Fault> {
    let content = |binding: &Binding| match &binding.kind {
        _ if binding.name == TILE => Ok(Content::Tile),
        BindingKind::Uniform { .. } => Ok(parts.uniforms[&binding.name].clone()),
        _ => array(program, parts, binding).map(Content::Array),
    };
    let plan = |binding: &Binding| {
        let (set, number, name) = (binding.set, binding.binding, binding.name.clone());
        Ok(BindingPlan {
            set,
            binding: number,
            name,
            content: content(binding)?,
        })
    };
    program.entry.bindings.iter().map(plan).collect()
}

fn array(
    program: &KernelProgram,
    parts: &JobTables,
    binding: &Binding,
) -> Result<ArrayPlan, Fault> {
    let BindingKind::Storage {
        element,
        is_written,
        ..
    } = binding.kind
    else {
        return Err(program.fault_at(
            binding,
            format!("nothing can be bound to `{}`", binding.name),
        ));
    };
    let name = binding.name.as_str();
    let input = parts.inputs.iter().find(|input| input.binding == name);
    let output = parts
        .outputs
        .iter()
        .find(|output| output.plan.binding == name);
    let swaps = || parts.iterate.iter().flat_map(|iterate| &iterate.swaps);
    let is_second = swaps().any(|(_, written)| written == name);
    if let Some(input) = input.filter(|_| is_second) {
        let fault = Fault::new(
            input.span.clone(),
            format!("`{name}` is what a step writes: it has no content before"),
        );
        return Err(fault.hint("the input is the first of the pair"));
    }
    let extent = match (input, output) {
        (Some(input), _) if input.is_cut => Extent::Cells {
            per_cell: input.shape.clone(),
        },
        (Some(input), Some(output)) if output.shape.is_none() && program.has_tile() => {
            let fault = Fault::new(
                input.span.clone(),
                format!("`{name}` is put together by its cells, but not cut"),
            );
            return Err(fault.hint("add cut = \"tile\" to the input"));
        }
        (Some(input), _) => Extent::Whole {
            shape: input.shape.clone(),
        },
        (
            None,
            Some(OutputSpec {
                shape: Some(shape), ..
            }),
        ) => Extent::Whole {
            shape: shape.clone(),
        },
        (None, Some(output)) => Extent::Cells {
            per_cell: output.per_cell.clone(),
        },
        (None, None) if is_second => Extent::Cells {
            per_cell: Vec::new(),
        },
        (None, None) if is_written => {
            let fault = program.fault_at(
                binding,
                format!("nothing is done with what the shader writes into `{name}`"),
            );
            return Err(fault.hint(format!(
                "add it to the job file: [outputs] {name} = \"{name}.npy\"; or as scratch, [inputs] {name} = {{ zeros = […] }}"
            )));
        }
        (None, None) => {
            let fault = program.fault_at(binding, format!("the array `{name}` has no input"));
            return Err(fault.hint(format!(
                "add it to the job file: [inputs] {name} = \"{name}.npy\""
            )));
        }
    };
    Ok(ArrayPlan {
        element,
        extent,
        source: input.map(|input| input.source.clone()),
        resumes: None,
        is_written,
    })
}

fn check(
    fields: &Fields<'_, '_>,
    plan: &mut KernelPlan,
    program: &KernelProgram,
    parts: &JobTables,
    params: &ParamSpace,
    differ: bool,
) -> Result<Needs, Fault> {
    let span = |key: &str| fields.get(key).map(Spanned::span);
    let mut spans = BTreeMap::new();
    for output in &parts.outputs {
        spans.insert(
            format!("[outputs] {}", output.plan.binding),
            output.span.clone(),
        );
        spans.insert(output.plan.binding.clone(), output.span.clone());
    }
    spans.extend(
        parts
            .inputs
            .iter()
            .map(|input| (input.binding.clone(), input.span.clone())),
    );
    for (table, names) in [
        (
            "uniforms",
            parts.uniforms.keys().cloned().collect::<Vec<_>>(),
        ),
        (
            "constants",
            plan.constants
                .iter()
                .map(|constant| constant.name.clone())
                .collect(),
        ),
    ] {
        spans.extend(
            names
                .into_iter()
                .filter_map(|name| Some((name, span(table)?))),
        );
    }
    let count = |binding: &Binding| match binding.kind {
        BindingKind::Storage {
            count: Some(count), ..
        } => Some((binding.name.clone(), count)),
        _ => None,
    };
    let checker = |counts| Checker {
        context: fields.context,
        spans: spans.clone(),
        space: span("space").unwrap_or_default(),
        counts,
        has_tile: program.has_tile(),
        headers: BTreeMap::new(),
        files: BTreeMap::new(),
    };
    let counts: BTreeMap<String, u32> = program.entry.bindings.iter().filter_map(count).collect();
    if plan.swaps.is_empty() {
        return checker(counts).check(plan, params, differ);
    }
    // What is written in turn has for each cell what is read in turn has, which a file may say.
    let needs = checker(counts.clone()).check(plan, params, false)?;
    for (read, written) in plan.swaps.clone() {
        let per_cell = needs.per_cell.get(&read).cloned().unwrap_or_default();
        let is_told = parts
            .outputs
            .iter()
            .any(|output| output.plan.binding == written && !output.per_cell.is_empty());
        for binding in plan
            .bindings
            .iter_mut()
            .filter(|binding| binding.name == written && !is_told)
        {
            if let Content::Array(ArrayPlan {
                extent: Extent::Cells { per_cell: own },
                ..
            }) = &mut binding.content
            {
                *own = per_cell
                    .iter()
                    .map(|extent| Quantity::Value(Value::Int(*extent as i64)))
                    .collect();
            }
        }
    }
    checker(counts).check(plan, params, differ)
}

/// Compiles the shader with the constants of the first sets, as workers will; returns the largest
/// workgroup.
fn compile(
    plan: &KernelPlan,
    program: &KernelProgram,
    params: &ParamSpace,
) -> Result<[u32; 3], Fault> {
    /// More sets seldom differ in more than a number.
    const MOST_SETS: u64 = 16;
    let mut workgroup = [1; 3];
    let mut tried: Vec<Vec<(String, f64)>> = Vec::new();
    for index in 0..params.len().min(MOST_SETS) {
        let resolved = plan
            .resolve(&params.get(index))
            .map_err(|error| program.fault(error.to_string()))?;
        let constants = resolved.shader_constants();
        if tried.contains(&constants) {
            continue;
        }
        let compiled = program.shader.compile(&plan.shader.entry, &constants);
        let compiled = compiled.map_err(|error| program.fault(error.message))?;
        workgroup = std::array::from_fn(|axis| workgroup[axis].max(compiled.entry.workgroup[axis]));
        tried.push(constants);
    }
    Ok(workgroup)
}

#[expect(
    clippy::too_many_arguments,
    reason = "all that planning has found so far decides how the space is cut"
)]
fn choose(
    fields: &Fields<'_, '_>,
    plan: &KernelPlan,
    program: &KernelProgram,
    parts: &JobTables,
    needs: &Needs,
    params: &ParamSpace,
    tile: Option<&Item<[u32; 3]>>,
    workgroup: [u32; 3],
) -> Result<Cut, Fault> {
    let iterate = parts.iterate.as_ref();
    let steps = iterate.map_or(1, |iterate| iterate.steps);
    // A step that looks at all of what the last one wrote must wait for all of it.
    let is_whole = |binding: &BindingPlan| {
        let is_read = plan.swaps.iter().any(|(read, _)| *read == binding.name);
        is_read
            && matches!(
                &binding.content,
                Content::Array(ArrayPlan {
                    extent: Extent::Whole { .. },
                    ..
                })
            )
    };
    let told = iterate
        .and_then(|iterate| iterate.steps_per_round.as_ref())
        .map(|steps| steps.value);
    let steps_per_round = if plan.bindings.iter().any(is_whole) {
        Some(1)
    } else {
        told
    };
    let demand = Demand {
        most: needs.most,
        least: needs.least,
        cell_bytes: needs.cell_bytes.values().copied().collect(),
        parameter_sets: params.len(),
        workgroup,
        halo: plan.halo,
        steps,
        steps_per_round,
    };
    let space = fields.get("space").map(Spanned::span).unwrap_or_default();
    if !program.has_tile() {
        let axis = (0..3)
            .find(|axis| demand.most[*axis].div_ceil(workgroup[*axis].max(1)) > cut::MAX_GROUPS);
        if let Some(axis) = axis {
            let message = format!(
                "{} cells along one axis are more than every device takes at once",
                demand.most[axis]
            );
            let hint = format!(
                "at most {} workgroups: let the shader declare `tile`, so that its space is cut",
                cut::MAX_GROUPS
            );
            return Err(Fault::new(space, message).hint(hint));
        }
        return Ok(Cut {
            grid: [1; 3],
            steps_per_round: steps,
        });
    }
    let found = match tile {
        Some(tile) => demand.by_tile(tile.value).ok_or_else(|| {
            let fault = Fault::new(
                tile.span.clone(),
                "the smallest space cannot be cut into as many tiles as the largest",
            );
            fault.hint("larger tiles, or spaces of like sizes in one job")
        })?,
        None => demand.choose().ok_or_else(|| {
            let fault = Fault::new(
                space.clone(),
                "no tile of this space is small enough for every device",
            );
            fault.hint("fewer numbers a cell, a smaller halo, or fewer steps_per_round")
        })?,
    };
    let rounds = steps.div_ceil(found.steps_per_round);
    if rounds > cut::MAX_ROUNDS {
        let span = iterate.map_or(space, |iterate| iterate.span.clone());
        let message = format!(
            "{steps} steps in rounds of {} are {rounds} rounds; at most {} are possible",
            found.steps_per_round,
            cut::MAX_ROUNDS
        );
        return Err(Fault::new(span, message).hint(
            "more steps_per_round, or larger tiles: each tile then waits less for its neighbours",
        ));
    }
    Ok(found)
}

/// What tiles leave for the next round and for the end. Returns the rounds: first step and steps of
/// each.
fn exchange(plan: &mut KernelPlan, parts: &JobTables, cut: Cut) -> Result<Vec<(u32, u32)>, Fault> {
    let steps = parts.iterate.as_ref().map_or(1, |iterate| iterate.steps);
    if cut.grid == [1; 3] {
        return Ok(Vec::new());
    }
    let mut rounds = Vec::new();
    let mut first = 0;
    while first < steps {
        let count = cut.steps_per_round.min(steps - first);
        rounds.push((first, count));
        first += count;
    }
    let mut left: Vec<String> = plan
        .outputs
        .iter()
        .map(|output| output.binding.clone())
        .collect();
    if rounds.len() > 1 {
        for (read, written) in &plan.swaps {
            left.push(written.clone());
            for binding in plan
                .bindings
                .iter_mut()
                .filter(|binding| binding.name == *read)
            {
                if let Content::Array(array) = &mut binding.content {
                    array.resumes = Some(written.clone());
                }
            }
        }
        let span = parts
            .iterate
            .as_ref()
            .map(|iterate| iterate.span.clone())
            .unwrap_or_default();
        let (swaps, outputs) = (&plan.swaps, &plan.outputs);
        for binding in &mut plan.bindings {
            let Content::Array(array) = &mut binding.content else {
                continue;
            };
            let is_swapped = swaps
                .iter()
                .any(|(read, written)| [read, written].contains(&&binding.name));
            if is_swapped || !array.is_written {
                continue;
            }
            let is_reduced = outputs
                .iter()
                .any(|o| o.binding == binding.name && o.combine != Combine::Concat);
            if is_reduced || matches!(array.extent, Extent::Whole { .. }) {
                let message = format!(
                    "`{}` is not cut, so tiles cannot go on with it in {} rounds",
                    binding.name,
                    rounds.len()
                );
                let hint = "compute it from the last step in a job of its own, or do all steps in one round: steps_per_round";
                return Err(Fault::new(span, message).hint(hint));
            }
            if array.source.is_some() {
                left.push(binding.name.clone());
                array.resumes = Some(binding.name.clone());
            }
        }
    }
    left.sort();
    left.dedup();
    plan.parts = left;
    Ok(rounds)
}
