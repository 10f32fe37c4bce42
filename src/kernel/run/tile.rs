//! Tiles on a device: buffers filled, steps submitted, what a tile's own cells hold read back. A
//! tile is cut into slabs where its kernel allows it, so that memory and the time of a submission
//! stay bounded and copies of one slab overlap the computation of another.

use super::{
    clock::{PATIENCE, Run, SubmissionClock},
    inputs::KernelInputs,
    kernels::{DeviceKernels, PreparedKernel},
    pace::SubmissionPace,
    piece::{self, KernelPiece, SLOTS},
};
use crate::{
    KernelPlan, ResolvedArray, ResolvedContent, load,
    plan::{ArrayPlan, Content, Extent},
    tiles::{Cells, Tile},
};
use bytes::Bytes;
use nodectl_builtin::{CallError, device::failed};
use nodectl_formats::{Array, Info, copy_box};
use nodectl_gpu::device::{Device, DeviceBuffer, PendingCall};
use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::Arc,
    time::Duration,
};

/// Slabs on the device at once: one computes while copies of the other are under way.
const IN_FLIGHT: usize = 2;
/// The first slab of a kernel of which nothing is known.
const FIRST_CELLS: u64 = 1 << 14;
/// The part of a device's free memory that one worker takes.
const MEMORY_SHARE: f64 = 0.8;

/// What a task computed.
pub struct Computed {
    /// In the order of the names asked for.
    pub arrays: Vec<Array>,
    /// How long the device was busy with it.
    pub busy: Duration,
}

/// A device with one plan's kernel.
pub struct Tiles {
    device: Device,
    plan: Arc<KernelPlan>,
    kernels: DeviceKernels,
    /// By binding: arrays that tasks hold whole and do not change stay on the device.
    kept: BTreeMap<usize, (ResolvedArray, DeviceBuffer)>,
    pace: SubmissionPace,
    clock: SubmissionClock,
    /// Under way, for runs that are waited for later.
    uploads: Vec<PendingCall<()>>,
}

/// A task.
struct Work<'a> {
    inputs: &'a KernelInputs<'a>,
    tile: Tile,
    prepared: Arc<PreparedKernel>,
    /// Of each binding, the axes of the whole array; empty for those that are no arrays.
    shapes: Vec<Vec<u64>>,
    /// Of each binding, the buffer that all slabs share, if they do.
    shared: Vec<Option<DeviceBuffer>>,
    /// First, and how many.
    steps: (u32, u32),
    /// The bindings to read back.
    outputs: Vec<usize>,
}

/// A slab on the device.
struct Flying {
    cells: Tile,
    run: Run,
    /// Of work: cells, or the steps of the last submission.
    units: u64,
    /// Of each output.
    downloads: Vec<PendingCall<Vec<u8>>>,
}

impl Tiles {
    pub fn new(device: Device, plan: Arc<KernelPlan>) -> Result<Self, CallError> {
        let kernels = DeviceKernels::new(&plan.shader)?;
        let pace = SubmissionPace::new(if is_cut(&plan) { FIRST_CELLS } else { 1 });
        Ok(Self {
            device,
            plan,
            kernels,
            kept: BTreeMap::new(),
            pace,
            clock: SubmissionClock::start(),
            uploads: Vec::new(),
        })
    }

    /// Computes a tile and returns what the bindings `names` hold of it: of arrays over the cells
    /// its own ones.
    pub fn run(
        &mut self,
        inputs: &KernelInputs<'_>,
        tile: Tile,
        names: &[&str],
    ) -> Result<Computed, CallError> {
        let prepared = self
            .kernels
            .get(&self.device, &inputs.resolved.shader_constants())?;
        let steps = self.plan.steps().unwrap_or((0, 1));
        let outputs = names
            .iter()
            .map(|name| inputs.index(name))
            .collect::<Result<Vec<_>, _>>()?;
        let count = self.plan.bindings.len();
        let shapes = (0..count)
            .map(|index| inputs.shape(index))
            .collect::<Result<_, _>>()?;
        let mut work = Work {
            inputs,
            tile,
            prepared,
            shapes,
            shared: Vec::new(),
            steps,
            outputs,
        };
        work.shared = (0..count)
            .map(|index| self.shared(&work, index))
            .collect::<Result<_, _>>()?;
        let mut arrays: Vec<Array> = work
            .outputs
            .iter()
            .map(|output| self.blank(&work, *output))
            .collect::<Result<_, _>>()?;
        self.clock.take_total();
        let (mut flying, mut layers_done) = (VecDeque::new(), 0);
        loop {
            while flying.len() < IN_FLIGHT
                && let Some(cells) = self.next_slab(&work, &mut layers_done)?
            {
                flying.push_back(self.start(&work, cells)?);
            }
            let Some(slab) = flying.pop_front() else {
                break;
            };
            self.land(&work, slab, &mut arrays)?;
        }
        Ok(Computed {
            arrays,
            busy: self.clock.take_total(),
        })
    }

