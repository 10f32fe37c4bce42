//! Strangers: whoever can send packets to a node and does not have the secret. They get no answer,
//! and cost little. `NODECTL_ATTACKS=full` floods with as much as `docs/internals/security.md`
//! promises; by default it is a tenth.

mod common;

use common::{
    LATER, SOON,
    cluster::{Cluster, Discovery},
    job::CountedJob,
    wait_until,
};
use nodectl::net::{
    Secret,
    attack::{FIRST_BYTES, PROLOGUE, SECOND_BYTES, THIRD_BYTES, keys, shake},
};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    fs,
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// A node that listens on loopback, found by nobody but those who are told.
fn lone_node() -> (Cluster, SocketAddr) {
    let mut cluster = Cluster::empty(Discovery::Peers);
    let addr = listening(&mut cluster, &[]);
    (cluster, addr)
}

/// Adds a node; returns where it listens.
fn listening(cluster: &mut Cluster, settings: &[(&str, &str)]) -> SocketAddr {
    let number = cluster.add(settings);
    swarm_of(cluster, number)
}

fn swarm_of(cluster: &Cluster, number: usize) -> SocketAddr {
    let nodes = cluster.json(number, &["nodes", "--json"]);
    let own = nodes
        .as_array()
        .expect("a list")
        .iter()
        .find(|node| node["name"] == format!("n{number}"));
    let addr = own.and_then(|node| node["addrs"][0].as_str()?.parse::<SocketAddr>().ok());
    SocketAddr::from((
        Ipv4Addr::LOCALHOST,
        addr.unwrap_or_else(|| panic!("no address in {nodes}"))
            .port(),
    ))
}

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("the node listens");
    stream.set_read_timeout(Some(SOON)).expect("not zero");
    stream.set_nodelay(true).expect("a socket");
    stream
}

/// Everything that comes until the other end closes.
fn answer(stream: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => answer,
        // What was not read before it closed makes the kernel say so.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
            ) =>
        {
            answer
        }
        Err(error) => panic!("neither answered nor closed: {error}"),
    }
}

/// Says it and returns the answer.
fn say(addr: SocketAddr, words: &[u8]) -> Vec<u8> {
    let mut stream = connect(addr);
    // It may be closed before all is said.
    let _ = stream.write_all(words);
    answer(&mut stream)
}

fn shaken(addr: SocketAddr, key: [u8; 32], prologue: &[u8]) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(addr).await?;
        tokio::time::timeout(SOON, shake(socket, key, prologue))
            .await?
            .map(drop)
    })
}

/// The key of the handshake and the others, of the cluster's secret.
fn cluster_keys(cluster: &Cluster) -> ([u8; 32], [[u8; 32]; 2]) {
    let secret =
        fs::read_to_string(cluster.dir.path().join("secret")).expect("the cluster has one");
    keys(
        &Secret::new(secret)
            .expect("not empty")
            .derive_blocking("default")
            .expect("64 MiB"),
    )
}

/// Carries connections to `to` and writes down what each side says.
struct Wire {
    addr: SocketAddr,
    carried: JoinHandle<[Vec<u8>; 2]>,
}

impl Wire {
    /// Carries one connection to its end.
    fn to(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let carried = thread::spawn(move || {
            let (one, _) = listener.accept().expect("somebody dials");
            let two = TcpStream::connect(to).expect("it listens");
            let back = {
                let (one, two) = (
                    one.try_clone().expect("a descriptor"),
                    two.try_clone().expect("a descriptor"),
                );
                thread::spawn(move || carry(two, one))
            };
            let forth = carry(one, two);
            [forth, back.join().expect("no panic")]
        });
        Self { addr, carried }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), [0; 16 << 10]);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        all.extend_from_slice(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    all
}

/// No member but itself, and it answers.
fn assert_alone(cluster: &Cluster, number: usize) {
    assert_eq!(cluster.members(number), [format!("n{number}")]);
    assert!(
        !cluster.log(number).contains("panicked"),
        "{}",
        cluster.log(number)
    );
}

