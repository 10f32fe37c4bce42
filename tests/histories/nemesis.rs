//! Carries a plan out: begins and ends faults at their times, starts what was killed, and knows
//! when a cluster is whole again.

use crate::{
    clients::{Crowd, pause},
    machines::{LabMachine, Site},
    plan::{Aim, FaultKind, NemesisStep, Rng},
    walls::{Wall, Walls},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// What a cluster is given to have its copies again after a disk is lost, once all its nodes see
/// each other.
pub const REPAIR: Duration = Duration::from_secs(10);
/// Members see each other again long before.
const WHOLE_WITHIN: Duration = Duration::from_secs(120);
const ASK_LIMIT: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(20);

pub struct Nemesis<'a> {
    pub site: Site<'a>,
    pub machines: Vec<LabMachine>,
    pub crowd: &'a Crowd,
    walls: Walls,
    active: Vec<ActiveFault>,
    begun: u64,
    /// Hosts of the lab that nobody has used yet.
    spare: Vec<usize>,
    /// Kinds of faults that cannot be had here.
    lacking: BTreeSet<FaultKind>,
    /// A machine whose disk must stay: a client has no other way to the cluster.
    pub kept: Option<usize>,
    /// Lost machines may be silent, and not only dead.
    pub silence: bool,
    /// Blobs may be damaged, too: nobody reads those that lie there, so that damage in them counts
    /// until all others are lost.
    pub blobs_may: bool,
}

/// A fault that goes on.
struct ActiveFault {
    number: u64,
    kind: FaultKind,
    /// Indices of machines.
    victims: Vec<usize>,
    ends: Instant,
}

impl<'a> Nemesis<'a> {
    /// A cluster of so many nodes, all of which see each other.
    pub fn new(
        site: Site<'a>,
        crowd: &'a Crowd,
        nodes: usize,
        hosts: usize,
        lacking: BTreeSet<FaultKind>,
    ) -> Result<Self, String> {
        let walls = Walls::new(site.lab, hosts)?;
        let machines = (0..nodes)
            .map(|host| LabMachine::new(&site, host))
            .collect::<Result<Vec<_>, _>>()?;
        let spare = (nodes..hosts).rev().collect();
        let mut nemesis = Self {
            site,
            machines,
            crowd,
            walls,
            active: Vec::new(),
            begun: 0,
            spare,
            lacking,
            kept: None,
            silence: true,
            blobs_may: false,
        };
        for machine in &mut nemesis.machines {
            machine.start(&nemesis.site);
        }
        nemesis.tell_clients();
        if nemesis.wait_whole() {
            Ok(nemesis)
        } else {
            Err("the nodes do not see each other".into())
        }
    }

    pub fn carry_out(&mut self, steps: &[NemesisStep]) {
        for step in steps {
            if self.lacking.contains(&step.kind) {
                continue;
            }
            if step.kind.costs_a_disk() {
                self.end_all();
                self.wait_whole();
                self.wait(REPAIR);
            } else if !step.beside {
                self.wait_ended();
            }
            self.wait(Duration::from_millis(step.gap_ms));
            self.begin(step);
            if step.kind.costs_a_disk() {
                self.wait_ended();
                self.wait_whole();
                self.wait(REPAIR);
            }
        }
        self.end_all();
    }

    fn begin(&mut self, step: &NemesisStep) {
        let mut rng = Rng::new(step.seed);
        let busy: BTreeSet<usize> = self
            .active
            .iter()
            .flat_map(|active| active.victims.clone())
            .collect();
        let is_free = |index: &usize| {
            let may = !step.kind.costs_a_disk() || self.kept != Some(*index);
            may && !busy.contains(index) && self.machines[*index].is_up()
        };
        let free: Vec<usize> = (0..self.machines.len()).filter(is_free).collect();
        if free.len() < 2 {
            return;
        }
        let aimed = if step.aim == Aim::Coordinator {
            self.a_coordinator(&free, &mut rng)
        } else {
            None
        };
        let victim = aimed.unwrap_or_else(|| *rng.pick(&free));
        let others: Vec<usize> = free
            .iter()
            .copied()
            .filter(|index| *index != victim)
            .collect();
        let other = *rng.pick(&others);
        let victims = match step.kind {
            FaultKind::KillAll => (0..self.machines.len())
                .filter(|index| self.machines[*index].is_running())
                .collect(),
            FaultKind::Oneway => vec![victim, other],
            FaultKind::Part => self.a_part(victim, &mut rng),
            _ => vec![victim],
        };
        let number = self.begun;
        self.begun += 1;
        let names: Vec<&str> = victims
            .iter()
            .map(|index| self.machines[*index].name.as_str())
            .collect();
        // Before it begins, so that nothing that it does is older than it.
        self.site.history.note(
            "fault",
            json!({ "fault": number, "kind": step.kind.to_string(), "nodes": names }),
        );
        let detail = self.harm(step, number, &victims, &mut rng);
        if let Some(detail) = detail {
            self.site
                .history
                .note("detail", json!({ "fault": number, "text": detail }));
        }
        let ends = Instant::now() + Duration::from_millis(step.lasts_ms);
        self.active.push(ActiveFault {
            number,
            kind: step.kind,
            victims,
            ends,
        });
    }

