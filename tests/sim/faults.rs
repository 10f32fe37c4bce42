//! What goes wrong, carried out.

use crate::{
    disk::Damage,
    plan::{Act, FaultPlan, FaultTarget, Moment, PlanItem, SimFault, ms},
    world::{SimEvent, SimWorld},
};
use nodectl_logic::Input;
use nodectl_types::Time;
use rand::{RngExt, rngs::StdRng};
use std::time::Duration;

/// Queues are shorter than a real node's by far, and still hold what a coordinator of three jobs
/// sends a replica that is behind: by less its connections would break for ever.
const LEAST_QUEUE: usize = 48;

/// What ends with a fault that lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    Cut,
    Wall(usize),
    Full,
    Slow,
    Hang,
    Slowed(u32),
}

impl SimWorld {
    /// Whom it strikes now.
    fn victim(&self, victim: FaultTarget) -> Option<usize> {
        let job = |number: usize| self.user.job_of(number);
        let found = match victim {
            FaultTarget::Node(node) => Some(node),
            FaultTarget::Coordinator(number) => self.coordinator(job(number)?),
            FaultTarget::Replica(number) => {
                let job = job(number)?;
                let coordinator = self.coordinator(job);
                self.up().into_iter().find(|node| {
                    self.machines[*node].disk.has_spec(job) && Some(*node) != coordinator
                })
            }
            FaultTarget::Executor(number) => {
                let job = job(number)?;
                let runs = |node: &usize| {
                    self.machines[*node]
                        .running
                        .iter()
                        .any(|(of, ..)| *of == job)
                };
                self.up().into_iter().find(runs)
            }
        };
        found.filter(|node| *node < self.machines.len() && !self.machines[*node].lost)
    }

    pub fn strike(&mut self, fault: SimFault) {
        self.tell(|| format!("--- {fault:?}"));
        match fault {
            SimFault::Crash { victim, away } => self.crash_victim(victim, away),
            SimFault::CrashAll { within } => self.crash_all(within),
            SimFault::CrashAt {
                moment,
                delay,
                away,
            } => self.armed.push((moment, delay, away)),
            SimFault::Lose { victim, replaced } => self.lose_victim(victim, replaced),
            SimFault::Stall { victim, lasts } => {
                if let Some(node) = self.victim(victim) {
                    self.stall(node, lasts);
                }
            }
            SimFault::Cut {
                sides,
                one_way,
                lasts,
            } => self.cut(sides, one_way, lasts),
            SimFault::Wall { a, b, lasts } => self.wall(a, b, lasts),
            SimFault::Reset { a, b } => self.break_link(a, b),
            SimFault::Jump { victim, seconds } => {
                if let Some(node) = self.victim(victim) {
                    self.machines[node].wall_skew_ms += seconds * 1_000;
                    self.machines[node].has_jumped = true;
                }
            }
            SimFault::FullDisk { victim, lasts } => {
                self.set_disk(victim, lasts, Lasting::Full, |disk, _| disk.full = true)
            }
            SimFault::SlowDisk {
                victim,
                slowness,
                lasts,
            } => {
                self.set_disk(victim, lasts, Lasting::Slow, move |disk, _| {
                    disk.slowness = slowness
                });
            }
            SimFault::HangingDisk { victim, lasts } => {
                self.set_disk(victim, lasts, Lasting::Hang, move |disk, now| {
                    disk.hangs_until = now + lasts
                });
            }
            SimFault::Damage {
                victim,
                damage,
                away,
            } => {
                if let Some(node) = self.victim(victim) {
                    self.damage(node, damage, away);
                }
            }
            SimFault::Slowed {
                victim,
                factor,
                lasts,
            } => self.starve(victim, factor, lasts),
            SimFault::Rot { victim, salt } => self.rot(victim, salt),
            SimFault::Copy { victim, after } => self.copy(victim, after),
            SimFault::Upgrade { pause, away } => self.upgrade(pause, away),
        }
    }

