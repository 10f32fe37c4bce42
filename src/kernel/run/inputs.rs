//! What a task's arrays begin with: blocks of files, parts of the stage before, generated numbers.

use super::parts::BindingParts;
use crate::{
    KernelPlan, Resolved, ResolvedArray, ResolvedContent, ResolvedSource, load,
    plan::{ArrayPlan, Content, Extent, Stage},
    tiles::Cells,
};
use nodectl_builtin::CallError;
use nodectl_formats::{self as formats, ArrayLocation, Info};
use std::{fmt::Display, path::Path};

/// A task's.
pub struct KernelInputs<'a> {
    pub plan: &'a KernelPlan,
    pub resolved: &'a Resolved,
    /// The task's directory.
    pub dir: &'a Path,
    /// The number of its parameter set.
    pub set: u64,
}

impl KernelInputs<'_> {
    /// The binding of a name.
    pub fn index(&self, name: &str) -> Result<usize, CallError> {
        let found = self
            .plan
            .bindings
            .iter()
            .position(|binding| binding.name == name);
        found.ok_or_else(|| CallError::Task(format!("the plan has no binding `{name}`")))
    }

    /// The axes of a binding's whole array; empty of what is no array.
    pub fn shape(&self, index: usize) -> Result<Vec<u64>, CallError> {
        let Some((array, resolved)) = self.array(index) else {
            return Ok(Vec::new());
        };
        let shape = if let Some(parts) = self.parts(array) {
            parts.info().map_err(|error| self.of(index, &error))?.shape
        } else if let Some(location) = self.location(resolved) {
            location
                .inspect()
                .map_err(|error| self.of(index, &error))?
                .shape
        } else {
            return Ok(resolved.shape.clone());
        };
        let (_, space) = Cells {
            origin: [0; 3],
            size: self.resolved.space,
        }
        .axes(self.plan.dimensions);
        if matches!(array.extent, Extent::Cells { .. }) && !shape.starts_with(&space) {
            let message = format!(
                "its file holds an array of {shape:?}, which does not begin with the space's {space:?}"
            );
            return Err(self.of(index, &message));
        }
        Ok(shape)
    }

    /// The numbers of an array over `cells`, or of the whole one, as the shader's type; None for
    /// zeros.
    pub fn numbers(
        &self,
        index: usize,
        cells: Option<&Cells>,
    ) -> Result<Option<Vec<u8>>, CallError> {
        let Some((array, resolved)) = self.array(index) else {
            return Ok(None);
        };
        let all = Cells {
            origin: [0; 3],
            size: self.resolved.space,
        };
        let cells = cells.unwrap_or(&all);
        if let Some(parts) = self.parts(array) {
            let found = parts
                .put_together(cells)
                .map_err(|error| self.of(index, &error))?;
            return Ok(Some(formats::convert(
                found.bytes,
                found.info.scalar,
                array.element.scalar,
            )));
        }
        if resolved.source.is_none() {
            return Ok(None);
        }
        let space = &self.resolved.space[..self.plan.dimensions];
        let found = load::content(array, resolved, space, cells, self.dir);
        found
            .map(|array| Some(array.bytes))
            .map_err(|error| self.of(index, &error))
    }

    fn array(&self, index: usize) -> Option<(&ArrayPlan, &ResolvedArray)> {
        match (
            &self.plan.bindings[index].content,
            &self.resolved.bindings[index],
        ) {
            (Content::Array(array), ResolvedContent::Array(resolved)) => Some((array, resolved)),
            _ => None,
        }
    }

    /// Where the round before left this binding, if it did.
    fn parts<'a>(&'a self, array: &'a ArrayPlan) -> Option<BindingParts<'a>> {
        let (
            Stage::Tiles {
                from: Some(from), ..
            },
            Some(binding),
        ) = (&self.plan.stage, &array.resumes)
        else {
            return None;
        };
        let (plan, space) = (self.plan, self.resolved.space);
        Some(BindingParts {
            plan,
            space,
            from: self.dir.join(from),
            set: self.set,
            binding,
        })
    }

    fn location(&self, resolved: &ResolvedArray) -> Option<ArrayLocation> {
        let Some(ResolvedSource::File {
            path, member, raw, ..
        }) = &resolved.source
        else {
            return None;
        };
        let raw = raw.as_ref().map(|(scalar, shape)| Info {
            scalar: *scalar,
            shape: shape.clone(),
        });
        Some(ArrayLocation {
            path: self.dir.join(path),
            member: member.clone(),
            raw,
        })
    }

    fn of(&self, index: usize, problem: &dyn Display) -> CallError {
        CallError::Task(format!("`{}`: {problem}", self.plan.bindings[index].name))
    }
}