    /// Does it; says what else is to be known of it.
    fn harm(
        &mut self,
        step: &NemesisStep,
        number: u64,
        victims: &[usize],
        rng: &mut Rng,
    ) -> Option<String> {
        let host = self.machines[victims[0]].host;
        match step.kind {
            FaultKind::Kill | FaultKind::KillAll | FaultKind::Damage => {
                victims
                    .iter()
                    .for_each(|index| self.machines[*index].kill());
                if step.kind == FaultKind::Damage {
                    let damages = (0..rng.between(1, 3))
                        .filter_map(|_| self.machines[victims[0]].damage(self.blobs_may, rng));
                    return Some(damages.collect::<Vec<_>>().join("; "));
                }
                None
            }
            FaultKind::Stop => {
                self.machines[victims[0]].signal(Signal::STOP);
                None
            }
            FaultKind::Full => {
                self.machines[victims[0]].fill();
                None
            }
            FaultKind::Clock => {
                let seconds = *rng.pick(&[-86_400, -3_600, -90, 90, 3_600, 86_400, 40 * 86_400]);
                self.machines[victims[0]].set_clock(&self.site, seconds);
                Some(format!("{seconds:+} s"))
            }
            FaultKind::Lost => Some(self.lose(number, victims[0], rng)),
            FaultKind::Cut => self.raise(number, Wall::Cut { host }),
            FaultKind::Part => {
                let left = victims
                    .iter()
                    .map(|index| self.machines[*index].host)
                    .collect();
                self.raise(number, Wall::Part { left })
            }
            FaultKind::Oneway => self.raise(
                number,
                Wall::Oneway {
                    from: host,
                    to: self.machines[victims[1]].host,
                },
            ),
            FaultKind::Reset => self.raise(number, Wall::Reset { host }),
            FaultKind::Loss => self.raise(
                number,
                Wall::Loss {
                    host,
                    percent: rng.between(3, 40),
                },
            ),
            FaultKind::Delay => self.raise(
                number,
                Wall::Delay {
                    host,
                    ms: rng.between(20, 400),
                },
            ),
            FaultKind::Slow => self.raise(
                number,
                Wall::Slow {
                    host,
                    kbit: rng.between(200, 5_000),
                },
            ),
        }
    }

    /// A machine goes for good, and maybe another comes in its place.
    fn lose(&mut self, number: u64, victim: usize, rng: &mut Rng) -> String {
        let host = self.machines[victim].host;
        // A machine without power says nothing any more; one whose process is gone still refuses
        // connections.
        let silent = if self.silence && rng.chance(50) {
            self.raise(number, Wall::Cut { host })
        } else {
            None
        };
        self.machines[victim].lose();
        self.tell_clients();
        let successor = if rng.chance(50) {
            self.add_machine()
        } else {
            None
        };
        let said: Vec<String> = [silent, successor].into_iter().flatten().collect();
        said.join("; ")
    }

    fn raise(&mut self, number: u64, wall: Wall) -> Option<String> {
        let text = format!("{wall:?}");
        let raised = self.walls.raise(self.site.lab, number, wall);
        Some(raised.err().map_or(text.clone(), |why| {
            format!("{text}: it did not work: {why}")
        }))
    }

    /// A fresh machine in place of one that is lost.
    fn add_machine(&mut self) -> Option<String> {
        let mut machine = LabMachine::new(&self.site, self.spare.pop()?).ok()?;
        machine.start(&self.site);
        let text = format!("{} comes in its place", machine.name);
        self.machines.push(machine);
        self.tell_clients();
        Some(text)
    }

    fn a_part(&self, first: usize, rng: &mut Rng) -> Vec<usize> {
        let others = (0..self.machines.len())
            .filter(|index| *index != first && self.machines[*index].is_running());
        let mut others: Vec<usize> = others.collect();
        let more = rng.next() as usize % others.len().max(1);
        let mut part = vec![first];
        for _ in 0..more {
            part.push(others.swap_remove(rng.next() as usize % others.len()));
        }
        part.sort_unstable();
        part
    }

    /// One of these machines that coordinates a job that goes on.
    fn a_coordinator(&self, among: &[usize], rng: &mut Rng) -> Option<usize> {
        let api = self.machines[*rng.pick(among)].api();
        let nodes = api.get("/v1/nodes", ASK_LIMIT).ok()?;
        let jobs = api.get("/v1/jobs", ASK_LIMIT).ok()?;
        let goes_on = |job: &&Value| matches!(job["phase"].as_str(), Some("running" | "waiting"));
        let job = jobs
            .as_array()?
            .iter()
            .rev()
            .find(goes_on)
            .or(jobs.as_array()?.last())?;
        let node = nodes
            .as_array()?
            .iter()
            .find(|node| node["id"] == job["coordinator"])?;
        among
            .iter()
            .copied()
            .find(|index| self.machines[*index].name == node["name"].as_str().unwrap_or_default())
    }

