//! What was recorded, and how it is submitted: in parts that are written into command buffers once,
//! and anew where what was learned of its kernels says that they should be larger or smaller.

use super::{
    DeviceError,
    commands::CommandWriter,
    cut::{self, CutPart, CutPiece, RecordingPlace, StepSize},
    kernel::Kernel,
    learned::{KernelShares, Learned},
    memory::DeviceBuffer,
};
use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};
use vulkano::{command_buffer::CommandBuffer, descriptor_set::DescriptorSet, device::Device};

/// Submissions of one recording that are kept; what needs more is written as it is run.
const MAX_PARTS: usize = 1024;
/// Kernels that errors name.
const SHOWN_NAMES: usize = 3;

pub(super) struct Recorded {
    pub(super) steps: Vec<RecordedStep>,
    pub(super) sizes: Vec<StepSize>,
    /// Every buffer once.
    pub(super) buffers: Vec<DeviceBuffer>,
    pub(super) device: Arc<Device>,
    /// None until more is known of its kernels.
    pub(super) cut: Mutex<Option<Arc<RecordingCut>>>,
}

/// A step that was checked.
pub(super) struct RecordedStep {
    /// The step depends on an earlier one.
    pub(super) waits: bool,
    pub(super) work: RecordedWork,
}

pub(super) enum RecordedWork {
    Dispatch {
        kernel: Kernel,
        sets: Vec<(u32, Arc<DescriptorSet>)>,
        push: Vec<u8>,
    },
    Copy {
        from: DeviceBuffer,
        from_offset: u64,
        to: DeviceBuffer,
        to_offset: u64,
        bytes: u64,
    },
    Fill {
        buffer: DeviceBuffer,
        range: Range<u64>,
        value: u32,
    },
}

/// All of a recording, as it is submitted.
pub(super) struct RecordingCut {
    /// What was learned when it was cut.
    version: u64,
    pub(super) parts: Vec<Arc<RecordingPart>>,
}

/// What is submitted together.
pub(super) struct RecordingPart {
    pub(super) commands: CommandBuffer,
    pub(super) shares: KernelShares,
    pub(super) pieces: Vec<CutPiece>,
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernels = self.steps.iter().filter_map(|step| match &step.work {
            RecordedWork::Dispatch { kernel, .. } => Some(kernel),
            RecordedWork::Copy { .. } | RecordedWork::Fill { .. } => None,
        });
        let kernels: Vec<_> = kernels.collect();
        write!(
            f,
            "Recorded {{ kernels: {kernels:?}, buffers: {:?} }}",
            self.buffers
        )
    }
}

impl Recorded {
    /// How it is to be submitted. None where that is known only once a part of it has run: see
    /// `next_part`.
    pub(super) fn cut(
        &self,
        writer: &CommandWriter,
        learned: &Learned,
    ) -> Result<Option<Arc<RecordingCut>>, DeviceError> {
        // A panic while it was held left what was there before.
        let mut known = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        let version = learned.version();
        if let Some(cut) = known.as_ref().filter(|cut| cut.version == version) {
            return Ok(Some(cut.clone()));
        }
        let Some(parts) = self.parts(learned) else {
            return Ok(None);
        };
        let before = known.iter().flat_map(|cut| &cut.parts);
        let is_same = known.is_some()
            && before
                .map(|part| &part.pieces)
                .eq(parts.iter().map(|part| &part.pieces));
        let parts = match known.as_ref().filter(|_| is_same) {
            Some(cut) => cut.parts.clone(),
            None => parts
                .into_iter()
                .map(|part| Ok(Arc::new(writer.part(self, part)?)))
                .collect::<Result<_, DeviceError>>()?,
        };
        let cut = Arc::new(RecordingCut { version, parts });
        *known = Some(cut.clone());
        Ok(Some(cut))
    }

    /// The kernels of a part, for people.
    pub(super) fn name(&self, part: &RecordingPart) -> String {
        let mut names: Vec<&str> = Vec::new();
        for piece in &part.pieces {
            if let RecordedWork::Dispatch { kernel, .. } = &self.steps[piece.step].work
                && !names.contains(&kernel.name())
            {
                names.push(kernel.name());
            }
        }
        let named = names
            .iter()
            .take(SHOWN_NAMES)
            .map(|name| format!("`{name}`"));
        let mut text = named.collect::<Vec<_>>().join(", ");
        if names.len() > SHOWN_NAMES {
            text.push_str(" and others");
        }
        if text.is_empty() {
            "a copy".into()
        } else {
            text
        }
    }

    /// None where what is known does not do.
    fn parts(&self, learned: &Learned) -> Option<Vec<CutPart>> {
        let (mut place, mut parts) = (RecordingPlace::default(), Vec::new());
        while let Some(part) = self.next_part(&mut place, learned) {
            if part.tells || parts.len() == MAX_PARTS {
                return None;
            }
            parts.push(part);
        }
        Some(parts)
    }

    /// The part after `place`, as far as what is known by now says how large it may be.
    pub(super) fn next_part(
        &self,
        place: &mut RecordingPlace,
        learned: &Learned,
    ) -> Option<CutPart> {
        cut::next_part(&self.sizes, place, |kernel| learned.pace(kernel))
    }
}
