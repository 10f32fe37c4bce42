//! Users' questions: answered here where possible, else passed to whoever can, again and again
//! until the answer comes or time is up. A takeover in between goes unnoticed by the user.

use super::{
    State,
    coordinator::{Appended, Coordinator, Watcher},
    core::Core,
    io::{Asker, Effect, Lookup},
    lattice::Lattice,
    timers::Timer,
};
use nodectl_types::{
    Answer, Answerer, JobHead, JobId, Message, NodeId, Query, QueryError, TaskIndex, Time, limits,
    query::{Location, MemberLine},
};
use std::{collections::BTreeMap, time::Duration};

/// Open questions are looked at this often.
const PERIOD: Duration = Duration::from_millis(200);

/// Questions that were passed on, or wait for someone to pass them to.
#[derive(Debug, Default)]
pub struct Questions {
    open: BTreeMap<u64, OpenQuestion>,
    timer_set: bool,
}

#[derive(Debug)]
struct OpenQuestion {
    query: Query,
    sent_to: Option<NodeId>,
    deadline: Time,
}

impl State {
    pub(super) fn ask(&mut self, asker: Asker, query: Query) {
        match query {
            Query::Submit { job, spec } => self.submit(asker, job, spec),
            Query::Nodes => {
                let answer = Answer::Nodes(self.member_lines());
                self.core.answer(asker, Ok(answer));
            }
            Query::Jobs => {
                let heads = self.core.directory.iter().cloned().collect();
                self.core.answer(asker, Ok(Answer::Jobs(heads)));
            }
            Query::Aside => {
                let aside = self.aside();
                self.core.answer(asker, Ok(Answer::Aside(aside)));
            }
            Query::Pause(pause) => {
                let answer = self.pause(asker, pause);
                self.core.answer(asker, answer);
            }
            Query::Remove { job } if self.is_ending(job) => self.keep_open(asker, query, None),
            Query::Remove { job } => {
                let answer = self.remove(job);
                self.core.answer(asker, answer);
            }
            Query::Resume { job } => {
                let answer = self.resume(job);
                self.core.answer(asker, answer);
            }
            Query::PutSecret { name, sealed } => self.put_secret(asker, name, sealed),
            Query::Secrets => self.answer_secrets(asker),
            Query::Cancel { job } => {
                self.cancel_aside(job);
                self.ask_whoever_knows(asker, query);
            }
            Query::Roster(decision) => {
                let answer = self.decide(asker, decision);
                self.core.answer(asker, answer);
            }
            query => self.ask_whoever_knows(asker, query),
        }
    }

    fn ask_whoever_knows(&mut self, asker: Asker, query: Query) {
        match (self.who_knows(&query), asker) {
            (Ok(Some(node)), _) if node == self.core.me => self.answer_here(asker, query),
            (Err(error), _) => self.core.answer(asker, Err(error)),
            // Questions travel one step: the asker finds another way.
            (Ok(_), Asker::Remote(..)) => {
                let job = query.coordinator_of().unwrap_or(JobId(0));
                self.core.answer(asker, Err(self.no_coordinator(job)));
            }
            (Ok(to), asker) => {
                if let (Some(node), Asker::Local(id)) = (to, asker) {
                    let query = query.clone();
                    self.core.send(node, Message::Ask { id, query });
                }
                self.keep_open(asker, query, to);
            }
        }
    }

    /// Keeps a question of this node's users until it can be answered, at most for so long as it
    /// may take. Another node's users are told at once that it cannot be answered yet.
    fn keep_open(&mut self, asker: Asker, query: Query, sent_to: Option<NodeId>) {
        let Asker::Local(id) = asker else {
            let error = self.unanswered(&query, sent_to);
            return self.core.answer(asker, Err(error));
        };
        let patience = match &query {
            Query::Watch { wait_ms, .. } => {
                Duration::from_millis(u64::from(*wait_ms)).min(limits::WATCH_WAIT)
            }
            _ => Duration::ZERO,
        };
        let deadline = self.core.mono() + limits::QUERY_TIMEOUT + patience;
        let open = OpenQuestion {
            query,
            sent_to,
            deadline,
        };
        self.questions.open.insert(id, open);
        self.set_question_timer();
    }

    /// The node that can answer; `None` if there is none just now.
    fn who_knows(&self, query: &Query) -> Result<Option<NodeId>, QueryError> {
        let job = match query.answerer() {
            Answerer::Asked => return Ok(Some(self.core.me)),
            Answerer::Named(node) if self.core.members.is_alive(node) => return Ok(Some(node)),
            Answerer::Named(node) => return Err(QueryError::NoNode(node)),
            Answerer::Coordinator(job) => job,
        };
        if self.coordinators.contains_key(&job) {
            return Ok(Some(self.core.me));
        }
        let head = self.core.directory.get(job).ok_or(QueryError::NoJob(job))?;
        if self.aside.contains(&job) {
            return Err(QueryError::PutAside(job));
        }
        let usable = head.holder != self.core.me && self.core.members.is_reachable(head.holder);
        Ok(usable.then_some(head.holder))
    }

