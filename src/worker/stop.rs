//! The way to end an attempt, whatever it is doing when it is asked.

use super::{
    link::SupervisorLink,
    protocol::{LaunchId, ProcessEnd},
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::watch;

pub struct Stop {
    asked: watch::Sender<bool>,
    /// Nobody goes on from what it has saved.
    leaves_nothing: watch::Sender<bool>,
    /// What its end counts as, if not as one that somebody asked for.
    status: OnceLock<i32>,
    process: Mutex<Option<(Arc<SupervisorLink>, LaunchId)>>,
}

impl Default for Stop {
    fn default() -> Self {
        Self {
            asked: watch::Sender::new(false),
            leaves_nothing: watch::Sender::new(false),
            status: OnceLock::new(),
            process: Mutex::default(),
        }
    }
}

impl Stop {
    /// Asks the attempt to end: whoever waits for it in `asked` learns of it, and the process named
    /// by `ends` is stopped. Whoever asks again changes nothing.
    pub fn ask(&self) {
        if !self.asked.send_replace(true)
            && let Some((link, id)) = &*self.process()
        {
            link.stop(*id);
        }
    }

    /// Asks for an end that counts as that of a process which exited with this status.
    pub fn fail(&self, status: i32) {
        if !self.is_asked() {
            let _ = self.status.set(status);
            self.ask();
        }
    }

    /// What the end of a process counts as.
    pub fn end_of(&self, end: &ProcessEnd) -> ProcessEnd {
        match self.status.get() {
            Some(status) if *end == ProcessEnd::Stopped => ProcessEnd::Exited(*status),
            _ => end.clone(),
        }
    }

    pub fn is_asked(&self) -> bool {
        *self.asked.borrow()
    }

    /// Returns when somebody has asked.
    pub async fn asked(&self) {
        // It fails when the sender is gone, which is here.
        let _ = self.asked.subscribe().wait_for(|asked| *asked).await;
    }

    /// Has the attempt end without keeping what it has saved of itself.
    pub fn leave_nothing(&self) {
        self.leaves_nothing.send_replace(true);
    }

    /// Returns when nothing of what the attempt saves is to be kept.
    pub async fn leaves_nothing(&self) {
        let mut leaves = self.leaves_nothing.subscribe();
        let _ = leaves.wait_for(|leaves| *leaves).await;
    }

    /// From now on asking stops this process; at once if somebody has asked before.
    pub fn ends(&self, link: &Arc<SupervisorLink>, id: LaunchId) {
        let mut process = self.process();
        *process = Some((link.clone(), id));
        if self.is_asked() {
            link.stop(id);
        }
    }

    /// From now on asking stops nothing. Whether somebody has asked: then the process that `ends`
    /// named is being stopped.
    pub fn let_go(&self) -> bool {
        let mut process = self.process();
        *process = None;
        self.is_asked()
    }

    fn process(&self) -> MutexGuard<'_, Option<(Arc<SupervisorLink>, LaunchId)>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
