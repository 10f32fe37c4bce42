//! Nodes that look for each other while machines die, leave, return and are cut off.

use super::seeds;
use crate::{
    Others,
    search::{ASK_AGAIN, CROWDED, Expected, MEET, NodeSearch, PeerSeen, SearchEffect, SearchInput},
};
use nodectl_types::{NodeId, Phase, Time, query::Progress};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const LOOK: Duration = Duration::from_millis(250);

/// A machine, and what the world knows of it that its search has to find out.
struct SearchMachine {
    alive: bool,
    member: bool,
    serves: bool,
    search: Option<NodeSearch>,
    /// When each was called last, unless it was lost or asked for a call since.
    called: BTreeMap<usize, Time>,
    /// Told to be lost, and not alive since.
    lost: BTreeSet<usize>,
}

struct SearchWorld {
    random: StdRng,
    now: Time,
    machines: Vec<SearchMachine>,
    /// Pairs that do not see each other, the lower one first.
    cut: BTreeSet<(usize, usize)>,
    /// Connections, caller first.
    links: BTreeSet<(usize, usize)>,
    calls: Vec<(usize, usize, bool)>,
}

fn id(machine: usize) -> NodeId {
    NodeId([machine as u8 + 1; 32])
}

fn place(node: NodeId) -> usize {
    usize::from(node.0[0]) - 1
}