    fn no_coordinator(&self, job: JobId) -> QueryError {
        let nodes = self
            .core
            .directory
            .get(job)
            .map(JobHead::holders)
            .unwrap_or_default();
        let names: Vec<_> = nodes
            .into_iter()
            .map(|node| self.core.members.name(node))
            .collect();
        QueryError::NoCoordinator {
            job,
            holders: names.join(", "),
        }
    }

    /// An answer from another node.
    pub(super) fn answered(&mut self, id: u64, answer: Result<Answer, QueryError>) {
        let Some(open) = self.questions.open.get_mut(&id) else {
            return;
        };
        if matches!(
            answer,
            Err(QueryError::NoCoordinator { .. } | QueryError::Leaving)
        ) {
            open.sent_to = None;
            return;
        }
        self.questions.open.remove(&id);
        self.core.effects.push(Effect::Answer { id, answer });
    }

    /// Looks again for someone who can answer what is still open.
    pub(super) fn ask_again(&mut self) {
        let ids: Vec<_> = self.questions.open.keys().copied().collect();
        for id in ids {
            let open = &self.questions.open[&id];
            let (query, sent_to, deadline) = (open.query.clone(), open.sent_to, open.deadline);
            if deadline <= self.core.mono() {
                self.questions.open.remove(&id);
                let error = self.unanswered(&query, sent_to);
                self.core.effects.push(Effect::Answer {
                    id,
                    answer: Err(error),
                });
                continue;
            }
            if let Query::Remove { job } = query {
                if !self.is_ending(job) {
                    self.questions.open.remove(&id);
                    let answer = self.remove(job);
                    self.core.answer(Asker::Local(id), answer);
                }
                continue;
            }
            match self.who_knows(&query) {
                Ok(Some(node)) if node == self.core.me => {
                    self.questions.open.remove(&id);
                    self.answer_here(Asker::Local(id), query);
                }
                Ok(Some(node)) if sent_to != Some(node) => {
                    self.core.send(node, Message::Ask { id, query });
                    self.questions
                        .open
                        .get_mut(&id)
                        .expect("a key of the map")
                        .sent_to = Some(node);
                }
                Ok(_) => {}
                Err(error) => {
                    self.questions.open.remove(&id);
                    self.core.effects.push(Effect::Answer {
                        id,
                        answer: Err(error),
                    });
                }
            }
        }
        self.set_question_timer();
    }

    /// The timer fired: set it again if there is still something open.
    pub(super) fn question_timer(&mut self) {
        self.questions.timer_set = false;
        self.ask_again();
    }

    fn set_question_timer(&mut self) {
        if !self.questions.open.is_empty()
            && !std::mem::replace(&mut self.questions.timer_set, true)
        {
            self.core.after(PERIOD, Timer::Questions);
        }
    }

    fn unanswered(&self, query: &Query, sent_to: Option<NodeId>) -> QueryError {
        if let Query::Remove { job } = query {
            return QueryError::NotEnded(*job);
        }
        match (sent_to, query.coordinator_of()) {
            (None, Some(job)) => self.no_coordinator(job),
            (Some(node), _) => QueryError::Timeout(self.core.members.name(node)),
            (None, None) => QueryError::Timeout("the node".into()),
        }
    }

    fn answer_here(&mut self, asker: Asker, query: Query) {
        match query {
            Query::Load { .. } => {
                let load = self.executor.load();
                self.core.look_up(asker, Lookup::Load(load));
            }
            Query::Training { job, .. } => self.core.look_up(asker, Lookup::Training(job)),
            Query::History { span, from, .. } => {
                self.core.look_up(asker, Lookup::History { span, from });
            }
            Query::Program { replace, .. } => {
                let by = match asker {
                    Asker::Local(_) => None,
                    Asker::Remote(node, _) => Some(node),
                };
                self.core.look_up(asker, Lookup::Program { replace, by });
            }
            Query::Events { within_ms, .. } => {
                let now = self.core.now.wall_ms;
                let since = within_ms.map_or(0, |within| now.saturating_sub(within));
                let events = self.core.chronicle.since(since);
                self.core.answer(asker, Ok(Answer::Events(events)));
            }
            Query::CopyCheckpoint {
                job,
                step,
                from,
                keep,
                ..
            } => {
                self.core.effects.push(Effect::CopyCheckpoint {
                    job,
                    step,
                    from,
                    keep,
                });
                self.core.answer(asker, Ok(Answer::Ok));
            }
            Query::Log {
                job,
                task,
                attempt,
                stream,
                offset,
                ..
            } => {
                let lookup = Lookup::Log {
                    job,
                    task,
                    attempt,
                    stream,
                    offset,
                };
                self.core.look_up(asker, lookup);
            }
            Query::Drain { on, .. } => {
                let answer = self.drain(asker, on);
                self.core.answer(asker, answer);
            }
            Query::Forget { lost, sure, .. } => {
                let answer = self.forget(lost, sure);
                self.core.answer(asker, answer.map(|()| Answer::Ok));
            }
            query => self.answer_as_coordinator(asker, query),
        }
    }

