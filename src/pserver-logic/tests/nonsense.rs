//! Nonsense of another node: no message of it makes a node panic, and it is answered by ending the
//! connection.

use super::super::{ArenaLayout, Effect, Group, GroupConfig, ParamsInput};
use nodectl_types::{
    NodeId,
    servers::{
        Consistency, TensorSpec,
        message::{Epoch, Held, Here, Promise, ServerMessage, View, WorkerLife},
    },
};
use proptest::prelude::*;
use std::sync::Arc;

const ME: NodeId = NodeId([2; 32]);
const OTHER: NodeId = NodeId([1; 32]);

/// A node with a worker, connected with another that leads.
fn group(consistency: Consistency) -> Group {
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
    group.handle(ParamsInput::Joined { worker: 0, life: 1 });
    group.handle(ParamsInput::PeerUp(OTHER));
    group
}

fn epoch(number: u64) -> Epoch {
    Epoch { number, by: OTHER }
}

/// A view of both nodes, in which the other has all blocks.
fn view(number: u64) -> View {
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
    let effects = group.handle(ParamsInput::Message {
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
        group.handle(ParamsInput::Message {
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
        !group.handle(ParamsInput::PeerUp(OTHER)).is_empty(),
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
        Held { block, version, reach, pending, left_since: None }
    }
}

prop_compose! {
    fn promises()(
        base in epochs(), installed in epochs(), held in prop::collection::vec(held(), 0..5), clock in prop::option::of(clocks())
    ) -> Promise {
        let nodes = vec![OTHER, ME];
        Promise {
            base, nodes: nodes.clone(), installed, installed_nodes: nodes.clone(), perhaps: vec![(installed, nodes)], held,
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
    let block = || 0u32..5;
    let worker = || 0u32..3;
    prop_oneof![
        (epochs(), any::<bool>()).prop_map(|(promised, started)| ServerMessage::Here(Here {
            digest: [1; 32],
            weight: 1,
            peers: vec![ME],
            workers: vec![],
            finishing: vec![],
            promised,
            started,
        })),
        epochs().prop_map(|epoch| ServerMessage::Prepare { epoch }),
        (epochs(), promises())
            .prop_map(|(epoch, promise)| ServerMessage::Promise { epoch, promise }),
        views().prop_map(|view| ServerMessage::Install { view }),
        Just(ServerMessage::Install { view: view(1) }),
        epochs().prop_map(|epoch| ServerMessage::Go { epoch }),
        epochs().prop_map(|epoch| ServerMessage::Installed { epoch }),
        (epochs(), block()).prop_map(|(epoch, block)| ServerMessage::Fetch { epoch, block }),
        (epochs(), block(), clocks()).prop_map(|(epoch, block, version)| ServerMessage::State {
            epoch,
            block,
            version,
            applied: vec![(0, version)]
        }),
        (epochs(), worker(), clocks(), block()).prop_map(|(epoch, worker, clock, block)| {
            ServerMessage::Push {
                epoch,
                worker,
                clock,
                block,
            }
        }),
        (epochs(), worker(), clocks(), block()).prop_map(|(epoch, worker, clock, block)| {
            ServerMessage::Pull {
                epoch,
                worker,
                clock,
                block,
            }
        }),
        (epochs(), worker(), clocks(), block()).prop_map(|(epoch, worker, clock, block)| {
            ServerMessage::Values {
                epoch,
                worker,
                clock,
                block,
            }
        }),
        (epochs(), worker(), clocks(), block()).prop_map(|(epoch, worker, clock, block)| {
            ServerMessage::Acknowledged {
                epoch,
                worker,
                clock,
                block,
            }
        }),
        (epochs(), worker(), clocks()).prop_map(|(epoch, worker, clock)| ServerMessage::Ended {
            epoch,
            worker,
            clock,
            samples: 1,
            norm2: 1.0
        }),
        (epochs(), block(), clocks(), any::<bool>()).prop_map(|(epoch, block, version, of)| {
            ServerMessage::Replicate {
                epoch,
                block,
                version,
                of: of.then_some((0, version)),
                scale: 1.0,
                norm2: 1.0,
            }
        }),
        (epochs(), block(), clocks()).prop_map(|(epoch, block, version)| ServerMessage::Kept {
            epoch,
            block,
            version
        }),
        (epochs(), block(), clocks()).prop_map(|(epoch, block, version)| ServerMessage::Arrived {
            epoch,
            block,
            version
        }),
        (epochs(), block()).prop_map(|(epoch, block)| ServerMessage::Settled { epoch, block }),
        (epochs(), any::<bool>()).prop_map(|(epoch, moved)| ServerMessage::Drain { epoch, moved }),
        (epochs(), clocks(), block()).prop_map(|(epoch, clock, block)| ServerMessage::Ready {
            epoch,
            clock,
            norms: vec![(block, 1.0)]
        }),
        (epochs(), clocks()).prop_map(|(epoch, clock)| ServerMessage::Commit {
            epoch,
            clock,
            scale: 1.0
        }),
        (epochs(), worker(), clocks()).prop_map(|(epoch, worker, clock)| ServerMessage::Barrier {
            epoch,
            worker,
            number: clock,
            clock
        }),
        (epochs(), clocks()).prop_map(|(epoch, number)| ServerMessage::Passed { epoch, number }),
        (epochs(), clocks(), any::<bool>())
            .prop_map(|(epoch, clock, now)| ServerMessage::Checkpoint { epoch, clock, now }),
        (epochs(), clocks(), block()).prop_map(|(epoch, clock, block)| ServerMessage::Collect {
            epoch,
            clock,
            block
        }),
        (epochs(), clocks(), block()).prop_map(|(epoch, clock, block)| ServerMessage::Collected {
            epoch,
            clock,
            block
        }),
        (epochs(), clocks()).prop_map(|(epoch, clock)| ServerMessage::Saved {
            epoch,
            clock,
            problem: None
        }),
    ]
}

proptest! {
    #[test]
    fn no_messages_make_a_node_panic(messages in prop::collection::vec(messages(), 1..40), mode in 0usize..3) {
        let mut group = group([Consistency::Bsp, Consistency::Ssp { staleness: 1 }, Consistency::Async][mode]);
        for message in messages {
            for effect in group.handle(ParamsInput::Message { from: OTHER, message }) {
                if let Effect::HangUp { peer, .. } = effect {
                    group.handle(ParamsInput::PeerUp(peer));
                }
            }
        }
    }
}
