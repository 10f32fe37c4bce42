//! One worker process: launched by the supervisor, connected by its token, awaited at its end.

use super::{listener::Invited, program::WorkerProgram, workers::PersistentWorkers};
use crate::{
    clock::TaskClock,
    environment,
    environments::MadeEnvironment,
    link::{Launched, SupervisorLink},
    protocol::{ProcessEnd, Usage},
};
use nodectl_types::{ErrorReport, Failure, StartTask};
use std::{path::Path, sync::Arc, time::Duration};
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

impl PersistentWorkers {
    /// Starts a worker in `dir`, which exists. `own` are the job's variables, expanded; `blobs` is
    /// the token by which it reaches its node's blobs.
    pub(super) fn launch(
        &self,
        task: &StartTask,
        dir: &Path,
        own: &[(String, String)],
        environment: Option<&MadeEnvironment>,
        blobs: Option<&str>,
    ) -> Result<WorkerProcess, Failure> {
        let context = &self.context;
        let worker = task.work.worker.as_ref();
        let invited = self.invite()?;
        let socket = (self.listener.socket.as_path(), invited.token.as_str());
        let mut program = self.program(worker.expect("only tasks with a worker are started here"));
        let mut env = environment::of_worker(&context.base_env, own, task, dir, socket);
        env.extend(blobs.map(|token| format!("NODECTL_BLOBS_TOKEN={token}").into_bytes()));
        if let Some(python) = environment {
            program.command[0] = python.interpreter().to_string_lossy().into_owned();
            env = python.variables(env);
        }
        // Tasks have timeouts, not their worker.
        let launch = context.launch(task, dir, (program.command.clone(), env), environment)?;
        let link = context.supervisor()?;
        Ok(WorkerProcess {
            launched: link.launch(launch),
            link,
            invited,
            program,
            clock: context.clock.clone(),
            has_ended: None,
        })
    }

    /// Has a process that is about to start let in.
    pub(super) fn invite(&self) -> Result<Invited, Failure> {
        self.listener
            .invite()
            .map_err(|error| Failure::Inputs(format!("no token: {error}")))
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
                let why = end.describe();
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
