//! A call of a program: what goes in, what comes out, within a time limit. Output beyond a bound is
//! cut off; a program that takes too long is killed with all it started. Schedulers that are away
//! are asked again, ever more slowly.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
};
use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};
use zeroize::Zeroizing;

/// What is kept of each stream.
const MAX_OUTPUT_BYTES: usize = 4 << 20;
/// After the program's end, its streams end at once, unless it left something behind that holds
/// them open.
const STREAMS_END: Duration = Duration::from_secs(1);
/// How long a program may take to end once its standard input has.
const LAST_GRACE: Duration = Duration::from_secs(8);
/// Pauses before a scheduler that is away is asked again.
const PAUSES: [Duration; 6] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(15),
];

/// Calls that have begun and not ended: what is called goes on when nobody waits for it any more.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Returns when no call is under way. Whoever gave up waiting for some waits here before it undoes
/// what they may have done.
pub async fn settled() {
    while UNDER_WAY.load(Ordering::Acquire) > 0 {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// One call under way.
struct UnderWay;

impl UnderWay {
    fn new() -> Self {
        UNDER_WAY.fetch_add(1, Ordering::AcqRel);
        Self
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A program to run. It is found in `PATH`.
#[derive(Clone, Debug)]
pub struct Invocation {
    pub program: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub input: ProcessInput,
    pub limit: Duration,
}

/// What a program reads.
#[derive(Clone)]
pub enum ProcessInput {
    Nothing,
    /// Possibly a secret: wiped, never shown.
    Bytes(Zeroizing<Vec<u8>>),
    File(PathBuf),
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// None if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("there is no `{0}` here\nhint: install it, or call this where it is")]
    Missing(String),
    #[error("`{program}` cannot be run: {source}")]
    Spawn { program: String, source: io::Error },
    #[error("`{program}` did not answer within {} s", limit.as_secs())]
    TimedOut { program: String, limit: Duration },
}

impl std::fmt::Debug for ProcessInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nothing => f.write_str("Nothing"),
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Finished {
    pub fn is_ok(&self) -> bool {
        self.code == Some(0)
    }

    /// What the program said of its failure: stderr, else stdout, else how it ended.
    pub fn words(&self) -> String {
        let said = [&self.stderr, &self.stdout]
            .into_iter()
            .map(|text| text.trim())
            .find(|text| !text.is_empty());
        match (said, self.code) {
            (Some(text), _) => text.to_string(),
            (None, Some(code)) => format!("it ended with {code} and said nothing"),
            (None, None) => "a signal ended it".to_string(),
        }
    }
}

impl Invocation {
    pub fn new(
        program: &str,
        args: impl IntoIterator<Item = impl Into<String>>,
        limit: Duration,
    ) -> Self {
        let args = args.into_iter().map(Into::into).collect();
        Self {
            program: program.into(),
            args,
            env: Vec::new(),
            input: ProcessInput::Nothing,
            limit,
        }
    }

    pub fn input(self, bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            input: ProcessInput::Bytes(Zeroizing::new(bytes.into())),
            ..self
        }
    }

    pub fn input_file(self, path: PathBuf) -> Self {
        Self {
            input: ProcessInput::File(path),
            ..self
        }
    }

    /// Runs it beside everything else. Needs a Tokio runtime, of which it takes a blocking thread.
    pub async fn run(self) -> Result<Finished, ProcessError> {
        let program = self.program.clone();
        let under_way = UnderWay::new();
        let call = move || {
            let _until_the_end = under_way;
            self.run_blocking()
        };
        let ended = tokio::task::spawn_blocking(call).await;
        ended.unwrap_or_else(|error| {
            Err(ProcessError::Spawn {
                program,
                source: io::Error::other(error),
            })
        })
    }

    /// Runs the program again, with pauses, while `is_away` says of the answer that nobody was
    /// there to give a real one.
    pub async fn run_patiently(
        self,
        is_away: impl Fn(&Finished) -> bool,
    ) -> Result<Finished, ProcessError> {
        let mut pauses = PAUSES.into_iter();
        loop {
            let ended = self.clone().run().await;
            let try_again = match &ended {
                Ok(finished) => !finished.is_ok() && is_away(finished),
                Err(ProcessError::TimedOut { .. }) => true,
                Err(_) => false,
            };
            match pauses.next().filter(|_| try_again) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return ended,
            }
        }
    }

    /// Runs it on this thread.
    pub fn run_blocking(&self) -> Result<Finished, ProcessError> {
        let deadline = Instant::now() + self.limit;
        let mut child = self.spawn()?;
        self.feed(&mut child);
        let stdout = child.stdout.take().map(CapturedStream::read);
        let stderr = child.stderr.take().map(CapturedStream::read);
        let Some(status) = wait(&mut child, deadline) else {
            kill(&mut child);
            return Err(ProcessError::TimedOut {
                program: self.program.clone(),
                limit: self.limit,
            });
        };
        let text =
            |stream: Option<CapturedStream>| stream.map(CapturedStream::text).unwrap_or_default();
        Ok(Finished {
            code: status.code(),
            stdout: text(stdout),
            stderr: text(stderr),
        })
    }

    /// Starts it with its output in a file. It ends by itself, or when what is returned is dropped:
    /// its standard input ends then.
    pub fn spawn_into(&self, log: File) -> Result<RunningProcess, ProcessError> {
        let failed = |source| ProcessError::Spawn {
            program: self.program.clone(),
            source,
        };
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .process_group(0);
        command
            .stdin(Stdio::piped())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log);
        let mut child = command.spawn().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ProcessError::Missing(self.program.clone()),
            _ => failed(source),
        })?;
        Ok(RunningProcess {
            stdin: child.stdin.take(),
            child: Some(child),
        })
    }

    fn spawn(&self) -> Result<Child, ProcessError> {
        let failed = |source| ProcessError::Spawn {
            program: self.program.clone(),
            source,
        };
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(key, value)| (key, value)));
        // A group of its own: what it starts is killed with it, and Ctrl-C is for us to decide
        // about.
        command
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.stdin(match &self.input {
            ProcessInput::Nothing => Stdio::null(),
            ProcessInput::Bytes(_) => Stdio::piped(),
            ProcessInput::File(path) => File::open(path).map_err(failed)?.into(),
        });
        command.spawn().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ProcessError::Missing(self.program.clone()),
            _ => failed(source),
        })
    }

    /// Writes the input from a thread of its own: a program may write before it has read
    /// everything.
    fn feed(&self, child: &mut Child) {
        if let (ProcessInput::Bytes(bytes), Some(mut pipe)) = (&self.input, child.stdin.take()) {
            let bytes = bytes.clone();
            // A program that reads nothing says why on stderr.
            thread::spawn(move || drop(pipe.write_all(&bytes)));
        }
    }
}

