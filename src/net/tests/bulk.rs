//! Blobs between real nodes, and a holder that breaks off.

use super::{
    cluster::{DEADLINE, TestNode, pair},
    rogue::Rogue,
};
use crate::{
    bulk::{
        offer::{CALL_BACK, OVER_THE_SWARM, Offer, OfferAnswer, Want},
        serve::transfer_key,
    },
    sealed::frames,
};
use futures::{AsyncReadExt, AsyncWriteExt};
use nodectl_ports::{BlobFetcher, Blobs};
use nodectl_types::BlobHash;
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    time::Instant,
};
use tokio::task::JoinHandle;

fn bytes(length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| ((i * 2654435761) >> 13) as u8)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_of_64_mib_arrives_whole() {
    let (one, two) = pair().await;
    let plain = bytes(64 << 20);
    let hash = one.blobs.put_bytes(&plain).unwrap();
    let start = Instant::now();
    two.net.fetch(hash, vec![one.id]).await.unwrap();
    eprintln!("64 MiB in {:?}", start.elapsed());
    assert!(two.blobs.read(hash, u64::MAX).unwrap() == plain);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blobs_of_any_size_come_from_whoever_has_them() {
    let (one, two) = pair().await;
    for length in [0, 1, 1000, 300_000] {
        let hash = one.blobs.put_bytes(&bytes(length)).unwrap();
        // The named holder does not exist.
        two.net
            .fetch(hash, vec![nodectl_types::NodeId([1; 32])])
            .await
            .unwrap();
        assert_eq!(two.blobs.read(hash, u64::MAX).unwrap(), bytes(length));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_blob_is_an_error_that_names_everybody_asked() {
    let (one, two) = pair().await;
    let error = two
        .net
        .fetch(
            BlobHash::of(b"nowhere"),
            vec![nodectl_types::NodeId([1; 32])],
        )
        .await
        .unwrap_err();
    assert!(error.contains("01010101: not connected"), "{error}");
    assert!(
        error.contains(&format!("{}: does not have it", one.id.short())),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_one_blob_share_one_transfer() {
    let (mut one, mut two) = pair().await;
    let hash = one.blobs.put_bytes(&bytes(5 << 20)).unwrap();
    let mut rogue = Rogue::connect(&two).await;
    two.until_up(rogue.id).await;
    let all = (0..10).map(|_| two.net.fetch(hash, vec![rogue.id]));
    let all = tokio::spawn(futures::future::join_all(all));
    // The rogue is asked once, says no, and all go to the other.
    let mut stream = rogue.bulk.recv().await.unwrap();
    Want::read(&mut stream).await.unwrap();
    stream
        .write_all(&OfferAnswer::Missing.encode())
        .await
        .unwrap();
    stream.flush().await.unwrap();
    for outcome in tokio::time::timeout(DEADLINE, all).await.unwrap().unwrap() {
        outcome.unwrap();
    }
    assert!(rogue.bulk.try_recv().is_err(), "asked more than once");
    drop(one.events.try_recv());
}

/// Answers one question as a holder would whose direct port is the listener's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_did_not_answer_is_asked_last() {
    let (one, mut two) = pair().await;
    let mut rogue = Rogue::connect(&two).await;
    two.until_up(rogue.id).await;
    let first = one.blobs.put_bytes(&bytes(1000)).unwrap();
    two.net.fetch(first, vec![rogue.id]).await.unwrap();
    // The rogue keeps the stream, and says nothing on it.
    let _asked = rogue.bulk.recv().await.unwrap();
    let second = one.blobs.put_bytes(&bytes(2000)).unwrap();
    two.net.fetch(second, vec![rogue.id]).await.unwrap();
    assert!(
        rogue.bulk.try_recv().is_err(),
        "it was asked again before the one that answers"
    );
}

async fn offer(
    rogue: &mut Rogue,
    listener: &TcpListener,
    size: usize,
) -> (Want, Offer, libp2p::Stream) {
    offer_port(rogue, listener.local_addr().unwrap().port(), size).await
}

async fn offer_port(rogue: &mut Rogue, port: u16, size: usize) -> (Want, Offer, libp2p::Stream) {
    let mut stream = tokio::time::timeout(DEADLINE, rogue.bulk.recv())
        .await
        .unwrap()
        .unwrap();
    let want = Want::read(&mut stream).await.unwrap();
    let offer = Offer {
        size: size as u64,
        ticket: [5; 16],
        key: [6; 32],
        port,
    };
    stream
        .write_all(&OfferAnswer::Offer(offer).encode())
        .await
        .unwrap();
    stream.flush().await.unwrap();
    (want, offer, stream)
}

fn sealed(plain: &[u8], offer: &Offer) -> Vec<u8> {
    let mut out = Vec::new();
    let key = transfer_key(&offer.key, &offer.ticket);
    frames::send(&mut &plain[..], plain.len() as u64, &key, &mut out).unwrap();
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_transfer_goes_on_where_it_ended() {
    let (mut one, _two) = pair().await;
    let mut rogue = Rogue::connect(&one).await;
    one.until_up(rogue.id).await;
    let plain = bytes(4 * frames::FRAME_BYTES);
    let hash = BlobHash::of(&plain);
    let fetching = tokio::spawn(one.net.fetch(hash, vec![rogue.id]));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();

    let (want, first, _stream) = offer(&mut rogue, &listener, plain.len()).await;
    assert_eq!((want.hash, want.offset), (hash, 0));
    let frames = sealed(&plain, &first);
    let mut tcp = listener.accept().unwrap().0;
    let mut ticket = [0; 16];
    tcp.read_exact(&mut ticket).unwrap();
    assert_eq!(ticket, first.ticket);
    tcp.write_all(&frames[..frames.len() * 5 / 8]).unwrap();
    drop(tcp);

    let (want, second, _stream) = offer(&mut rogue, &listener, plain.len()).await;
    assert_eq!(want.offset, 2 * frames::FRAME_BYTES as u64);
    let mut tcp = listener.accept().unwrap().0;
    tcp.read_exact(&mut ticket).unwrap();
    tcp.write_all(&sealed(&plain[want.offset as usize..], &second))
        .unwrap();
    tokio::time::timeout(DEADLINE, fetching)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(one.blobs.read(hash, u64::MAX).unwrap() == plain);
}

/// A holder whose port is closed, and which the node that fetches from it has asked to call back.
struct AskedToCall {
    one: TestNode,
    _two: TestNode,
    _rogue: Rogue,
    plain: Vec<u8>,
    fetching: JoinHandle<Result<(), String>>,
    offer: Offer,
    stream: libp2p::Stream,
    /// Where it is to call.
    port: u16,
}

impl AskedToCall {
    async fn new() -> Self {
        let (mut one, two) = pair().await;
        let mut rogue = Rogue::connect(&one).await;
        one.until_up(rogue.id).await;
        let plain = bytes(3 * frames::FRAME_BYTES + 5);
        let fetching = tokio::spawn(one.net.fetch(BlobHash::of(&plain), vec![rogue.id]));
        let closed = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let (_, offer, mut stream) = offer_port(&mut rogue, closed, plain.len()).await;
        let mut called = [0; 3];
        stream.read_exact(&mut called).await.unwrap();
        assert_eq!(called[0], CALL_BACK);
        let port = u16::from_le_bytes([called[1], called[2]]);
        Self {
            one,
            _two: two,
            _rogue: rogue,
            plain,
            fetching,
            offer,
            stream,
            port,
        }
    }

    async fn arrives(self) {
        tokio::time::timeout(DEADLINE, self.fetching)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert!(self.one.blobs.has(BlobHash::of(&self.plain)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_no_direct_connection_is_possible_it_comes_over_the_swarm() {
    let mut asked = AskedToCall::new().await;
    // It says that it cannot.
    asked.stream.write_all(&[0]).await.unwrap();
    asked.stream.flush().await.unwrap();
    let mut choice = [0; 1];
    asked.stream.read_exact(&mut choice).await.unwrap();
    assert_eq!(choice, [OVER_THE_SWARM]);
    asked
        .stream
        .write_all(&sealed(&asked.plain, &asked.offer))
        .await
        .unwrap();
    asked.stream.flush().await.unwrap();
    asked.arrives().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_cannot_be_dialed_dials() {
    let mut asked = AskedToCall::new().await;
    let mut tcp = TcpStream::connect(("127.0.0.1", asked.port)).unwrap();
    tcp.write_all(&asked.offer.ticket).unwrap();
    asked.stream.write_all(&[1]).await.unwrap();
    asked.stream.flush().await.unwrap();
    tcp.write_all(&sealed(&asked.plain, &asked.offer)).unwrap();
    asked.arrives().await;
}

/// The node holds the blob and is asked to bring it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_requester_that_cannot_dial_is_called_back() {
    let (mut one, _two) = pair().await;
    let mut rogue = Rogue::connect(&one).await;
    one.until_up(rogue.id).await;
    let hash = one.blobs.put_bytes(b"a blob").unwrap();
    let (answer, mut stream) = ask(&mut rogue, hash).await;
    let OfferAnswer::Offer(offer) = answer else {
        panic!("{answer:?}")
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    stream
        .write_all(&[&[CALL_BACK][..], &port.to_le_bytes()].concat())
        .await
        .unwrap();
    stream.flush().await.unwrap();
    let mut connected = [0; 1];
    stream.read_exact(&mut connected).await.unwrap();
    assert_eq!(connected, [1]);
    let mut came = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut came).unwrap();
    assert_eq!(
        came,
        [&offer.ticket[..], &sealed(b"a blob", &offer)].concat()
    );
    assert!(
        show(&offer.ticket, offer.port).is_empty(),
        "the ticket is used"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_lies_is_an_error_and_leaves_nothing() {
    let (mut one, two) = pair().await;
    let mut rogue = Rogue::connect(&one).await;
    one.until_up(rogue.id).await;
    let hash = BlobHash::of(b"the truth");
    two.blobs.put_bytes(b"the truth").unwrap();
    let fetching = tokio::spawn(one.net.fetch(hash, vec![rogue.id]));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_, offer, _stream) = offer(&mut rogue, &listener, 9).await;
    let mut tcp = listener.accept().unwrap().0;
    tcp.write_all(&sealed(b"the lying", &offer)).unwrap();
    // The next holder is asked from the beginning.
    tokio::time::timeout(DEADLINE, fetching)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(one.blobs.read(hash, u64::MAX).unwrap(), b"the truth");
}

/// Asks the node for a blob, and what it offers.
async fn ask(rogue: &mut Rogue, hash: BlobHash) -> (OfferAnswer, libp2p::Stream) {
    let mut stream = rogue.open_bulk().await;
    stream
        .write_all(&Want { hash, offset: 0 }.encode())
        .await
        .unwrap();
    stream.flush().await.unwrap();
    (OfferAnswer::read(&mut stream).await.unwrap(), stream)
}

/// Shows a ticket at the port; what comes then.
fn show(ticket: &[u8; 16], port: u16) -> Vec<u8> {
    let mut tcp = TcpStream::connect(("127.0.0.1", port)).unwrap();
    tcp.write_all(ticket).unwrap();
    let mut out = Vec::new();
    // A reset is as good as an end: nothing came.
    let _ = tcp.read_to_end(&mut out);
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_works_once_and_a_guessed_one_never() {
    let (mut one, _two) = pair().await;
    let mut rogue = Rogue::connect(&one).await;
    one.until_up(rogue.id).await;
    let hash = one.blobs.put_bytes(b"a blob").unwrap();
    let (answer, _stream) = ask(&mut rogue, hash).await;
    let OfferAnswer::Offer(offer) = answer else {
        panic!("{answer:?}")
    };
    assert!(show(&[7; 16], offer.port).is_empty());
    let sealed = show(&offer.ticket, offer.port);
    assert!(
        sealed == self::sealed(b"a blob", &offer)
            && !sealed.windows(6).any(|part| part == b"a blob")
    );
    assert!(show(&offer.ticket, offer.port).is_empty());
    assert_eq!(
        ask(&mut rogue, BlobHash::of(b"another")).await.0,
        OfferAnswer::Missing
    );
}

/// Whoever holds connections to the port without a word does not keep members' transfers from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_leave_room_for_members() {
    let (one, two) = pair().await;
    let port = {
        let rogue = Rogue::connect(&one).await;
        let hash = one.blobs.put_bytes(b"x").unwrap();
        let mut asked = rogue.open_bulk().await;
        asked
            .write_all(&Want { hash, offset: 0 }.encode())
            .await
            .unwrap();
        asked.flush().await.unwrap();
        let OfferAnswer::Offer(offer) = OfferAnswer::read(&mut asked).await.unwrap() else {
            panic!("it has it")
        };
        offer.port
    };
    let idle: Vec<TcpStream> = (0..300)
        .map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap())
        .collect();
    let plain = bytes(100_000);
    let hash = one.blobs.put_bytes(&plain).unwrap();
    let start = Instant::now();
    two.net.fetch(hash, vec![one.id]).await.unwrap();
    assert!(start.elapsed() < DEADLINE / 10, "{:?}", start.elapsed());
    // Those that had to go were closed.
    let gone = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        !matches!(stream.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    };
    assert!(idle.iter().filter(|stream| gone(stream)).count() >= 200);
}
