//! What nodes' events say of one that has left: not that it died.

use crate::{
    check::ACQUAINTED,
    world::{SimEvent, SimWorld},
};
use nodectl_types::event::{ClusterEvent, EventKind, EventSubject};
use std::time::Duration;

/// Whoever is well has heard of it, and noted it, by then.
const NOTED: Duration = Duration::from_secs(2);
/// A slow node's goodbye is heard so long before it has left.
const BEFORE: Duration = Duration::from_secs(1);

/// A node that has left, and one that was connected with it.
pub struct Farewell {
    who: usize,
    by: usize,
    life: u64,
    wall_ms: u64,
}

impl SimWorld {
    /// A node leaves: whoever is close to it is to note it.
    pub fn note_farewells(&mut self, who: usize) {
        let is_sure = self.plan.net.loss == 0.0;
        // A connection that has just been made again has not been heard of: nothing is said on it.
        let state = self.machines[who].state.as_ref();
        let told = state.map_or(Vec::new(), |state| state.core().members.linked());
        let is_close = |by: &usize| {
            let is_told = self.linked(who, *by) && told.contains(&self.machines[*by].id);
            is_sure && is_told && self.are_close(who, *by, ACQUAINTED)
        };
        let others = self.up().into_iter().filter(|by| *by != who);
        let close: Vec<_> = others.filter(is_close).collect();
        for by in close {
            let (life, wall_ms) = (self.machines[by].life, self.clock(by).wall_ms);
            let farewell = Farewell {
                who,
                by,
                life,
                wall_ms,
            };
            self.after(NOTED, SimEvent::Noted(farewell));
        }
    }

    pub fn check_farewell(&mut self, farewell: Farewell) {
        let Farewell {
            who,
            by,
            life,
            wall_ms,
        } = farewell;
        let machine = &self.machines[by];
        // What a clock that has jumped says of earlier and later is of no use.
        let is_same = machine.life == life && !machine.has_jumped && self.is_well(by, ACQUAINTED);
        let Some(state) = machine.state.as_ref().filter(|_| is_same) else {
            return;
        };
        let subject = EventSubject::Node(self.machines[who].id);
        let noted = state
            .core()
            .chronicle
            .since(wall_ms - BEFORE.as_millis() as u64);
        let is_end = |event: &&ClusterEvent| {
            event.subject == subject && matches!(event.kind, EventKind::Left | EventKind::Died)
        };
        let first = noted.iter().find(is_end);
        match first.map(|event| event.kind) {
            Some(EventKind::Left) => self.branch("a farewell is noted"),
            _ => {
                let said = first.map_or("nothing", |event| event.text.as_str());
                let text = format!("n{by} says of n{who}: {said}");
                self.fail("a node that left is not said to have left", text);
            }
        }
    }
}
