//! What a worker has read is void once all go back to a checkpoint, also before it is told so.

use super::nonsense::{OTHER, epoch, group, view};
use crate::{Effect, Group, GroupInput, Notice};
use nodectl_types::servers::{
    Consistency,
    message::{ServerMessage, View, ViewMessage, WorkerBlock},
};

const BLOCKS: u32 = 3;

pub(super) fn hear(group: &mut Group, message: ServerMessage) -> Vec<Effect> {
    let from = OTHER;
    group.handle(GroupInput::Message { from, message })
}

fn in_view(group: &mut Group, number: u64, message: ViewMessage) -> Vec<Effect> {
    let epoch = epoch(number);
    hear(group, ServerMessage::InView { epoch, message })
}

/// A node heeds a view, installs it, and is told to go on.
pub(super) fn go_on(group: &mut Group, view: View) {
    let (epoch, version) = (view.epoch, view.sources[0].1);
    hear(group, ServerMessage::Prepare { epoch });
    hear(group, ServerMessage::Install { view });
    for block in 0..BLOCKS {
        let state = ViewMessage::State {
            block,
            version,
            applied: Vec::new(),
        };
        in_view(group, epoch.number, state);
    }
    hear(group, ServerMessage::Confirm { epoch });
    hear(group, ServerMessage::Go { epoch });
}

fn pull(group: &mut Group, number: u64) -> Vec<Effect> {
    let (worker, tensors) = (0, vec![0]);
    group.handle(GroupInput::Pull {
        worker,
        number,
        tensors,
    })
}

fn is_pulled(effect: &Effect) -> bool {
    let notice = match effect {
        Effect::Tell { notice, .. } => notice,
        _ => return false,
    };
    matches!(notice, Notice::Pulled { .. })
}

#[test]
fn what_was_read_before_a_checkpoint_answers_nobody_behind_it() {
    let mut group = group(Consistency::Bsp);
    go_on(&mut group, view(9));
    pull(&mut group, 1);
    let read = (0..BLOCKS).flat_map(|block| {
        let part = WorkerBlock {
            worker: 0,
            clock: 0,
            block,
        };
        in_view(&mut group, 9, ViewMessage::Values(part))
    });
    assert_eq!(read.filter(is_pulled).count(), 1, "the values have come");
    assert!(pull(&mut group, 2).iter().any(is_pulled), "they are new");
    let epoch = epoch(10);
    hear(&mut group, ServerMessage::Prepare { epoch });
    let view = View {
        previous: self::epoch(9),
        restore: Some(2),
        sources: vec![(0, 2); BLOCKS as usize],
        ..view(10)
    };
    hear(&mut group, ServerMessage::Install { view });
    assert_eq!(
        group.clock_of(0),
        None,
        "what the worker pushes now is void"
    );
    assert!(!pull(&mut group, 3).iter().any(is_pulled));
}
