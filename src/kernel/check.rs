//! Every parameter set of a plan before anything is sent: values that fit, arrays that are what
//! shader and space need.

use super::{
    cut::STORAGE_BYTES,
    plan::{ArrayPlan, BindingPlan, Content, Extent, KernelPlan, PlanError},
    resolve::{Resolved, ResolvedArray, ResolvedContent, ResolvedSource},
};
use nodectl_formats::{ArrayLocation, Format, Info};
use nodectl_jobfile::{Context, Fault, Item, Upload, keys::uploads};
use nodectl_types::{ParamSpace, Params};
use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
};

/// What all parameter sets together need.
pub(super) struct Needs {
    pub(super) most: [u32; 3],
    pub(super) least: [u32; 3],
    /// Of each binding that is cut, by name, the bytes of a cell.
    pub(super) cell_bytes: BTreeMap<String, u64>,
    /// The files of all inputs, sorted by path, each once.
    pub(super) uploads: Vec<Upload>,
    /// What each cell has of an input from a file: the axes behind those of the space, in the first
    /// set.
    pub(super) per_cell: BTreeMap<String, Vec<u64>>,
}

/// What checking knows of the job file.
pub(super) struct Checker<'c, 't> {
    pub(super) context: &'c Context<'t>,
    /// Where inputs, outputs and the like stand, by name.
    pub(super) spans: BTreeMap<String, Range<usize>>,
    /// Where `space` and `params` stand.
    pub(super) space: Range<usize>,
    /// The shader's fixed lengths, by binding.
    pub(super) counts: BTreeMap<String, u32>,
    /// Whether the space can be cut.
    pub(super) has_tile: bool,
    pub(super) headers: BTreeMap<(PathBuf, Option<String>), Info>,
    pub(super) files: BTreeMap<String, Upload>,
}

impl Checker<'_, '_> {
    /// Checks every set where sets differ, else the first.
    pub(super) fn check(
        mut self,
        plan: &KernelPlan,
        params: &ParamSpace,
        differ: bool,
    ) -> Result<Needs, Fault> {
        let (mut most, mut least) = ([0; 3], [u32::MAX; 3]);
        let (mut cell_bytes, mut per_cell) = (BTreeMap::new(), BTreeMap::new());
        for index in 0..if differ { params.len() } else { 1 } {
            let set = params.get(index);
            let in_set = |fault: Fault| {
                if params.len() > 1 && differ {
                    told_of(fault, &set)
                } else {
                    fault
                }
            };
            let resolved = plan
                .resolve(&set)
                .map_err(|error| in_set(self.fault(error)))?;
            for axis in 0..3 {
                most[axis] = most[axis].max(resolved.space[axis]);
                least[axis] = least[axis].min(resolved.space[axis]);
            }
            for (binding, content) in plan.bindings.iter().zip(&resolved.bindings) {
                let (Content::Array(array), ResolvedContent::Array(found)) =
                    (&binding.content, content)
                else {
                    continue;
                };
                let shape = self
                    .shape(plan, binding, array, found, resolved.space)
                    .map_err(in_set)?;
                let numbers = shape.iter().product::<u64>();
                let bytes =
                    numbers / u64::from(array.element.components) * u64::from(array.element.stride);
                if let Extent::Cells { .. } = array.extent {
                    let behind = shape[plan.dimensions..].to_vec();
                    let cells: u64 = shape[..plan.dimensions].iter().product();
                    let most = cell_bytes.entry(binding.name.clone()).or_insert(0);
                    *most = bytes.div_ceil(cells).max(*most);
                    per_cell.entry(binding.name.clone()).or_insert(behind);
                } else if index == 0 && shape.len() >= plan.dimensions {
                    per_cell.insert(binding.name.clone(), shape[plan.dimensions..].to_vec());
                }
            }
            self.images(plan, &resolved).map_err(in_set)?;
        }
        Ok(Needs {
            most,
            least,
            cell_bytes,
            uploads: self.files.into_values().collect(),
            per_cell,
        })
    }

