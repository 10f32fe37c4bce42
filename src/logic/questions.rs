//! Users' questions: answered here where possible, else passed to whoever can, again and again
//! until the answer comes or time is up. A takeover in between goes unnoticed by the user.

use super::{
    State,
    coordinator::{Coordinator, WantedAppend, Watcher},
    io::{Asker, Effect, Lookup},
    lattice::Lattice,
    timers::Timer,
};
use nodectl_types::{
    Answer, JobHead, JobId, JobQuery, Message, NodeId, NodeInfo, NodeQuery, Query, QueryError,
    TaskIndex, Time, limits,
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

/// What not every node can answer at once.
#[derive(Clone, Debug)]
enum RoutedQuery {
    /// Answered here, when the end of the job is confirmed.
    Removal(JobId),
    Job(JobId, JobQuery),
    Node(NodeId, NodeQuery),
}

impl From<RoutedQuery> for Query {
    fn from(question: RoutedQuery) -> Self {
        match question {
            RoutedQuery::Removal(job) => Query::Remove { job },
            RoutedQuery::Job(job, query) => Query::Job(job, query),
            RoutedQuery::Node(node, query) => Query::Node(node, query),
        }
    }
}

#[derive(Debug)]
struct OpenQuestion {
    question: RoutedQuery,
    sent_to: Option<NodeId>,
    deadline: Time,
}

impl State {
    pub(super) fn ask(&mut self, asker: Asker, query: Query) {
        match query {
            Query::Submit {
                job,
                asked_before,
                spec,
            } => self.submit(asker, (job, asked_before), spec),
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
            Query::Pause(pause) => self.pause(asker, pause),
            Query::Remove { job } => self.ask_whoever_knows(asker, RoutedQuery::Removal(job)),
            Query::Resume { job } => {
                let answer = self.resume(job);
                self.core.answer(asker, answer);
            }
            Query::PutSecret { name, sealed } => self.put_secret(asker, name, sealed),
            Query::Secrets => self.answer_secrets(asker),
            Query::Roster(decision) => self.decide(asker, decision),
            Query::Job(job, query) => {
                if query == JobQuery::Cancel {
                    self.cancel_aside(job);
                }
                self.ask_whoever_knows(asker, RoutedQuery::Job(job, query));
            }
            Query::Node(node, query) => {
                self.ask_whoever_knows(asker, RoutedQuery::Node(node, query));
            }
        }
    }

    fn ask_whoever_knows(&mut self, asker: Asker, question: RoutedQuery) {
        if let RoutedQuery::Job(job, _) = &question {
            self.want(*job);
        }
        match (self.who_knows(&question), asker) {
            (Ok(Some(node)), _) if node == self.core.me => self.answer_here(asker, question),
            (Err(error), _) => self.core.answer(asker, Err(error)),
            // Questions travel one step: the asker finds another way.
            (Ok(_), Asker::Remote(..)) => {
                let error = self.unanswered(&question, None);
                self.core.answer(asker, Err(error));
            }
            (Ok(to), Asker::Local(id)) => {
                if let Some(node) = to {
                    self.pass_on(id, node, question.clone());
                }
                self.keep_open(id, question, to);
            }
        }
    }

    fn pass_on(&mut self, id: u64, to: NodeId, question: RoutedQuery) {
        let query = question.into();
        self.core.send(to, Message::Ask { id, query });
    }

    /// Keeps a question of this node's users until it can be answered, at most for so long as it
    /// may take.
    fn keep_open(&mut self, id: u64, question: RoutedQuery, sent_to: Option<NodeId>) {
        let patience = match &question {
            RoutedQuery::Job(_, JobQuery::Watch { wait_ms, .. }) => {
                Duration::from_millis(u64::from(*wait_ms)).min(limits::WATCH_WAIT)
            }
            RoutedQuery::Job(..) | RoutedQuery::Node(..) | RoutedQuery::Removal(_) => {
                Duration::ZERO
            }
        };
        let deadline = self.core.mono() + limits::QUERY_TIMEOUT + patience;
        let open = OpenQuestion {
            question,
            sent_to,
            deadline,
        };
        self.questions.open.insert(id, open);
        self.set_question_timer();
    }

    /// The node that can answer; `None` if there is none just now.
    fn who_knows(&self, question: &RoutedQuery) -> Result<Option<NodeId>, QueryError> {
        let me = self.core.me;
        let job = match question {
            RoutedQuery::Removal(job) => return Ok((!self.is_ending(*job)).then_some(me)),
            RoutedQuery::Node(node, _) if self.core.members.is_alive(*node) => {
                return Ok(Some(*node));
            }
            RoutedQuery::Node(node, _) => return Err(QueryError::NoNode(*node)),
            RoutedQuery::Job(job, _) => *job,
        };
        if self.coordinators.contains_key(&job) {
            return Ok(Some(me));
        }
        let head = self.core.directory.get(job).ok_or(QueryError::NoJob(job))?;
        if self.aside.contains(&job) {
            return Err(QueryError::PutAside(job));
        }
        let usable = head.holder != me && self.core.members.is_reachable(head.holder);
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
        self.tell(id, answer);
    }

    /// An open question has its answer.
    fn tell(&mut self, id: u64, answer: Result<Answer, QueryError>) {
        self.questions.open.remove(&id);
        self.core.effects.push(Effect::Answer { id, answer });
    }

    /// Looks again for someone who can answer what is still open.
    pub(super) fn ask_again(&mut self) {
        let ids: Vec<_> = self.questions.open.keys().copied().collect();
        for id in ids {
            let open = &self.questions.open[&id];
            let (question, sent_to) = (open.question.clone(), open.sent_to);
            if open.deadline <= self.core.mono() {
                let error = self.unanswered(&question, sent_to);
                self.tell(id, Err(error));
                continue;
            }
            match self.who_knows(&question) {
                Ok(Some(node)) if node == self.core.me => {
                    self.questions.open.remove(&id);
                    self.answer_here(Asker::Local(id), question);
                }
                Ok(Some(node)) if sent_to != Some(node) => {
                    self.pass_on(id, node, question);
                    if let Some(open) = self.questions.open.get_mut(&id) {
                        open.sent_to = Some(node);
                    }
                }
                Ok(_) => {}
                Err(error) => self.tell(id, Err(error)),
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

    fn unanswered(&self, question: &RoutedQuery, sent_to: Option<NodeId>) -> QueryError {
        match (question, sent_to) {
            (RoutedQuery::Removal(job), _) => QueryError::NotEnded(*job),
            (RoutedQuery::Job(job, _), None) => self.no_coordinator(*job),
            (RoutedQuery::Node(node, _), None) => QueryError::NoNode(*node),
            (RoutedQuery::Job(..) | RoutedQuery::Node(..), Some(node)) => {
                QueryError::Timeout(self.core.members.name(node))
            }
        }
    }

    fn answer_here(&mut self, asker: Asker, question: RoutedQuery) {
        match question {
            RoutedQuery::Removal(job) => self.remove(asker, job),
            RoutedQuery::Job(job, query) => self.answer_as_coordinator(asker, job, query),
            RoutedQuery::Node(_, query) => self.answer_as_node(asker, query),
        }
    }

    fn answer_as_node(&mut self, asker: Asker, query: NodeQuery) {
        let answer = match query {
            NodeQuery::Load => {
                let load = self.executor.load();
                return self.core.look_up(asker, Lookup::Load(load));
            }
            NodeQuery::Training { job } => return self.core.look_up(asker, Lookup::Training(job)),
            NodeQuery::History { span, from } => {
                return self.core.look_up(asker, Lookup::History { span, from });
            }
            NodeQuery::Program { replace } => {
                let by = match asker {
                    Asker::Local(_) => None,
                    Asker::Remote(node, _) => Some(node),
                };
                return self.core.look_up(asker, Lookup::Program { replace, by });
            }
            NodeQuery::Log(place) => return self.core.look_up(asker, Lookup::Log(place)),
            NodeQuery::Events { within_ms } => {
                let now = self.core.now.wall_ms;
                let since = within_ms.map_or(0, |within| now.saturating_sub(within));
                Ok(Answer::Events(self.core.chronicle.since(since)))
            }
            NodeQuery::CopyCheckpoint {
                of,
                step,
                from,
                keep,
            } => {
                self.core.effects.push(Effect::CopyCheckpoint {
                    of,
                    step,
                    from,
                    keep,
                });
                Ok(Answer::Ok)
            }
            NodeQuery::Drain { on } => return self.drain(asker, on),
            NodeQuery::Forget { lost, sure } => match self.forget(lost, sure) {
                Ok(()) if sure => return self.keep_owner(asker),
                answer => answer.map(|()| Answer::Ok),
            },
        };
        self.core.answer(asker, answer);
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
        let known = members.forgotten();
        if sure && !known.contains(&lost) && known.len() >= limits::MAX_FORGOTTEN {
            let most = limits::MAX_FORGOTTEN;
            return Err(QueryError::Refused(format!(
                "{most} nodes are forgotten, which is the most that are remembered as dead"
            )));
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

    fn answer_as_coordinator(&mut self, asker: Asker, job: JobId, query: JobQuery) {
        let Some(query) = self.ask_when_recalled(job, asker, query) else {
            return;
        };
        let Some((coordinator, copy)) = super::pair(&mut self.coordinators, &mut self.copies, job)
        else {
            return;
        };
        let (core, lattice) = (&mut self.core, &copy.lattice);
        let tasks = coordinator.total(lattice);
        if let Some(task) = query.last_task().filter(|task| *task >= tasks) {
            return core.answer(asker, Err(QueryError::NoTask { job, task, tasks }));
        }
        if query.is_order() {
            self.touched.insert(job);
        }
        match query {
            JobQuery::Detail => {
                let detail = coordinator.detail(core, lattice, asker);
                core.answer(asker, Ok(Answer::Job(Box::new(detail))));
            }
            JobQuery::Tasks {
                filter,
                offset,
                limit,
            } => {
                let answer = coordinator.list(core, lattice, filter, offset, limit);
                core.answer(asker, Ok(answer));
            }
            JobQuery::Explain { task } => {
                let why = coordinator.explain(core, lattice, task);
                core.answer(asker, Ok(Answer::Explanation(why)));
            }
            JobQuery::Locate { task, rank } => match location(coordinator, lattice, task, rank) {
                Ok(Some(location)) => core.answer(asker, Ok(Answer::Where(location))),
                Ok(None) => core.look_up(asker, Lookup::Record { job, task }),
                Err(error) => core.answer(asker, Err(error)),
            },
            JobQuery::Watch {
                cursor,
                wait_ms,
                limit,
            } => {
                let until = core.mono() + Duration::from_millis(u64::from(wait_ms));
                let watcher = Watcher {
                    asker,
                    cursor,
                    until,
                    limit,
                };
                coordinator.watch(core, lattice, watcher);
            }
            JobQuery::Retry => coordinator.retry_tasks(core, lattice, asker),
            JobQuery::Cancel => coordinator.cancel_job(core, lattice, asker),
            JobQuery::CancelTasks { tasks } => {
                coordinator.cancel_tasks(core, lattice, asker, tasks)
            }
            JobQuery::Append { key, known, value } => {
                coordinator.append(core, asker, WantedAppend { key, known, value });
            }
            JobQuery::Add { rows } => coordinator.add(core, asker, rows),
            JobQuery::Close => coordinator.close(core, lattice, asker),
            JobQuery::Saved { step, node } => {
                coordinator.saved(core, lattice, step, node);
                core.answer(asker, Ok(Answer::Ok));
            }
        }
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
        let remembered = self.core.members.remembered();
        let remembered = remembered.map(|(id, name)| MemberLine {
            info: NodeInfo::remembered(id, name),
            alive: false,
            gone: false,
            this_node: false,
        });
        std::iter::once(me)
            .chain(others)
            .chain(remembered)
            .collect()
    }
}

/// Where the output of a task is, or of one of its processes. None of a task that has ended, which
/// its record tells.
fn location(
    coordinator: &Coordinator,
    lattice: &Lattice,
    task: TaskIndex,
    rank: u32,
) -> Result<Option<Location>, QueryError> {
    let ranks = coordinator.ranks();
    if rank >= ranks {
        let why = format!("task {task} has no rank {rank}: it has {ranks} at most, counted from 0");
        return Err(QueryError::Invalid(why));
    }
    Ok(match coordinator.locate(lattice, task, rank) {
        Some(location @ (Location::Running { .. } | Location::Nowhere)) => Some(location),
        Some(Location::Ended(_)) | None => None,
    })
}
