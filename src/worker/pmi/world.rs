//! What the processes of an attempt tell each other over PMI. A process may be several MPI programs
//! one after the other, as a script is: the n-th of each rank are one world.

use super::line::{self, FINALIZED, KEY_BYTES, NAME_BYTES, PmiRequest, Spawning, VALUE_BYTES};
use nodectl_types::gang::{MpiWorld, PmiServer};
use std::collections::BTreeMap;

/// Values that a world has for each of its ranks; libraries put some ten there.
const VALUES_OF_RANK: usize = 128;
/// Worlds that not all ranks have left.
const WORLDS: usize = 16;

/// A connection that was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub rank: u32,
    /// How many programs the rank was before.
    pub program: u32,
}

/// Why a connection is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PmiRefusal {
    Stranger,
    /// The rank's last program is still connected.
    Taken,
}

/// What follows from a line.
#[derive(Debug, PartialEq, Eq)]
pub enum PmiStep {
    Answer(String),
    Nothing,
    /// Wait until so many barriers of this world are behind.
    Barrier(u64),
    /// Say that and close.
    Last(&'static str),
    Close,
    /// Tell that all are to end, and close.
    Abort {
        status: i32,
    },
}

#[derive(Debug, Default)]
struct MpiRank {
    is_in: bool,
    /// How many programs it has been.
    programs: u32,
}

/// One MPI program of all ranks.
#[derive(Debug, Default)]
struct MpiProgram {
    values: BTreeMap<String, String>,
    waiting: u32,
    /// Barriers that all have been in.
    passed: u64,
    /// Then no barrier opens any more.
    left: u32,
}

#[derive(Debug)]
pub struct Worlds {
    /// Of the ranks, by what their processes say.
    ids: BTreeMap<u32, u32>,
    name: String,
    of: MpiWorld,
    ranks: Vec<MpiRank>,
    worlds: BTreeMap<u32, MpiProgram>,
}

impl Worlds {
    /// None where two ranks have one id.
    pub fn new(server: &PmiServer, name: String, of: MpiWorld) -> Option<Self> {
        let ids: BTreeMap<u32, u32> = (0..of.ranks).map(|rank| (server.id(rank), rank)).collect();
        (ids.len() == of.ranks as usize).then(|| Self {
            ids,
            name,
            of,
            ranks: (0..of.ranks).map(|_| MpiRank::default()).collect(),
            worlds: BTreeMap::new(),
        })
    }

    /// A connection's first line: who it is, and what it is told.
    pub fn admit(&mut self, line: &[u8]) -> Result<(Member, String), PmiRefusal> {
        let rank = match line::request(line) {
            Some(PmiRequest::Admit { id }) => self.ids.get(&id).copied(),
            _ => None,
        };
        let rank = rank.ok_or(PmiRefusal::Stranger)?;
        let own = &mut self.ranks[rank as usize];
        let member = Member {
            rank,
            program: own.programs,
        };
        let is_new = !self.worlds.contains_key(&member.program);
        if own.is_in || (is_new && self.worlds.len() >= WORLDS) {
            return Err(PmiRefusal::Taken);
        }
        (own.is_in, own.programs) = (true, own.programs + 1);
        self.worlds.entry(member.program).or_default();
        let welcome = format!(
            "cmd=initack rc=0\ncmd=set size={}\ncmd=set rank={rank}\ncmd=set debug=0\n",
            self.of.ranks
        );
        Ok((member, welcome))
    }

    /// A line of somebody who is in.
    pub fn step(&mut self, member: Member, spawning: &mut Spawning, line: &[u8]) -> PmiStep {
        match spawning.line(line) {
            Some(true) => {
                let why = "msg=nodectl_starts_no_more_processes";
                return PmiStep::Answer(format!("cmd=spawn_result rc=-1 {why}\n"));
            }
            Some(false) => return PmiStep::Nothing,
            None => {}
        }
        match line::request(line) {
            Some(PmiRequest::Spawn) => {
                spawning.begin();
                PmiStep::Nothing
            }
            Some(request) => self.answer(member, request),
            None => PmiStep::Close,
        }
    }

    fn answer(&mut self, member: Member, request: PmiRequest<'_>) -> PmiStep {
        let Some(world) = self.worlds.get_mut(&member.program) else {
            return PmiStep::Close;
        };
        let ranks = self.of.ranks;
        PmiStep::Answer(match request {
            PmiRequest::Init { version } => {
                let rc = if version == "1" { 0 } else { -1 };
                format!("cmd=response_to_init rc={rc} pmi_version=1 pmi_subversion=1\n")
            }
            PmiRequest::Limits => format!(
                "cmd=maxes kvsname_max={NAME_BYTES} keylen_max={KEY_BYTES} vallen_max={VALUE_BYTES}\n"
            ),
            PmiRequest::Program => "cmd=appnum appnum=0\n".into(),
            PmiRequest::Name => {
                format!("cmd=my_kvsname kvsname={}-{}\n", self.name, member.program)
            }
            PmiRequest::Universe => format!("cmd=universe_size size={ranks}\n"),
            PmiRequest::Put { key, value } => {
                let is_full = world.values.len() >= VALUES_OF_RANK * ranks as usize;
                match is_full && !world.values.contains_key(key) {
                    true => "cmd=put_result rc=-1 msg=too_many_keys\n".into(),
                    false => {
                        world.values.insert(key.into(), value.into());
                        "cmd=put_result rc=0 msg=success\n".into()
                    }
                }
            }
            PmiRequest::Get { key } => got(&self.of, &world.values, key),
            PmiRequest::Barrier => return world.come_to_barrier(ranks),
            PmiRequest::Refused { answer } => format!("{answer} rc=-1 msg=not_known_here\n"),
            PmiRequest::Finalize => return PmiStep::Last(FINALIZED),
            PmiRequest::Abort { status } => return PmiStep::Abort { status },
            PmiRequest::Admit { .. } | PmiRequest::Spawn => return PmiStep::Close,
        })
    }

    /// Whether so many barriers are behind the member's world; None: that will never be.
    pub fn is_open(&self, member: Member, number: u64) -> Option<bool> {
        let world = self.worlds.get(&member.program)?;
        match world.passed >= number {
            true => Some(true),
            false => (world.left == 0).then_some(false),
        }
    }

    /// A program's connection is over, or only the last word on it is to be said: other ranks wait
    /// for that program no more.
    pub fn leave(&mut self, member: Member) {
        self.ranks[member.rank as usize].is_in = false;
        let Some(world) = self.worlds.get_mut(&member.program) else {
            return;
        };
        world.left += 1;
        if world.left == self.of.ranks {
            self.worlds.remove(&member.program);
        }
    }
}

impl MpiProgram {
    fn come_to_barrier(&mut self, ranks: u32) -> PmiStep {
        let number = self.passed + 1;
        self.waiting += 1;
        if self.waiting == ranks && self.left == 0 {
            (self.waiting, self.passed) = (0, number);
        }
        PmiStep::Barrier(number)
    }
}

/// What was put there; of one key it is ours to say: which ranks share memory.
fn got(of: &MpiWorld, values: &BTreeMap<String, String>, key: &str) -> String {
    let places = || {
        let groups = of.ranks / of.beside.max(1);
        (key == "PMI_process_mapping").then(|| format!("(vector,(0,{groups},{}))", of.beside))
    };
    match values.get(key).cloned().or_else(places) {
        Some(value) => format!("cmd=get_result rc=0 msg=success value={value}\n"),
        None => "cmd=get_result rc=-1 msg=no_such_key value=unknown\n".into(),
    }
}