    /// A person says that a node is dead for good. One that is reached is not.
    fn forget(&mut self, lost: NodeId, sure: bool) -> Result<(), QueryError> {
        let members = &mut self.core.members;
        let name = members.name(lost);
        if members.may_be_alive(lost) {
            return Err(QueryError::Reachable {
                node: name,
                by: members.name(self.core.me),
            });
        }
        if sure && members.forget(lost) {
            self.core.notice(format!(
                "{name} ({}) is forgotten: somebody declared it dead",
                lost.short()
            ));
            self.members_changed();
        }
        Ok(())
    }

    fn answer_as_coordinator(&mut self, asker: Asker, query: Query) {
        let Some(job) = query.coordinator_of() else {
            return self.core.answer(asker, Err(unanswerable()));
        };
        let Some(query) = self.ask_when_recalled(job, asker, query) else {
            return;
        };
        let Some((coordinator, copy)) = super::pair(&mut self.coordinators, &mut self.copies, job)
        else {
            return;
        };
        let (core, lattice) = (&mut self.core, &copy.lattice);
        let tasks = coordinator.total(lattice);
        if let Some(task) = last_named(&query).filter(|task| *task >= tasks) {
            return core.answer(asker, Err(QueryError::NoTask { job, task, tasks }));
        }
        let answer = match query {
            Query::Job { .. } => Answer::Job(Box::new(coordinator.detail(core, lattice, asker))),
            Query::Tasks {
                filter,
                offset,
                limit,
                ..
            } => coordinator.list(core, lattice, filter, offset, limit),
            Query::Explain { task, .. } => {
                Answer::Explanation(coordinator.explain(core, lattice, task))
            }
            Query::Locate { task, rank, .. } if rank >= coordinator.ranks() => {
                let ranks = coordinator.ranks();
                let why = format!(
                    "task {task} has no rank {rank}: it has {ranks} at most, counted from 0"
                );
                return core.answer(asker, Err(QueryError::Invalid(why)));
            }
            Query::Locate { task, rank, .. } => match coordinator.locate(lattice, task, rank) {
                Some(location @ (Location::Running { .. } | Location::Nowhere)) => {
                    Answer::Where(location)
                }
                _ => return core.look_up(asker, Lookup::Record { job, task }),
            },
            Query::Watch {
                cursor,
                wait_ms,
                limit,
                ..
            } => {
                let until = core.mono() + Duration::from_millis(u64::from(wait_ms));
                let watcher = Watcher {
                    asker,
                    cursor,
                    until,
                    limit,
                };
                return coordinator.watch(core, lattice, watcher);
            }
            // The others change something: the coordinator has its turn.
            query => {
                self.touched.insert(job);
                return change_job(coordinator, core, lattice, (asker, query));
            }
        };
        core.answer(asker, Ok(answer));
    }

    fn member_lines(&self) -> Vec<MemberLine> {
        let me = MemberLine {
            info: self.core.members.my_info().clone(),
            alive: true,
            gone: false,
            this_node: true,
        };
        let visible = self
            .core
            .members
            .peers()
            .filter(|(_, peer)| peer.alive || !peer.left);
        let others = visible.filter_map(|(_, peer)| {
            let info = peer.info.clone()?;
            Some(MemberLine {
                info,
                alive: peer.alive,
                gone: peer.gone,
                this_node: false,
            })
        });
        std::iter::once(me).chain(others).collect()
    }
}

/// What users want changed in a job.
fn change_job(
    coordinator: &mut Coordinator,
    core: &mut Core,
    lattice: &Lattice,
    (asker, query): (Asker, Query),
) {
    match query {
        Query::Retry { .. } => coordinator.retry_tasks(core, lattice, asker),
        Query::Cancel { .. } => coordinator.cancel_job(core, lattice, asker),
        Query::CancelTasks { tasks, .. } => coordinator.cancel_tasks(core, lattice, asker, tasks),
        Query::Append {
            key, known, value, ..
        } => coordinator.append(core, asker, Appended { key, known, value }),
        Query::Add { rows, .. } => coordinator.add(core, asker, rows),
        Query::Close { .. } => coordinator.close(core, lattice, asker),
        Query::Saved { step, node, .. } => {
            coordinator.saved(core, lattice, step, node);
            core.answer(asker, Ok(Answer::Ok));
        }
        _ => core.answer(asker, Err(unanswerable())),
    }
}

/// Of a query that nothing here has an answer for: a defect, which its asker hears of at once.
fn unanswerable() -> QueryError {
    QueryError::Invalid("nobody can answer that".into())
}

/// The last task that a question names.
fn last_named(query: &Query) -> Option<TaskIndex> {
    match query {
        Query::Locate { task, .. }
        | Query::Explain {
            task: Some(task), ..
        } => Some(*task),
        Query::CancelTasks { tasks, .. } => tasks.iter().max().copied(),
        _ => None,
    }
}