    /// The whole array's shape, checked against space and shader.
    fn shape(
        &mut self,
        plan: &KernelPlan,
        binding: &BindingPlan,
        array: &ArrayPlan,
        found: &ResolvedArray,
        space: [u32; 3],
    ) -> Result<Vec<u64>, Fault> {
        let name = &binding.name;
        let span = self.spans.get(name).cloned().unwrap_or(self.space.clone());
        let shape = match &found.source {
            Some(ResolvedSource::File {
                path,
                member,
                raw,
                convert,
            }) => {
                let raw = raw.as_ref().map(|(scalar, shape)| Info {
                    scalar: *scalar,
                    shape: shape.clone(),
                });
                let info = self.header(path, member.clone(), raw, &span)?;
                let (from, to) = (info.scalar, array.element.scalar);
                if !convert && !from.widens_to(to) {
                    let message = format!(
                        "`{path}` has numbers of type {from}, and the shader's `{name}` is of {to}"
                    );
                    let hint = format!(
                        "store it as {to}, or add convert = true: what does not fit is rounded and saturates"
                    );
                    return Err(Fault::new(span, message).hint(hint));
                }
                info.shape
            }
            _ => found.shape.clone(),
        };
        let numbers = shape
            .iter()
            .try_fold(1u64, |product, extent| product.checked_mul(*extent));
        let Some(numbers) = numbers.filter(|numbers| *numbers <= i64::MAX as u64) else {
            return Err(Fault::new(
                span,
                format!("`{name}` would be {shape:?} numbers, more than can be counted"),
            ));
        };
        let components = u64::from(array.element.components);
        if numbers == 0 || !numbers.is_multiple_of(components) {
            let message = format!(
                "{shape:?} numbers do not make elements of {components} for the shader's `{name}`"
            );
            return Err(Fault::new(span, message));
        }
        if let Extent::Cells { .. } = array.extent {
            let space: Vec<u64> = space[..plan.dimensions]
                .iter()
                .rev()
                .map(|extent| u64::from(*extent))
                .collect();
            let behind: u64 = shape.iter().skip(plan.dimensions).product();
            if !shape.starts_with(&space) || !behind.is_multiple_of(components) {
                let message = format!(
                    "`{name}` is cut with the space, so its shape begins with {space:?}; it has {shape:?}"
                );
                let hint = "numpy's order: the axis of x is the last of the space's; numbers of a cell come behind";
                return Err(Fault::new(span, message).hint(hint));
            }
        }
        if let Some(count) = self.counts.get(name)
            && numbers / components != u64::from(*count)
        {
            let message = format!(
                "the shader's `{name}` has {count} elements, and {shape:?} are {}",
                numbers / components
            );
            return Err(Fault::new(span, message));
        }
        let bytes = (numbers / components).saturating_mul(u64::from(array.element.stride));
        if matches!(array.extent, Extent::Whole { .. }) && bytes > STORAGE_BYTES * 32 {
            let message = format!(
                "`{name}` would take {bytes} bytes in every task; no device binds more than 4 GiB at once"
            );
            return Err(Fault::new(span, message).hint("cut it: cut = \"tile\""));
        }
        if let Extent::Cells { .. } = array.extent {
            let cells: u64 = if self.has_tile {
                shape[..plan.dimensions].iter().product()
            } else {
                1
            };
            let at_once = bytes / cells.max(1);
            if at_once > STORAGE_BYTES * 32 {
                let what = if self.has_tile {
                    "for one cell"
                } else {
                    "at once"
                };
                let message = format!(
                    "`{name}` would take {at_once} bytes {what}; no device binds more than 4 GiB"
                );
                return Err(Fault::new(span, message)
                    .hint("fewer numbers a cell, or a shader that works on tiles"));
            }
        }
        Ok(shape)
    }

    fn header(
        &mut self,
        path: &str,
        member: Option<String>,
        raw: Option<Info>,
        span: &Range<usize>,
    ) -> Result<Info, Fault> {
        let item = Item {
            value: path.to_string(),
            span: span.clone(),
        };
        let upload = match self.files.get(path) {
            Some(upload) => upload.clone(),
            None => uploads::file(self.context, &item)?,
        };
        self.files.insert(path.to_string(), upload);
        let place = self.context.base.join(path);
        if raw.is_none()
            && let Some(info) = self.headers.get(&(place.clone(), member.clone()))
        {
            return Ok(info.clone());
        }
        let location = ArrayLocation {
            path: place.clone(),
            member: member.clone(),
            raw: raw.clone(),
        };
        let info = location.inspect().map_err(|error| {
            let told = error
                .to_string()
                .replace(&format!("{}: ", place.display()), &format!("`{path}`: "));
            Fault::new(span.clone(), told)
        })?;
        if raw.is_none() {
            self.headers.insert((place, member), info.clone());
        }
        Ok(info)
    }

    /// Images have the shape of images.
    fn images(&self, plan: &KernelPlan, resolved: &Resolved) -> Result<(), Fault> {
        for (output, file) in plan.outputs.iter().zip(&resolved.files) {
            let span = || {
                self.spans
                    .get(&format!("[outputs] {}", output.binding))
                    .cloned()
                    .unwrap_or_default()
            };
            if !nodectl_types::manifest::safe_path(file) {
                return Err(Fault::new(
                    span(),
                    format!("`{file}` cannot be a file of results"),
                ));
            }
            if Format::of(Path::new(file)) != Some(Format::Png) {
                continue;
            }
            let index = plan
                .bindings
                .iter()
                .position(|binding| binding.name == output.binding);
            let Some(ResolvedContent::Array(array)) = index.map(|index| &resolved.bindings[index])
            else {
                continue;
            };
            if !matches!(array.shape[..], [_, _] | [_, _, 1..=4]) {
                let message = format!(
                    "an image is height × width, or × 2, 3 or 4; `{}` is {:?}",
                    output.binding, array.shape
                );
                return Err(Fault::new(span(), message).hint("write it as .npy"));
            }
        }
        Ok(())
    }

    fn fault(&self, error: PlanError) -> Fault {
        match error {
            PlanError::Of { name, message } => {
                let span = self.spans.get(&name).cloned().unwrap_or(self.space.clone());
                Fault::new(span, format!("`{name}`: {message}"))
            }
            other => Fault::new(self.space.clone(), other.to_string()),
        }
    }
}

/// The same, naming the parameter set in which it is so.
fn told_of(fault: Fault, set: &Params) -> Fault {
    let values: Vec<String> = set
        .iter()
        .map(|(name, value)| format!("{name} = {value}"))
        .collect();
    fault.within(&values.join(", "))
}
