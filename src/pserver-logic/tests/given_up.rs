//! A view that is installed and given up before it goes on has changed nothing.

use super::{
    nonsense::{ME, OTHER, epoch, group, view},
    voided::{go_on, hear},
};
use crate::{Effect, Group};
use nodectl_types::servers::{
    Consistency,
    message::{Promise, ServerMessage, View},
};

const BLOCKS: usize = 3;

/// Asks for a promise.
fn promise(group: &mut Group, number: u64) -> Promise {
    let epoch = epoch(number);
    let effects = hear(group, ServerMessage::Prepare { epoch });
    let promise = effects.into_iter().find_map(|effect| match effect {
        Effect::Send {
            message: ServerMessage::Promise { promise, .. },
            ..
        } => Some(promise),
        _ => None,
    });
    promise.expect("a later view is heeded")
}

fn changes_blocks(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::DropBlock { .. } | Effect::DropGradients | Effect::Apply { .. }
    )
}

/// A view in which the other node has newer blocks, and keeps all of them.
fn without_me() -> View {
    View {
        previous: epoch(9),
        previous_nodes: vec![OTHER, ME],
        sources: vec![(0, 1); BLOCKS],
        homes: vec![vec![0]; BLOCKS],
        ..view(11)
    }
}

#[test]
fn blocks_that_are_out_of_date_in_it_are_still_there() {
    let mut group = group(Consistency::Async);
    go_on(&mut group, view(9));
    promise(&mut group, 11);
    let effects = hear(&mut group, ServerMessage::Install { view: without_me() });
    assert!(!effects.iter().any(changes_blocks));
    hear(&mut group, ServerMessage::Confirm { epoch: epoch(11) });
    let promise = promise(&mut group, 12);
    assert_eq!((promise.base, promise.installed), (epoch(9), epoch(11)));
    assert!(promise.confirmed, "others may count without this node");
    let held = promise.held.iter().map(|held| (held.version, held.becomes));
    assert_eq!(held.collect::<Vec<_>>(), [(0, None); BLOCKS]);
    let after = View {
        previous: epoch(9),
        previous_nodes: vec![OTHER, ME],
        sources: vec![(1, 0); BLOCKS],
        ..view(12)
    };
    let mut effects = hear(&mut group, ServerMessage::Install { view: after });
    for message in [
        ServerMessage::Confirm { epoch: epoch(12) },
        ServerMessage::Go { epoch: epoch(12) },
    ] {
        effects.extend(hear(&mut group, message));
    }
    let is_dropped = |effect: &Effect| matches!(effect, Effect::DropBlock { .. });
    assert!(!effects.iter().any(is_dropped));
    assert_eq!(group.shards.len(), BLOCKS);
}

#[test]
fn blocks_that_are_out_of_date_in_it_go_when_it_goes_on() {
    let mut group = group(Consistency::Async);
    go_on(&mut group, view(9));
    promise(&mut group, 11);
    hear(&mut group, ServerMessage::Install { view: without_me() });
    hear(&mut group, ServerMessage::Confirm { epoch: epoch(11) });
    let effects = hear(&mut group, ServerMessage::Go { epoch: epoch(11) });
    let is_dropped = |effect: &&Effect| matches!(effect, Effect::DropBlock { .. });
    assert_eq!(effects.iter().filter(is_dropped).count(), BLOCKS);
    assert!(group.shards.is_empty());
}

/// In synchronous modes no clock counts without its workers: so it knows that none has.
#[test]
fn whose_workers_it_has_not_served_knows_that_nothing_counted_in_it() {
    let mut group = group(Consistency::Bsp);
    go_on(&mut group, view(9));
    promise(&mut group, 11);
    let next = View {
        previous: epoch(9),
        previous_nodes: vec![OTHER, ME],
        ..view(11)
    };
    hear(&mut group, ServerMessage::Install { view: next });
    hear(&mut group, ServerMessage::Confirm { epoch: epoch(11) });
    assert!(!promise(&mut group, 12).confirmed);
}