/// A program that runs as long as it likes.
#[derive(Debug)]
pub struct RunningProcess {
    stdin: Option<ChildStdin>,
    child: Option<Child>,
}

impl RunningProcess {
    /// The process's exit code, once it has ended; None if a signal ended it.
    pub fn ended(&mut self) -> Option<Option<i32>> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        Some(status.code())
    }

    /// Tells it to end.
    pub fn tell_to_end(&mut self) {
        self.stdin = None;
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        self.stdin = None;
        if let Some(mut child) = self.child.take()
            && wait(&mut child, Instant::now() + LAST_GRACE).is_none()
        {
            kill(&mut child);
        }
    }
}

/// The beginning of a stream, as it comes.
struct CapturedStream {
    kept: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<()>,
}

impl CapturedStream {
    /// Reads it to its end, from a thread of its own.
    fn read(mut from: impl Read + Send + 'static) -> Self {
        let (sender, ended) = sync_channel(1);
        let kept = Arc::new(Mutex::new(Vec::new()));
        let shared = kept.clone();
        thread::spawn(move || {
            let mut piece = [0; 16 << 10];
            while let Ok(count @ 1..) = from.read(&mut piece) {
                let mut kept = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let room = MAX_OUTPUT_BYTES - kept.len();
                kept.extend_from_slice(&piece[..count.min(room)]);
            }
            let _ = sender.send(());
        });
        Self { kept, ended }
    }

