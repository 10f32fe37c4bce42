//! Checkpoints of a worker that trains alone: when one is due, and the way to the node, which finds
//! and keeps them. They are written beside the training, one at a time.

use crate::{
    ParametersError,
    file::{ModelFile, SavedProgress},
    plan::{Checkpoints, Every},
    served::receive,
};
use nodectl_wire::{
    api::params::{Alone, Found},
    frames::{self, FromAlone, FromTrainer, ToAlone},
};
use std::{
    io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::mpsc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

pub struct Checkpointer {
    rule: Checkpoints,
    /// The newest: its step, and when it was begun.
    last: (u64, Instant),
    files: Option<mpsc::SyncSender<ModelFile>>,
    writing: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Asks the node at `socket` for the newest checkpoint of the job, on whatever node it is.
    /// `say` gets what people should know.
    pub fn open(
        socket: &Path,
        job: &str,
        rule: Checkpoints,
        say: impl Fn(&str) + Send + 'static,
    ) -> Result<(Self, Option<PathBuf>), ParametersError> {
        let lost = |error: io::Error| {
            ParametersError::Lost(format!(
                "the node that keeps checkpoints, at {}: {error}",
                socket.display()
            ))
        };
        let stream = UnixStream::connect(socket).map_err(lost)?;
        let alone = Alone {
            job: job.into(),
            keep: rule.keep,
        };
        let alone = serde_json::to_vec(&alone).expect("plain data always encodes");
        frames::write(&stream, FromTrainer::Alone, 0, &alone).map_err(lost)?;
        let Found { newest, part } = loop {
            match receive(&stream).map_err(lost)? {
                (ToAlone::Status, _, text) => say(&String::from_utf8_lossy(&text)),
                (ToAlone::Found, _, json) => {
                    break serde_json::from_slice(&json).map_err(|error| lost(error.into()))?;
                }
                (_, _, text) => {
                    return Err(lost(io::Error::other(
                        String::from_utf8_lossy(&text).into_owned(),
                    )));
                }
            }
        };
        // Whoever has the next before the last is kept waits: no more than two are in memory.
        let (files, waiting) = mpsc::sync_channel(0);
        let write = move || write(&stream, &part, &waiting, say);
        let writing = std::thread::Builder::new()
            .name("checkpoints".into())
            .spawn(write)
            .map_err(lost)?;
        let last = (0, Instant::now());
        Ok((
            Self {
                rule,
                last,
                files: Some(files),
                writing: Some(writing),
            },
            newest,
        ))
    }

    pub fn is_due(&self, step: u64) -> bool {
        let (last, begun) = self.last;
        match self.rule.every {
            Every::Steps(steps) => step.is_multiple_of(steps) && step != last,
            Every::Millis(millis) => begun.elapsed() >= Duration::from_millis(millis),
        }
    }

    /// The step of the newest.
    pub fn last_step(&self) -> u64 {
        self.last.0
    }

    /// There is one of this step: the training goes on from it.
    pub fn goes_on(&mut self, step: u64) {
        self.last = (step, Instant::now());
    }

    /// Has a checkpoint written and kept.
    pub fn keep(&mut self, file: ModelFile) {
        self.goes_on(step_of(&file));
        if let Some(files) = &self.files {
            // The thread ends with this.
            let _ = files.send(file);
        }
    }
}

impl Drop for Checkpointer {
    /// Waits until the last is kept, on two nodes if there are two.
    fn drop(&mut self) {
        self.files = None;
        if let Some(writing) = self.writing.take() {
            let _ = writing.join();
        }
    }
}

fn step_of(file: &ModelFile) -> u64 {
    file.progress
        .as_ref()
        .map_or(0, |SavedProgress { step, .. }| *step)
}

/// Writes what comes to `part`, and has the node give it its name.
fn write(stream: &UnixStream, part: &Path, files: &mpsc::Receiver<ModelFile>, say: impl Fn(&str)) {
    let mut last = None;
    for file in files {
        let step = step_of(&file);
        match give(stream, part, &file) {
            Ok(()) => last = Some(step),
            Err(why) => say(&format!(
                "the checkpoint of step {step} could not be kept: {why}"
            )),
        }
    }
    if let Some(Err(why)) = last.map(|step| ask(stream, FromAlone::Wait, step)) {
        say(&why);
    }
    // The node notices in any case.
    let _ = frames::write(stream, FromAlone::Close, 0, &[]);
}

fn give(stream: &UnixStream, part: &Path, file: &ModelFile) -> Result<(), String> {
    file.write_part(part).map_err(|error| error.to_string())?;
    ask(stream, FromAlone::Keep, step_of(file))
}

/// Has the node do something with a checkpoint, and waits until it is done.
fn ask(stream: &UnixStream, kind: FromAlone, step: u64) -> Result<(), String> {
    let answer = frames::write(stream, kind, step, &[]).and_then(|()| receive(stream));
    match answer.map_err(|error| error.to_string())? {
        (ToAlone::Kept, _, why) if why.is_empty() => Ok(()),
        (_, _, why) => Err(String::from_utf8_lossy(&why).into_owned()),
    }
}