    /// Of a uniform, or of an array that is whole in every task.
    fn shared(&mut self, work: &Work<'_>, index: usize) -> Result<Option<DeviceBuffer>, CallError> {
        let resolved = match &work.inputs.resolved.bindings[index] {
            ResolvedContent::Tile => return Ok(None),
            ResolvedContent::Uniform(bytes) => {
                return self
                    .filled(bytes.len() as u64, Some(bytes.clone()))
                    .map(Some);
            }
            ResolvedContent::Array(resolved) => resolved,
        };
        let Some(array) = self
            .array(index)
            .filter(|array| matches!(array.extent, Extent::Whole { .. }))
        else {
            return Ok(None);
        };
        let is_kept = !array.is_written && array.resumes.is_none();
        if let Some((known, buffer)) = self.kept.get(&index)
            && is_kept
            && known == resolved
        {
            return Ok(Some(buffer.clone()));
        }
        let bytes = self.device_bytes(work, index, None)?;
        let numbers = work.inputs.numbers(index, None)?;
        let content = numbers.map(|numbers| load::to_elements(numbers, array.element));
        // The one before makes room first.
        self.kept.remove(&index);
        let buffer = self.filled(bytes, content)?;
        if is_kept {
            self.kept.insert(index, (resolved.clone(), buffer.clone()));
        }
        Ok(Some(buffer))
    }

    fn array(&self, index: usize) -> Option<ArrayPlan> {
        match &self.plan.bindings[index].content {
            Content::Array(array) => Some(array.clone()),
            Content::Tile | Content::Uniform { .. } => None,
        }
    }

    /// A buffer with this content, or with zeros.
    fn filled(&mut self, bytes: u64, content: Option<Vec<u8>>) -> Result<DeviceBuffer, CallError> {
        let buffer = self.device.buffer(bytes).map_err(failed)?;
        if let Some(content) = content {
            self.uploads
                .push(self.device.upload(&buffer, 0, Bytes::from(content)));
        }
        Ok(buffer)
    }

    /// Zeros for what an output holds of the tile's own cells.
    fn blank(&self, work: &Work<'_>, index: usize) -> Result<Array, CallError> {
        let name = &self.plan.bindings[index].name;
        let array = self
            .array(index)
            .ok_or_else(|| CallError::Task(format!("`{name}` is not an array")))?;
        let info = Info {
            scalar: array.element.scalar,
            shape: self.part_shape(work, index, &work.tile.own),
        };
        Array::zeros(info).ok_or_else(|| CallError::Task(format!("`{name}` is too large an array")))
    }

    /// The axes of an array over `cells`, or of a whole one.
    fn part_shape(&self, work: &Work<'_>, index: usize, cells: &Cells) -> Vec<u64> {
        let whole = &work.shapes[index];
        match self.array(index).map(|array| array.extent) {
            Some(Extent::Cells { .. }) => {
                let (_, mut shape) = cells.axes(self.plan.dimensions);
                shape.extend(&whole[self.plan.dimensions.min(whole.len())..]);
                shape
            }
            _ => whole.clone(),
        }
    }

    /// The size of an array's buffer.
    fn device_bytes(
        &self,
        work: &Work<'_>,
        index: usize,
        cells: Option<&Cells>,
    ) -> Result<u64, CallError> {
        let Some(array) = self.array(index) else {
            return Ok(0);
        };
        let shape = cells.map_or(work.shapes[index].clone(), |cells| {
            self.part_shape(work, index, cells)
        });
        let numbers = shape
            .iter()
            .try_fold(1u64, |product, extent| product.checked_mul(*extent));
        let components = u64::from(array.element.components.max(1));
        let bytes = numbers
            .filter(|numbers| numbers.is_multiple_of(components))
            .and_then(|numbers| {
                (numbers / components).checked_mul(u64::from(array.element.stride))
            });
        let name = &self.plan.bindings[index].name;
        let bytes = bytes.ok_or_else(|| {
            CallError::Task(format!(
                "`{name}`: an array of {shape:?} does not divide into elements of {components}"
            ))
        })?;
        let most = self.device.info().limits.storage_range;
        if bytes > most {
            let gpu = &self.device.info().gpu.name;
            return Err(CallError::Task(format!(
                "`{name}` has {bytes} bytes here, and {gpu} binds at most {most}\nhint: set `tile` to smaller tiles"
            )));
        }
        Ok(bytes)
    }