    /// What came, after the program's end.
    fn text(self) -> String {
        let _ = self.ended.recv_timeout(STREAMS_END);
        String::from_utf8_lossy(&self.kept.lock().unwrap_or_else(PoisonError::into_inner))
            .into_owned()
    }
}

/// How it ended, if it did before the deadline.
fn wait(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    let pid = Pid::from_child(child);
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        let left = deadline.checked_duration_since(Instant::now())?;
        let left = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&left));
    }
}

fn kill(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Invocation {
        Invocation::new("sh", ["-c", script], limit)
    }

    #[test]
    fn input_goes_in_and_both_streams_come_out() {
        let call = shell("cat; echo oops >&2; exit 3", Duration::from_secs(20)).input("hello");
        let finished = call.run_blocking().unwrap();
        assert_eq!(
            (
                finished.code,
                finished.stdout.as_str(),
                finished.stderr.as_str()
            ),
            (Some(3), "hello", "oops\n")
        );
        assert_eq!(finished.words(), "oops");
        assert!(
            !format!("{call:?}").contains("hello"),
            "input may be secret"
        );
    }

    #[test]
    fn what_takes_too_long_is_killed_with_all_it_started() {
        let begun = Instant::now();
        let error = shell("sleep 600 & sleep 600", Duration::from_millis(100))
            .run_blocking()
            .unwrap_err();
        assert!(matches!(error, ProcessError::TimedOut { .. }), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn output_is_bounded_and_a_missing_program_is_named() {
        let flood = format!("head -c {} /dev/zero", MAX_OUTPUT_BYTES + 100_000);
        assert_eq!(
            shell(&flood, Duration::from_secs(60))
                .run_blocking()
                .unwrap()
                .stdout
                .len(),
            MAX_OUTPUT_BYTES
        );
        let error = Invocation::new("no-such-program", ["x"], Duration::from_secs(1))
            .run_blocking()
            .unwrap_err();
        assert!(error.to_string().contains("`no-such-program`"), "{error}");
    }

    #[test]
    fn what_a_program_leaves_behind_does_not_hold_us_up() {
        let begun = Instant::now();
        let finished = shell("sleep 20 & echo left", Duration::from_secs(60))
            .run_blocking()
            .unwrap();
        assert_eq!(finished.stdout, "left\n");
        assert!(begun.elapsed() < Duration::from_secs(15));
    }

    #[tokio::test]
    async fn a_call_that_nobody_waits_for_is_waited_for_in_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let mark = directory.path().join("mark");
        let begun = directory.path().join("begun");
        let script = format!(
            "touch {}; sleep 0.3; touch {}",
            begun.display(),
            mark.display()
        );
        let call = shell(&script, Duration::from_secs(20)).run();
        let seen = async {
            while !begun.exists() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        tokio::select! {
            _ = call => panic!("it takes longer"),
            () = seen => {}
        }
        settled().await;
        assert!(mark.exists());
    }

    #[tokio::test]
    async fn who_is_away_is_asked_again() {
        let directory = tempfile::tempdir().unwrap();
        let script = format!(
            "cd {} && test -e here || {{ touch here; echo away >&2; exit 1; }}",
            directory.path().display()
        );
        let ended = shell(&script, Duration::from_secs(20))
            .run_patiently(|said| said.words() == "away")
            .await
            .unwrap();
        assert!(ended.is_ok(), "{ended:?}");
    }
}