    /// One record in four of a running node.
    fn rot(&mut self, victim: FaultTarget, salt: u32) {
        let node = self.victim(victim);
        let Some(node) = node.filter(|node| self.machines[*node].state.is_some()) else {
            return;
        };
        let quiet = self.is_quiet();
        if self.machines[node].disk.rot_some(salt) > 0 {
            self.branch("a record turns bad");
            self.tell(|| format!("records on n{node}'s disk turn bad"));
            self.copies_lost(node, quiet);
            self.trouble(Some(node));
            for (job, tasks) in self.machines[node].disk.rotten() {
                let gone = tasks
                    .into_iter()
                    .filter(|task| self.copies(job, *task) == 0);
                let gone: Vec<_> = gone.map(|task| (job, task)).collect();
                self.checker.rotten.extend(gone);
            }
        }
    }

    /// Somebody reads all records that have turned bad.
    fn find_rotten(&mut self) {
        for node in 0..self.machines.len() {
            let (life, rotten) = (self.machines[node].life, self.machines[node].disk.rotten());
            for (job, tasks) in rotten {
                let tasks = self.machines[node].disk.lost(job, &tasks);
                self.give(node, life, Input::RecordsLost { job, tasks });
            }
        }
    }

    /// On another machine a copied data directory gets an identity of its own (`net/identity.rs`),
    /// and keeps its journals and files.
    fn copy(&mut self, victim: FaultTarget, after: Duration) {
        let Some(node) = self.victim(victim) else {
            return;
        };
        self.branch("a data directory is copied");
        let disk = self.machines[node].disk.copied();
        let copy = self.add_machine(node.min(self.plan.machines.len() - 1));
        self.tell(|| format!("n{copy} will have what is on n{node}'s disk"));
        self.machines[copy].disk = disk;
        self.after(after, SimEvent::Start { node: copy });
    }

    /// Each has a version that the others do not speak, until all have the newer one.
    fn upgrade(&mut self, pause: Duration, away: Duration) {
        if std::mem::replace(&mut self.upgrading, true) {
            return;
        }
        self.branch("a cluster is upgraded node by node");
        for (turn, node) in (0..).zip(0..self.machines.len()) {
            self.after(pause * turn, SimEvent::Upgrade { node, away });
        }
    }

    pub fn upgrade_node(&mut self, node: usize, away: Duration) {
        if self.machines[node].is_newer {
            return;
        }
        self.tell(|| format!("n{node} gets the newer version"));
        self.checker.split = true;
        let was_up = self.machines[node].state.is_some();
        self.crash(node);
        self.machines[node].is_newer = true;
        self.trouble(Some(node));
        for other in 0..self.machines.len() {
            self.cleared.insert((node, other), self.now);
            self.cleared.insert((other, node), self.now);
        }
        if was_up {
            self.after(away, SimEvent::Start { node });
        }
    }

    fn crash_victim(&mut self, victim: FaultTarget, away: Duration) {
        let node = self.victim(victim);
        if let Some(node) = node.filter(|node| self.machines[*node].state.is_some()) {
            self.crash_for(node, away);
        }
    }

    fn crash_all(&mut self, within: Duration) {
        for node in self.up() {
            let away = Duration::from_millis(self.rng.random_range(1..=within.as_millis() as u64));
            self.crash_for(node, away);
        }
        self.branch("everything is down at once");
    }

    fn lose_victim(&mut self, victim: FaultTarget, replaced: Option<Duration>) {
        let others = self.present().count() > 1;
        if let Some(node) = self.victim(victim).filter(|_| others) {
            self.lose(node);
            if let Some(after) = replaced {
                let like = node.min(self.plan.machines.len() - 1);
                let node = self.add_machine(like);
                self.after(after, SimEvent::Start { node });
            }
        }
    }