impl SearchWorld {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let machines = (0..random.random_range(2..6)).map(|_| SearchMachine {
            alive: true,
            member: true,
            serves: random.random_bool(0.3),
            search: None,
            called: BTreeMap::new(),
            lost: BTreeSet::new(),
        });
        let machines = machines.collect();
        Self {
            random,
            now: Time(0),
            machines,
            cut: BTreeSet::new(),
            links: BTreeSet::new(),
            calls: Vec::new(),
        }
    }

    fn sees(&self, a: usize, b: usize) -> bool {
        self.machines[a].alive
            && self.machines[b].alive
            && !self.cut.contains(&(a.min(b), a.max(b)))
    }

    fn trains(&self, machine: usize) -> bool {
        self.machines[machine].search.is_some()
    }

    fn begin(&mut self, machine: usize) {
        if self.machines[machine].alive && !self.trains(machine) {
            self.machines[machine].search = Some(NodeSearch::new(id(machine), self.now));
        }
    }

    fn end_links(&mut self, ends: impl Fn(usize, usize) -> bool) {
        let ended: Vec<_> = self
            .links
            .iter()
            .copied()
            .filter(|(a, b)| ends(*a, *b))
            .collect();
        for (caller, callee) in ended {
            self.links.remove(&(caller, callee));
            self.tell(caller, SearchInput::Ended(id(callee)));
        }
    }

    fn tell(&mut self, machine: usize, input: SearchInput) {
        let now = self.now;
        if let Some(search) = &mut self.machines[machine].search {
            let effects = search.step(now, input);
            assert_eq!(effects, [], "only a look has effects");
        }
    }

    fn die(&mut self, machine: usize, says_goodbye: bool) {
        let dead = &mut self.machines[machine];
        (dead.alive, dead.member, dead.search) = (false, !says_goodbye, None);
        dead.called.clear();
        dead.lost.clear();
        self.calls.retain(|(caller, ..)| *caller != machine);
        self.links.retain(|(caller, _)| *caller != machine);
        self.end_links(|_, callee| callee == machine);
    }

    /// Something happens to one of the machines, or between two.
    fn disturb(&mut self) {
        let machine = self.random.random_range(0..self.machines.len());
        let other = self.random.random_range(0..self.machines.len());
        let pair = (machine.min(other), machine.max(other));
        match self.random.random_range(0..7) {
            0 => self.die(machine, false),
            1 => self.die(machine, true),
            2 => (self.machines[machine].alive, self.machines[machine].member) = (true, true),
            3 => self.begin(machine),
            4 if machine != other => {
                self.cut.insert(pair);
                self.end_links(|a, b| (a.min(b), a.max(b)) == pair);
            }
            5 => drop(self.cut.remove(&pair)),
            _ => self.end_links(|a, b| (a, b) == (machine, other)),
        }
    }

    /// Calls that were begun come to something.
    fn finish_calls(&mut self) {
        for (caller, callee, invites) in std::mem::take(&mut self.calls) {
            let reached = self.sees(caller, callee);
            if reached && invites {
                self.begin(callee);
                self.tell(caller, SearchInput::Accepted(id(callee)));
            }
            if reached && self.trains(callee) {
                self.links.insert((caller, callee));
                // As the adapter does for whoever was called by a node of the job.
                self.tell(callee, SearchInput::Called);
                self.machines[callee].called.clear();
            } else {
                self.tell(caller, SearchInput::Ended(id(callee)));
            }
        }
    }

    /// One node looks at the members, and what it then does is checked.
    fn look(&mut self, machine: usize) {
        let others = (0..self.machines.len()).filter(|other| *other != machine);
        let seen = others.map(|other| PeerSeen {
            peer: id(other),
            alive: self.sees(machine, other),
            refuses: !self.machines[other].alive && other % 2 == 0,
            serves: self.machines[other].serves,
        });
        let member = |seen: &PeerSeen| self.machines[place(seen.peer)].member;
        let members: Vec<PeerSeen> = seen.filter(member).collect();
        let now = self.now;
        let Some(search) = &mut self.machines[machine].search else {
            return;
        };
        let effects = search.step(now, SearchInput::Members(members.clone()));
        for seen in members.iter().filter(|seen| seen.alive) {
            self.machines[machine].lost.remove(&place(seen.peer));
        }
        let is_alive = |peer| members.iter().any(|seen| seen.peer == peer && seen.alive);
        for effect in &effects {
            match *effect {
                SearchEffect::Others(_) => {}
                SearchEffect::Call { peer, invites } => {
                    assert!(is_alive(peer), "only whoever is alive is called");
                    self.assert_may_call(machine, place(peer));
                    self.calls.push((machine, place(peer), invites));
                }
                SearchEffect::Lost(peer) => {
                    assert!(!is_alive(peer));
                    self.machines[machine].lost.insert(place(peer));
                    self.machines[machine].called.remove(&place(peer));
                }
                SearchEffect::Refuses(peer) => assert!(!is_alive(peer)),
                SearchEffect::Gone(peer) => {
                    assert!(members.iter().all(|seen| seen.peer != peer));
                    assert!(self.machines[machine].lost.remove(&place(peer)));
                }
            }
        }
        for lost in &self.machines[machine].lost {
            let is_member = members.iter().any(|seen| seen.peer == id(*lost));
            assert!(is_member, "who was lost and is no member is gone");
        }
    }

    fn assert_may_call(&mut self, caller: usize, callee: usize) {
        assert!(!self.links.contains(&(caller, callee)), "one connection");
        let begun = |(from, to, _): &(usize, usize, bool)| (*from, *to) == (caller, callee);
        assert!(!self.calls.iter().any(begun), "one call at a time");
        let before = self.machines[caller].called.insert(callee, self.now);
        assert!(
            before.is_none_or(|before| self.now.since(before) >= ASK_AGAIN),
            "{caller} calls {callee} again too early"
        );
    }

    fn turn(&mut self) {
        self.now = self.now + LOOK;
        self.finish_calls();
        (0..self.machines.len()).for_each(|machine| self.look(machine));
    }
}

#[test]
fn nodes_of_a_job_find_each_other_and_leave_others_alone() {
    seeds(300, |seed| {
        let mut world = SearchWorld::new(seed);
        world.begin(0);
        for _ in 0..200 {
            if world.random.random_bool(0.3) {
                world.disturb();
            }
            world.turn();
        }
        world.cut.clear();
        let quiet = 2 * (ASK_AGAIN.as_millis() / LOOK.as_millis()) as usize + 4;
        (0..quiet).for_each(|_| world.turn());
        for a in 0..world.machines.len() {
            for b in a + 1..world.machines.len() {
                if !(world.trains(a) && world.trains(b) && world.sees(a, b)) {
                    continue;
                }
                let links = &world.links;
                assert!(
                    links.contains(&(a, b)) || links.contains(&(b, a)),
                    "{a} and {b} train and have not found each other"
                );
            }
        }
    });
}