    fn end(&mut self, at: usize) {
        let active = self.active.swap_remove(at);
        match active.kind {
            FaultKind::Kill | FaultKind::KillAll | FaultKind::Damage => {
                for index in &active.victims {
                    self.start(*index);
                }
            }
            FaultKind::Stop => self.machines[active.victims[0]].signal(Signal::CONT),
            FaultKind::Full => self.machines[active.victims[0]].empty(),
            FaultKind::Clock => self.machines[active.victims[0]].set_clock(&self.site, 0),
            FaultKind::Lost => {}
            _ => {
                if let Err(why) = self.walls.fell(self.site.lab, active.number) {
                    self.site
                        .history
                        .note("detail", json!({ "fault": active.number, "text": why }));
                }
            }
        }
        self.site
            .history
            .note("end", json!({ "fault": active.number }));
    }

    fn start(&mut self, index: usize) {
        if !self.machines[index].is_running() && !self.machines[index].lost {
            self.machines[index].start(&self.site);
        }
    }

    /// Ends what is due, and looks after the nodes.
    fn tick(&mut self) {
        while let Some(at) = self
            .active
            .iter()
            .position(|active| active.ends <= Instant::now())
        {
            self.end(at);
        }
        for machine in &mut self.machines {
            machine.look(&self.site);
        }
        pause(TICK);
    }

    pub fn wait(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.tick();
        }
    }

    fn wait_ended(&mut self) {
        while !self.active.is_empty() {
            self.tick();
        }
    }

    /// Ends all faults, and starts every node that ought to run.
    pub fn end_all(&mut self) {
        while !self.active.is_empty() {
            self.end(self.active.len() - 1);
        }
        for index in 0..self.machines.len() {
            self.start(index);
        }
    }

    /// Waits until all nodes see each other, and nobody else; false, which is noted, if they do not
    /// within the limit.
    pub fn wait_whole(&mut self) -> bool {
        let end = Instant::now() + WHOLE_WITHIN;
        let mut tried_again = false;
        loop {
            let missing = self.missing();
            if missing.is_empty() {
                self.site.history.note("whole", json!({}));
                return true;
            }
            let down = self
                .machines
                .iter()
                .any(|machine| !machine.lost && !machine.is_running());
            if down && !tried_again {
                // One that ended by itself is started once more: what it does then belongs to its
                // history.
                tried_again = true;
                (0..self.machines.len()).for_each(|index| self.start(index));
            }
            if Instant::now() > end {
                self.site
                    .history
                    .note("parted", json!({ "missing": missing }));
                return false;
            }
            self.wait(Duration::from_millis(200));
        }
    }

    /// Who does not see all others, in words.
    fn missing(&self) -> Vec<String> {
        let there: BTreeSet<String> = self
            .machines
            .iter()
            .filter(|machine| !machine.lost)
            .map(|machine| machine.name.clone())
            .collect();
        let mut missing = Vec::new();
        for machine in self.machines.iter().filter(|machine| !machine.lost) {
            if !machine.is_up() {
                missing.push(format!("{} is not up", machine.name));
                continue;
            }
            let Ok(nodes) = machine.api().get("/v1/nodes", ASK_LIMIT) else {
                missing.push(format!("{} does not answer", machine.name));
                continue;
            };
            let alive = nodes
                .as_array()
                .into_iter()
                .flatten()
                .filter(|node| node["alive"] == true);
            let seen: BTreeSet<String> = alive
                .filter_map(|node| node["name"].as_str().map(str::to_string))
                .collect();
            if seen != there {
                missing.push(format!("{} sees {seen:?}", machine.name));
            }
        }
        missing
    }

    /// A machine is lost, with its disk, in a cluster that is whole: whoever coordinates, or
    /// anybody.
    pub fn decay(&mut self, rng: &mut Rng) {
        let aim = if rng.chance(60) {
            Aim::Coordinator
        } else {
            Aim::Any
        };
        // Nobody comes in its place: this is to go down to two.
        self.spare.clear();
        self.begin(&NemesisStep {
            kind: FaultKind::Lost,
            beside: false,
            gap_ms: 0,
            lasts_ms: 0,
            aim,
            seed: rng.next(),
        });
        self.wait_ended();
        self.wait_whole();
        self.wait(REPAIR);
    }

    /// Indices of machines that run and answer.
    pub fn up(&self) -> Vec<usize> {
        (0..self.machines.len())
            .filter(|index| self.machines[*index].is_up())
            .collect()
    }

    /// What clients may call.
    fn tell_clients(&self) {
        let there = self.machines.iter().filter(|machine| !machine.lost);
        let nodes = there
            .map(|machine| (machine.name.clone(), machine.api()))
            .collect();
        *self.crowd.nodes.write().expect("nobody panics with it") = nodes;
    }
}
