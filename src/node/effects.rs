//! Carrying out what logic decided. What takes time runs beside the loop and comes back as an
//! event.

use super::{Node, Ports};
use futures::{StreamExt, TryStreamExt, stream};
use nodectl_logic::{Asker, DiskEffect, Effect, Lookup, Note, TaskEffect, executor::batches};
use nodectl_ports::{Event, NetEvent, StoreEvent, WorkerEvent, Written, memory, specs};
use nodectl_types::{
    Answer, Attempt, BlobHash, JobId, JobSpec, Message, NodeId, NodeLoad, QueryError, Record,
    TaskIndex, TaskRecord,
    gang::MpiWorld,
    limits::{RECORD_BATCH, RECORD_BATCH_BYTES},
    query::{Cursor, Location, Progress},
};
use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// Files of one job brought at a time.
const PARALLEL_FETCHES: usize = 8;
/// Tasks of which the loop is told at a time what a journal says.
const RECALLED_PART: usize = 16_384;
/// Who waits for a note to be written hears after this long that it is not. A changed secret of the
/// cluster is stretched before.
const WRITTEN_WITHIN: Duration = Duration::from_secs(20);
/// Memory is given back so long after a job has come to rest: others come to rest meanwhile.
const GIVES_MEMORY_BACK: Duration = Duration::from_secs(10);
/// Most bytes of records in one answer.
const ANSWER_BYTES: usize = RECORD_BATCH_BYTES * 8;

