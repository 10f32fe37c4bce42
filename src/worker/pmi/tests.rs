//! PMI without an MPI library: what lines say, and connections of processes and of strangers.

use super::{
    line::{PmiRequest, Spawning, request},
    *,
};
use nodectl_types::{Attempt, JobId};
use proptest::prelude::*;
use std::io::{BufRead, Read, Write};
use tokio::sync::mpsc;

#[test]
fn lines_say_what_libraries_mean() {
    let id = PmiRequest::Admit { id: 77 };
    assert_eq!(request(b"cmd=initack pmiid=77"), Some(id));
    let put = PmiRequest::Put {
        key: "bc-0",
        value: "mpi#02=$",
    };
    assert_eq!(
        request(b"cmd=put kvsname=w key=bc-0 value=mpi#02=$"),
        Some(put)
    );
    let abort = b"cmd=abort exitcode=7 message=it went wrong";
    assert_eq!(request(abort), Some(PmiRequest::Abort { status: 7 }));
    for (code, status) in [("-1", 255), ("0", 1), ("256", 1), ("x", 1)] {
        let line = format!("cmd=abort exitcode={code}");
        assert_eq!(request(line.as_bytes()), Some(PmiRequest::Abort { status }));
    }
    assert_eq!(request(b"cmd=barrier_in"), Some(PmiRequest::Barrier));
    let long = format!("cmd=get kvsname=w key={}", "k".repeat(65));
    let bad: [&[u8]; 9] = [
        b"",
        b"cmd=",
        b"key=x cmd=get",
        b"cmd=initack pmiid=-1",
        b"cmd=initack pmiid=99999999999",
        b"cmd=get kvsname=w key=",
        b"cmd=put key=a value=\xff",
        b"cmd=barrier_in group=0,1",
        long.as_bytes(),
    ];
    for line in bad {
        assert_eq!(request(line), None, "{}", String::from_utf8_lossy(line));
    }
}

#[test]
fn an_order_to_start_processes_has_an_end() {
    let mut order = Spawning::default();
    assert_eq!(order.line(b"endcmd"), None);
    order.begin();
    let lines: [(&[u8], bool); 4] = [
        (b"nprocs=2", false),
        (b"totspawns=2", false),
        (b"spawnssofar=1", false),
        (b"endcmd", false),
    ];
    for (line, is_last) in lines {
        assert_eq!(order.line(line), Some(is_last));
    }
    order.begin();
    assert_eq!(order.line(b"spawnssofar=2"), Some(false));
    assert_eq!(order.line(b"endcmd"), Some(true));
    assert_eq!(order.line(b"endcmd"), None);
}

fn worlds(ranks: u32) -> (PmiServer, Worlds) {
    let server = PmiServer {
        port: 1,
        key: [3; 16],
    };
    let of = MpiWorld {
        host: Ipv4Addr::LOCALHOST,
        ranks,
        beside: ranks,
    };
    (server, Worlds::new(&server, "w".into(), of).unwrap())
}

proptest! {
    /// Whatever is said by somebody who is in, or is not.
    #[test]
    fn no_line_is_too_strange(lines in prop::collection::vec(prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        "m?cmd=(init|put|get|barrier_in|spawn|finalize|abort|get_maxes|initack)( [a-z_]{0,9}=?[ -~]{0,9}){0,3}"
            .prop_map(String::into_bytes),
        Just(b"endcmd".to_vec()),
    ], 0..40)) {
        let (server, mut worlds) = worlds(2);
        let hello = format!("cmd=initack pmiid={}", server.id(1));
        let (member, _) = worlds.admit(hello.as_bytes()).unwrap();
        let mut spawning = Spawning::default();
        for line in lines {
            worlds.step(member, &mut spawning, &line);
            worlds.is_open(member, 1);
            prop_assert!(worlds.admit(&line).is_err());
        }
        worlds.leave(member);
        prop_assert!(worlds.admit(hello.as_bytes()).is_ok());
    }
}

#[test]
fn a_world_keeps_so_much_and_no_more() {
    let (server, mut worlds) = worlds(1);
    let hello = format!("cmd=initack pmiid={}", server.id(0));
    let (member, _) = worlds.admit(hello.as_bytes()).unwrap();
    let mut put = |key: u32| {
        let line = format!("cmd=put kvsname=w key=k{key} value=v");
        worlds.step(member, &mut Spawning::default(), line.as_bytes())
    };
    let done = PmiStep::Answer("cmd=put_result rc=0 msg=success\n".into());
    assert!((0..128).all(|key| put(key) == done));
    assert_ne!(put(128), done);
    assert_eq!(put(7), done, "what is there can be changed");
}

/// A process's side of a connection.
struct PmiProcess(io::BufReader<std::net::TcpStream>);

impl PmiProcess {
    fn connect(server: &PmiServer) -> Self {
        let at = (Ipv4Addr::LOCALHOST, server.port);
        let stream = std::net::TcpStream::connect(at).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        Self(io::BufReader::new(stream))
    }

    fn of(server: &PmiServer, rank: u32) -> Self {
        let mut process = Self::connect(server);
        let greeting = process.ask(&format!("cmd=initack pmiid={}", server.id(rank)));
        assert_eq!(greeting, "cmd=initack rc=0\n");
        assert_eq!(process.line(), "cmd=set size=2\n");
        assert_eq!(process.line(), format!("cmd=set rank={rank}\n"));
        assert_eq!(process.line(), "cmd=set debug=0\n");
        process
    }

