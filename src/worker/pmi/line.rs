//! What a line of PMI says: words `key=value` between spaces. Nothing of it is believed before it
//! is what this file names.

/// A longer line is none, its end included. Names, keys and values are as long as MPICH's own
/// server lets them be; a library takes no lines of more than 1024 bytes itself.
pub const LINE_BYTES: usize = 2048;
pub const NAME_BYTES: usize = 256;
pub const KEY_BYTES: usize = 64;
pub const VALUE_BYTES: usize = 1024;

pub const BARRIER_OUT: &str = "cmd=barrier_out\n";
pub const FINALIZED: &str = "cmd=finalize_ack\n";

#[derive(Debug, PartialEq, Eq)]
pub enum PmiRequest<'a> {
    /// A connection's first.
    Admit {
        id: u32,
    },
    Init {
        version: &'a str,
    },
    Limits,
    Program,
    Name,
    Universe,
    Put {
        key: &'a str,
        value: &'a str,
    },
    Get {
        key: &'a str,
    },
    Barrier,
    Finalize,
    /// All processes are to end.
    Abort {
        status: i32,
    },
    /// What is not done here, and how its refusal begins.
    Refused {
        answer: &'static str,
    },
    /// The first line of several.
    Spawn,
}

/// None: it says nothing that is known here.
pub fn request(line: &[u8]) -> Option<PmiRequest<'_>> {
    let line = text(line)?;
    if line == "mcmd=spawn" {
        return Some(PmiRequest::Spawn);
    }
    let value = |wanted: &str| {
        let mut words = line.split(' ').filter_map(|word| word.split_once('='));
        words.find_map(|(key, value)| (key == wanted).then_some(value))
    };
    let key = || value("key").filter(|key| (1..=KEY_BYTES).contains(&key.len()));
    Some(match line.strip_prefix("cmd=")?.split(' ').next()? {
        "initack" => PmiRequest::Admit {
            id: value("pmiid")?.parse().ok()?,
        },
        "init" => PmiRequest::Init {
            version: value("pmi_version")?,
        },
        "get_maxes" => PmiRequest::Limits,
        "get_appnum" => PmiRequest::Program,
        "get_my_kvsname" => PmiRequest::Name,
        "get_universe_size" => PmiRequest::Universe,
        "put" => PmiRequest::Put {
            key: key()?,
            value: value("value").filter(|value| value.len() <= VALUE_BYTES)?,
        },
        "get" => PmiRequest::Get { key: key()? },
        // One of some of the ranks is asked for only of servers that say they know it.
        "barrier_in" if value("group").is_none() => PmiRequest::Barrier,
        "finalize" => PmiRequest::Finalize,
        "abort" => PmiRequest::Abort {
            status: exit_status(value("exitcode")),
        },
        "publish_name" => refused("cmd=publish_result"),
        "unpublish_name" => refused("cmd=unpublish_result"),
        "lookup_name" => refused("cmd=lookup_result"),
        _ => return None,
    })
}

/// That of a process which exits so, but none that says all is well.
fn exit_status(code: Option<&str>) -> i32 {
    let code = code.and_then(|code| code.parse::<i32>().ok());
    code.map_or(1, |code| (code & 0xff).max(1))
}

fn refused(answer: &'static str) -> PmiRequest<'static> {
    PmiRequest::Refused { answer }
}

/// Printable ASCII and no more.
fn text(line: &[u8]) -> Option<&str> {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    let text = std::str::from_utf8(line).ok()?;
    line.iter().all(is_plain).then_some(text)
}

/// An order to start more processes, line after line: of each program until `endcmd`, and which of
/// how many it is.
#[derive(Debug, Default)]
pub struct Spawning {
    is_on: bool,
    total: u32,
    so_far: u32,
}

impl Spawning {
    /// A program's first line was read.
    pub fn begin(&mut self) {
        self.is_on = true;
    }

    /// A line of it; None: there is no such order on its way. True if that was the last.
    pub fn line(&mut self, line: &[u8]) -> Option<bool> {
        if !self.is_on {
            return None;
        }
        let number = |prefix: &[u8]| {
            let digits = std::str::from_utf8(line.strip_prefix(prefix)?).ok()?;
            digits.parse().ok()
        };
        self.total = number(b"totspawns=").unwrap_or(self.total);
        self.so_far = number(b"spawnssofar=").unwrap_or(self.so_far);
        if line != b"endcmd" {
            return Some(false);
        }
        self.is_on = false;
        Some(self.so_far >= self.total)
    }
}
