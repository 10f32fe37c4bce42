//! What a seed makes of a run: how many nodes, which faults, when and of whom. Pure, so that a seed
//! replays its schedule.

use std::fmt;

/// SplitMix64 (Steele, Lea and Flood, 2014): the same numbers for ever, whatever version of
/// whatever crate.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[(self.next() % of.len() as u64) as usize]
    }
}

/// Kinds of faults, by the names that histories have for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// `kill -9`, then a restart on the same disk.
    Kill,
    /// All nodes are killed at once.
    KillAll,
    /// SIGSTOP of the node's process, for 1 to 10 s. Its tasks go on.
    Stop,
    /// The cable is pulled out.
    Cut,
    /// Two groups lose every packet to each other.
    Part,
    /// A node hears nothing of another, which hears it.
    Oneway,
    /// A wall between a node and all others answers each TCP packet with a reset.
    Reset,
    /// Each packet to a node is lost with a probability.
    Loss,
    /// Each packet of a node is late.
    Delay,
    /// A node's link carries little.
    Slow,
    /// A node's wall clock jumps, and back.
    Clock,
    /// Not a byte more fits on a node's disk.
    Full,
    /// Bits of a node that is down flip in its journals or blobs, or their ends are cut off; it is
    /// started again.
    Damage,
    /// A machine is gone for good with its disk.
    Lost,
}

pub const KINDS: [FaultKind; 14] = [
    FaultKind::Kill,
    FaultKind::KillAll,
    FaultKind::Stop,
    FaultKind::Cut,
    FaultKind::Part,
    FaultKind::Oneway,
    FaultKind::Reset,
    FaultKind::Loss,
    FaultKind::Delay,
    FaultKind::Slow,
    FaultKind::Clock,
    FaultKind::Full,
    FaultKind::Damage,
    FaultKind::Lost,
];

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("{self:?}").to_lowercase();
        f.write_str(if *self == Self::KillAll {
            "kill-all"
        } else {
            &name
        })
    }
}

impl FaultKind {
    pub fn named(name: &str) -> Option<Self> {
        KINDS.into_iter().find(|kind| kind.to_string() == name)
    }

    /// Copies are gone: no promise covers it beside another loss that has not been repaired.
    pub fn costs_a_disk(self) -> bool {
        matches!(self, Self::Damage | Self::Lost)
    }
}

/// Whom a fault meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Any node.
    Any,
    /// The coordinator of a job that runs.
    Coordinator,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NemesisStep {
    pub kind: FaultKind,
    /// Beside the fault before, not after it.
    pub beside: bool,
    pub gap_ms: u64,
    pub lasts_ms: u64,
    pub aim: Aim,
    /// Draws whatever else a fault needs: victims, percentages, bits.
    pub seed: u64,
}

/// Clients that a run has besides those that submit jobs and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guests {
    pub pool: bool,
    pub training: bool,
    pub drain: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NemesisPlan {
    pub seed: u64,
    pub nodes: usize,
    pub kinds: Vec<FaultKind>,
    pub steps: Vec<NemesisStep>,
    pub guests: Guests,
    /// How many machines are lost, one after the other, once all is healed and every job has ended.
    pub decay: usize,
    /// For the clients.
    pub clients_seed: u64,
}

impl NemesisPlan {
    /// A schedule of about so many seconds of faults. `only` leaves others out.
    pub fn new(seed: u64, seconds: u64, only: Option<&[FaultKind]>) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x6e6f_6465);
        let nodes = *rng.pick(&[3, 4, 5, 5, 6, 7]) as usize;
        let drawn: Vec<FaultKind> = KINDS.into_iter().filter(|_| rng.chance(45)).collect();
        let kinds = match only {
            Some(only) => only.to_vec(),
            None if drawn.is_empty() => vec![FaultKind::Kill],
            None => drawn,
        };
        let guests = Guests {
            pool: rng.chance(35),
            training: rng.chance(25),
            drain: rng.chance(40),
        };
        let decay = if rng.chance(60) { nodes - 2 } else { 0 };
        let clients_seed = rng.next();
        let steps = if kinds.is_empty() {
            Vec::new()
        } else {
            steps(&mut rng, &kinds, nodes, seconds * 1000)
        };
        Self {
            seed,
            nodes,
            kinds,
            steps,
            guests,
            decay,
            clients_seed,
        }
    }
}

fn steps(rng: &mut Rng, kinds: &[FaultKind], nodes: usize, total_ms: u64) -> Vec<NemesisStep> {
    // Three nodes at least remain for the faults that come later.
    let (mut steps, mut spent, mut spare): (Vec<NemesisStep>, u64, usize) =
        (Vec::new(), 0, nodes.saturating_sub(3));
    while spent < total_ms && steps.len() < 10_000 {
        let kind = *rng.pick(kinds);
        let fits = kind != FaultKind::Lost || spare > 0;
        let before = steps.last().map(|step| step.kind);
        let beside = rng.chance(30)
            && !kind.costs_a_disk()
            && kind != FaultKind::KillAll
            && before.is_some_and(|before| !before.costs_a_disk() && before != FaultKind::KillAll)
            && !steps.last().is_some_and(|step| step.beside);
        let lasts_ms = match kind {
            FaultKind::Kill | FaultKind::KillAll => rng.between(100, 6_000),
            FaultKind::Stop => rng.between(1_000, 10_000),
            FaultKind::Damage => rng.between(500, 2_000),
            FaultKind::Lost => 0,
            _ => rng.between(1_500, 12_000),
        };
        let gap_ms = if beside {
            rng.between(0, 2_000)
        } else {
            rng.between(500, 5_000)
        };
        let aim = if rng.chance(50) {
            Aim::Coordinator
        } else {
            Aim::Any
        };
        let step = NemesisStep {
            kind,
            beside,
            gap_ms,
            lasts_ms,
            aim,
            seed: rng.next(),
        };
        // What the cluster needs to be whole again comes on top of a lost disk.
        spent += gap_ms
            + if beside { 0 } else { lasts_ms }
            + if kind.costs_a_disk() { 20_000 } else { 0 };
        if fits {
            spare -= usize::from(kind == FaultKind::Lost);
            steps.push(step);
        } else if kinds == [FaultKind::Lost] {
            break;
        }
    }
    steps
}

#[test]
fn a_seed_is_a_schedule_and_schedules_differ() {
    assert_eq!(NemesisPlan::new(7, 60, None), NemesisPlan::new(7, 60, None));
    let plans: Vec<NemesisPlan> = (0..200)
        .map(|seed| NemesisPlan::new(seed, 60, None))
        .collect();
    for kind in KINDS {
        assert!(
            plans
                .iter()
                .any(|plan| plan.steps.iter().any(|step| step.kind == kind)),
            "{kind} is never drawn"
        );
        assert_eq!(FaultKind::named(&kind.to_string()), Some(kind));
    }
    for plan in &plans {
        assert!((3..=7).contains(&plan.nodes) && !plan.steps.is_empty());
        let lost = plan
            .steps
            .iter()
            .filter(|step| step.kind == FaultKind::Lost)
            .count();
        assert!(plan.nodes - lost >= 3);
        assert!(
            plan.steps
                .iter()
                .all(|step| !(step.beside && step.kind.costs_a_disk()))
        );
    }
    assert!(
        NemesisPlan::new(7, 60, Some(&[FaultKind::Stop]))
            .steps
            .iter()
            .all(|step| step.kind == FaultKind::Stop)
    );
}
