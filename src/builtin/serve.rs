//! Calls of the node, answered one after the other until it has had enough.

use nodectl_ports::say::tell;
use nodectl_wire::frames::{self, FrameKind, FromWorker, HEADER_BYTES, Header, ToWorker};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use std::{
    env,
    io::{self, Read},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::ExitCode,
};

/// The largest message: parameters of a task, or an `init`.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// What a built-in worker does with its calls.
pub trait BuiltinPart: Sized {
    /// Gets ready, with the job's files in the working directory. `init` is what the job's
    /// specification says.
    fn open(init: Json) -> Result<Self, CallError>;
    /// One task. Returns its result.
    fn run(&mut self, call: &Call) -> Result<Json, CallError>;
}

/// A task.
#[derive(Debug, Deserialize)]
pub struct Call {
    /// The task's number in the job.
    #[serde(skip)]
    pub task: u64,
    /// The task's directory, absolute: the job's files are linked there too, and outputs are
    /// collected from it.
    pub dir: PathBuf,
    /// The task's parameters.
    #[serde(rename = "kwargs")]
    pub params: Map<String, Json>,
}

/// Why a call, or a worker's beginning, came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Another attempt would come to the same.
    #[error("{0}")]
    Task(String),
    /// What the worker computes on failed. The worker ends, so that another takes its place.
    #[error("{0}")]
    Device(String),
    /// The driver gave up the GPU that the worker computes on. The worker ends, and the GPU rests.
    #[error("{0}")]
    LostDevice(String),
}

