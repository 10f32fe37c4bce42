//! What the machine's owner says, by settings and at the node itself, and what follows from it:
//! whether the node takes work, whose, and what becomes of tasks that run when it takes none any
//! more. Other members can drain a node as well; they cannot take back what its owner said.

use super::{
    State,
    io::{Asker, Effect, Note, TaskEffect},
    timers::Timer,
};
use nodectl_types::{
    Answer, Closed, NodeInfo, OwnerWord, Pause, QueryError, Surroundings, Terms, Time, WhenClosed,
    policy::Admits,
};
use std::time::Duration;

/// The owner's word, as far as it is known.
#[derive(Debug, Default)]
pub struct Owner {
    terms: Terms,
    word: OwnerWord,
    seen: Option<Surroundings>,
    /// Tasks stand still.
    suspended: bool,
    /// When those that are left are given to other nodes.
    stop_at: Option<Time>,
}

impl Owner {
    pub fn new(terms: Terms) -> Self {
        Self {
            terms,
            ..Self::default()
        }
    }

    pub fn admits(&self) -> &Admits {
        &self.terms.policy.admits
    }

    /// Why the node takes no work, if its owner says so.
    pub fn closed(&self, wall_ms: u64, is_open: bool) -> Option<Closed> {
        if !self.terms.takes_work {
            return Some(Closed::TakesNone);
        }
        if self.word.drained {
            return Some(Closed::Drained);
        }
        let pause = self
            .word
            .pause
            .filter(|pause| pause.until_ms.is_none_or(|until| wall_ms < until));
        pause
            .map(Closed::Paused)
            .or_else(|| self.terms.policy.closed(self.seen.as_ref(), is_open))
    }

    /// What becomes of running tasks then.
    fn when_closed(&self, closed: &Closed) -> WhenClosed {
        match closed {
            Closed::TakesNone | Closed::Drained | Closed::Paused(Pause { finish: true, .. }) => {
                WhenClosed::Finish
            }
            Closed::Paused(_) => WhenClosed::Suspend,
            Closed::Looking | Closed::Hours | Closed::Keyboard | Closed::Busy => {
                self.terms.policy.when_closed
            }
        }
    }
}

impl State {
    /// What was said at this node in an earlier life of it.
    pub fn restore_owner(&mut self, mut word: OwnerWord) {
        let forgotten = std::mem::take(&mut word.forgotten);
        self.core.members.restore_forgotten(forgotten);
        self.owner.word = word;
        self.look_at_owner();
    }

    /// The machine was looked at.
    pub(super) fn seen(&mut self, seen: Surroundings) {
        self.owner.seen = Some(seen);
        self.look_at_owner();
    }

    /// Tells everybody what the owner's word comes to now, if that is another thing than before,
    /// and has tasks keep to it.
    pub(super) fn look_at_owner(&mut self) {
        let known = self.core.members.my_info();
        let closed = self
            .owner
            .closed(self.core.now.wall_ms, known.closed.is_none());
        if known.closed != closed {
            let when = closed.as_ref().map(|closed| self.owner.when_closed(closed));
            let pause_ends = match closed {
                Some(Closed::Paused(Pause {
                    until_ms: Some(until),
                    ..
                })) => Some(until),
                _ => None,
            };
            self.info_changed(NodeInfo {
                closed,
                version: known.version + 1,
                ..known.clone()
            });
            self.keep_to(when);
            if let Some(until) = pause_ends {
                let left = Duration::from_millis(until.saturating_sub(self.core.now.wall_ms));
                self.core.after(left, Timer::Owner);
            }
        }
        if self.owner.stop_at.is_some_and(|at| at <= self.core.mono()) {
            self.owner.stop_at = None;
            self.executor.give_back_all(&mut self.core);
        }
    }

    /// What running tasks are to do from now on; None: go on.
    fn keep_to(&mut self, when: Option<WhenClosed>) {
        let suspended = when == Some(WhenClosed::Suspend);
        if std::mem::replace(&mut self.owner.suspended, suspended) != suspended {
            self.core
                .effects
                .push(Effect::Task(TaskEffect::Suspend(suspended)));
        }
        // The owner's own pause lasts as long as it was meant to.
        let by_policy = !matches!(self.core.members.my_info().closed, Some(Closed::Paused(_)));
        let leaves = by_policy && matches!(when, Some(WhenClosed::Suspend | WhenClosed::Stop));
        let grace = self.owner.terms.policy.grace;
        match (leaves, self.owner.stop_at) {
            (false, _) => self.owner.stop_at = None,
            (true, Some(_)) => {}
            (true, None) => {
                self.owner.stop_at = Some(self.core.mono() + grace);
                self.core.after(grace, Timer::Owner);
            }
        }
    }

    /// Who sits at the node speaks for its owner. Others can drain it too, and take back what
    /// others said.
    pub(super) fn drain(&mut self, asker: Asker, on: bool) {
        let known = self.core.members.my_info();
        let draining = match asker {
            Asker::Local(_) => on && known.draining,
            Asker::Remote(..) => on,
        };
        if known.draining != draining {
            if let Asker::Remote(node, _) = asker {
                let (name, does) = (
                    self.core.members.name(node),
                    if on { "has" } else { "no longer has" },
                );
                self.core.notice(format!(
                    "{name} ({}) {does} this node drained",
                    node.short()
                ));
            }
            let known = self.core.members.my_info();
            self.info_changed(NodeInfo {
                draining,
                version: known.version + 1,
                ..known.clone()
            });
        }
        if let Asker::Local(_) = asker {
            self.owner.word.drained = on;
            self.look_at_owner();
        }
        let info = self.core.members.my_info();
        let closed = info.closed.as_ref();
        let denied = closed
            .filter(|closed| !on && closed.is_lasting())
            .map(|closed| QueryError::Denied(format!("{} {closed}", info.name)));
        match (denied, asker) {
            (None, Asker::Local(_)) => self.keep_owner(asker),
            (None, Asker::Remote(..)) => self.core.answer(asker, Ok(Answer::Ok)),
            (Some(denied), Asker::Local(_)) => {
                self.core.keep(self.owner_note());
                self.core.answer(asker, Err(denied));
            }
            (Some(denied), Asker::Remote(..)) => self.core.answer(asker, Err(denied)),
        }
    }

    /// Only who sits at the machine has it for himself.
    pub(super) fn pause(&mut self, asker: Asker, pause: Option<Pause>) {
        if let Asker::Remote(..) = asker {
            let name = &self.core.members.my_info().name;
            let denied = QueryError::Denied(format!(
                "{name} is paused by whoever sits there, and by nobody else"
            ));
            return self.core.answer(asker, Err(denied));
        }
        self.owner.word.pause = pause;
        self.look_at_owner();
        self.keep_owner(asker);
    }

    /// What was said holds; whoever said it hears so when this node's next life knows it, too.
    pub(super) fn keep_owner(&mut self, asker: Asker) {
        let note = self.owner_note();
        self.core.keep_then_answer(note, asker, Answer::Ok);
    }

    /// All that people said at this node.
    pub(super) fn owner_note(&self) -> Note {
        Note::Owner(OwnerWord {
            forgotten: self.core.members.forgotten().clone(),
            ..self.owner.word.clone()
        })
    }
}