/// Whatever a stranger knows but the key of the handshake: the cluster's other keys, the whole
/// protocol.
#[test]
fn without_the_clusters_key_nothing_is_answered() {
    let (cluster, addr) = lone_node();
    let (own, others) = cluster_keys(&cluster);
    for key in others.into_iter().chain([[0; 32], [0xff; 32]]) {
        assert!(shaken(addr, key, PROLOGUE).is_err(), "{key:?}");
    }
    assert!(
        shaken(addr, own, b"").is_err() && shaken(addr, own, b"nodectl swarm 0: yamux").is_err()
    );
    let long = vec![0x5a; 100_000];
    let words: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nHost: node\r\n\r\nwho is there, behind this port of yours?",
        b"\x13/multistream/1.0.0\n\x07/noise\n\0\x20aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        &[0; FIRST_BYTES],
        &[0xff; FIRST_BYTES],
        &[9; FIRST_BYTES + 1],
        &long,
    ];
    for word in words {
        assert_eq!(say(addr, word), b"", "to {} bytes", word.len());
    }
    assert_alone(&cluster, 0);
    // The same steps with the key: it is the key that was missing.
    shaken(addr, own, PROLOGUE).expect("a member is let in");
}

#[test]
fn a_handshake_with_any_bit_changed_fails() {
    let (cluster, addr) = lone_node();
    let (own, _) = cluster_keys(&cluster);
    let lengths = [FIRST_BYTES, SECOND_BYTES, THIRD_BYTES];
    for (message, length) in lengths.into_iter().enumerate() {
        // Keys, tags and proofs, at their beginnings and ends.
        for at in [
            0,
            31,
            32,
            47,
            length / 2,
            length - 17,
            length - 16,
            length - 1,
        ] {
            let end = flipping(addr, lengths, message, at);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            let answered = runtime.block_on(async {
                use futures::AsyncReadExt;
                let socket = tokio::net::TcpStream::connect(end).await?;
                let mut channel =
                    tokio::time::timeout(SOON, shake(socket, own, PROLOGUE)).await??;
                // The third message is not answered: the node's yamux or its silence comes next, or
                // the end.
                tokio::time::timeout(SOON, channel.read_exact(&mut [0; 1])).await?
            });
            let error = answered.expect_err(&format!("byte {at} of message {message}"));
            assert_ne!(
                error.kind(),
                ErrorKind::TimedOut,
                "byte {at} of message {message}: the node keeps it open"
            );
        }
    }
    assert_alone(&cluster, 0);
}

/// A wire to the node that changes one bit of one message of the handshake.
fn flipping(addr: SocketAddr, lengths: [usize; 3], message: usize, at: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let own = listener.local_addr().expect("it is bound");
    thread::spawn(move || -> io::Result<()> {
        let (mut dialer, _) = listener.accept()?;
        let mut node = TcpStream::connect(addr)?;
        for (number, length) in lengths.into_iter().enumerate() {
            let (from, to) = if number == 1 {
                (&mut node, &mut dialer)
            } else {
                (&mut dialer, &mut node)
            };
            let mut bytes = vec![0; length];
            from.read_exact(&mut bytes)?;
            if number == message {
                bytes[at] ^= 1 << (at % 8);
            }
            to.write_all(&bytes)?;
        }
        carry(node, dialer);
        Ok(())
    });
    own
}

