//! How the space of a kernel job is cut into tiles, and what tiles leave for the next round of
//! steps and for the end.

use super::{
    check::KernelNeeds,
    cut::{self, Cut, Demand},
    job::KernelJob,
    plan::{BindingPlan, Combine, Content, KernelPlan},
};
use nodectl_jobfile::Fault;

impl KernelJob<'_> {
    /// Cuts the space so that every device can run a tile.
    pub(super) fn choose_cut(
        &self,
        plan: &KernelPlan,
        needs: &KernelNeeds,
        workgroup: [u32; 3],
    ) -> Result<Cut, Fault> {
        let demand = Demand {
            most: needs.most,
            least: needs.least,
            cell_bytes: needs.cell_bytes.values().copied().collect(),
            parameter_sets: self.params.len(),
            workgroup,
            halo: plan.halo,
            steps: self.steps(),
            steps_per_round: self.steps_per_round(plan),
        };
        if !self.program.has_tile() {
            return self.uncut(&demand);
        }
        let space = self.span("space").unwrap_or_default();
        let cut = match &self.tile {
            Some(tile) => demand.by_tile(tile.value).ok_or_else(|| {
                Fault::new(
                    tile.span.clone(),
                    "the smallest space cannot be cut into as many tiles as the largest",
                )
                .hint("larger tiles, or spaces of like sizes in one job")
            })?,
            None => demand.choose().ok_or_else(|| {
                let message = "no tile of this space is small enough for every device";
                Fault::new(space.clone(), message)
                    .hint("fewer numbers a cell, a smaller halo, or fewer steps_per_round")
            })?,
        };
        let (steps, per_round) = (demand.steps, cut.steps_per_round);
        let rounds = steps.div_ceil(per_round);
        if rounds > cut::MAX_ROUNDS {
            let iterate = self.iterate.as_ref();
            let span = iterate.map_or(space, |iterate| iterate.span.clone());
            let message = format!(
                "{steps} steps in rounds of {per_round} are {rounds} rounds; at most {} are \
                 possible",
                cut::MAX_ROUNDS
            );
            return Err(Fault::new(span, message).hint(
                "more steps_per_round, or larger tiles: each tile then waits less for its \
                 neighbours",
            ));
        }
        Ok(cut)
    }

    /// What the job file sets; a step that looks at all of what the last one wrote must wait for
    /// all of it.
    fn steps_per_round(&self, plan: &KernelPlan) -> Option<u32> {
        let reads_all = |binding: &BindingPlan| {
            plan.swaps.iter().any(|(read, _)| *read == binding.name)
                && matches!(&binding.content, Content::Array(array) if array.is_whole())
        };
        if plan.bindings.iter().any(reads_all) {
            return Some(1);
        }
        let iterate = self.iterate.as_ref()?;
        Some(iterate.steps_per_round.as_ref()?.value)
    }

    /// One tile, for a shader that does not know of tiles.
    fn uncut(&self, demand: &Demand) -> Result<Cut, Fault> {
        let groups = |axis: usize| demand.most[axis].div_ceil(demand.workgroup[axis].max(1));
        if let Some(axis) = (0..3).find(|axis| groups(*axis) > cut::MAX_GROUPS) {
            let message = format!(
                "{} cells along one axis are more than every device takes at once",
                demand.most[axis]
            );
            let hint = format!(
                "at most {} workgroups: let the shader declare `tile`, so that its space is cut",
                cut::MAX_GROUPS
            );
            return Err(Fault::new(self.span("space").unwrap_or_default(), message).hint(hint));
        }
        Ok(Cut {
            grid: [1; 3],
            steps_per_round: demand.steps,
        })
    }

    /// The rounds in which tiles are computed, as first step and steps of each; none where there is
    /// one tile. Notes in the plan what tiles leave for the next round and for the end.
    pub(super) fn divide_into_rounds(
        &self,
        plan: &mut KernelPlan,
        cut: &Cut,
    ) -> Result<Vec<(u32, u32)>, Fault> {
        if cut.grid == [1; 3] {
            return Ok(Vec::new());
        }
        let (steps, per_round) = (self.steps(), cut.steps_per_round);
        let starts = (0..steps).step_by(per_round as usize);
        let rounds: Vec<_> = starts
            .map(|first| (first, per_round.min(steps - first)))
            .collect();
        let outputs = plan.outputs.iter();
        plan.parts = outputs.map(|output| output.binding.clone()).collect();
        if rounds.len() > 1 {
            resume_swapped(plan);
            self.resume_written(plan, rounds.len())?;
        }
        plan.parts.sort();
        plan.parts.dedup();
        Ok(rounds)
    }

    /// Arrays that steps read and write in place: each round goes on with what the one before left.
    fn resume_written(&self, plan: &mut KernelPlan, rounds: usize) -> Result<(), Fault> {
        for binding in &mut plan.bindings {
            let name = &binding.name;
            let Content::Array(array) = &mut binding.content else {
                continue;
            };
            let mut swaps = plan.swaps.iter();
            let is_swapped = swaps.any(|(read, written)| [read, written].contains(&name));
            if is_swapped || !array.is_written {
                continue;
            }
            let mut outputs = plan.outputs.iter();
            let is_reduced =
                outputs.any(|output| output.binding == *name && output.combine != Combine::Concat);
            if is_reduced || array.is_whole() {
                let iterate = self.iterate.as_ref();
                let span = iterate.map(|iterate| iterate.span.clone());
                let message = format!(
                    "`{name}` is not cut, so tiles cannot go on with it in {rounds} rounds"
                );
                return Err(Fault::new(span.unwrap_or_default(), message).hint(
                    "compute it from the last step in a job of its own, or do all steps in one \
                     round: steps_per_round",
                ));
            }
            if array.source.is_some() {
                plan.parts.push(name.clone());
                array.resumes = Some(name.clone());
            }
        }
        Ok(())
    }
}

/// What a step reads begins a round as what the step before wrote.
fn resume_swapped(plan: &mut KernelPlan) {
    for (read, written) in &plan.swaps {
        plan.parts.push(written.clone());
        let mut bindings = plan.bindings.iter_mut();
        if let Some(BindingPlan {
            content: Content::Array(array),
            ..
        }) = bindings.find(|binding| binding.name == *read)
        {
            array.resumes = Some(written.clone());
        }
    }
}