fn progress(done: u32, failed: u32, running: u32) -> Progress {
    Progress {
        phase: Phase::Running,
        tasks: 4,
        done,
        failed,
        stopped: 0,
        running,
        queued: 0,
        held: 0,
        failures: 0,
        rate_milli: 0,
        left_ms: None,
        waiting_for: None,
        nodes: Vec::new(),
    }
}

#[test]
fn fewer_workers_are_enough_once_the_others_cannot_come() {
    let mut search = NodeSearch::new(id(0), Time(0));
    let at = |time: Duration| Time(0) + time;
    let waits = |enough| Expected::Workers { enough };
    // Two of four run, and the others have no room.
    assert_eq!(
        search.expect(at(MEET), true, &progress(0, 0, 2)),
        waits(None)
    );
    let later = at(MEET + CROWDED);
    assert_eq!(
        search.expect(later, true, &progress(0, 0, 2)),
        waits(Some(2))
    );
    // A third one has found room meanwhile, so the others may as well.
    assert_eq!(search.expect(later, true, &progress(0, 0, 3)), waits(None));
    assert_eq!(
        search.expect(later, true, &progress(0, 1, 3)),
        waits(Some(3))
    );
    assert_eq!(
        search.expect(later, true, &progress(1, 0, 3)),
        Expected::Nobody
    );
    assert_eq!(
        search.expect(later, false, &progress(1, 1, 2)),
        waits(Some(2))
    );
}

#[test]
fn a_node_that_just_begins_may_not_know_all_and_waits() {
    let mut search = NodeSearch::new(id(0), Time(0));
    let early = Time(0) + (MEET - LOOK);
    let waits = Expected::Workers { enough: None };
    assert_eq!(search.expect(early, true, &progress(0, 2, 2)), waits);
}

fn told(effects: &[SearchEffect]) -> Option<&Others> {
    match effects.first()? {
        SearchEffect::Others(others) => Some(others),
        _ => None,
    }
}

#[test]
fn members_are_told_of_for_as_long_as_they_may_train() {
    let mut search = NodeSearch::new(id(0), Time(0));
    let seen = |alive| {
        let (peer, refuses, serves) = (id(1), false, false);
        let seen = PeerSeen {
            peer,
            alive,
            refuses,
            serves,
        };
        SearchInput::Members(vec![seen])
    };
    let (none, one) = (BTreeSet::new(), BTreeSet::from([id(1)]));
    let unasked = Others {
        unasked: one.clone(),
        away: none.clone(),
    };
    let away = Others {
        unasked: none,
        away: one,
    };
    assert_eq!(told(&search.step(Time(0), seen(true))), Some(&unasked));
    // The member has answered that it does not train.
    search.step(Time(0), SearchInput::Absent(id(1)));
    search.step(Time(0), SearchInput::Ended(id(1)));
    let effects = search.step(Time(1), seen(true));
    assert_eq!(told(&effects), Some(&Others::default()));
    assert_eq!(
        told(&search.step(Time(2), seen(true))),
        None,
        "that is no news"
    );
    // It is told before that the member is lost.
    let effects = search.step(Time(3), seen(false));
    assert_eq!(told(&effects), Some(&away));
    assert!(effects.contains(&SearchEffect::Lost(id(1))));
    // What it did not train before it was away it may by now.
    assert_eq!(told(&search.step(Time(4), seen(true))), Some(&unasked));
    // A call that failed is no answer.
    search.step(Time(4), SearchInput::Ended(id(1)));
    assert_eq!(told(&search.step(Time(5), seen(true))), Some(&away));
    let effects = search.step(Time(6), SearchInput::Members(Vec::new()));
    assert_eq!(
        told(&effects),
        Some(&Others::default()),
        "it is no member any more"
    );
}

#[test]
fn a_member_that_gives_no_answer_is_out_of_reach_after_a_while() {
    let mut search = NodeSearch::new(id(0), Time(0));
    let seen = PeerSeen {
        peer: id(1),
        alive: true,
        refuses: false,
        serves: false,
    };
    let looks = [Time(0), Time(0) + MEET].map(|now| {
        let effects = search.step(now, SearchInput::Members(vec![seen]));
        told(&effects).cloned().expect("that is news")
    });
    assert_eq!(looks[0].unasked, looks[1].away);
    assert!(looks[0].away.is_empty() && looks[1].unasked.is_empty());
}