#[test]
fn a_recorded_connection_is_worth_nothing() {
    let (mut cluster, addr) = lone_node();
    let wire = Wire::to(addr);
    let peer = format!("[\"{}\"]", wire.addr);
    let second = cluster.add(&[("NODECTL_CLUSTER__PEERS", &peer)]);
    cluster.wait_members(2);
    cluster.kill9(second);
    let [said, answered] = wire.carried.join().expect("no panic");
    assert!(
        said.len() > FIRST_BYTES + THIRD_BYTES && answered.len() > SECOND_BYTES,
        "nothing was recorded"
    );
    wait_until(LATER, "the killed node is gone", || {
        cluster.members(0).len() == 1
    });
    // To the node: it answers the first message, which anybody may repeat, and then nothing.
    assert_eq!(say(addr, &said).len(), SECOND_BYTES);
    assert_eq!(say(addr, &answered), b"");
    assert_alone(&cluster, 0);
    // To a node that dials: what another said to another.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let peer = format!("[\"{}\"]", listener.local_addr().expect("it is bound"));
    let third = cluster.add(&[("NODECTL_CLUSTER__PEERS", &peer)]);
    let (mut dialed, _) = listener.accept().expect("it dials");
    dialed.set_read_timeout(Some(SOON)).expect("not zero");
    let _ = dialed.write_all(&answered);
    assert_eq!(answer(&mut dialed).len(), FIRST_BYTES, "it went on");
    assert_alone(&cluster, third);
}

#[test]
fn a_nodes_own_words_are_worth_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let peer = format!("[\"{}\"]", listener.local_addr().expect("it is bound"));
    let mut cluster = Cluster::empty(Discovery::Peers);
    let addr = listening(&mut cluster, &[("NODECTL_CLUSTER__PEERS", &peer)]);
    // Sent back to where they came from, padded to what is expected there.
    let (mut dialed, _) = listener.accept().expect("it dials");
    dialed.set_read_timeout(Some(SOON)).expect("not zero");
    let mut first = vec![0; FIRST_BYTES];
    dialed.read_exact(&mut first).expect("the first message");
    first.resize(SECOND_BYTES, 0);
    let _ = dialed.write_all(&first);
    assert_eq!(answer(&mut dialed), b"", "it went on");
    // Carried to its own listener: it meets itself, and knows.
    let (dialed, _) = listener.accept().expect("it dials again");
    let node = connect(addr);
    let back = {
        let (node, dialed) = (
            node.try_clone().expect("a descriptor"),
            dialed.try_clone().expect("a descriptor"),
        );
        thread::spawn(move || carry(node, dialed))
    };
    carry(dialed, node);
    back.join().expect("no panic");
    assert_alone(&cluster, 0);
}

/// Beacons of this and of other runs, again and again.
#[test]
fn replayed_beacons_change_nothing_and_say_little() {
    let mut cluster = Cluster::of(2);
    let port = cluster.beacon_port();
    let ears = beacon_ears(port);
    let (mut heard, mut buffer) = (Vec::new(), [0; 2000]);
    wait_until(SOON, "both announce themselves", || {
        if let Ok(length) = ears.recv(&mut buffer) {
            heard.push(buffer[..length].to_vec());
        }
        let boots: std::collections::BTreeSet<_> =
            heard.iter().map(|packet| packet[8..16].to_vec()).collect();
        boots.len() == 2
    });
    cluster.kill9(0);
    cluster.kill9(1);
    cluster.restart(0);
    let mouth = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    mouth.set_broadcast(true).expect("a socket");
    for round in 0..2000 {
        let packet = &heard[round % heard.len()];
        mouth
            .send_to(packet, ("127.255.255.255", port))
            .expect("loopback");
    }
    // Of its own last run, of a node that is gone; then somebody with another secret, under many
    // names.
    let mut foreign = heard[0].clone();
    for name in 0..2000u64 {
        foreign[8..16].copy_from_slice(&name.to_le_bytes());
        mouth
            .send_to(&foreign, ("127.255.255.255", port))
            .expect("loopback");
    }
    cluster.restart(1);
    cluster.wait_members(2);
    let log = cluster.log(0);
    assert!(!log.contains("has this node's identity"), "{log}");
    let warnings = log
        .lines()
        .filter(|line| line.contains("not share this secret"))
        .count();
    assert!(warnings <= 2, "{warnings} warnings:\n{log}");
}

