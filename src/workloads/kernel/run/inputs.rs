//! What a task's arrays begin with: blocks of files, parts of the stage before, generated numbers.

use super::{generate, parts::Parts};
use crate::{
    types::Scalar,
    workloads::{
        arrays::{self, Array, Info, Location},
        builtin::CallError,
        kernel::{
            KernelPlan, Resolved, ResolvedArray, ResolvedContent, ResolvedSource,
            plan::{ArrayPlan, Content, Extent, Stage},
            tiles::Cells,
        },
    },
};
use std::{fmt::Display, path::Path};

/// A task's.
pub struct Inputs<'a> {
    pub plan: &'a KernelPlan,
    pub resolved: &'a Resolved,
    /// The task's directory.
    pub dir: &'a Path,
    /// The number of its parameter set.
    pub set: u64,
}

impl Inputs<'_> {
    /// The binding of a name.
    pub fn index(&self, name: &str) -> Result<usize, CallError> {
        let found = self.plan.bindings.iter().position(|binding| binding.name == name);
        found.ok_or_else(|| CallError::Task(format!("the plan has no binding `{name}`")))
    }

    /// The axes of a binding's whole array; empty of what is no array.
    pub fn shape(&self, index: usize) -> Result<Vec<u64>, CallError> {
        let Some((array, resolved)) = self.array(index) else { return Ok(Vec::new()) };
        let shape = if let Some(parts) = self.parts(array) {
            parts.info().map_err(|error| self.of(index, &error))?.shape
        } else if let Some(location) = self.location(resolved) {
            location.inspect().map_err(|error| self.of(index, &error))?.shape
        } else {
            return Ok(resolved.shape.clone());
        };
        let (_, space) = Cells { origin: [0; 3], size: self.resolved.space }.axes(self.plan.dimensions);
        if matches!(array.extent, Extent::Cells { .. }) && !shape.starts_with(&space) {
            let told = format!("its file holds an array of {shape:?}, which does not begin with the space's {space:?}");
            return Err(self.of(index, &told));
        }
        Ok(shape)
    }

    /// The numbers of an array over `cells`, or of the whole one; None for zeros.
    pub fn numbers(&self, index: usize, cells: Option<&Cells>) -> Result<Option<Vec<u8>>, CallError> {
        let Some((array, resolved)) = self.array(index) else { return Ok(None) };
        let all = Cells { origin: [0; 3], size: self.resolved.space };
        let scalar = array.element.scalar;
        if let Some(parts) = self.parts(array) {
            let found = match &array.extent {
                Extent::Cells { .. } => parts.put_together(cells.unwrap_or(&all)),
                Extent::Whole { .. } => parts.location(0).read().map_err(Into::into),
            };
            return self.converted(index, found.map_err(|error| self.of(index, &error))?, scalar, false).map(Some);
        }
        let Some(source) = &resolved.source else { return Ok(None) };
        let whole = self.shape(index)?;
        let (mut start, mut shape) = (vec![0; whole.len()], whole.clone());
        if let (Some(cells), Extent::Cells { .. }) = (cells, &array.extent) {
            let (at, extents) = cells.axes(self.plan.dimensions);
            start[..at.len()].copy_from_slice(&at);
            shape[..extents.len()].copy_from_slice(&extents);
        }
        if let (Some(location), ResolvedSource::File { convert, .. }) = (self.location(resolved), source) {
            let found = if shape == whole { location.read() } else { location.read_block(&start, &shape) };
            return self.converted(index, found.map_err(|error| self.of(index, &error))?, scalar, *convert).map(Some);
        }
        let block = generate::block(source, scalar, &whole, (&start, &shape));
        block.map(Some).map_err(|why| self.of(index, &why))
    }

    /// Numbers as the shader has them.
    fn converted(&self, index: usize, array: Array, to: Scalar, convert: bool) -> Result<Vec<u8>, CallError> {
        let from = array.info.scalar;
        if from != to && !convert && !from.widens_to(to) {
            let told = format!("its file holds {from}, and the shader has {to}\nhint: `convert = true` casts");
            return Err(self.of(index, &told));
        }
        Ok(arrays::convert(array.bytes, from, to))
    }

    fn array(&self, index: usize) -> Option<(&ArrayPlan, &ResolvedArray)> {
        match (&self.plan.bindings[index].content, &self.resolved.bindings[index]) {
            (Content::Array(array), ResolvedContent::Array(resolved)) => Some((array, resolved)),
            _ => None,
        }
    }

    /// Where the round before left this binding, if it did.
    fn parts<'a>(&'a self, array: &'a ArrayPlan) -> Option<Parts<'a>> {
        let (Stage::Tiles { from: Some(from), .. }, Some(binding)) = (&self.plan.stage, &array.resumes) else {
            return None;
        };
        let (plan, space) = (self.plan, self.resolved.space);
        Some(Parts { plan, space, from: self.dir.join(from), set: self.set, binding })
    }

    fn location(&self, resolved: &ResolvedArray) -> Option<Location> {
        let Some(ResolvedSource::File { path, member, raw, .. }) = &resolved.source else { return None };
        let raw = raw.as_ref().map(|(scalar, shape)| Info { scalar: *scalar, shape: shape.clone() });
        Some(Location { path: self.dir.join(path), member: member.clone(), raw })
    }

    fn of(&self, index: usize, problem: &dyn Display) -> CallError {
        CallError::Task(format!("`{}`: {problem}", self.plan.bindings[index].name))
    }
}
