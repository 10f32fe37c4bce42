//! Nonsense of another node: no message of it makes a node panic, and it is answered by ending the
//! connection.

use super::{
    super::{ArenaLayout, Effect, Group, GroupConfig, GroupInput, Others},
    simulation::merging,
};
use nodectl_types::{
    NodeId,
    servers::{
        Consistency, TensorSpec,
        message::{
            Block, BlockUpdate, Epoch, Held, PeerStatus, Promise, ServerMessage, View, ViewMessage,
            Worker, WorkerBlock, WorkerLife,
        },
    },
};
use proptest::prelude::*;
use std::sync::Arc;

pub(super) const ME: NodeId = NodeId([2; 32]);
pub(super) const OTHER: NodeId = NodeId([1; 32]);

/// A node with a worker, connected with another that leads.
pub(super) fn group(consistency: Consistency) -> Group {
    let settings = super::simulation::settings(consistency, 1, false, None);
    let tensors = [TensorSpec {
        name: "a".into(),
        shape: vec![40],
    }];
    let layout = Arc::new(ArenaLayout::new(&tensors, 64).unwrap());
    let mut group = Group::new(GroupConfig {
        me: ME,
        group: [7; 16],
        settings,
        layout,
        digest: [1; 32],
        weight: 1,
    });
    group.handle(GroupInput::Others(Others::default()));
    group.handle(GroupInput::Joined { worker: 0, life: 1 });
    group.handle(GroupInput::PeerUp(OTHER));
    group
}

pub(super) fn epoch(number: u64) -> Epoch {
    Epoch { number, by: OTHER }
}

/// A view of both nodes, in which the other has all blocks.
pub(super) fn view(number: u64) -> View {
    View {
        epoch: epoch(number),
        nodes: vec![(OTHER, 1), (ME, 1)],
        workers: vec![(WorkerLife { worker: 0, life: 1 }, ME)],
        sources: vec![(0, 0); 3],
        homes: vec![vec![0, 1]; 3],
        ..View::default()
    }
}

fn hangs_up(group: &mut Group, message: ServerMessage) -> bool {
    let effects = group.handle(GroupInput::Message {
        from: OTHER,
        message,
    });
    effects
        .iter()
        .any(|effect| matches!(effect, Effect::HangUp { peer: OTHER, .. }))
}

#[test]
fn a_view_that_cannot_be_ends_the_connection() {
    let tell = |view: View| {
        let mut group = group(Consistency::Bsp);
        group.handle(GroupInput::Message {
            from: OTHER,
            message: ServerMessage::Prepare { epoch: epoch(9) },
        });
        hangs_up(&mut group, ServerMessage::Install { view })
    };
    assert!(!tell(view(9)));
    let wrong: [fn(&mut View); 12] = [
        |view| view.sources.truncate(1),
        |view| view.homes.clear(),
        |view| view.nodes.clear(),
        |view| view.sources[1].0 = 2,
        |view| view.homes[2] = vec![],
        |view| view.homes[2] = vec![7],
        |view| view.homes[2] = vec![1, 1],
        |view| view.nodes.reverse(),
        |view| view.workers.clear(),
        |view| view.workers[0].1 = NodeId([9; 32]),
        |view| view.sources[0].1 = u64::MAX,
        |view| view.epoch.by = ME,
    ];
    for (at, spoil) in wrong.into_iter().enumerate() {
        let mut spoilt = view(9);
        spoil(&mut spoilt);
        assert!(tell(spoilt), "{at}");
    }
}

#[test]
fn what_a_node_that_was_hung_up_on_says_next_does_not_count() {
    let mut group = group(Consistency::Bsp);
    assert!(hangs_up(
        &mut group,
        ServerMessage::Fetch {
            epoch: epoch(1),
            block: 3
        }
    ));
    assert!(
        !group.handle(GroupInput::PeerUp(OTHER)).is_empty(),
        "it may come back"
    );
}

prop_compose! {
    fn epochs()(number in prop_oneof![0u64..4, Just(u64::MAX)], own: bool) -> Epoch {
        Epoch { number, by: if own { ME } else { OTHER } }
    }
}

fn clocks() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..3, Just(u64::MAX), Just(1 << 47)]
}

prop_compose! {
    fn held()(block in 0u32..4, version in clocks(), reach in clocks(), pending: Option<f64>) -> Held {
        Held { block, version, reach, pending, left_since: None, becomes: Some(version) }
    }
}

prop_compose! {
    fn promises()(
        base in epochs(), installed in epochs(), confirmed in any::<bool>(), held in prop::collection::vec(held(), 0..5), clock in prop::option::of(clocks())
    ) -> Promise {
        let nodes = vec![OTHER, ME];
        Promise {
            base, nodes: nodes.clone(), installed, confirmed, installed_nodes: nodes.clone(), perhaps: vec![(installed, nodes)], held,
            committed: clock.map(|clock| (clock, 1.0)), ..Promise::default()
        }
    }
}

prop_compose! {
    fn views()(
        epoch in epochs(), previous in epochs(), count in 0usize..3, sources in prop::collection::vec((0u16..3, clocks()), 2..5),
        homes in prop::collection::vec(prop::collection::vec(0u16..3, 0..3), 2..5), worker in 0u32..2, seed in prop::option::of(0u32..2),
        commit in prop::option::of(clocks()), restore in prop::option::of(clocks())
    ) -> View {
        View {
            epoch, previous, nodes: view(1).nodes[..count].to_vec(), sources, homes, seed, restore,
            workers: vec![(WorkerLife { worker, life: 1 }, ME)], commit: commit.map(|clock| (clock, 1.0)), ..View::default()
        }
    }
}

