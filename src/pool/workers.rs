//! The hub's side of the workers: their frames, and what is sent to them.

use super::{
    hub::{Hub, PoolEnd},
    outbox::PoolOutbox,
    reader::{Frame, frames},
    updates::UpdateCursor,
};
use bytes::Bytes;
use nodectl_pool_logic::{AnswerOutcome, PoolEffect, WorkerEnd, WorkerKey};
use nodectl_types::{NodeId, Time, text};
use nodectl_wire::frames::{
    AGAIN, FromClient, FromWorker, HEADER_BYTES, Header, PULL, ToClient, ToWorker,
};
use std::sync::Arc;

/// A worker as the hub knows it.
pub(super) struct HubWorker {
    node: NodeId,
    outbox: Arc<PoolOutbox>,
    cursor: UpdateCursor,
    /// The task of whose result some chunks went to the client.
    partial: Option<u64>,
    /// What its `__init__` raised.
    error: Option<String>,
    /// How its process ended.
    ended: Option<String>,
}

impl Hub {
    pub(super) fn joined(
        &mut self,
        key: WorkerKey,
        node: NodeId,
        outbox: Arc<PoolOutbox>,
        now: Time,
    ) {
        outbox.spooled(&self.init, 0..self.init.bytes());
        outbox.flush();
        self.workers.insert(
            key,
            HubWorker {
                node,
                outbox,
                cursor: UpdateCursor::default(),
                partial: None,
                error: None,
                ended: None,
            },
        );
        self.pool.join(key, node, now);
        self.changed = true;
    }

    pub(super) fn worker_frames(&mut self, key: WorkerKey, batch: Bytes, now: Time) {
        for frame in frames::<FromWorker>(batch) {
            if !self.workers.contains_key(&key) {
                return;
            }
            if let Err(problem) = self.worker_frame(key, frame, now) {
                tracing::warn!("a worker of pool {} is ended: it sent {problem}", self.name);
                self.worker_gone(key, now);
                return;
            }
        }
    }

