//! Checkpoints of a job, as its thread finds, opens and begins them.

use super::{
    super::{
        event::ServiceEvent,
        writer::{CheckpointKeeping, CheckpointWriter},
    },
    KeptParameters, Service,
};
use nodectl_pserver_logic::{GroupInput, KeptCheckpoint};
use nodectl_types::query::CheckpointOwner;
use std::path::{Path, PathBuf};

impl Service {
    /// Looks for the newest checkpoint of the job, on all nodes.
    pub fn find_checkpoint(&mut self) -> Option<GroupInput> {
        let is_resumed = self.kept.resume_from.is_some();
        let Some(job) = self
            .kept
            .job
            .filter(|_| is_resumed || self.settings.checkpoints.is_some())
        else {
            let path = self.kept.resume_from.clone();
            return self.open(path);
        };
        let of = CheckpointOwner::training(job);
        let (checkpoints, events) = (self.kept.checkpoints.clone(), self.events.clone());
        self.kept.runtime.spawn(async move {
            let say = |text| {
                let Some(events) = events.upgrade() else {
                    return false;
                };
                // A full queue has other news; this will be said again.
                let _ = events.try_send(ServiceEvent::Status(text));
                true
            };
            let found = checkpoints.newest(of, is_resumed, say).await;
            if let Some(events) = events.upgrade() {
                let _ = events.send(ServiceEvent::Found(found)).await;
            }
        });
        None
    }

    pub fn found(&mut self, path: Option<PathBuf>) {
        if let Some(input) = self.open(path) {
            self.give(input);
        }
    }

    pub fn open(&mut self, path: Option<PathBuf>) -> Option<GroupInput> {
        let opened = path
            .as_deref()
            .map(|path| self.kept.form.open(path))
            .transpose();
        match opened {
            Ok(found) => {
                let kept = found.as_ref().map(|found| found.kept);
                if let (Some(kept), Some(path)) = (kept, path.as_deref().and_then(Path::file_name))
                {
                    self.say(&format!(
                        "going on at step {} with {}",
                        kept.clock,
                        path.display()
                    ));
                }
                self.found = found;
                Some(GroupInput::Found(kept))
            }
            Err(error) => {
                self.fail(&error.to_string());
                None
            }
        }
    }

    /// Returns that it has ended where it cannot begin.
    pub fn begin_checkpoint(&mut self, kept: KeptCheckpoint, is_last: bool) -> Option<GroupInput> {
        let KeptParameters {
            job,
            form,
            checkpoints,
            runtime,
            ..
        } = &self.kept;
        let (Some(job), Some(rule)) = (*job, self.settings.checkpoints) else {
            return None;
        };
        let (form, checkpoints, runtime) = (form.clone(), checkpoints.clone(), runtime.clone());
        let keeping = CheckpointKeeping {
            job,
            keep: rule.keep,
            form,
            checkpoints,
            runtime,
        };
        match CheckpointWriter::start(keeping, kept, is_last, self.events.clone()) {
            Ok(writer) => {
                self.writer = Some(writer);
                None
            }
            Err(error) => {
                let clock = kept.clock;
                let problem = Some(format!(
                    "there is no thread to write the checkpoint of step {clock}: {error}"
                ));
                Some(GroupInput::CheckpointEnded { kept, problem })
            }
        }
    }
}