    fn say(&mut self, line: &str) {
        self.0
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.line()
    }

    fn hears_the_end(mut self) -> bool {
        !matches!(self.0.read(&mut [0]), Ok(1))
    }
}

const KEY: AttemptKey = (
    JobId(0x7),
    4,
    Attempt {
        epoch: 1,
        claim: 0,
        number: 2,
    },
);

/// A listener, and what it tells its node.
fn open(runtime: &tokio::runtime::Runtime) -> (PmiListener, mpsc::Receiver<Event>) {
    let of = MpiWorld {
        host: Ipv4Addr::LOCALHOST,
        ranks: 2,
        beside: 1,
    };
    let (events, told) = mpsc::channel(8);
    let node = NodeHandle::new(events);
    let listener = PmiListener::open(runtime.handle(), node, KEY, of).unwrap();
    (listener, told)
}

#[test]
fn two_processes_find_each_other_and_do_so_again() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (listener, _told) = open(&runtime);
    for program in 0..2 {
        let [mut first, mut second] = [0, 1].map(|rank| PmiProcess::of(&listener.server, rank));
        let init = first.ask("cmd=init pmi_version=1 pmi_subversion=1");
        assert_eq!(
            init,
            "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n"
        );
        let refused = second.ask("cmd=init pmi_version=2 pmi_subversion=0");
        assert!(refused.contains("rc=-1"), "{refused}");
        let name = attempt::whole_name(KEY.0, KEY.1, KEY.2);
        let name = format!("cmd=my_kvsname kvsname={name}-{program}\n");
        assert_eq!(first.ask("cmd=get_my_kvsname"), name);
        let places = first.ask("cmd=get kvsname=x key=PMI_process_mapping");
        assert!(places.ends_with(" value=(vector,(0,2,1))\n"), "{places}");
        // What the program before put is not there.
        let before = second.ask("cmd=get kvsname=x key=a");
        assert!(before.contains("rc=-1"), "{before}");
        first.say("cmd=barrier_in");
        second.ask("cmd=put kvsname=x key=a value=b=c");
        assert_eq!(second.ask("cmd=barrier_in"), "cmd=barrier_out\n");
        assert_eq!(first.line(), "cmd=barrier_out\n");
        let put = first.ask("cmd=get kvsname=x key=a");
        assert_eq!(put, "cmd=get_result rc=0 msg=success value=b=c\n");
        first.say("mcmd=spawn\nnprocs=1\ntotspawns=1\nspawnssofar=1\nendcmd");
        assert!(first.line().starts_with("cmd=spawn_result rc=-1"));
        for mut process in [first, second] {
            assert_eq!(process.ask("cmd=finalize"), "cmd=finalize_ack\n");
            assert!(process.hears_the_end());
        }
    }
}

#[test]
fn strangers_stay_outside_and_nobody_takes_a_place_that_is_taken() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (listener, _told) = open(&runtime);
    let mut first = PmiProcess::of(&listener.server, 0);
    let taken = listener.server.id(0);
    let none = (1..).find(|id| (0..2).all(|rank| listener.server.id(rank) != *id));
    let strange = [
        format!("cmd=initack pmiid={}\n", none.unwrap()),
        format!("cmd=initack pmiid={taken}\n"),
        "cmd=get kvsname=x key=PMI_process_mapping\n".into(),
        "\n".into(),
        "x".repeat(LINE_BYTES + 1),
    ];
    for line in &strange {
        let mut stranger = PmiProcess::connect(&listener.server);
        stranger.0.get_mut().write_all(line.as_bytes()).unwrap();
        assert!(stranger.hears_the_end(), "{line}");
    }
    assert_eq!(first.ask("cmd=get_appnum"), "cmd=appnum appnum=0\n");
    // Connections on which nothing is said give way to those on which something is.
    let silent: Vec<_> = (0..STRANGERS + 8)
        .map(|_| PmiProcess::connect(&listener.server))
        .collect();
    PmiProcess::of(&listener.server, 1);
    drop(silent);
    // A word that nobody knows ends even who is in.
    first.say("cmd=open_the_door");
    assert!(first.hears_the_end());
}

#[test]
fn who_waits_for_somebody_lost_waits_no_more_and_all_end_with_the_listener() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (listener, mut told) = open(&runtime);
    let [mut first, second] = [0, 1].map(|rank| PmiProcess::of(&listener.server, rank));
    first.say("cmd=barrier_in");
    drop(second);
    assert!(first.hears_the_end());
    let [again, mut aborting] = [0, 1].map(|rank| PmiProcess::of(&listener.server, rank));
    aborting.say("cmd=abort exitcode=7");
    assert!(aborting.hears_the_end());
    let (rank, status) = match told.blocking_recv() {
        Some(Event::Worker(WorkerEvent::Aborted { rank, status, .. })) => (rank, status),
        other => panic!("{other:?}"),
    };
    assert_eq!((rank, status), (1, 7));
    let port = listener.server.port;
    drop(listener);
    assert!(again.hears_the_end());
    let closed = || std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err();
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while !closed() {
        assert!(std::time::Instant::now() < end, "nobody listens any more");
    }
}