fn messages() -> impl Strategy<Value = ServerMessage> {
    let in_view = prop_oneof![of_blocks(), of_updates(), of_workers(), of_checkpoints()];
    let in_view =
        (epochs(), in_view).prop_map(|(epoch, message)| ServerMessage::InView { epoch, message });
    prop_oneof![of_views(), in_view]
}

fn of_views() -> impl Strategy<Value = ServerMessage> {
    prop_oneof![
        (epochs(), any::<bool>()).prop_map(|(promised, started)| ServerMessage::Status(
            PeerStatus {
                digest: [1; 32],
                weight: 1,
                peers: vec![ME],
                workers: vec![],
                finishing: vec![],
                promised,
                confirmed: promised,
                started,
            }
        )),
        epochs().prop_map(|epoch| ServerMessage::Prepare { epoch }),
        (epochs(), promises())
            .prop_map(|(epoch, promise)| ServerMessage::Promise { epoch, promise }),
        views().prop_map(|view| ServerMessage::Install { view }),
        Just(ServerMessage::Install { view: view(1) }),
        epochs().prop_map(|epoch| ServerMessage::Go { epoch }),
        epochs().prop_map(|epoch| ServerMessage::Installed { epoch }),
        epochs().prop_map(|epoch| ServerMessage::Confirm { epoch }),
        epochs().prop_map(|epoch| ServerMessage::Confirmed { epoch }),
        (epochs(), blocks()).prop_map(|(epoch, block)| ServerMessage::Fetch { epoch, block }),
    ]
}

fn of_blocks() -> impl Strategy<Value = ViewMessage> {
    prop_oneof![
        (blocks(), clocks()).prop_map(|(block, version)| ViewMessage::State {
            block,
            version,
            applied: vec![(0, version)]
        }),
        (blocks(), clocks()).prop_map(|(block, version)| ViewMessage::Arrived { block, version }),
        blocks().prop_map(|block| ViewMessage::Settled { block }),
        Just(ViewMessage::Moved),
        any::<bool>().prop_map(|moved| ViewMessage::Drain { moved }),
        Just(ViewMessage::Drained),
    ]
}

fn of_updates() -> impl Strategy<Value = ViewMessage> {
    let replicate = |(block, version, of): (Block, u64, bool)| ViewMessage::Replicate {
        block,
        update: BlockUpdate {
            version,
            of: of.then_some((0, version)).into_iter().collect(),
            scale: 1.0,
            norm2: 1.0,
        },
    };
    prop_oneof![
        (blocks(), clocks(), any::<bool>()).prop_map(replicate),
        parts().prop_map(ViewMessage::Push),
        (parts(), any::<u32>()).prop_map(|(part, samples)| ViewMessage::Offered {
            worker: part.worker,
            clock: part.clock,
            fragment: part.block,
            samples,
        }),
        (parts(), any::<u32>()).prop_map(|(part, samples)| ViewMessage::Merge {
            fragment: part.block,
            of: vec![(part.worker, part.clock, samples)],
        }),
        parts().prop_map(ViewMessage::Acknowledged),
        (blocks(), clocks()).prop_map(|(block, version)| ViewMessage::Kept { block, version }),
        (clocks(), blocks()).prop_map(|(clock, block)| ViewMessage::Ready {
            clock,
            norms: vec![(block, 1.0)]
        }),
        (clocks(), prop::collection::vec(0u32..3, 0..3)).prop_map(|(clock, shares)| {
            ViewMessage::Commit {
                clock,
                scale: 1.0,
                shares,
            }
        }),
    ]
}

fn of_workers() -> impl Strategy<Value = ViewMessage> {
    prop_oneof![
        parts().prop_map(ViewMessage::Pull),
        parts().prop_map(ViewMessage::Values),
        (workers(), clocks()).prop_map(|(worker, clock)| ViewMessage::Ended {
            worker,
            clock,
            samples: 1,
            computed_us: 1,
            norm2: 1.0
        }),
        (workers(), clocks()).prop_map(|(worker, clock)| ViewMessage::Barrier {
            worker,
            number: clock,
            clock
        }),
        clocks().prop_map(|number| ViewMessage::Passed { number }),
        workers().prop_map(|worker| ViewMessage::PassedAlone { worker }),
    ]
}

fn of_checkpoints() -> impl Strategy<Value = ViewMessage> {
    prop_oneof![
        Just(ViewMessage::Keep),
        (clocks(), any::<bool>()).prop_map(|(clock, now)| ViewMessage::Checkpoint { clock, now }),
        (clocks(), blocks()).prop_map(|(clock, block)| ViewMessage::Collect { clock, block }),
        (clocks(), blocks()).prop_map(|(clock, block)| ViewMessage::Collected { clock, block }),
        clocks().prop_map(|clock| ViewMessage::Saved {
            clock,
            problem: None
        }),
    ]
}

fn blocks() -> std::ops::Range<Block> {
    0..5
}

fn workers() -> std::ops::Range<Worker> {
    0..3
}

fn parts() -> impl Strategy<Value = WorkerBlock> {
    (workers(), clocks(), blocks()).prop_map(|(worker, clock, block)| WorkerBlock {
        worker,
        clock,
        block,
    })
}

proptest! {
    #[test]
    fn no_messages_make_a_node_panic(messages in prop::collection::vec(messages(), 1..40), mode in 0usize..4) {
        let mut group = group([Consistency::Bsp, Consistency::Ssp { staleness: 1 }, Consistency::Async, merging(1, 1)][mode]);
        for message in messages {
            for effect in group.handle(GroupInput::Message { from: OTHER, message }) {
                if let Effect::HangUp { peer, .. } = effect {
                    group.handle(GroupInput::PeerUp(peer));
                }
            }
        }
    }
}
