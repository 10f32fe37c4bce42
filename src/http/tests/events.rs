//! What happened, and what was launched.

use super::*;
use nodectl_types::event::{ClusterEvent, EventKind, EventSubject};
use nodectl_wire::api::{EventName, LaunchView};
use std::time::Duration;

fn died(at_ms: u64) -> ClusterEvent {
    ClusterEvent {
        at_ms,
        kind: EventKind::Died,
        subject: EventSubject::Node(NodeId([3; 32])),
        name: "gone".into(),
        text: "died".into(),
    }
}

#[tokio::test]
async fn every_node_that_is_here_tells_what_it_noticed() {
    let node = FakeNode::start(|query| match query {
        Query::Nodes => Ok(Answer::Nodes(vec![
            member(1, "alpha", true),
            member(2, "beta", true),
            member(3, "gone", false),
            member(4, "mute", true),
        ])),
        Query::Node(node, NodeQuery::Events { .. }) if *node == NodeId([1; 32]) => {
            Ok(Answer::Events(vec![died(2_000), died(900_000)]))
        }
        Query::Node(node, NodeQuery::Events { .. }) if *node == NodeId([2; 32]) => {
            Ok(Answer::Events(vec![died(1_000)]))
        }
        _ => Err(QueryError::Leaving),
    })
    .await;
    let events = node.client.cluster_events(None, 100).await.unwrap();
    let told: Vec<_> = events
        .iter()
        .map(|event| (event.at_ms, event.noticed_by.join(" ")))
        .collect();
    let expected = [(1_000, "alpha beta".to_string()), (900_000, "alpha".into())];
    assert_eq!(told, expected);
    assert_eq!(
        (events[0].kind, &*events[0].name),
        (EventName::Died, "gone")
    );
    let newest = node.client.cluster_events(None, 1).await.unwrap();
    assert_eq!(newest[0].at_ms, 900_000);
    let hour = Duration::from_secs(3600);
    node.client.cluster_events(Some(hour), 1).await.unwrap();
    let asked = node.asked.lock().unwrap();
    let within = |query: &&Query| match query {
        Query::Node(_, NodeQuery::Events { within_ms }) => *within_ms == Some(3_600_000),
        _ => false,
    };
    assert_eq!(asked.iter().filter(within).count(), 3, "not who is away");
}

#[tokio::test]
async fn launches_have_their_members_and_the_hours_so_far() {
    let node = FakeNode::start(|query| match query {
        Query::Nodes => {
            let mut ours = member(2, "beta", true);
            ours.info.labels.insert("launch".into(), "ab12".into());
            let mut away = ours.clone();
            (away.info.id, away.alive) = (NodeId([3; 32]), false);
            Ok(Answer::Nodes(vec![member(1, "alpha", true), ours, away]))
        }
        _ => Err(QueryError::Leaving),
    })
    .await;
    let launches: Vec<LaunchView> = node.client.launches().await.unwrap();
    assert_eq!((launches.len(), launches[0].running), (1, 1));
    assert!(launches[0].node_hours > 2.0, "since 1970 two nodes run");
}