    /// The next slab of the tile, or all of it where it is not cut. `done`: layers along the last
    /// axis that has several.
    fn next_slab(&self, work: &Work<'_>, done: &mut u32) -> Result<Option<Tile>, CallError> {
        let own = work.tile.own;
        let axis = (0..3).rev().find(|axis| own.size[*axis] > 1).unwrap_or(0);
        let reach = self.plan.halo[axis].saturating_mul(work.steps.1);
        let left = own.size[axis] - *done;
        if left == 0 {
            return Ok(None);
        }
        let mut layers = left;
        if is_cut(&self.plan) {
            let layer = own.count() / u64::from(own.size[axis]);
            layers = (self.pace.units() / layer.max(1)).clamp(1, u64::from(left)) as u32;
        }
        loop {
            let slab = slab(&work.tile, axis, *done..*done + layers, reach);
            match self.misfit(work, &slab)? {
                None => {
                    *done += layers;
                    return Ok(Some(slab));
                }
                Some(_) if is_cut(&self.plan) && layers > 1 => layers /= 2,
                Some(why) => return Err(CallError::Task(why)),
            }
        }
    }

    /// Why a slab is too much for the device at once.
    fn misfit(&self, work: &Work<'_>, slab: &Tile) -> Result<Option<String>, CallError> {
        let info = self.device.info();
        let gpu = &info.gpu.name;
        let hint = "hint: set `tile` to smaller tiles";
        if piece::groups(&slab.wide, &work.prepared, &info.limits).is_none() {
            let most = info.limits.workgroup_count;
            return Ok(Some(format!(
                "{:?} cells are more workgroups than {gpu} takes at once, {most:?}\n{hint}, or use larger workgroups",
                slab.wide.size
            )));
        }
        let mut bytes = 0;
        for index in 0..self.plan.bindings.len() {
            let over_cells = self
                .array(index)
                .is_some_and(|array| matches!(array.extent, Extent::Cells { .. }));
            if over_cells {
                bytes += self.device_bytes(work, index, Some(&slab.wide))?;
            }
        }
        let in_flight = if *slab == work.tile {
            1
        } else {
            IN_FLIGHT as u64
        };
        let shared: u64 = work.shared.iter().flatten().map(DeviceBuffer::bytes).sum();
        let free = info.memory_free.unwrap_or(info.gpu.memory_bytes) as f64 * MEMORY_SHARE;
        let needed = bytes * in_flight + shared;
        Ok((needed as f64 > free)
            .then(|| format!("{needed} bytes of arrays are too many for {gpu}, which has room for {free:.0}\n{hint}")))
    }

    /// Fills a slab's buffers and submits its steps and the way back of what it computes.
    fn start(&mut self, work: &Work<'_>, cells: Tile) -> Result<Flying, CallError> {
        let mut buffers = Vec::with_capacity(work.shared.len());
        for (index, shared) in work.shared.iter().enumerate() {
            buffers.push(match (shared, self.array(index)) {
                (Some(buffer), _) => Some(buffer.clone()),
                (None, None) => None,
                (None, Some(array)) => {
                    let bytes = self.device_bytes(work, index, Some(&cells.wide))?;
                    let numbers = work.inputs.numbers(index, Some(&cells.wide))?;
                    Some(self.filled(
                        bytes,
                        numbers.map(|numbers| load::to_elements(numbers, array.element)),
                    )?)
                }
            });
        }
        let (device, plan) = (self.device.clone(), self.plan.clone());
        let place = (cells.wide, work.inputs.resolved.space);
        let piece = KernelPiece::new(&device, &plan, &work.prepared, place, work.steps.1, buffers)?;
        let (steps, run) = self.steps(&piece, work.steps)?;
        let units = if is_cut(&self.plan) {
            cells.own.count()
        } else {
            u64::from(steps)
        };
        let last = work.steps.1.saturating_sub(1);
        let downloads = work.outputs.iter().map(|output| {
            let buffer = piece
                .buffer(*output, last)
                .expect("outputs are arrays, which have buffers");
            device.download(buffer, 0..buffer.bytes())
        });
        Ok(Flying {
            cells,
            run,
            units,
            downloads: downloads.collect(),
        })
    }

    /// Submits all steps, waits for all but the last submission, and returns that one with the
    /// number of its steps.
    fn steps(
        &mut self,
        piece: &KernelPiece<'_>,
        (first, count): (u32, u32),
    ) -> Result<(u32, Run), CallError> {
        let mut waiting: VecDeque<(u32, Run)> = VecDeque::new();
        let (mut done, mut batches) = (0, 0);
        loop {
            let paced = if is_cut(&self.plan) {
                1
            } else {
                self.pace.units()
            };
            let batch = piece.batch(paced, count - done);
            let submitted = piece.submit(first, done, batch, batches % SLOTS, &mut self.uploads)?;
            let run = self
                .clock
                .watch(submitted, piece.cells() * u64::from(batch));
            done += batch;
            batches += 1;
            let most = if done >= count { 0 } else { SLOTS - 1 };
            while waiting.len() > most {
                let (batch, run) = waiting.pop_front().expect("more than `most` tiles wait");
                self.ended(u64::from(batch), run)?;
            }
            if done >= count {
                return Ok((batch, run));
            }
            waiting.push_back((batch, run));
        }
    }