/// Hears what nodes on loopback announce.
fn beacon_ears(port: u16) -> UdpSocket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).expect("a socket");
    socket.set_reuse_address(true).expect("a socket");
    socket
        .bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())
        .expect("shared with the nodes");
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("not zero");
    socket.into()
}

/// A node takes as many descriptors as it may have; what it runs gets what it was started with.
#[test]
fn tasks_may_open_as_many_files_as_without_the_node() {
    let cluster = Cluster::of(1);
    let limits = fs::read_to_string(format!("/proc/{}/limits", cluster.pid(0))).expect("it runs");
    let files = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .expect("there is such a limit");
    let mut words = files.split_whitespace();
    assert_eq!(words.next(), words.next(), "it could have more: {files}");
    let own = rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .expect("a limit");
    let job = CountedJob::new(&cluster, "limit", 1, "ulimit -Sn", "");
    let id = cluster.submit(0, &job.file);
    assert_eq!(cluster.wait_end(0, &id), "done");
    assert_eq!(
        cluster.ok(0, &["logs", &id, "0"]).lines().next(),
        Some(own.to_string().as_str())
    );
}

/// How much is thrown at a node.
struct AttackScale {
    /// Connections that say nothing, and that say nonsense.
    connections: usize,
    /// Beacon packets each second.
    beacons: u32,
    /// Tasks whose time is taken, calm and under attack.
    tasks: u64,
    /// What must be left of the job's rate.
    rate: f64,
}

impl AttackScale {
    fn chosen() -> Self {
        if std::env::var("NODECTL_ATTACKS").is_ok_and(|value| value == "full") {
            let minute = 1_000_000 / 60;
            return Self {
                connections: 5000,
                beacons: minute,
                tasks: 300,
                rate: 0.9,
            };
        }
        // Other tests run beside this one: of the rate only that the job goes on is certain.
        Self {
            connections: 100,
            beacons: 400,
            tasks: 60,
            rate: 0.25,
        }
    }
}

/// Idle and nonsensical connections, and beacons, all at once; a job runs meanwhile, and a node
/// joins.
#[test]
fn strangers_cost_little() {
    let scale = AttackScale::chosen();
    let mut cluster = Cluster::of(2);
    let port = cluster.beacon_port();
    let targets = [swarm_of(&cluster, 0), swarm_of(&cluster, 1)];
    let tasks = 100_000;
    let job = CountedJob::new(
        &cluster,
        "long",
        tasks,
        "sleep 0.3",
        "[resources]\ncpus = 0.25\n",
    );
    let id = cluster.submit(0, &job.file);
    cluster.wait_done(0, &id, 4, LATER);
    let rate = |cluster: &Cluster| {
        let (before, start) = (cluster.done(0, &id), Instant::now());
        wait_until(LATER, "tasks are done", || {
            cluster.done(0, &id) >= before + scale.tasks
        });
        (cluster.done(0, &id) - before) as f64 / start.elapsed().as_secs_f64()
    };
    let calm = rate(&cluster);
    let before = AttackCost::of(cluster.pid(0));

    let over = Arc::new(AtomicBool::new(false));
    let mut attackers = Vec::new();
    for target in targets {
        attackers.push(attack(&over, idle(target, scale.connections / 2)));
        attackers.push(attack(&over, nonsense(target, scale.connections / 2)));
    }
    attackers.push(attack(&over, beacons(port, scale.beacons)));
    // What else runs on this machine must not count: the best of three.
    let mut under = 0.0f64;
    for _ in 0..3 {
        if under < scale.rate * calm {
            under = rate(&cluster).max(under);
        }
    }
    let start = Instant::now();
    // It takes no work, so that the rates compare.
    let third = cluster.add(&[("NODECTL_NODE__TAKES_WORK", "false")]);
    wait_until(LATER, "the node has joined", || {
        cluster.members(third).len() == 3
    });
    let joined = start.elapsed();
    let during = AttackCost::of(cluster.pid(0));
    over.store(true, Ordering::Relaxed);
    attackers
        .into_iter()
        .for_each(|attacker| attacker.join().expect("no panic"));
    // What slows the machine meanwhile, a compilation say, slows it still, and is not the
    // strangers' doing.
    let calm = if under < scale.rate * calm {
        rate(&cluster).min(calm)
    } else {
        calm
    };

    eprintln!(
        "MEASURED: {} connections, {} beacons a second: {calm:.1} tasks a second without them, {under:.1} with them; a node \
         joins in {joined:?}; {before:?} before, {during:?} meanwhile",
        2 * scale.connections,
        scale.beacons
    );
    assert!(
        under >= scale.rate * calm,
        "{under} of {calm} tasks a second"
    );
    let limit = Duration::from_secs(if scale.rate > 0.8 { 2 } else { 10 });
    assert!(joined < limit, "{joined:?}");
    during.assert_little_more_than(&before);
    // All of them went, and nobody took them for members.
    wait_until(LATER, "their descriptors are closed", || {
        AttackCost::of(cluster.pid(0)).descriptors < before.descriptors + 64
    });
    assert_eq!(cluster.members(0).len(), 3);
}