    fn starve(&mut self, victim: FaultTarget, factor: u32, lasts: Duration) {
        if let Some(node) = self.victim(victim) {
            let number = self.lasts(lasts, node, Lasting::Slowed(self.machines[node].slowness));
            self.tell(|| format!("n{node} is starved (fault {number})"));
            self.machines[node].slowness = factor;
            // It may be taken for dead, and go on.
            self.checker.split = true;
        }
    }

    /// A fault begins that ends by itself.
    fn lasts(&mut self, lasts: Duration, node: usize, what: Lasting) -> u64 {
        let fault = self.number();
        self.trouble((node < self.machines.len()).then_some(node));
        self.lasting.insert(fault);
        self.after(lasts, SimEvent::Over { fault, node, what });
        fault
    }

    pub fn is_over(&mut self, fault: u64, node: usize, what: Lasting) {
        if !self.lasting.remove(&fault) {
            return;
        }
        self.trouble((node < self.machines.len()).then_some(node));
        self.tell(|| format!("--- over: {what:?}"));
        match what {
            Lasting::Cut => self.uncut(fault),
            Lasting::Wall(other) => {
                self.walls.remove(&(node.min(other), node.max(other)));
                self.uncut(fault);
            }
            Lasting::Full => self.machines[node].disk.full = false,
            Lasting::Slow => self.machines[node].disk.slowness = 1,
            Lasting::Hang => self.machines[node].disk.hangs_until = Time(0),
            Lasting::Slowed(before) => self.machines[node].slowness = before,
        }
    }

    fn set_disk(
        &mut self,
        victim: FaultTarget,
        lasts: Duration,
        what: Lasting,
        change: impl FnOnce(&mut crate::disk::SimDisk, Time),
    ) {
        let Some(node) = self.victim(victim) else {
            return;
        };
        self.tell(|| format!("n{node}'s disk: {what:?} for {lasts:?}"));
        self.lasts(lasts, node, what);
        let claims = self
            .user
            .jobs
            .keys()
            .any(|job| self.coordinator(*job) == Some(node));
        if claims && what == Lasting::Full {
            self.branch("a coordinator's disk is full");
        }
        let now = self.now;
        change(&mut self.machines[node].disk, now);
    }

    pub fn crash_for(&mut self, node: usize, away: Duration) {
        self.crash(node);
        self.after(away, SimEvent::Start { node });
    }

    /// A process ends: what was not on disk is lost, but for what nobody heard of; connections
    /// close.
    pub fn crash(&mut self, node: usize) {
        if self.machines[node].state.is_none() {
            return;
        }
        self.statistics.crashes += 1;
        self.tell(|| format!("n{node} dies"));
        self.note_crash(node);
        let durable = self
            .disk_rng
            .random_range(0..=self.machines[node].disk.writing);
        if durable > 0 {
            self.branch("a write is durable and nobody heard");
        }
        self.machines[node].disk.crash(durable, self.now);
        self.machines[node].state = None;
        let life = self.machines[node].life;
        self.machines[node].life += 1;
        self.machines[node].end_life();
        self.pools_crash(node, life);
        self.note_away();
        self.trouble(Some(node));
        self.close_links(node);
    }

    /// A machine is gone for good, and what it had.
    pub fn lose(&mut self, node: usize) {
        self.tell(|| format!("n{node} is lost for good, with its disk"));
        let quiet = self.is_quiet();
        self.crash(node);
        self.machines[node].lost = true;
        self.machines[node].wipe();
        self.copies_lost(node, quiet);
        self.trouble(Some(node));
    }

    fn damage(&mut self, node: usize, damage: Damage, away: Duration) {
        self.branch("a journal is damaged");
        let quiet = self.is_quiet();
        if self.machines[node].state.is_some() {
            self.crash_for(node, away);
        }
        self.tell(|| format!("n{node}'s disk is damaged: {damage:?}"));
        let salt = self.disk_rng.random();
        let lost = self.machines[node].disk.damage(damage, salt);
        self.checker.lost_files.extend(lost);
        self.copies_lost(node, quiet);
        self.trouble(Some(node));
    }

