//! What decodes chunks for a GPU here, found by trying. A GPU that can do it itself gets fewer
//! bytes over its bus; but it decodes a block one sequence after the other, which threads of a
//! processor do faster where they have nothing else to do.

use crate::{
    engine::{ChunkDecoder, Integrator},
    frames::{Stack, StoredFrames},
    measure::{rate, units},
};
use nodectl_types::GpuKind;
use std::{sync::Arc, time::Duration};

/// How long each is tried.
const TRIAL: Duration = Duration::from_millis(500);

/// Has chunks decoded where more frames a second come of it, and says where that is. None where
/// nobody has to choose: no GPU integrates, or it takes no such chunks. Where frames cannot be read
/// or the GPU fails, whoever integrates them is told.
pub(super) fn choose(
    integrator: &mut Integrator,
    stack: &Arc<Stack>,
    frames: usize,
) -> Option<String> {
    let is_hardware = |kind: GpuKind| kind != GpuKind::Software;
    // A processor in disguise decodes no faster than a processor.
    if !integrator.device_kind().is_some_and(is_hardware) {
        return None;
    }
    let units = units(stack, frames).ok()?;
    try_both(integrator, stack, &units, TRIAL)
}

/// Tries both on these frames, for so long each.
fn try_both(
    integrator: &mut Integrator,
    stack: &Stack,
    units: &[StoredFrames],
    time: Duration,
) -> Option<String> {
    if units.is_empty() || units.iter().any(|unit| unit.blocks().is_none()) {
        return None;
    }
    let mut tried = |decoder| {
        integrator.set_chunk_decoder(decoder);
        rate(integrator, stack, units, time).ok()
    };
    // Where one fails, the processor is left.
    let rates = [ChunkDecoder::Device, ChunkDecoder::Processor].map(&mut tried);
    let [Some(device), Some(processor)] = rates else {
        return None;
    };
    let threads = nodectl_gpu::ops::processor_name(integrator.pool().current_num_threads());
    Some(if device > processor {
        integrator.set_chunk_decoder(ChunkDecoder::Device);
        format!("which decodes chunks, too ({device:.0} frames/s; {threads}: {processor:.0})")
    } else {
        format!("chunks decoded by {threads} ({processor:.0} frames/s; by the GPU: {device:.0})")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{batch::tests::integrator_on_device, frames::tests::fixture};

    #[test]
    fn both_are_tried_where_chunks_are_blocks_and_the_faster_one_stays() {
        let Some(mut integrator) = integrator_on_device() else {
            return;
        };
        let mut told = |name: &str| {
            let stack = Arc::new(Stack::open(&fixture(name), None, None).expect(name));
            let units = units(&stack, 32).expect(name);
            let told = try_both(&mut integrator, &stack, &units, Duration::from_millis(20));
            (told, integrator.takes_chunks())
        };
        let (told_of, is_device) = told("bitshuffle_lz4.h5");
        let told_of = told_of.expect("blocks");
        assert_eq!(told_of.starts_with("which decodes"), is_device, "{told_of}");
        assert_eq!(told("bitshuffle_zstd.h5").0, None);
        assert_eq!(told("contiguous.h5").0, None);
        let stack = Arc::new(Stack::open(&fixture("bitshuffle_lz4.h5"), None, None).expect("it"));
        let software = integrator.device_kind() == Some(GpuKind::Software);
        assert_eq!(choose(&mut integrator, &stack, 32).is_none(), software);
    }
}
