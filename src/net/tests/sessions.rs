//! Messages, disconnections, and peers that misbehave.

use super::{
    cluster::{TestNode, config, free_udp_port, message, number, pair},
    rogue::Rogue,
};
use crate::NetConfig;
use nodectl_ports::{NetEvent, Network};
use nodectl_types::{Message, limits};
use std::time::Instant;
use tokio::io::AsyncReadExt;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_arrive_in_order_small_and_large() {
    let (one, mut two) = pair().await;
    let sizes = [10, limits::MAX_MESSAGE_BYTES - 100, 20, 0, 300_000];
    for round in 0..8 {
        one.net
            .send(two.id, message(round, sizes[round as usize % sizes.len()]));
    }
    for round in 0..8 {
        assert_eq!(number(&two.next().await), Some(round));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_may_write_much_before_they_read() {
    let (mut one, mut two) = pair().await;
    for round in 0..7 {
        one.net.send(two.id, message(round, 1_000_000));
        two.net.send(one.id, message(round, 1_000_000));
    }
    for round in 0..7 {
        assert_eq!(number(&one.next().await), Some(round));
        assert_eq!(number(&two.next().await), Some(round));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_dial_each_other_at_once_keep_one_session() {
    let beacon_port = free_udp_port();
    for _ in 0..5 {
        let mut one = TestNode::start(config()).await;
        let mut two = TestNode::start(NetConfig {
            beacon_port,
            peers: vec![one.peer()],
            ..config()
        })
        .await;
        one.net.connect(two.id, &[two.peer().parse().unwrap()]);
        two.net.connect(one.id, &[one.peer().parse().unwrap()]);
        one.until_up(two.id).await;
        two.until_up(one.id).await;
        for round in 0..500 {
            one.net.send(two.id, message(round, 10));
        }
        // In order and complete although duplicates are being closed meanwhile; no `PeerDown` in
        // between.
        for round in 0..500 {
            assert_eq!(number(&two.next().await), Some(round));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gone_process_is_refused_at_once() {
    let (mut one, two) = pair().await;
    let (start, id) = (Instant::now(), two.id);
    drop(two);
    one.until(|event| matches!(event, NetEvent::PeerDown { peer } if *peer == id))
        .await;
    one.until(|event| matches!(event, NetEvent::PeerRefused { peer } if *peer == id))
        .await;
    eprintln!(
        "a dropped node is down and refused after {:?}",
        start.elapsed()
    );
    assert!(one.net.report().connected.is_empty());
}

/// A kernel goes on to take connections for a process that is being killed until it comes to the
/// listener.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_listener_is_closed_last_is_refused_in_the_end() {
    let (mut one, _two) = pair().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rogue = Rogue::connect_listening(&one, listener.local_addr().unwrap().port()).await;
    let id = rogue.id;
    one.until_up(id).await;
    drop(rogue);
    one.until(|event| matches!(event, NetEvent::PeerDown { peer } if *peer == id))
        .await;
    // Whoever asked has taken silence for an answer when it hangs up.
    let (mut asking, _) = listener.accept().await.unwrap();
    assert_eq!(asking.read(&mut [0]).await.unwrap_or(0), 0);
    drop(listener);
    one.until(|event| matches!(event, NetEvent::PeerRefused { peer } if *peer == id))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_messages_of_a_leaving_node_arrive() {
    let (one, mut two) = pair().await;
    one.net.send(two.id, Message::Leaving);
    one.net.close().await;
    assert!(matches!(
        two.next().await,
        NetEvent::Message {
            message: Message::Leaving,
            ..
        }
    ));
    assert!(matches!(two.next().await, NetEvent::PeerDown { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_does_not_read_is_disconnected() {
    let (mut one, two) = pair().await;
    // Nobody takes the other's events: its queues fill, then the wire, then ours.
    let id = two.id;
    for round in 0.. {
        one.net.send(id, message(round, 4_000_000));
        if one.net.report().connected.is_empty() {
            break;
        }
        tokio::task::yield_now().await;
        assert!(round < 10_000, "nothing is bounded");
    }
    one.until(|event| matches!(event, NetEvent::PeerDown { peer } if *peer == id))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversized_or_malformed_frame_closes_that_connection_only() {
    let (mut one, mut two) = pair().await;
    let oversized = (limits::MAX_MESSAGE_BYTES as u32 + 1)
        .to_le_bytes()
        .to_vec();
    let malformed = [&4u32.to_le_bytes()[..], &[0xff; 4]].concat();
    for bytes in [oversized, malformed] {
        let mut rogue = Rogue::connect(&one).await;
        let id = rogue.id;
        one.until_up(id).await;
        rogue.say(&bytes).await;
        one.until(|event| matches!(event, NetEvent::PeerDown { peer } if *peer == id))
            .await;
    }
    one.net.send(two.id, message(1, 1));
    assert_eq!(number(&two.next().await), Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_and_connections_to_nobody_do_no_harm() {
    let (one, mut two) = pair().await;
    let nobody = nodectl_types::NodeId([3; 32]);
    one.net.send(nobody, message(0, 1));
    one.net.connect(nobody, &["127.0.0.1:1".parse().unwrap()]);
    one.net.send(two.id, message(7, 1));
    assert_eq!(number(&two.next().await), Some(7));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_comes_back_replaces_its_old_session() {
    let (mut one, _two) = pair().await;
    let first = Rogue::connect(&one).await;
    let id = first.id;
    one.until_up(id).await;
    // The old connection stays open, as it does after a reset of the machine.
    let mut second = Rogue::connect_as(first.identity.clone(), &one).await;
    assert!(matches!(one.next().await, NetEvent::PeerDown { peer } if peer == id));
    assert!(matches!(one.next().await, NetEvent::PeerUp { peer } if peer == id));
    let body = nodectl_wire::control::encode(&message(5, 1)).unwrap();
    second
        .say(&[&(body.len() as u32).to_le_bytes()[..], &body].concat())
        .await;
    assert_eq!(number(&one.next().await), Some(5));
}
