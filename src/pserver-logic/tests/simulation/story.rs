//! What happened in a run, in few words; and how often what is rare.

use super::*;
use nodectl_types::servers::message::View;

/// Each must happen in many runs: a simulation that never comes to these is too kind.
pub const SOMETIMES: [&str; 30] = [
    "a node died while views changed",
    "a node died while blocks moved",
    "a leader died",
    "a node died behind a cut",
    "a node died unseen",
    "a process was back without the job",
    "several nodes died at once",
    "nodes were cut into two sides",
    "some pairs were cut and no sides",
    "a cut followed a cut",
    "one direction fell silent",
    "a node stalled",
    "a wall refused in a living node's stead",
    "a wall refused on both sides",
    "a node was proven to be gone",
    "a killed node's partner of two went on",
    "a worker began again",
    "a worker ran twice",
    "a side waited for nodes",
    "a side waited for blocks",
    "all went back to a checkpoint",
    "all began anew",
    "the next view committed a clock",
    "the next view made sums void",
    "a view may have gone on unseen",
    "a worker was moved to another clock",
    "a worker passed a barrier alone",
    "all passed a barrier",
    "a cut never healed and one side went on",
    "a cut never healed and both waited",
];

/// The last lines of a story are told.
const LINES: usize = 150;

#[derive(Default)]
pub struct Story {
    lines: Option<VecDeque<String>>,
    pub counts: BTreeMap<&'static str, u64>,
    /// How often a node was told of other shares of samples.
    pub changes_of_shares: u64,
    /// When a view last went on somewhere.
    pub last_view: u32,
}

impl Story {
    pub fn telling() -> Self {
        let mut story = Self::default();
        story.lines = Some(VecDeque::new());
        story
    }

    pub fn lines(&self) -> String {
        self.lines
            .iter()
            .flatten()
            .fold(String::new(), |story, line| story + line + "\n")
    }

    pub fn count(&mut self, what: &'static str) {
        assert!(SOMETIMES.contains(&what), "{what}");
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn say(&mut self, step: u32, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push_back(format!("{step:>6} {}", line()));
            if lines.len() > LINES {
                lines.pop_front();
            }
        }
    }

    pub fn hear(&mut self, step: u32, at: NodeId, input: &GroupInput) {
        let at = at.short();
        match input {
            GroupInput::PeerUp(peer) => {
                self.say(step, || format!("{at} is connected with {}", peer.short()))
            }
            GroupInput::PeerDown(peer) => {
                self.say(step, || format!("{at} has lost {}", peer.short()))
            }
            GroupInput::PeerDead(peer) => {
                self.say(step, || format!("{at} knows that {} is gone", peer.short()))
            }
            GroupInput::PeerRefuses(peer) => {
                self.say(step, || format!("{at} finds that {} refuses", peer.short()))
            }
            GroupInput::PeerEnded(peer) => {
                self.say(step, || format!("{at} sees the end of {}", peer.short()))
            }
            GroupInput::Joined { worker, life } => self.say(step, || {
                format!("{at}: worker {worker} begins, life {life}")
            }),
            GroupInput::Left { worker, life } => {
                self.say(step, || format!("{at}: worker {worker} ends, life {life}"))
            }
            _ => {}
        }
    }

    pub fn gone_on(&mut self, step: u32, at: NodeId, view: &View) {
        self.last_view = step;
        self.say(step, || {
            let nodes: Vec<String> = view
                .nodes
                .iter()
                .map(|(node, _)| node.short().to_string())
                .collect();
            let workers: Vec<u32> = view.workers.iter().map(|(life, _)| life.worker).collect();
            let (number, commit) = (view.epoch.number, view.commit.map(|(clock, _)| clock));
            format!(
                "{}: view {number} goes on, of {}; workers {workers:?}, commits {commit:?}",
                at.short(),
                nodes.join(" ")
            )
        });
    }

    pub fn tell(&mut self, step: u32, at: NodeId, effect: &Effect) {
        let by = at.short();
        match effect {
            Effect::Send { to, message, .. } => self.tell_message(step, &by, *to, message),
            Effect::Checkpoint(CheckpointEffect::Restore { clock }) => {
                self.say(step, || format!("{by} goes back to clock {clock}"))
            }
            Effect::Seed { .. } => self.say(step, || format!("{by} begins")),
            Effect::Tell { worker, notice } => {
                match notice {
                    Notice::Pulled { .. } | Notice::Share(_) | Notice::Kept { .. } => return,
                    Notice::Moved { .. } => self.count("a worker was moved to another clock"),
                    Notice::Misused(why) if why.starts_with("another process") => {}
                    Notice::Misused(_) => self.count("all began anew"),
                    Notice::Status(why) if why.starts_with("waiting: node") => {
                        self.count(match why.contains("blocks of the parameters") {
                            true => "a side waited for blocks",
                            false => "a side waited for nodes",
                        });
                    }
                    _ => {}
                }
                self.say(step, || format!("{by} tells worker {worker}: {notice:?}"));
            }
            _ => {}
        }
    }

    fn tell_message(&mut self, step: u32, by: &str, to: NodeId, message: &ServerMessage) {
        let to = to.short();
        match message {
            ServerMessage::Prepare { epoch } => {
                self.say(step, || format!("{by} asks {to} for view {}", epoch.number));
            }
            ServerMessage::Install { view } => {
                self.say(step, || {
                    format!("{by} has {to} install view {}", view.epoch.number)
                });
                if view.commit.is_some() {
                    self.count("the next view committed a clock");
                }
                if !view.perhaps.is_empty() {
                    self.count("a view may have gone on unseen");
                }
            }
            ServerMessage::InView { message, .. } => match message {
                ViewMessage::Commit { clock, shares, .. } => {
                    self.changes_of_shares += u64::from(!shares.is_empty());
                    self.say(step, || format!("{by} tells {to}: {clock} counts"));
                }
                ViewMessage::PassedAlone { .. } => self.count("a worker passed a barrier alone"),
                ViewMessage::Passed { .. } => self.count("all passed a barrier"),
                _ => {}
            },
            _ => {}
        }
    }
}
