//! Streams between real nodes.

use super::{
    cluster::{DEADLINE, pair},
    rogue::Rogue,
};
use crate::{
    bulk::{
        offer::{CALL_BACK, OVER_THE_SWARM, Offer, OfferAnswer},
        streams,
    },
    sealed::DirectionKeys,
};
use futures::{
    AsyncReadExt as _, AsyncWriteExt as _,
    future::{BoxFuture, FutureExt},
};
use nodectl_ports::{PeerStream, StreamHost, Streams};
use nodectl_types::{NodeId, StreamToken};
use std::{
    io,
    net::TcpListener,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, split},
    time::timeout,
};

const KNOWN: StreamToken = [7; 16];

/// Knows one token. Says who attached, then sends back what comes.
pub struct EchoPools;

impl StreamHost for EchoPools {
    fn has(&self, token: &StreamToken) -> bool {
        *token == KNOWN
    }

    fn attach(
        &self,
        from: NodeId,
        token: StreamToken,
        worker: Box<dyn PeerStream>,
    ) -> BoxFuture<'static, io::Result<()>> {
        async move {
            if token != KNOWN {
                return Err(io::ErrorKind::NotFound.into());
            }
            let (mut source, mut sink) = split(worker);
            sink.write_all(&from.0).await?;
            sink.flush().await?;
            let mut bytes = vec![0; 64 << 10];
            loop {
                let count = source.read(&mut bytes).await?;
                if count == 0 {
                    return sink.shutdown().await;
                }
                sink.write_all(&bytes[..count]).await?;
                sink.flush().await?;
            }
        }
        .boxed()
    }
}

async fn converse(mut stream: Box<dyn PeerStream>, me: NodeId) {
    let mut from = [0; 32];
    stream.read_exact(&mut from).await.unwrap();
    assert_eq!(NodeId(from), me, "the other end knows who it is");
    let start = Instant::now();
    for byte in 0..100 {
        stream.write_u8(byte).await.unwrap();
        stream.flush().await.unwrap();
        assert_eq!(
            timeout(DEADLINE, stream.read_u8()).await.unwrap().unwrap(),
            byte
        );
    }
    eprintln!("{:?} there and back", start.elapsed() / 100);
    let bytes: Vec<u8> = (0..5_000_000).map(|i| (i >> 5) as u8).collect();
    let (mut source, mut sink) = split(stream);
    let sent = bytes.clone();
    let start = Instant::now();
    let sending = tokio::spawn(async move {
        sink.write_all(&sent).await.unwrap();
        sink.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    timeout(DEADLINE, source.read_to_end(&mut back))
        .await
        .unwrap()
        .unwrap();
    assert!(back == bytes);
    sending.await.unwrap();
    eprintln!("5 MB there and back in {:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_go_both_ways_without_waiting_for_more() {
    let (one, two) = pair().await;
    converse(two.net.open(one.id, KNOWN).await.unwrap(), two.id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_to_a_closed_pool_or_a_stranger_is_none_and_says_so() {
    let (one, two) = pair().await;
    let error = two.net.open(one.id, [9; 16]).await.err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    let error = two
        .net
        .open(NodeId([1; 32]), KNOWN)
        .await
        .err()
        .unwrap()
        .to_string();
    assert_eq!(error, "no stream to node 01010101: not connected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_no_direct_connection_is_possible_the_stream_goes_over_the_swarm() {
    let (mut one, _two) = pair().await;
    let mut rogue = Rogue::connect(&one).await;
    one.until_up(rogue.id).await;
    let opening = tokio::spawn(one.net.open(rogue.id, KNOWN));
    let mut stream = timeout(DEADLINE, rogue.bulk.recv()).await.unwrap().unwrap();
    assert_eq!(streams::read_token(&mut stream).await.unwrap(), KNOWN);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let offer = Offer {
        size: 0,
        ticket: [5; 16],
        key: [6; 32],
        port,
    };
    stream
        .write_all(&OfferAnswer::Offer(offer).encode())
        .await
        .unwrap();
    stream.flush().await.unwrap();
    // It is asked to call back, and says that it cannot.
    let mut called = [0; 3];
    stream.read_exact(&mut called).await.unwrap();
    assert_eq!(called[0], CALL_BACK);
    stream.write_all(&[0]).await.unwrap();
    stream.flush().await.unwrap();
    let mut choice = [0; 1];
    stream.read_exact(&mut choice).await.unwrap();
    assert_eq!(choice, [OVER_THE_SWARM]);
    let (back, out) = streams::keys(&offer);
    let here = streams::accept_over_the_swarm(stream, &DirectionKeys { out, back })
        .await
        .unwrap();
    let serving = tokio::spawn(EchoPools.attach(one.id, KNOWN, here));
    converse(
        timeout(DEADLINE, opening).await.unwrap().unwrap().unwrap(),
        one.id,
    )
    .await;
    timeout(Duration::from_secs(5), serving)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}
