//! One worker process: launched by the supervisor, connected by its token, awaited at its end.

use super::{
    super::{
        collect, environment,
        link::{Launched, Link},
        protocol::{End, Launch, Usage},
        runner::Inner,
    },
    door::Invited,
};
use crate::{
    ports::StartTask,
    types::{Failure, PythonError, PythonWorker},
};
use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::net::UnixStream;

/// An interpreter that has not connected by then is none.
const CONNECT: Duration = Duration::from_secs(120);
/// After its stream a process ends; one that does not is killed.
const END: Duration = Duration::from_secs(3);

/// A process that was ordered to start. The supervisor ends it when told to, or with the node.
pub struct Process {
    pub link: Arc<Link>,
    pub launched: Launched,
    invited: Invited,
    python: String,
    has_ended: Option<(End, Usage)>,
}

impl Inner {
    /// Starts a worker in `dir`, which exists. `own` are the job's variables, expanded.
    pub(super) fn launch_worker(
        &self,
        task: &StartTask,
        worker: &PythonWorker,
        dir: &Path,
        own: &[(String, String)],
    ) -> Result<Process, Failure> {
        let work = &task.work;
        let invited = self.python.door.invite().map_err(|error| Failure::Inputs(format!("no token: {error}")))?;
        let way = (self.python.door.socket.as_path(), invited.token.as_str());
        let python = interpreter(&worker.python, self.base_env.get(OsStr::new("HOME")).map(OsStr::new));
        let launch = Launch {
            id: 0,
            dir: dir.as_os_str().as_bytes().to_vec(),
            command: vec![python.clone(), "-u".into(), self.python.shim.to_string_lossy().into_owned()],
            env: environment::of_worker(&self.base_env, own, task, dir, way),
            // Tasks have timeouts, not their worker.
            timeout_ms: None,
            grace_ms: work.grace_ms,
            file_limit_bytes: collect::file_limit(work.output_limit_bytes, work.log_limit_bytes),
            log_limit_bytes: work.log_limit_bytes,
            memory_bytes: work.resources.memory_bytes,
        };
        let link = self.link().clone().ok_or_else(|| Failure::Inputs("this node is leaving".into()))?;
        Ok(Process { launched: link.launch(launch), link, invited, python, has_ended: None })
    }
}

impl Process {
    /// Waits for its connection. An error says what is wrong with the interpreter.
    pub async fn connected(&mut self) -> Result<UnixStream, PythonError> {
        let connecting = tokio::time::timeout(CONNECT, &mut self.invited.stream);
        tokio::select! {
            biased;
            stream = connecting => match stream {
                Ok(Ok(stream)) => Ok(stream),
                Ok(Err(_)) => Err(self.explain("its connection was refused")),
                Err(_) => {
                    let why = format!("it did not connect within {} s", CONNECT.as_secs());
                    self.link.stop(self.launched.id);
                    Err(self.explain(&why))
                }
            },
            ended = &mut self.launched.ended => {
                let (end, usage) = ended.unwrap_or((End::Stopped, Usage::default()));
                let why = describe(&end);
                self.has_ended = Some((end, usage));
                Err(self.explain(&why))
            }
        }
    }

    fn explain(&self, why: &str) -> PythonError {
        let hint =
            "hint: `python` names an interpreter (3.9 or later) that every node has; `nodectl doctor` looks for it";
        PythonError::without_exception(format!("the interpreter `{}`: {why}\n{hint}", self.python))
    }

    /// Whether it has ended already.
    pub fn is_over(&mut self) -> bool {
        if self.has_ended.is_none() {
            self.has_ended = self.launched.ended.try_recv().ok();
        }
        self.has_ended.is_some()
    }

    /// Returns when it has ended.
    pub async fn gone(&mut self) {
        if self.has_ended.is_none() {
            let ended = (&mut self.launched.ended).await;
            self.has_ended = Some(ended.unwrap_or((End::Stopped, Usage::default())));
        }
    }

    /// How it ended. Its stream has: a process that goes on without is killed after a moment.
    pub async fn end(&mut self) -> (End, Usage) {
        if tokio::time::timeout(END, self.gone()).await.is_err() {
            self.link.stop(self.launched.id);
            self.gone().await;
        }
        self.has_ended.clone().expect("it is gone")
    }
}

/// The program to run: `~/` is the home of the node's user, and a directory is a virtual environment.
fn interpreter(python: &str, home: Option<&OsStr>) -> String {
    let path = match (python.strip_prefix("~/"), home) {
        (Some(below), Some(home)) => Path::new(home).join(below),
        _ => PathBuf::from(python),
    };
    let path = if path.is_absolute() && path.is_dir() { path.join("bin/python") } else { path };
    path.to_string_lossy().into_owned()
}

/// An end that nobody asked for, in words.
pub fn describe(end: &End) -> String {
    match end {
        End::Exited(status) => format!("it ended with exit status {status}"),
        End::Signalled(signal) => format!("it was killed by signal {signal}"),
        End::OutOfMemory => "it used more memory than the job asks for".into(),
        End::NotStarted(why) => why.clone(),
        End::TimedOut | End::Stopped => "it was stopped".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interpreter_is_a_program_a_path_or_a_virtual_environment() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("venv")).unwrap();
        let of = |python: &str| interpreter(python, Some(home.path().as_os_str()));
        let venv = home.path().join("venv").to_string_lossy().into_owned();
        assert_eq!(of("python3.12"), "python3.12");
        assert_eq!(of("tools/python"), "tools/python");
        assert_eq!(of(&venv), format!("{venv}/bin/python"));
        assert_eq!(of("~/venv"), format!("{venv}/bin/python"));
        assert_eq!(of("~/venv/bin/python3"), format!("{venv}/bin/python3"));
    }
}
