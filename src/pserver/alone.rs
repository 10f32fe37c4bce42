//! A worker that trains alone: its parameters are its own affair, its checkpoints are kept here, as
//! those of parameter servers are. It writes them where it is told to, a file at a time; each gets
//! its name, is told of and copied when it is whole.

use super::{
    checkpoints::PartialFile,
    file,
    frames::{invalid, receive},
    jobs::TrainingJobs,
};
use nodectl_types::{JobId, query::CheckpointOwner};
use nodectl_wire::{
    api::params::{Alone, Found},
    frames::{self, FromAlone, ToAlone},
};
use std::{fs::File, io, os::unix::net::UnixStream};

/// Serves the connection to its end. `stream` has said `payload`.
pub fn serve(jobs: &TrainingJobs, stream: &UnixStream, payload: &[u8]) -> io::Result<()> {
    let Alone { job, keep } =
        serde_json::from_slice(payload).map_err(|error| invalid(error.to_string()))?;
    let keep = keep.max(1);
    let job: JobId = job
        .parse()
        .map_err(|error| invalid(format!("job `{job}`: {error}")))?;
    let runtime = jobs.runtime()?;
    let checkpoints = &jobs.checkpoints;
    let of = CheckpointOwner::training(job);
    let say = |text: String| frames::write(stream, ToAlone::Status, 0, text.as_bytes()).is_ok();
    let newest = runtime.block_on(checkpoints.newest(of, false, say));
    let part = PartialFile(checkpoints.part(job)?);
    let found = serde_json::to_vec(&Found {
        newest,
        part: part.0.clone(),
    })?;
    frames::write(stream, ToAlone::Found, 0, &found)?;
    stream.set_read_timeout(None)?;
    let mut second = None;
    loop {
        let (header, _) = receive(stream, 0)?;
        let step = header.id;
        match header.kind {
            FromAlone::Keep => {
                let kept = keep_one(jobs, of, step, &part, keep);
                if kept.is_ok() {
                    second = runtime.block_on(checkpoints.publish(of, step, keep));
                }
                let why = kept
                    .err()
                    .map(|error| error.to_string())
                    .unwrap_or_default();
                frames::write(stream, ToAlone::Kept, step, why.as_bytes())?;
            }
            FromAlone::Wait => {
                let copied = runtime.block_on(checkpoints.wait_for_copy(of, step, keep, second));
                frames::write(
                    stream,
                    ToAlone::Kept,
                    step,
                    copied.err().unwrap_or_default().as_bytes(),
                )?;
            }
            FromAlone::Close => return Ok(()),
        }
    }
}

fn keep_one(
    jobs: &TrainingJobs,
    of: CheckpointOwner,
    step: u64,
    part: &PartialFile,
    keep: u32,
) -> io::Result<()> {
    let found = file::clock_of(&part.0)?;
    if found != step {
        return Err(invalid(format!(
            "the checkpoint is of step {found}, not {step}"
        )));
    }
    File::open(&part.0)?.sync_all()?;
    jobs.checkpoints.keep(of, step, &part.0, keep).map(drop)
}