    fn ended(&mut self, units: u64, run: Run) -> Result<(), CallError> {
        let took = self.clock.wait(run).map_err(failed)?;
        self.uploads
            .drain(..)
            .try_for_each(|upload| upload.wait(PATIENCE))
            .map_err(failed)?;
        self.pace.took(units, took);
        Ok(())
    }

    /// Waits for a slab and puts what it computed of its own cells in its place.
    fn land(
        &mut self,
        work: &Work<'_>,
        slab: Flying,
        arrays: &mut [Array],
    ) -> Result<(), CallError> {
        let own = slab.cells.own;
        self.ended(slab.units, slab.run)?;
        for ((output, download), array) in work.outputs.iter().zip(slab.downloads).zip(arrays) {
            let bytes = download.wait(PATIENCE).map_err(failed)?;
            let Some(plan) = self.array(*output) else {
                continue;
            };
            let numbers = load::from_elements(bytes, plan.element);
            if matches!(plan.extent, Extent::Whole { .. }) {
                array.bytes = numbers;
                continue;
            }
            let info = Info {
                scalar: plan.element.scalar,
                shape: self.part_shape(work, *output, &slab.cells.wide),
            };
            let axes = info.shape.len();
            let start = |cells: &Cells| {
                let mut start = vec![0; axes];
                let (at, base) = (
                    own.axes(self.plan.dimensions).0,
                    cells.axes(self.plan.dimensions).0,
                );
                at.iter()
                    .zip(base)
                    .zip(&mut start)
                    .for_each(|((at, base), start)| *start = at - base);
                start
            };
            let shape = self.part_shape(work, *output, &own);
            let (from, to) = (start(&slab.cells.wide), start(&work.tile.own));
            copy_box(
                &Array {
                    info,
                    bytes: numbers,
                },
                &from,
                array,
                &to,
                &shape,
            );
        }
        Ok(())
    }
}

/// Whether slabs give what the whole tile gives: it knows where it is, its cells are computed in
/// one step, and nothing but cells is written.
fn is_cut(plan: &KernelPlan) -> bool {
    let is_one_step = plan.steps().is_some_and(|(_, steps)| steps == 1);
    let knows_its_place = plan
        .bindings
        .iter()
        .any(|binding| matches!(binding.content, Content::Tile));
    let writes_cells_only = plan.bindings.iter().all(|binding| match &binding.content {
        Content::Array(array) => !array.is_written || matches!(array.extent, Extent::Cells { .. }),
        Content::Tile | Content::Uniform { .. } => true,
    });
    is_one_step && knows_its_place && writes_cells_only
}

/// Some layers of a tile along an axis, with those that they depend on.
fn slab(tile: &Tile, axis: usize, layers: Range<u32>, reach: u32) -> Tile {
    let mut slab = *tile;
    let end = |cells: &Cells| cells.origin[axis].saturating_add(cells.size[axis]);
    slab.own.origin[axis] += layers.start;
    slab.own.size[axis] = layers.end - layers.start;
    slab.wide.origin[axis] = slab.own.origin[axis]
        .saturating_sub(reach)
        .max(tile.wide.origin[axis]);
    slab.wide.size[axis] =
        end(&slab.own).saturating_add(reach).min(end(&tile.wide)) - slab.wide.origin[axis];
    slab
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiles::tile;
    use proptest::prelude::*;

    proptest! {
        /// Slabs of a tile are what tiles of their own cells would be, and cover it.
        #[test]
        fn slabs_cover_a_tile_and_see_as_far_as_it_does(
            space in 1u32..40, cuts in 1u32..4, halo in 0u32..5, layers in 1u32..9, index in 0u32..4,
        ) {
            let cuts = cuts.min(space);
            let whole = tile([3, space, 2], [1, cuts, 1], [0, halo, 0], index % cuts);
            let mut done = 0;
            while done < whole.own.size[1] {
                let end = (done + layers).min(whole.own.size[1]);
                let slab = slab(&whole, 1, done..end, halo);
                let (low, high) = (whole.own.origin[1] + done, whole.own.origin[1] + end);
                prop_assert_eq!((slab.own.origin[1], slab.own.size[1]), (low, high - low));
                prop_assert_eq!(slab.wide.origin[1], low.saturating_sub(halo));
                prop_assert_eq!(slab.wide.origin[1] + slab.wide.size[1], (high + halo).min(space));
                prop_assert_eq!((slab.wide.size[0], slab.wide.size[2]), (3, 2));
                done = end;
            }
        }
    }
}
