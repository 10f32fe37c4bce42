//! Workers of pools, with a pool of the test's own.

use crate::harness::*;
use futures::future::BoxFuture;
use nodectl::{
    ports::{PeerStream, Runner, StreamHost, Streams, WorkerEvent},
    types::{
        Failure, NodeId, Outcome, PythonWorker, StreamToken, WorkSpec, WorkerRole, WorkerSpec,
    },
    wire::frames::{FromWorker, HEADER_BYTES, Header, ToWorker, encode},
    worker::PoolLinks,
};
use std::{
    io,
    sync::{Arc, Mutex},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::oneshot,
};

const HERE: NodeId = NodeId([7; 32]);
const ELSEWHERE: NodeId = NodeId([8; 32]);
const TOKEN: StreamToken = [5; 16];

/// Says that the worker is called for, hears what it answers, and lets it go when told.
#[derive(Default)]
struct PoolHost {
    heard: Mutex<Vec<FromWorker>>,
    release: Mutex<Option<oneshot::Receiver<bool>>>,
    from: Mutex<Vec<NodeId>>,
}

impl PoolHost {
    async fn serve(&self, mut worker: Box<dyn PeerStream>) -> io::Result<()> {
        let mut bytes = Vec::new();
        // The shim knows no such class, and says so.
        encode(
            ToWorker::Init,
            0,
            b"{\"mode\": \"calls\", \"class\": \"none.py:None\", \"init\": {}}",
            &mut bytes,
        );
        worker.write_all(&bytes).await?;
        let mut header = [0; HEADER_BYTES];
        worker.read_exact(&mut header).await?;
        self.heard
            .lock()
            .unwrap()
            .push(Header::decode(&header).unwrap().kind);
        let release = self.release.lock().unwrap().take();
        if let Some(release) = release
            && release.await == Ok(false)
        {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        // Its own end comes first, or its status would be that of a worker whose pool is gone.
        tokio::io::copy(&mut worker, &mut tokio::io::sink())
            .await
            .map(drop)
    }
}

/// One host for both ways to it.
#[derive(Clone, Default)]
struct Fake(Arc<PoolHost>);

impl StreamHost for Fake {
    fn has(&self, token: &StreamToken) -> bool {
        *token == TOKEN
    }

    fn attach(
        &self,
        from: NodeId,
        pool: StreamToken,
        worker: Box<dyn PeerStream>,
    ) -> BoxFuture<'static, io::Result<()>> {
        let host = self.0.clone();
        Box::pin(async move {
            host.from.lock().unwrap().push(from);
            if pool == TOKEN {
                host.serve(worker).await
            } else {
                Ok(())
            }
        })
    }
}

impl Streams for Fake {
    fn open(
        &self,
        to: NodeId,
        pool: StreamToken,
    ) -> BoxFuture<'static, io::Result<Box<dyn PeerStream>>> {
        let host = self.0.clone();
        Box::pin(async move {
            assert_eq!((to, pool), (ELSEWHERE, TOKEN));
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            tokio::spawn(async move { host.serve(Box::new(theirs)).await });
            Ok(Box::new(ours) as Box<dyn PeerStream>)
        })
    }
}

fn lab() -> (WorkerLab, Fake) {
    let fake = Fake::default();
    (
        WorkerLab::with_pools(Some(PoolLinks {
            host: Arc::new(fake.clone()),
            streams: Arc::new(fake.clone()),
        })),
        fake,
    )
}

fn spec(host: NodeId, token: StreamToken, python: &str) -> WorkSpec {
    let role = WorkerRole::Pool { host, token };
    let worker = Some(WorkerSpec::Python(PythonWorker {
        python: python.into(),
        role,
    }));
    WorkSpec {
        command: vec![],
        worker,
        ..sh("")
    }
}

#[test]
fn a_worker_speaks_with_the_pool_of_its_node_and_of_another() {
    for host in [HERE, ELSEWHERE] {
        let (mut lab, fake) = lab();
        let record = lab.run(spec(host, TOKEN, "python3"));
        assert_eq!(*fake.0.heard.lock().unwrap(), [FromWorker::InitFailed]);
        assert_eq!(
            *failure(&record),
            Failure::Exit(1),
            "how the process ended is what is told"
        );
    }
}

#[test]
fn a_pool_that_is_gone_or_never_was_is_the_nodes_trouble() {
    let (mut lab, fake) = lab();
    let record = lab.run(spec(HERE, [6; 16], "python3"));
    assert!(
        matches!(failure(&record), Failure::Inputs(why) if why.contains("no such pool")),
        "{record:?}"
    );
    assert_eq!(*fake.0.from.lock().unwrap(), [HERE]);
    let mut alone = WorkerLab::new();
    let record = alone.run(spec(HERE, TOKEN, "python3"));
    assert!(
        matches!(failure(&record), Failure::Inputs(why) if why.contains("no way to pools")),
        "{record:?}"
    );
    let record = lab.run(spec(HERE, TOKEN, "no-such-python"));
    assert!(
        matches!(failure(&record), Failure::Init(error) if error.message.contains("no-such-python")),
        "{record:?}"
    );
}

#[test]
fn a_stopped_worker_leaves_nothing_behind() {
    let (mut lab, fake) = lab();
    // Stopped while the interpreter starts, or while the pool has it: the same.
    let (hold, release) = oneshot::channel();
    *fake.0.release.lock().unwrap() = Some(release);
    lab.start(0, spec(HERE, TOKEN, "python3"));
    assert!(matches!(
        lab.worker_event(),
        WorkerEvent::Started { task: 0, .. }
    ));
    lab.workers().stop(JOB, 0, attempt(), true);
    let ended = lab.worker_event();
    drop(hold);
    // Its answer to INIT may have ended it first.
    let told = matches!(ended, WorkerEvent::Stopped { task: 0, .. });
    assert!(
        told || matches!(&ended, WorkerEvent::Ended { record, .. } if record.outcome != Outcome::Done),
        "{ended:?}"
    );
    assert!(!lab.task_dir(0).exists());
}
