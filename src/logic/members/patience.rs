//! How long a silent member is waited for. What a node does not hear in time says as much about the
//! node as about whom it waits for: a slow one gives the others longer, and says in every packet
//! how slow it is, so that they give it longer too.

use nodectl_types::{Time, limits};
use std::time::Duration;

/// Timers later than this are a sign of slowness, and the time that was lost is given back to
/// whoever was waited for.
const LATE: Duration = Duration::from_millis(100);
/// After a standstill of this length everybody gets a fresh chance: what they said meanwhile is yet
/// to be read.
const STANDSTILL: Duration = Duration::from_millis(500);
/// A node whose turns have all begun in time for so long is not slow: that nobody answered it was
/// the network's fault, or the others', and is over when somebody does.
const PUNCTUAL: Duration = Duration::from_secs(10);

/// What decides how long members are waited for.
#[derive(Clone, Copy, Debug)]
pub struct PatienceTuning {
    /// Between two probes.
    pub period: Duration,
    /// How long a direct answer may take before others are asked to ask.
    pub rtt: Duration,
    /// How many of them.
    pub helpers: usize,
    /// How long a suspect that enough members suspect has to object, in a cluster of ten or fewer.
    pub least: Duration,
    /// How many times as long it has while nobody confirms the suspicion.
    pub most: u32,
    /// So many confirmations are enough.
    pub confirmations: usize,
    /// The slowest that a node takes itself, or another, for.
    pub slowest: u8,
    /// So many answers in time make it a point less slow: it is found out quickly, and forgotten
    /// slowly.
    pub recovery: u8,
}

impl PatienceTuning {
    pub const LIFEGUARD: Self = Self {
        period: limits::PROBE_PERIOD,
        rtt: limits::PROBE_RTT,
        helpers: 3,
        least: limits::SUSPICION,
        most: 5,
        confirmations: 3,
        slowest: 4,
        recovery: 4,
    };

    /// A time as a node takes it that is so slow: up to twice as long.
    pub fn scaled(&self, time: Duration, slowness: u8) -> Duration {
        time * (4 + u32::from(slowness.min(self.slowest))) / 4
    }

    /// How long a suspect has, where there are so many live members, and so many have confirmed the
    /// first one's suspicion.
    pub fn suspicion(&self, members: usize, confirmed: usize, slowness: u8) -> Duration {
        let least = self.least.mul_f64((members.max(10) as f64).log10());
        // Neither the suspect nor who suspects it can confirm anything.
        let wanted = self.confirmations.min(members.saturating_sub(2));
        let missing = if wanted == 0 {
            0.0
        } else {
            1.0 - ((confirmed.min(wanted) + 1) as f64).ln() / ((wanted + 1) as f64).ln()
        };
        self.scaled(
            least.mul_f64(1.0 + missing * f64::from(self.most - 1)),
            slowness,
        )
    }
}

/// How slow this node finds itself to be: Lifeguard's local health.
#[derive(Clone, Copy, Debug)]
pub struct Slowness {
    points: u8,
    slowest: u8,
    /// Answers in time since the points last changed, and how many make a difference.
    good: u8,
    recovery: u8,
    /// When a turn last began late.
    late_at: Option<Time>,
}

/// What follows from a turn that began late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lateness {
    Little,
    /// So much time is to be given back.
    Late(Duration),
    Standstill,
}

impl Slowness {
    pub fn new(tuning: &PatienceTuning) -> Self {
        Self {
            points: 0,
            slowest: tuning.slowest,
            good: 0,
            recovery: tuning.recovery,
            late_at: None,
        }
    }

    pub fn points(self) -> u8 {
        self.points
    }

    /// A member answered in time.
    pub fn better(&mut self, now: Time) {
        if self.late_at.is_none_or(|late| now.since(late) >= PUNCTUAL) {
            (self.points, self.good) = (0, 0);
            return;
        }
        self.good += 1;
        if self.good >= self.recovery {
            self.good = 0;
            self.points = self.points.saturating_sub(1);
        }
    }

    pub fn worse(&mut self, by: usize) {
        if by > 0 {
            self.good = 0;
        }
        let by = u8::try_from(by).unwrap_or(u8::MAX);
        self.points = self.points.saturating_add(by).min(self.slowest);
    }

    /// A turn begins so long after it was due.
    pub fn late(&mut self, now: Time, late: Duration) -> Lateness {
        if late < LATE {
            return Lateness::Little;
        }
        self.late_at = Some(now);
        self.worse(1 + (late.as_millis() / STANDSTILL.as_millis()) as usize);
        if late < STANDSTILL {
            Lateness::Late(late)
        } else {
            Lateness::Standstill
        }
    }
}