    pub fn stall(&mut self, node: usize, lasts: Duration) {
        let until = self.now + lasts;
        if self.machines[node].state.is_some() {
            self.tell(|| format!("n{node} is stopped for {lasts:?}"));
            self.machines[node].stalled_until = until;
            self.trouble(Some(node));
            // It is not well before it has caught up.
            self.machines[node].unwell = until;
            let jobs: Vec<_> = self.user.jobs.keys().copied().collect();
            let claimed: Vec<_> = jobs
                .into_iter()
                .filter(|job| self.coordinator(*job) == Some(node))
                .collect();
            self.checker
                .stalled
                .extend(claimed.into_iter().map(|job| (node, job, until)));
            self.checker.split = true;
            self.proceed(node);
        }
    }

    fn cut(&mut self, sides: u64, one_way: bool, lasts: Duration) {
        let side = |node: usize| sides >> (node % 64) & 1 == 1;
        let nodes = self.machines.len();
        let fault = self.lasts(lasts, usize::MAX, Lasting::Cut);
        self.checker.split = true;
        for a in 0..nodes {
            for b in (0..nodes).filter(|b| side(a) != side(*b) && (!one_way || side(a))) {
                self.obstacles.cut(a, b, fault);
                self.held_up(a, b);
            }
        }
    }

    /// Nothing passes between the two, and each is told that nobody listens where the other was.
    fn wall(&mut self, a: usize, b: usize, lasts: Duration) {
        if a == b || a.max(b) >= self.machines.len() {
            return;
        }
        let fault = self.lasts(lasts, a, Lasting::Wall(b));
        self.checker.split = true;
        self.walls.insert((a.min(b), a.max(b)));
        self.obstacles.cut(a, b, fault);
        self.obstacles.cut(b, a, fault);
        self.break_link(a, b);
    }

    fn uncut(&mut self, fault: u64) {
        for (a, b) in self.obstacles.clear(fault) {
            self.cleared.insert((a, b), self.now);
            self.moves_again(a, b);
        }
    }

    /// Something happened that a fault may wait for.
    pub fn moment(&mut self, moment: Moment, node: usize) {
        if let Some(position) = self.armed.iter().position(|(of, ..)| *of == moment) {
            let (_, delay, away) = self.armed.swap_remove(position);
            if moment == Moment::Cancelled {
                self.branch("cancelled right before a crash");
            }
            let life = self.machines[node].life;
            self.after(delay, SimEvent::Strike { node, life, away });
        }
    }

    /// The node has given everything back and goes; later it is started again, unless it was told
    /// to go for good.
    pub fn left(&mut self, node: usize) {
        self.note_farewells(node);
        self.flush_links(node);
        self.crash(node);
        if !self.machines[node].retired {
            let away = Duration::from_millis(self.rng.random_range(10..8_000));
            self.after(away, SimEvent::Start { node });
        }
    }

    /// Everything works from now on, and everyone is there who is not gone for good.
    pub fn heal(&mut self) {
        self.tell(|| "--- everything is healed".into());
        self.healed = true;
        self.armed.clear();
        self.checker.lossy_at = (self.plan.net.loss > 0.0).then_some(self.now);
        self.plan.net.loss = 0.0;
        self.plan.net.duplication = 0.0;
        self.plan.net.queue = None;
        for node in 0..self.machines.len() {
            let slowness = self.plan.machines.get(node).map_or(1, |plan| plan.slowness);
            let machine = &mut self.machines[node];
            // It goes on with what it knew before.
            let was_starved = machine.slowness != slowness;
            if machine.is_stalled(self.now) || machine.disk.hangs_until > self.now || was_starved {
                machine.unwell = self.now;
            }
            machine.stalled_until = machine.stalled_until.min(self.now);
            machine.slowness = slowness;
            (
                machine.disk.full,
                machine.disk.slowness,
                machine.disk.hangs_until,
            ) = (false, 1, Time(0));
            machine.retired = false;
        }
        for fault in std::mem::take(&mut self.lasting) {
            self.uncut(fault);
        }
        self.walls.clear();
        for node in 0..self.machines.len() {
            if self.upgrading {
                self.upgrade_node(node, Duration::ZERO);
            }
        }
        self.find_rotten();
        self.put_all_to_work();
        self.split_for_ever();
        for node in 0..self.machines.len() {
            if self.machines[node].state.is_none() && !self.machines[node].lost {
                self.start(node);
            } else if self.machines[node].state.is_some() {
                self.proceed(node);
            }
        }
        self.trouble(None);
    }