impl Node {
    pub(super) fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            self.effect(effect);
        }
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Send { to, message } => self.ports.network.send(to, message),
            Effect::Connect { peer, addrs } => self.ports.network.connect(peer, &addrs),
            Effect::Answer { id, answer } => self.answer(id, answer),
            Effect::LookUp { to, lookup } => self.look_up(to, lookup),
            Effect::Disk(effect) => self.use_disk(effect),
            Effect::Task(effect) => self.run_tasks(effect),
            Effect::CopyCheckpoint {
                of,
                step,
                from,
                keep,
            } => self.ports.trainings.copy(of, step, from, keep),
            Effect::ForgetJob { job } => {
                self.ports.runner.forget(job);
                self.ports.journals.forget(job);
                self.ports.trainings.forget(job);
            }
            Effect::RenewSecrets(were) => {
                let are = self.ports.vault.renew(were.clone());
                self.waiting.push(Event::Renewed { were, are });
            }
            Effect::Keep { note, then } => self.keep(note, then),
            Effect::KeepThenSend { note, to, message } => self.keep_then_send(note, to, *message),
            Effect::Notice(text) => tracing::info!("{text}"),
            Effect::Left => self.left = true,
        }
    }

    /// Whoever asked for what is in the note is answered when it is on the disk.
    fn keep(&mut self, note: Note, then: Option<(Asker, Answer)>) {
        let is_of_members = matches!(note, Note::Members(_));
        let written = self.write(note);
        let Some((to, answer)) = then else {
            if is_of_members {
                self.members_kept = Some(written);
            }
            return;
        };
        let answer = async move {
            let written = tokio::time::timeout(WRITTEN_WITHIN, written).await;
            let late = || Err(format!("it is not written after {WRITTEN_WITHIN:.0?}"));
            written
                .unwrap_or_else(|_| late())
                .map(|()| answer)
                .map_err(|why| {
                    QueryError::Storage(format!(
                        "it holds now, but not after this node has started again: {why}"
                    ))
                })
        };
        match to {
            Asker::Local(id) => {
                if let Some(reply) = self.askers.remove(&id) {
                    tokio::spawn(async move { reply.send(answer.await) });
                }
            }
            Asker::Remote(node, id) => {
                let network = self.ports.network.clone();
                tokio::spawn(async move {
                    let answer = answer.await;
                    network.send(node, Message::Answer { id, answer });
                });
            }
        }
    }

    /// The message goes out when the note is on the disk: also to this node itself.
    fn keep_then_send(&self, note: Note, to: NodeId, message: Message) {
        let written = self.write(note);
        let (network, handle) = (self.ports.network.clone(), self.ports.handle.clone());
        let from = self.state.node();
        tokio::spawn(async move {
            if let Err(why) = written.await {
                tracing::debug!("nothing is said that cannot be written: {why}");
            } else if to == from {
                handle
                    .tell(Event::Net(NetEvent::Message { from, message }))
                    .await;
            } else {
                network.send(to, message);
            }
        });
    }

    fn write(&self, note: Note) -> Written {
        match note {
            Note::Retention(retention) => self.ports.retention.keep(retention),
            Note::Beginnings(beginnings) => self.ports.beginnings.keep(beginnings),
            Note::Members(records) => self.ports.members.keep(records),
            Note::Owner(word) => self.ports.owner.keep(word),
            Note::Secrets(secrets) => self.ports.vault.keep(secrets),
            Note::Roster(roster) => self.ports.network.adopt(*roster),
        }
    }

    /// Answers what only the node's surroundings know.
    fn look_up(&mut self, to: Asker, lookup: Lookup) {
        let answer = match lookup {
            Lookup::Watch {
                job,
                cursor,
                progress,
                tasks,
            } => self.watch(job, cursor, progress, &tasks),
            Lookup::Record { job, task } => self.read(job, &[task]).map(|mut records| {
                Answer::Where(records.pop().map_or(Location::Nowhere, Location::Ended))
            }),
            Lookup::Log(place) => {
                let read = self.ports.runner.read_log(place);
                read.map(|(bytes, ended)| Answer::Log { bytes, ended })
                    .map_err(|error| QueryError::NoLog(error.to_string()))
            }
            Lookup::Load(load) => {
                let (load_milli, memory_used_bytes) = self.ports.machine.load();
                Ok(Answer::Load(NodeLoad {
                    load_milli,
                    memory_used_bytes,
                    making: self.ports.runner.making(),
                    ..load
                }))
            }
            Lookup::Training(job) => Ok(Answer::Training(self.ports.trainings.look(job))),
            Lookup::History { span, from } => {
                Ok(Answer::History(self.ports.machine.history(span, from)))
            }
            Lookup::Program { replace, by } => {
                let told = self.ports.program.clone().look(replace, by);
                told.map(|here| Answer::Program(Box::new(here)))
            }
        };
        self.reply(to, answer);
    }

    /// Reads and writes what a job has on disks.
    fn use_disk(&mut self, effect: DiskEffect) {
        match effect {
            DiskEffect::SendRecords {
                to,
                job,
                epoch,
                chunk,
                tasks,
            } => self.send_records(to, (job, epoch, chunk), tasks),
            DiskEffect::Persist {
                job,
                records,
                ticket,
            } => self.persist(job, records, ticket),
            DiskEffect::Rest { job } => {
                self.ports.journals.rest(job);
                self.give_memory_back_soon();
            }
            DiskEffect::Recall { job, ticket } => self.recall(job, ticket),
            DiskEffect::Discard { job } => self.ports.journals.forget(job),
            DiskEffect::FetchBlobs {
                ticket,
                hashes,
                holders,
            } => self.fetch_blobs(ticket, hashes, holders),
            DiskEffect::FetchTree {
                ticket,
                manifest,
                holders,
            } => self.fetch_tree(ticket, manifest, holders),
            DiskEffect::LoadSpec { job, hash, holders } => self.load_spec(job, hash, holders),
        }
    }

    fn give_memory_back_soon(&self) {
        let planned = self.gives_memory_back.clone();
        if planned.swap(true, Ordering::Relaxed) {
            return;
        }
        tokio::spawn(async move {
            tokio::time::sleep(GIVES_MEMORY_BACK).await;
            planned.store(false, Ordering::Relaxed);
            tokio::task::spawn_blocking(memory::give_back);
        });
    }

    /// Starts and ends what runs on this node.
    fn run_tasks(&mut self, effect: TaskEffect) {
        match effect {
            TaskEffect::Start(task) => self.ports.runner.start(task),
            TaskEffect::FindPort {
                job,
                task,
                attempt,
                world,
            } => self.find_port(job, task, attempt, world),
            TaskEffect::ClosePort { job, task, attempt } => {
                self.ports.runner.close_world(job, task, attempt);
            }
            TaskEffect::Stop {
                job,
                task,
                attempt,
                goes_on,
            } => self.ports.runner.stop(job, task, attempt, goes_on),
            TaskEffect::Fail {
                job,
                task,
                attempt,
                status,
            } => self.ports.runner.fail(job, task, attempt, status),
            TaskEffect::Suspend(on) => self.ports.runner.suspend(on),
            TaskEffect::ReleaseWorker { node, pool, must } => {
                self.ports.pools.release(pool, node, must);
            }
            TaskEffect::Forget { job } => self.ports.runner.forget(job),
        }
    }

    /// Listens at one port, then looks for another: so they differ.
    fn find_port(
        &mut self,
        job: JobId,
        task: TaskIndex,
        attempt: Attempt,
        world: Option<MpiWorld>,
    ) {
        let runner = &self.ports.runner;
        let warn = |error: &io::Error| tracing::warn!("no free port: {error}");
        let pmi = world.and_then(|world| {
            let opened = runner.open_world(job, task, attempt, world);
            opened.inspect_err(warn).ok()
        });
        let port = runner.free_port().inspect_err(warn).ok();
        self.waiting.push(Event::Worker(WorkerEvent::Port {
            job,
            task,
            attempt,
            port,
            pmi,
        }));
    }

    /// Answers whoever asked, here or on another node.
    fn reply(&mut self, to: Asker, answer: Result<Answer, QueryError>) {
        match to {
            Asker::Local(id) => self.answer(id, answer),
            Asker::Remote(node, id) => {
                self.ports
                    .network
                    .send(node, Message::Answer { id, answer });
            }
        }
    }

    /// As many of the records as fit into an answer; the cursor tells where the rest begins.
    fn watch(
        &self,
        job: JobId,
        mut cursor: Cursor,
        progress: Progress,
        tasks: &[TaskIndex],
    ) -> Result<Answer, QueryError> {
        let mut records = self.read(job, tasks)?;
        let read = records.len();
        let mut bytes = 0;
        let fits = records.iter().take_while(|record| {
            bytes += record.encoded_bytes();
            bytes <= ANSWER_BYTES
        });
        records.truncate(fits.count().max(1).min(read));
        cursor.position -= (read - records.len()) as u32;
        Ok(Answer::Watch {
            cursor,
            progress,
            records,
        })
    }

    fn read(&self, job: JobId, tasks: &[TaskIndex]) -> Result<Vec<Arc<TaskRecord>>, QueryError> {
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        self.ports
            .journals
            .read(job, tasks)
            .map_err(|error| match error.kind() {
                io::ErrorKind::InvalidData => QueryError::Damaged(error.to_string()),
                _ => QueryError::Storage(error.to_string()),
            })
    }

    /// Beside the loop: what is asked for at once is bounded by who asks.
    fn send_records(
        &self,
        to: NodeId,
        (job, epoch, chunk): (JobId, u32, u32),
        mut tasks: Vec<TaskIndex>,
    ) {
        let (ports, is_me) = (self.ports.clone(), to == self.state.node());
        let more = tasks.len() > RECORD_BATCH;
        tasks.truncate(RECORD_BATCH);
        tokio::task::spawn_blocking(move || {
            let read = ports.journals.read(job, &tasks);
            let error = read.as_ref().err().map(ToString::to_string);
            let mut batches = batches(read.unwrap_or_default());
            let more = error.is_none() && (more || batches.len() > 1);
            let records = if batches.is_empty() {
                Vec::new()
            } else {
                batches.swap_remove(0)
            };
            let message = Message::Pulled {
                job,
                epoch,
                chunk,
                records,
                more,
                error,
            };
            if is_me {
                let event = Event::Net(NetEvent::Message { from: to, message });
                // False when the node has ended: nobody waits for them then.
                ports.handle.blocking_tell(event);
            } else {
                ports.network.send(to, message);
            }
        });
    }

    /// Beside the loop, in parts that take it no time.
    fn recall(&self, job: JobId, ticket: u64) {
        let ports = self.ports.clone();
        tokio::task::spawn_blocking(move || {
            let tell = |cells, more| {
                let event = StoreEvent::Recalled {
                    job,
                    ticket,
                    cells,
                    more,
                };
                // False when the node has ended: nobody waits for them then.
                ports.handle.blocking_tell(Event::Store(event));
            };
            let mut part = Vec::new();
            let read = ports.journals.recall(job, &mut |task, cell| {
                part.push((task, cell));
                if part.len() == RECALLED_PART {
                    tell(Ok(std::mem::take(&mut part)), true);
                }
            });
            tell(
                read.map(|()| part).map_err(|error| error.to_string()),
                false,
            );
        });
    }

    fn persist(&mut self, job: JobId, records: Vec<Record>, ticket: u64) {
        for record in &records {
            if let Record::Spec(spec) = record {
                self.share_spec(spec.clone());
            }
        }
        self.ports.journals.append(job, records, ticket);
    }

    /// A specification that is not small is a blob, too.
    fn share_spec(&self, spec: Arc<JobSpec>) {
        let blobs = self.ports.blobs.clone();
        tokio::task::spawn_blocking(move || specs::share(&*blobs, &spec));
    }

    fn fetch_blobs(&self, ticket: u64, hashes: Vec<BlobHash>, holders: Vec<NodeId>) {
        let ports = self.ports.clone();
        tokio::spawn(async move {
            let fetches =
                stream::iter(hashes).map(|hash| ports.fetcher.fetch(hash, holders.clone()));
            let result = fetches
                .buffer_unordered(PARALLEL_FETCHES)
                .try_collect()
                .await;
            ports
                .handle
                .tell(Event::Store(StoreEvent::Fetched { ticket, result }))
                .await;
        });
    }

    fn fetch_tree(&self, ticket: u64, manifest: BlobHash, holders: Vec<NodeId>) {
        let ports = self.ports.clone();
        tokio::spawn(async move {
            let result = fetch_tree(&ports, manifest, holders).await;
            ports
                .handle
                .tell(Event::Store(StoreEvent::Fetched { ticket, result }))
                .await;
        });
    }

    fn load_spec(&self, job: JobId, hash: BlobHash, holders: Vec<NodeId>) {
        let ports = self.ports.clone();
        tokio::spawn(async move {
            let spec = specs::fetch(&*ports.fetcher, &ports.blobs, hash, holders).await;
            ports
                .handle
                .tell(Event::Store(StoreEvent::SpecLoaded { job, spec }))
                .await;
        });
    }
}

/// Brings a manifest and every file that it names.
async fn fetch_tree(ports: &Ports, manifest: BlobHash, holders: Vec<NodeId>) -> Result<(), String> {
    ports.fetcher.fetch(manifest, holders.clone()).await?;
    let blobs = ports.blobs.clone();
    let reading = tokio::task::spawn_blocking(move || specs::manifest(&*blobs, manifest));
    let manifest = reading.await.map_err(|error| error.to_string())?;
    let manifest = manifest.map_err(|why| format!("the list of uploaded files: {why}"))?;
    let hashes: BTreeSet<_> = manifest.files.iter().map(|file| file.hash).collect();
    let fetches = stream::iter(hashes).map(|hash| ports.fetcher.fetch(hash, holders.clone()));
    fetches
        .buffer_unordered(PARALLEL_FETCHES)
        .try_collect()
        .await
}
