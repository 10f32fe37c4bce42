//! Nodes that know no address of each other, and a third that both are connected to.

use super::cluster::{TestNode, config, message, number};
use crate::NetConfig;
use nodectl_ports::{BlobFetcher, Blobs, NetEvent, Network};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_be_dialed_is_reached_through_another() {
    let mut middle = TestNode::start(config()).await;
    let beside = || NetConfig {
        peers: vec![middle.peer()],
        ..config()
    };
    let (mut one, mut two) = (
        TestNode::start(beside()).await,
        TestNode::start(beside()).await,
    );
    middle.until_up(one.id).await;
    one.until_up(middle.id).await;
    two.until_up(middle.id).await;
    one.net.connect(two.id, &[]);
    two.net.connect(one.id, &[]);
    one.until_up(two.id).await;
    two.until_up(one.id).await;
    assert_eq!(
        (one.net.report().relayed, two.net.report().relayed),
        (vec![two.id], vec![one.id])
    );
    assert_eq!(middle.net.report().relayed, []);
    for round in 0..20 {
        one.net.send(two.id, message(round, 500_000));
    }
    for round in 0..20 {
        assert_eq!(number(&two.next().await), Some(round));
    }
    let plain: Vec<u8> = (0..5_000_000).map(|i| (i >> 4) as u8).collect();
    let hash = one.blobs.put_bytes(&plain).unwrap();
    two.net.fetch(hash, vec![one.id]).await.unwrap();
    assert!(two.blobs.read(hash, u64::MAX).unwrap() == plain);
    // With the one between them gone they lose each other; nobody is proven dead but that one.
    let (gone, other) = (middle.id, one.id);
    drop(middle);
    two.until(|event| {
        assert!(
            !matches!(event, NetEvent::PeerRefused { peer } if *peer != gone),
            "{event:?}"
        );
        matches!(event, NetEvent::PeerDown { peer } if *peer == other)
    })
    .await;
    // And find each other again as soon as there is a direct way.
    one.net.connect(two.id, &[two.peer().parse().unwrap()]);
    one.until_up(two.id).await;
    assert_eq!(one.net.report().relayed, []);
}
