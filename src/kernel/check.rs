//! Every parameter set of a plan before anything is sent: values that fit, arrays that are what
//! shader and space need.

use super::{
    cut::STORAGE_BYTES,
    plan::{ArrayPlan, Content, KernelPlan, PlanError},
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
pub(super) struct KernelNeeds {
    /// The greatest extents of the space along x, y and z.
    pub(super) most: [u32; 3],
    /// The least extents of the space along x, y and z.
    pub(super) least: [u32; 3],
    /// Of each binding that is cut, by name, the bytes of a cell.
    pub(super) cell_bytes: BTreeMap<String, u64>,
    /// The files of all inputs, sorted by path, each once.
    pub(super) uploads: Vec<Upload>,
    /// What each cell has of an array: the axes after those of the space, in the first set.
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
    ) -> Result<KernelNeeds, Fault> {
        let mut needs = KernelNeeds {
            most: [0; 3],
            least: [u32::MAX; 3],
            cell_bytes: BTreeMap::new(),
            uploads: Vec::new(),
            per_cell: BTreeMap::new(),
        };
        for index in 0..if differ { params.len() } else { 1 } {
            let set = params.get(index);
            self.check_set(plan, &set, &mut needs).map_err(|fault| {
                if params.len() > 1 && differ {
                    naming_set(fault, &set)
                } else {
                    fault
                }
            })?;
        }
        needs.uploads = self.files.into_values().collect();
        Ok(needs)
    }

    fn check_set(
        &mut self,
        plan: &KernelPlan,
        set: &Params,
        needs: &mut KernelNeeds,
    ) -> Result<(), Fault> {
        let resolved = plan.resolve(set).map_err(|error| self.fault(error))?;
        needs.add_space(resolved.space);
        for (binding, content) in plan.bindings.iter().zip(&resolved.bindings) {
            if let (Content::Array(array), ResolvedContent::Array(found)) =
                (&binding.content, content)
            {
                let name = &binding.name;
                let shape = self.shape(name, array, found, &resolved.space[..plan.dimensions])?;
                needs.add_array(name, array, &shape, plan.dimensions);
            }
        }
        self.images(plan, &resolved)
    }

    /// The whole array's shape, checked against space and shader.
    fn shape(
        &mut self,
        name: &str,
        array: &ArrayPlan,
        found: &ResolvedArray,
        space: &[u32],
    ) -> Result<Vec<u64>, Fault> {
        let span = self.spans.get(name).cloned().unwrap_or(self.space.clone());
        let shape = match &found.source {
            Some(source @ ResolvedSource::File { .. }) => {
                self.file_shape(name, array, source, &span)?
            }
            _ => found.shape.clone(),
        };
        let sized = SizedArray {
            name,
            array,
            shape: &shape,
        };
        let elements = sized.elements().map_err(|wrong| wrong.at(&span))?;
        if !array.is_whole() {
            sized.check_cells(space).map_err(|wrong| wrong.at(&span))?;
        }
        if let Some(count) = self.counts.get(name)
            && elements != u64::from(*count)
        {
            let message =
                format!("the shader's `{name}` has {count} elements, and {shape:?} are {elements}");
            return Err(Fault::new(span, message));
        }
        let tiled = self.has_tile.then_some(space.len());
        sized
            .check_bytes(elements, tiled)
            .map_err(|wrong| wrong.at(&span))?;
        Ok(shape)
    }

    /// What a file's header says, if its numbers go into the shader's type.
    fn file_shape(
        &mut self,
        name: &str,
        array: &ArrayPlan,
        source: &ResolvedSource,
        span: &Range<usize>,
    ) -> Result<Vec<u64>, Fault> {
        let ResolvedSource::File {
            path,
            member,
            raw,
            convert,
        } = source
        else {
            return Ok(Vec::new());
        };
        let raw = raw.as_ref().map(|(scalar, shape)| Info {
            scalar: *scalar,
            shape: shape.clone(),
        });
        let info = self.header(path, member.clone(), raw, span)?;
        let (from, to) = (info.scalar, array.element.scalar);
        if !convert && !from.widens_to(to) {
            let message = format!(
                "`{path}` has numbers of type {from}, and the shader's `{name}` is of {to}"
            );
            let hint = format!(
                "store it as {to}, or add convert = true: what does not fit is rounded and saturates"
            );
            return Err(Fault::new(span.clone(), message).hint(hint));
        }
        Ok(info.shape)
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
            let message = error
                .to_string()
                .replace(&format!("{}: ", place.display()), &format!("`{path}`: "));
            Fault::new(span.clone(), message)
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

impl KernelNeeds {
    fn add_space(&mut self, space: [u32; 3]) {
        for (axis, extent) in space.into_iter().enumerate() {
            self.most[axis] = self.most[axis].max(extent);
            self.least[axis] = self.least[axis].min(extent);
        }
    }

    fn add_array(&mut self, name: &str, array: &ArrayPlan, shape: &[u64], dimensions: usize) {
        let Some((cells, per_cell)) = shape.split_at_checked(dimensions) else {
            return;
        };
        self.per_cell
            .entry(name.to_string())
            .or_insert_with(|| per_cell.to_vec());
        if !array.is_whole() {
            let elements = shape.iter().product::<u64>() / u64::from(array.element.components);
            let bytes = elements * u64::from(array.element.stride);
            let most = self.cell_bytes.entry(name.to_string()).or_insert(0);
            *most = bytes.div_ceil(cells.iter().product()).max(*most);
        }
    }
}

/// An array of the plan with the shape that it has.
struct SizedArray<'a> {
    name: &'a str,
    array: &'a ArrayPlan,
    shape: &'a [u64],
}

/// What does not fit of an array.
struct Misfit {
    message: String,
    hint: Option<&'static str>,
}

impl SizedArray<'_> {
    /// How many elements of the shader's type its numbers make.
    fn elements(&self) -> Result<u64, Misfit> {
        let Self { name, shape, .. } = self;
        let mut extents = shape.iter();
        let numbers = extents.try_fold(1u64, |product, extent| product.checked_mul(*extent));
        let Some(numbers) = numbers.filter(|numbers| *numbers <= i64::MAX as u64) else {
            return Err(misfit(format!(
                "`{name}` would be {shape:?} numbers, more than can be counted"
            )));
        };
        let components = u64::from(self.array.element.components);
        if numbers == 0 || !numbers.is_multiple_of(components) {
            return Err(misfit(format!(
                "{shape:?} numbers do not make elements of {components} for the shader's `{name}`"
            )));
        }
        Ok(numbers / components)
    }

    /// An array that is cut with the space has the space's axes first.
    fn check_cells(&self, space: &[u32]) -> Result<(), Misfit> {
        let Self { name, shape, .. } = self;
        let components = u64::from(self.array.element.components);
        let per_cell: u64 = shape.iter().skip(space.len()).product();
        let space: Vec<u64> = space.iter().rev().map(|n| u64::from(*n)).collect();
        if shape.starts_with(&space) && per_cell.is_multiple_of(components) {
            return Ok(());
        }
        let message = format!(
            "`{name}` is cut with the space, so its shape begins with {space:?}; it has {shape:?}"
        );
        Err(misfit(message).hint(
            "numpy's order: the axis of x is the last of the space's; numbers of a cell come after \
             it",
        ))
    }

    /// No device binds more than 4 GiB: of a whole array, or of one cell where the shader works on
    /// tiles; then `tiled` is how many axes the space has.
    fn check_bytes(&self, elements: u64, tiled: Option<usize>) -> Result<(), Misfit> {
        const MOST_BOUND_BYTES: u64 = STORAGE_BYTES * 32;
        let name = self.name;
        let bytes = elements.saturating_mul(u64::from(self.array.element.stride));
        if self.array.is_whole() {
            if bytes > MOST_BOUND_BYTES {
                let message = format!(
                    "`{name}` would take {bytes} bytes in every task; no device binds more than 4 \
                     GiB at once"
                );
                return Err(misfit(message).hint("cut it: cut = \"tile\""));
            }
            return Ok(());
        }
        let (cells, what) = match tiled {
            Some(axes) => (self.shape[..axes].iter().product(), "for one cell"),
            None => (1, "at once"),
        };
        let at_once = bytes / u64::max(cells, 1);
        if at_once > MOST_BOUND_BYTES {
            let message = format!(
                "`{name}` would take {at_once} bytes {what}; no device binds more than 4 GiB"
            );
            return Err(
                misfit(message).hint("fewer numbers a cell, or a shader that works on tiles")
            );
        }
        Ok(())
    }
}

fn misfit(message: String) -> Misfit {
    Misfit {
        message,
        hint: None,
    }
}

impl Misfit {
    fn hint(self, hint: &'static str) -> Self {
        Self {
            hint: Some(hint),
            ..self
        }
    }

    fn at(self, span: &Range<usize>) -> Fault {
        let fault = Fault::new(span.clone(), self.message);
        match self.hint {
            Some(hint) => fault.hint(hint),
            None => fault,
        }
    }
}

/// A fault of one parameter set of several: names the set.
fn naming_set(fault: Fault, set: &Params) -> Fault {
    let values: Vec<String> = set
        .iter()
        .map(|(name, value)| format!("{name} = {value}"))
        .collect();
    fault.within(&values.join(", "))
}
