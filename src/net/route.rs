//! The way that bulk bytes took to a peer last: what `bulk/` learns of a session, so that failures
//! are not paid for with each blob.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Networks change; after this the direct way is tried again.
const REMEMBERED: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkWay {
    Direct,
    CalledBack,
    Swarm,
}

/// The last way that was taken in a session.
#[derive(Debug, Default)]
pub struct LastRoute(Mutex<Option<(BulkWay, Instant)>>);

impl LastRoute {
    pub fn note(&self, way: BulkWay) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((way, Instant::now()));
    }

    /// None where nothing is known, or no longer.
    pub fn get(&self) -> Option<BulkWay> {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.filter(|(_, at)| at.elapsed() < REMEMBERED)
            .map(|(way, _)| way)
    }
}