    fn worker_frame(
        &mut self,
        key: WorkerKey,
        frame: Frame<FromWorker>,
        now: Time,
    ) -> Result<(), &'static str> {
        match frame.header.kind {
            FromWorker::Ready => {
                self.changed = true;
                // From here on it gets each update by itself; what was before may come as a
                // snapshot.
                let worker = self
                    .workers
                    .get_mut(&key)
                    .expect("the worker was found by this key");
                self.updates.feed(&mut worker.cursor, &worker.outbox);
                if self.pool.ready(key) {
                    Ok(())
                } else {
                    Err("READY twice")
                }
            }
            FromWorker::InitFailed => {
                let worker = self
                    .workers
                    .get_mut(&key)
                    .expect("the worker was found by this key");
                worker
                    .error
                    .get_or_insert_with(|| explain(&frame.payload()));
                Ok(())
            }
            FromWorker::Ended => {
                let worker = self
                    .workers
                    .get_mut(&key)
                    .expect("the worker was found by this key");
                worker.ended = Some(text::lines(&String::from_utf8_lossy(&frame.payload())).into());
                Ok(())
            }
            FromWorker::Done | FromWorker::Failed => self.answer(key, frame, now),
            FromWorker::UpdateFailed => {
                self.update_failed(&frame);
                Ok(())
            }
            FromWorker::Hello => Err("HELLO twice"),
        }
    }

    fn answer(
        &mut self,
        key: WorkerKey,
        frame: Frame<FromWorker>,
        now: Time,
    ) -> Result<(), &'static str> {
        let id = frame.header.id;
        let has_more = frame.header.has_more();
        let answer = if has_more {
            self.pool.is_answering(key, id)
        } else {
            self.pool.answered(key, id, now)
        };
        let worker = self
            .workers
            .get_mut(&key)
            .expect("the worker was found by this key");
        match answer {
            AnswerOutcome::Unasked => return Err("an answer to what it was not asked"),
            AnswerOutcome::Discard => {
                worker.partial = None;
                self.void.remove(&id);
            }
            AnswerOutcome::Forward => {
                worker.partial = has_more.then_some(id);
                if self.void.remove(&id) {
                    let header = Header {
                        flags: frame.header.flags | AGAIN,
                        ..frame.header
                    };
                    self.client.frame(header, &frame.payload());
                } else {
                    self.client.frames(frame.whole);
                }
            }
        }
        Ok(())
    }

    /// Workers may tell of one update at the same time: each in one frame, if need be without the
    /// exception itself.
    fn update_failed(&mut self, frame: &Frame<FromWorker>) {
        let mut payload = frame.payload();
        if frame.header.has_more() {
            let line = payload
                .iter()
                .position(|byte| *byte == b'\n')
                .map_or(payload.len(), |end| end + 1);
            payload.truncate(line);
        }
        // The rest of a long one begins with no JSON.
        if payload.first() == Some(&b'{') {
            self.client.frame(
                Header::new(ToClient::UpdateFailed, frame.header.id, payload.len()),
                &payload,
            );
        }
    }

    pub(super) fn worker_gone(&mut self, key: WorkerKey, now: Time) {
        let Some(worker) = self.workers.remove(&key) else {
            return;
        };
        worker.outbox.kill();
        self.void.extend(worker.partial);
        self.pulls.worker_gone(key);
        let end = WorkerEnd {
            error: worker.error.as_deref(),
            process: worker.ended.as_deref(),
        };
        self.pool.died(key, end, now);
        self.updates
            .trim(self.workers.values().map(|worker| &worker.cursor));
        self.changed = true;
    }

    /// Carries out what was decided.
    pub(super) fn finish_turn(&mut self, now: Time) -> Result<(), PoolEnd> {
        let mut effects = std::mem::take(&mut self.effects);
        effects.extend(self.pool.finish_turn(now));
        let mut touched = std::mem::take(&mut self.touched);
        for effect in effects.drain(..) {
            if let Some(key) = self.carry_out(effect)? {
                touched.push(key);
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for key in touched.drain(..) {
            if let Some(worker) = self.workers.get(&key) {
                worker.outbox.flush();
            }
        }
        (self.effects, self.touched) = (effects, touched);
        Ok(())
    }

    /// The worker to which something is to be written, if one is.
    fn carry_out(&mut self, effect: PoolEffect<Bytes>) -> Result<Option<WorkerKey>, PoolEnd> {
        Ok(match effect {
            PoolEffect::Run {
                worker: key,
                task,
                arguments,
            } => {
                if let Some(worker) = self.workers.get(&key) {
                    worker.outbox.frame(
                        Header::new(ToWorker::Run, task, arguments.len()),
                        &arguments,
                    );
                }
                if self.telling.remove(&task) {
                    let node = self.workers.get(&key).map(|worker| worker.node.to_string());
                    let node = node.unwrap_or_default();
                    self.tell_client(ToClient::Started, task, node.as_bytes());
                }
                Some(key)
            }
            PoolEffect::Pull { worker: key, task } => {
                if let Some(worker) = self.workers.get(&key)
                    && self.pulls.begin(task, (key, worker.outbox.clone()))
                {
                    self.tell_client(ToClient::Send, task, b"");
                }
                None
            }
            PoolEffect::Feed { worker: key, .. } => {
                if let Some(worker) = self.workers.get_mut(&key) {
                    self.updates.feed(&mut worker.cursor, &worker.outbox);
                }
                Some(key)
            }
            PoolEffect::Exit { worker: key } => {
                if let Some(worker) = self.workers.get(&key) {
                    worker
                        .outbox
                        .frame(Header::new(ToWorker::Exit, 0, 0), &Bytes::new());
                }
                self.changed = true;
                Some(key)
            }
            PoolEffect::Kill { worker: key } => {
                if let Some(worker) = self.workers.get(&key) {
                    worker.outbox.kill();
                }
                None
            }
            PoolEffect::Lost { task, why } => {
                self.void.remove(&task);
                self.tell_client(ToClient::Lost, task, why.as_bytes());
                None
            }
            PoolEffect::Fail { why } => return Err(PoolEnd::Failed(why)),
        })
    }

    /// Has workers let go of what the client needs no more, on nodes that have one.
    pub(super) fn pass_releases_on(&mut self) {
        for node in self.releases.nodes() {
            let Some(key) = self.pool.least_busy(node) else {
                continue;
            };
            let Some(worker) = self.workers.get(&key) else {
                continue;
            };
            for payload in self.releases.of(node) {
                let header = Header::new(ToWorker::Release, 0, payload.len());
                worker.outbox.frame(header, &payload);
            }
            self.touched.push(key);
        }
    }

    /// A chunk of arguments that were asked for.
    pub(super) fn pulled(&mut self, frame: &Frame<FromClient>) -> Result<(), PoolEnd> {
        let Header { id, flags, .. } = frame.header;
        match self.pulls.chunk(id) {
            Some(Some((_, outbox))) => {
                outbox.frame(
                    Header {
                        flags: flags & !PULL,
                        ..frame.header
                    },
                    &frame.payload(),
                );
                outbox.flush();
            }
            Some(None) => {}
            None => {
                return Err(PoolEnd::Failed(format!(
                    "the arguments of task {id} came in pieces, and were not asked for"
                )));
            }
        }
        if !frame.header.has_more() && self.pulls.end(id) {
            self.tell_client(ToClient::Send, id, b"");
        }
        Ok(())
    }

    /// Every worker is to end.
    pub(super) fn dismiss(&mut self) {
        for worker in self.workers.values() {
            worker
                .outbox
                .frame(Header::new(ToWorker::Exit, 0, 0), &Bytes::new());
            worker.outbox.finish();
        }
    }

    pub(super) fn tell_client(&self, kind: ToClient, id: u64, payload: &[u8]) {
        debug_assert!(
            payload.len() + HEADER_BYTES < 1 << 20,
            "the pool's own messages are short"
        );
        self.client.frame(
            Header::new(kind, id, payload.len()),
            &Bytes::copy_from_slice(payload),
        );
    }
}

/// An error's traceback, or what there is of it.
fn explain(payload: &[u8]) -> String {
    let line = payload
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let json: serde_json::Value = serde_json::from_slice(line).unwrap_or_default();
    let text = |field: &str| {
        json[field]
            .as_str()
            .filter(|text| !text.is_empty())
            .map(str::to_string)
    };
    text("traceback")
        .or(text("message"))
        .unwrap_or_else(|| String::from_utf8_lossy(line).into_owned())
}