    /// One cut stays. What follows is seen from the larger side.
    fn split_for_ever(&mut self) {
        let Some(sides) = self.plan.splits else {
            return;
        };
        let side = |node: &usize| sides >> (node % 64) & 1 == 1;
        let nodes = (0..self.machines.len()).filter(|node| !self.machines[*node].lost);
        let (ones, others): (Vec<_>, Vec<_>) = nodes.partition(side);
        let (here, beyond) = if ones.len() > others.len() {
            (ones, others)
        } else {
            (others, ones)
        };
        if here.is_empty() || beyond.is_empty() {
            return;
        }
        self.branch("a cut never heals");
        self.tell(|| format!("--- the cut between {here:?} and {beyond:?} never heals"));
        self.checker.split = true;
        let fault = self.number();
        for (a, b) in here
            .iter()
            .flat_map(|a| beyond.iter().map(move |b| (*a, *b)))
        {
            for (from, to) in [(a, b), (b, a)] {
                self.obstacles.cut(from, to, fault);
            }
            self.held_up(a, b);
        }
        for node in beyond {
            self.machines[node].beyond = true;
        }
        self.checker.lost_at = Some(self.now);
        self.void_beyond();
        self.void_pools_beyond();
    }

    /// Those that took no work may be all that is left.
    fn put_all_to_work(&mut self) {
        for node in 0..self.machines.len() {
            if !std::mem::replace(&mut self.machines[node].takes_work, true)
                && self.machines[node].state.is_some()
            {
                self.undrain(node);
            }
        }
    }

    /// Nothing is wrong, and nothing has been for long enough to mend what was.
    pub fn is_quiet(&self) -> bool {
        let well = self
            .present()
            .all(|machine| machine.state.is_some() && !machine.is_stalled(self.now));
        well && self.lasting.is_empty()
            && self.is_of_one_version()
            && (self.healed || self.obstacles.is_clear())
            && self.now - self.troubled >= crate::check::REPAIR
    }
}

impl FaultPlan {
    /// Queues that overflow, and records that turn bad where nothing else is lost, nor may be.
    pub fn draw_limits(&mut self, rng: &mut StdRng) {
        if rng.random_bool(0.05) {
            self.net.queue = Some(rng.random_range(16..128).max(LEAST_QUEUE));
        }
        let loses = |(_, item): &(Duration, PlanItem)| {
            matches!(
                item,
                PlanItem::Fault(
                    SimFault::Lose { .. } | SimFault::Damage { .. } | SimFault::Copy { .. }
                )
            )
        };
        let is_log = |(_, item): &(Duration, PlanItem)| matches!(item, PlanItem::Act(Act::Log(_)));
        let may_rot = !self.items.iter().any(|item| loses(item) || is_log(item));
        if self.machines.len() > 1 && may_rot && rng.random_bool(0.12) {
            let evil = rng.random_bool(0.5);
            let rot = SimFault::Rot {
                victim: self.draw_victim(rng, evil),
                salt: rng.random(),
            };
            let at = ms(rng, 1_000..self.heals_at.as_millis() as u64);
            self.items.push((at, PlanItem::Fault(rot)));
        }
    }
}