/// Serves a node until it has had enough. The first line on stderr says why it failed.
pub fn serve<P: BuiltinPart>() -> ExitCode {
    // The supervisor sees to it as well; a driver may keep a process from ending in time.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let served = FrameStream::connect().and_then(|mut stream| serve_on::<P>(&mut stream));
    match served {
        Ok(code) => code,
        // The node is gone, and with it whoever would be told.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => ExitCode::SUCCESS,
        Err(error) => {
            tell!("nodectl: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve_on<P: BuiltinPart>(stream: &mut FrameStream) -> io::Result<ExitCode> {
    #[derive(Deserialize)]
    struct Init {
        init: Json,
    }
    let (kind, _, payload) = stream.receive::<ToWorker>()?;
    if kind != ToWorker::Init {
        return Err(invalid(format!(
            "the node's first frame is {kind:?}, not INIT"
        )));
    }
    let Init { init } = serde_json::from_slice(&payload)?;
    let mut part = match P::open(init) {
        Ok(part) => part,
        Err(error) => {
            stream.send(FromWorker::InitFailed, 0, &error_line(&error))?;
            return Ok(ExitCode::FAILURE);
        }
    };
    stream.send(
        FromWorker::Ready,
        0,
        json!({ "pid": std::process::id() }).to_string().as_bytes(),
    )?;
    loop {
        let (kind, id, payload) = stream.receive()?;
        match kind {
            ToWorker::Run => {
                let call = Call {
                    task: id,
                    ..serde_json::from_slice(&payload)?
                };
                let result = part.run(&call);
                report(stream, id, &result)?;
                if matches!(result, Err(CallError::Device(_) | CallError::LostDevice(_))) {
                    return Ok(ExitCode::FAILURE);
                }
            }
            ToWorker::Exit => return Ok(ExitCode::SUCCESS),
            ToWorker::Init | ToWorker::Update | ToWorker::Release => {
                return Err(invalid(format!("the node sent {kind:?}")));
            }
        }
    }
}

/// Says what came of a call.
fn report(stream: &mut FrameStream, id: u64, result: &Result<Json, CallError>) -> io::Result<()> {
    match result {
        Ok(value) => stream.send(FromWorker::Done, id, value.to_string().as_bytes()),
        Err(error) => stream.send(FromWorker::Failed, id, &error_line(error)),
    }
}

fn error_line(error: &CallError) -> Vec<u8> {
    let (of_device, lost) = match error {
        CallError::Task(_) => (false, false),
        CallError::Device(_) => (true, false),
        CallError::LostDevice(_) => (true, true),
    };
    let message = error.to_string();
    let line = json!({ "type": "", "message": message, "of_device": of_device, "lost": lost });
    format!("{line}\n").into_bytes()
}

/// Frames to and from the node.
struct FrameStream(UnixStream);

impl FrameStream {
    /// Connects and says which worker this is.
    fn connect() -> io::Result<Self> {
        let variable = |name: &str| {
            let hint = "this command is started by nodes, not by hand";
            env::var(name).map_err(|error| invalid(format!("{name}: {error}\nhint: {hint}")))
        };
        let (socket, token) = (
            variable("NODECTL_WORKER_SOCKET")?,
            variable("NODECTL_WORKER_TOKEN")?,
        );
        let mut stream = Self(UnixStream::connect(socket)?);
        stream.send(FromWorker::Hello, 0, token.as_bytes())?;
        Ok(stream)
    }

    fn send(&mut self, kind: impl FrameKind, id: u64, payload: &[u8]) -> io::Result<()> {
        frames::write(&self.0, kind, id, payload)
    }

    /// The next whole message: its kind, id and payload.
    fn receive<K: FrameKind>(&mut self) -> io::Result<(K, u64, Vec<u8>)> {
        let mut message: Option<(K, u64, Vec<u8>)> = None;
        loop {
            let mut header = [0; HEADER_BYTES];
            self.0.read_exact(&mut header)?;
            let header = Header::decode(&header).map_err(invalid)?;
            let (kind, id, payload) = message.get_or_insert((header.kind, header.id, Vec::new()));
            if (*kind, *id) != (header.kind, header.id) || payload.len() > MAX_MESSAGE_BYTES {
                return Err(invalid("the node's frames make no message"));
            }
            let start = payload.len();
            payload.resize(start + header.length as usize, 0);
            self.0.read_exact(&mut payload[start..])?;
            if !header.has_more() {
                return Ok(message.expect("set above"));
            }
        }
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers with its parameter `x`, unless told to fail.
    struct Echo(Json);

    impl BuiltinPart for Echo {
        fn open(init: Json) -> Result<Self, CallError> {
            if init["fails"] == true {
                Err(CallError::Task("no such file".into()))
            } else {
                Ok(Self(init))
            }
        }

        fn run(&mut self, call: &Call) -> Result<Json, CallError> {
            match call.params["x"].as_str() {
                Some("bad") => Err(CallError::Task("x is bad".into())),
                Some("full") => Err(CallError::Device("the device is full".into())),
                Some("lost") => Err(CallError::LostDevice("the device is lost".into())),
                _ => Ok(json!({ "init": self.0, "x": call.params["x"], "task": call.task })),
            }
        }
    }

    /// A node's end of a worker's stream, and the worker's thread.
    fn start() -> (FrameStream, std::thread::JoinHandle<io::Result<ExitCode>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (
            FrameStream(ours),
            std::thread::spawn(move || serve_on::<Echo>(&mut FrameStream(theirs))),
        )
    }

    fn run(node: &mut FrameStream, id: u64, x: &Json) -> (FromWorker, u64, Json) {
        let message = json!({ "dir": "/nowhere", "env": {}, "kwargs": { "x": x } });
        node.send(ToWorker::Run, id, message.to_string().as_bytes())
            .unwrap();
        let (kind, id, payload) = node.receive().unwrap();
        (kind, id, serde_json::from_slice(&payload).unwrap())
    }

    fn init(node: &mut FrameStream, init: &Json) -> (FromWorker, Json) {
        node.send(
            ToWorker::Init,
            0,
            json!({ "mode": "calls", "init": init })
                .to_string()
                .as_bytes(),
        )
        .unwrap();
        let (kind, _, payload) = node.receive().unwrap();
        (kind, serde_json::from_slice(&payload).unwrap())
    }

    #[test]
    fn calls_are_answered_in_turn_until_the_node_has_had_enough() {
        let (mut node, worker) = start();
        assert_eq!(init(&mut node, &json!({ "a": 1 })).0, FromWorker::Ready);
        // Longer than a frame.
        let long = Json::from("x".repeat(frames::MAX_CHUNK_BYTES + 5));
        for (id, x) in [(1, json!(2)), (2, long)] {
            assert_eq!(
                run(&mut node, id, &x),
                (
                    FromWorker::Done,
                    id,
                    json!({ "init": { "a": 1 }, "x": x, "task": id })
                )
            );
        }
        let (kind, id, error) = run(&mut node, 3, &json!("bad"));
        assert_eq!(
            (kind, id, &error["message"], &error["of_device"]),
            (FromWorker::Failed, 3, &json!("x is bad"), &json!(false))
        );
        assert_eq!(
            run(&mut node, 4, &json!(5)).0,
            FromWorker::Done,
            "a task's fault does not end its worker"
        );
        node.send(ToWorker::Exit, 0, &[]).unwrap();
        assert_eq!(worker.join().unwrap().unwrap(), ExitCode::SUCCESS);
    }

    #[test]
    fn a_lost_device_is_told_and_ends_the_worker() {
        for (what, is_lost) in [("full", false), ("lost", true)] {
            let (mut node, worker) = start();
            init(&mut node, &json!({}));
            let (kind, _, error) = run(&mut node, 1, &json!(what));
            assert_eq!(
                (kind, &error["of_device"], &error["lost"]),
                (FromWorker::Failed, &json!(true), &json!(is_lost))
            );
            assert_eq!(worker.join().unwrap().unwrap(), ExitCode::FAILURE);
        }
    }

    #[test]
    fn a_part_that_cannot_begin_says_why() {
        let (mut node, worker) = start();
        let (kind, error) = init(&mut node, &json!({ "fails": true }));
        assert_eq!(
            (kind, &error["message"]),
            (FromWorker::InitFailed, &json!("no such file"))
        );
        assert_eq!(worker.join().unwrap().unwrap(), ExitCode::FAILURE);
    }
}
