//! One worker process: launched by the supervisor, connected by its token, awaited at its end.

use super::{
    super::{
        clock::TaskClock,
        collect, environment,
        environments::MadeEnvironment,
        link::{Launched, SupervisorLink},
        protocol::{Launch, ProcessEnd, Usage},
        runner::Inner,
    },
    listener::Invited,
    program::WorkerProgram,
};
use nodectl_ports::StartTask;
use nodectl_types::{ErrorReport, Failure, signal::Signal};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path, sync::Arc, time::Duration};
use tokio::net::UnixStream;

/// A program that has not connected by then is no worker.
const CONNECT: Duration = Duration::from_secs(120);
/// After its stream a process ends; one that does not is killed.
const END: Duration = Duration::from_secs(3);

/// A process that was ordered to start. The supervisor ends it when told to, or with the node.
pub struct WorkerProcess {
    pub link: Arc<SupervisorLink>,
    pub launched: Launched,
    invited: Invited,
    program: WorkerProgram,
    clock: Arc<TaskClock>,
    has_ended: Option<(ProcessEnd, Usage)>,
}

impl Inner {
    /// Starts a worker in `dir`, which exists. `own` are the job's variables, expanded.
    pub(super) fn launch_worker(
        &self,
        task: &StartTask,
        dir: &Path,
        own: &[(String, String)],
        environment: Option<&MadeEnvironment>,
    ) -> Result<WorkerProcess, Failure> {
        let work = &task.work;
        let worker = work.worker.as_ref().expect("whoever starts one has it");
        let invited = self
            .persistent
            .listener
            .invite()
            .map_err(|error| Failure::Inputs(format!("no token: {error}")))?;
        let way = (
            self.persistent.listener.socket.as_path(),
            invited.token.as_str(),
        );
        let home = self
            .base_env
            .variables
            .get(OsStr::new("HOME"))
            .map(OsStr::new);
        let mut program = self.persistent.programs.of(worker, home);
        let mut env = environment::of_worker(&self.base_env, own, task, dir, way);
        if let Some(python) = environment {
            program.command[0] = python.interpreter().to_string_lossy().into_owned();
            env = python.variables(env);
        }
        let python_root = environment.map(|python| python.root.as_path());
        let launch = Launch {
            id: 0,
            dir: dir.as_os_str().as_bytes().to_vec(),
            command: program.command.clone(),
            env,
            // Tasks have timeouts, not their worker.
            timeout_ms: None,
            grace_ms: work.grace_ms,
            file_limit_bytes: collect::file_limit(work.output_limit_bytes, work.log_limit_bytes),
            log_limit_bytes: work.log_limit_bytes,
            memory_bytes: work.resources.memory_bytes,
            nice: self.nice,
            secrets: self.secrets(work)?,
            confinement: self
                .confiner
                .confine(task, dir, python_root)
                .map_err(|error| self.no_directory(dir, &error))?,
        };
        let link = self
            .link()
            .clone()
            .ok_or_else(|| Failure::Inputs("this node is leaving".into()))?;
        let clock = self.clock.clone();
        Ok(WorkerProcess {
            launched: link.launch(launch),
            link,
            invited,
            program,
            clock,
            has_ended: None,
        })
    }
}

impl WorkerProcess {
    /// Waits for its connection. An error says what is wrong with its program.
    pub async fn connected(&mut self) -> Result<UnixStream, ErrorReport> {
        let connecting = self.clock.timeout(CONNECT, &mut self.invited.stream);
        tokio::select! {
            biased;
            stream = connecting => match stream {
                Some(Ok(stream)) => Ok(stream),
                Some(Err(_)) => Err(self.explain("its connection was refused")),
                None => {
                    let why = format!("it did not connect within {} s", CONNECT.as_secs());
                    self.link.stop(self.launched.id);
                    Err(self.explain(&why))
                }
            },
            ended = &mut self.launched.ended => {
                let (end, usage) = ended.unwrap_or((ProcessEnd::Stopped, Usage::default()));
                let why = describe(&end);
                self.has_ended = Some((end, usage));
                Err(self.explain(&why))
            }
        }
    }

    fn explain(&self, why: &str) -> ErrorReport {
        let WorkerProgram { name, hint, .. } = &self.program;
        ErrorReport::without_exception(format!("{name}: {why}\n{hint}"))
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
            self.has_ended = Some(ended.unwrap_or((ProcessEnd::Stopped, Usage::default())));
        }
    }

    /// How it ended. Its stream has: a process that goes on without is killed after a moment.
    pub async fn end(&mut self) -> (ProcessEnd, Usage) {
        if tokio::time::timeout(END, self.gone()).await.is_err() {
            self.link.stop(self.launched.id);
            self.gone().await;
        }
        self.has_ended.clone().expect("it is gone")
    }
}

/// An end that nobody asked for, in words.
pub fn describe(end: &ProcessEnd) -> String {
    match end {
        ProcessEnd::Exited(status) => format!("it ended with exit status {status}"),
        ProcessEnd::Signalled(signal) => format!("it was killed by signal {}", Signal(*signal)),
        ProcessEnd::OutOfMemory => "it used more memory than the job asks for".into(),
        ProcessEnd::NotStarted(why) => why.clone(),
        ProcessEnd::TimedOut | ProcessEnd::Stopped => "it was stopped".into(),
    }
}
