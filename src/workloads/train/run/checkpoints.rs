//! When a checkpoint is due, and which stay.

use crate::workloads::train::plan::{Checkpoints, Every};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub struct Keeper {
    rule: Checkpoints,
    last_step: u64,
    last: Instant,
    written: Vec<PathBuf>,
}

impl Keeper {
    pub fn new(rule: Checkpoints, step: u64) -> Self {
        Self { rule, last_step: step, last: Instant::now(), written: Vec::new() }
    }

    pub fn is_due(&self, step: u64) -> bool {
        match self.rule.every {
            Every::Steps(steps) => step >= self.last_step + steps,
            Every::Millis(millis) => self.last.elapsed() >= Duration::from_millis(millis),
        }
    }

    /// Writes one, by its name, then removes the oldest beyond those that stay.
    pub fn keep<E>(
        &mut self,
        directory: &Path,
        step: u64,
        write: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<io::Result<()>, E> {
        let path = directory.join(format!("step-{step:09}.safetensors"));
        if let Err(error) = fs::create_dir_all(directory) {
            return Ok(Err(error));
        }
        write(&path)?;
        (self.last_step, self.last) = (step, Instant::now());
        self.written.push(path);
        while self.written.len() > self.rule.keep as usize {
            if let Err(error) = fs::remove_file(self.written.remove(0)) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }
}