#[derive(Debug)]
struct AttackCost {
    rss_bytes: u64,
    descriptors: usize,
}

impl AttackCost {
    fn assert_little_more_than(&self, before: &Self) {
        assert!(
            self.descriptors < before.descriptors + 600,
            "{before:?} {self:?}"
        );
        assert!(
            self.rss_bytes < before.rss_bytes + (64 << 20),
            "{before:?} {self:?}"
        );
    }

    fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let rss = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .expect("it has memory");
        let kib: u64 = rss
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .expect("a number");
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))
            .expect("it is ours")
            .count();
        Self {
            rss_bytes: kib << 10,
            descriptors,
        }
    }
}

/// Does it again and again until it is over.
fn attack(over: &Arc<AtomicBool>, mut step: impl FnMut() + Send + 'static) -> JoinHandle<()> {
    let over = over.clone();
    thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            step();
        }
    })
}

/// How long an attacker takes to open its connections; then it begins anew.
const OPENING: Duration = Duration::from_secs(10);

/// Opens so many connections that say nothing, and keeps them as long as the node does.
fn idle(target: SocketAddr, count: usize) -> impl FnMut() {
    let (mut open, pause) = (std::collections::VecDeque::new(), OPENING / count as u32);
    move || {
        // Of the attacker's own descriptors there are no more than these either.
        if open.len() >= count.min(400) {
            open.pop_front();
        }
        if let Ok(stream) = TcpStream::connect_timeout(&target, Duration::from_secs(1)) {
            open.push_back(stream);
        }
        pace(pause);
    }
}

// The rate of an attack, not a wait for something.
#[allow(clippy::disallowed_methods)]
fn pace(pause: Duration) {
    thread::sleep(pause);
}

/// Opens so many connections, each with words that mean nothing.
fn nonsense(target: SocketAddr, count: usize) -> impl FnMut() {
    let pause = OPENING / count as u32;
    move || {
        if let Ok(mut stream) = TcpStream::connect_timeout(&target, Duration::from_secs(1)) {
            let _ = stream.write_all(&[0xa5; 4096]);
        }
        pace(pause);
    }
}

/// Packets that look like beacons of as many runs.
fn beacons(port: u16, a_second: u32) -> impl FnMut() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_broadcast(true).expect("a socket");
    let (mut number, start) = (0u64, Instant::now());
    move || {
        let mut packet = [0x77; 300];
        packet[..8].copy_from_slice(b"nodectl1");
        packet[8..16].copy_from_slice(&number.to_le_bytes());
        let _ = socket.send_to(&packet, ("127.255.255.255", port));
        number += 1;
        let due = start + Duration::from_secs_f64(number as f64 / f64::from(a_second));
        pace(due.saturating_duration_since(Instant::now()));
    }
}
