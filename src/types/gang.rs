//! Gangs: tasks that are several processes, on several nodes at once. How many of them a task is,
//! where they find each other, what they learn of that, and what their nodes say to each other.

use super::{NodeId, NodeInfo, Params, TaskRecord, WorkSpec, limits};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fmt::{self, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

/// The variable that names the file with the hosts of a gang, as `mpirun --hostfile` reads it.
pub const HOSTFILE_VARIABLE: &str = "NODECTL_HOSTFILE";

/// Where a file that another process than the first wrote is among those of the task.
pub fn rank_file(rank: u32, path: &str) -> String {
    format!("ranks/{rank}/{path}")
}

/// How many processes each task of a job is: `per_node` on each of `nodes` different nodes, or of
/// more, up to `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gang {
    pub nodes: u32,
    /// As many as `nodes`, unless the gang is elastic.
    pub most: u32,
    pub per_node: u32,
}

impl Gang {
    /// What a job says of it; None if it says nothing.
    pub fn of(nodes: Option<(u32, u32)>, per_node: Option<u32>) -> Option<Self> {
        let (least, most) = nodes.unwrap_or((1, 1));
        (nodes.is_some() || per_node.is_some()).then_some(Self {
            nodes: least,
            most,
            per_node: per_node.unwrap_or(1),
        })
    }

    /// The most processes that there may be.
    pub fn ranks(self) -> u32 {
        self.most.saturating_mul(self.per_node)
    }

    /// A restart may have more nodes or fewer than the one before.
    pub fn is_elastic(self) -> bool {
        self.nodes < self.most
    }
}

/// A node of a gang, and the address by which the others reach it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    pub node: NodeId,
    pub host: IpAddr,
}

/// What the nodes of one attempt of a gang say to each other. The first of them leads it. Each
/// word may be said again, and may be lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum GangWord {
    /// The lead: keep room for the processes of this seat. Whoever `waits` for it gets it as soon
    /// as there is some, else it is now or never.
    Reserve {
        work: Arc<WorkSpec>,
        params: Params,
        seat: u32,
        waits: bool,
    },
    /// The lead: all have room. Start, or go on. The ends of the ranks in `heard` have arrived.
    Start {
        seats: Vec<Seat>,
        port: u16,
        pmi: Option<PmiServer>,
        heard: Vec<u32>,
    },
    /// The lead: it is still wanted, and gathered.
    Keep,
    /// The lead: it is over.
    Stop,
    /// The coordinator, to the lead: these nodes may take part, too. If one of them has room now,
    /// the attempt ends and goes back, so that a larger one can begin.
    Grow { nodes: Vec<NodeId> },
    /// The lead, to a node that is no member: is there room now? None is kept.
    Probe { work: Arc<WorkSpec> },
    /// A member: room is kept, or the processes run. Another node: there is room.
    Ready,
    /// A member: there is no room yet.
    Waits,
    /// A member: a process of its own ended by itself.
    Ended { rank: u32, record: Box<TaskRecord> },
    /// A member: nothing of the gang is here, and why.
    Gone { why: String },
    /// The lead: the MPI program of this rank has asked for the end of all, and may wait for its
    /// own. End it, as if it had exited with this status.
    Abort { rank: u32, status: i32 },
}

/// One attempt's processes, as they become the ranks of one MPI program: where the server listens
/// that MPI libraries find each other by, and what it tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpiWorld {
    /// Libraries take no other kind of address.
    pub host: Ipv4Addr,
    pub ranks: u32,
    /// As many, from the first on, share memory.
    pub beside: u32,
}

impl MpiWorld {
    /// None where libraries could not be told of the first node's address. Processes in containers
    /// have no memory to share.
    pub fn of(work: &WorkSpec, seats: &[Seat]) -> Option<Self> {
        let IpAddr::V4(host) = seats.first()?.host else {
            return None;
        };
        let per_node = work.gang.map_or(1, |gang| gang.per_node);
        let is_contained = work.isolation.image.is_some();
        Some(Self {
            host,
            ranks: seats.len() as u32 * per_node,
            beside: if is_contained { 1 } else { per_node },
        })
    }
}

/// The server at the first node by which the processes of an attempt become one MPI program.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmiServer {
    pub port: u16,
    /// Drawn for this attempt: whoever knows it can take the place of any process.
    pub key: [u8; 16],
}

impl PmiServer {
    /// By which the server knows the process of a rank, and nobody else comes in. It is as long as
    /// MPI libraries let it be: a C `int`, not negative.
    pub fn id(&self, rank: u32) -> u32 {
        let hash = blake3::hash(&[&self.key[..], &rank.to_le_bytes()].concat());
        let [a, b, c, d, ..] = *hash.as_bytes();
        u32::from_le_bytes([a, b, c, d]) >> 1
    }
}

impl fmt::Debug for PmiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PmiServer {{ port: {}, .. }}", self.port)
    }
}

/// What one process of a gang knows of the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub rank: u32,
    pub per_node: u32,
    /// In the order of their ranks.
    pub seats: Vec<Seat>,
    /// Free on the first node when it was looked for.
    pub port: u16,
    pub pmi: Option<PmiServer>,
    /// Of the whole: the same for all ranks.
    pub attempt: super::Attempt,
}

impl Place {
    fn world(&self) -> u32 {
        self.seats.len() as u32 * self.per_node
    }

    /// The variables that torchrun's, JAX's and nodectl's own users read. `run` names this attempt
    /// and no other.
    pub fn variables(&self, run: &str) -> Vec<(&'static str, String)> {
        let (local, node) = (self.rank % self.per_node, self.rank / self.per_node);
        let main = self.seats[0].host;
        let coordinator = match main {
            IpAddr::V4(host) => format!("{host}:{}", self.port),
            IpAddr::V6(host) => format!("[{host}]:{}", self.port),
        };
        let number = |number: u32| number.to_string();
        let mut variables = vec![
            ("RANK", number(self.rank)),
            ("LOCAL_RANK", number(local)),
            ("WORLD_SIZE", number(self.world())),
            ("LOCAL_WORLD_SIZE", number(self.per_node)),
            ("GROUP_RANK", number(node)),
            ("GROUP_WORLD_SIZE", number(self.seats.len() as u32)),
            ("MASTER_ADDR", main.to_string()),
            ("MASTER_PORT", self.port.to_string()),
            ("TORCHELASTIC_RUN_ID", run.to_string()),
            ("JAX_COORDINATOR_ADDRESS", coordinator),
            ("JAX_NUM_PROCESSES", number(self.world())),
            ("JAX_PROCESS_ID", number(self.rank)),
            ("NODECTL_RANK", number(self.rank)),
            ("NODECTL_LOCAL_RANK", number(local)),
            ("NODECTL_WORLD_SIZE", number(self.world())),
            ("NODECTL_LOCAL_WORLD_SIZE", number(self.per_node)),
            ("NODECTL_NODE_RANK", number(node)),
            ("NODECTL_NODES", number(self.seats.len() as u32)),
            ("NODECTL_MASTER_ADDR", main.to_string()),
            ("NODECTL_MASTER_PORT", self.port.to_string()),
        ];
        if let Some(pmi) = &self.pmi {
            variables.push(("PMI_PORT", format!("{main}:{}", pmi.port)));
            variables.push(("PMI_ID", number(pmi.id(self.rank))));
        }
        variables
    }

    /// A line for each host, as Open MPI reads it: an address, and how many processes go there.
    /// Nodes that share an address are one host.
    pub fn hostfile(&self) -> String {
        let mut hosts: Vec<(IpAddr, u32)> = Vec::new();
        for seat in &self.seats {
            match hosts.iter_mut().find(|(host, _)| *host == seat.host) {
                Some((_, slots)) => *slots += self.per_node,
                None => hosts.push((seat.host, self.per_node)),
            }
        }
        let mut text = String::new();
        for (host, slots) in hosts {
            let _ = writeln!(text, "{host} slots={slots}");
        }
        text
    }
}

/// Addresses that may reach each other: those of one machine, or of one kind of network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AddressNetwork {
    /// 192.168/16: by the first three bytes, since many labs have several.
    Home([u8; 3]),
    /// 172.16/12
    Office,
    /// 10/8
    Large,
    /// 100.64/10: a provider's, or a VPN's.
    Shared,
    /// fc00::/7, by its global part.
    Local6([u8; 6]),
    Public4,
    Public6,
    /// One machine.
    Loopback4,
    Loopback6,
}

fn network(host: IpAddr) -> Option<AddressNetwork> {
    match host {
        IpAddr::V4(host) => {
            let [a, b, c, _] = host.octets();
            match (a, b) {
                _ if host.is_loopback() => Some(AddressNetwork::Loopback4),
                _ if host.is_unspecified() || host.is_multicast() || host.is_link_local() => None,
                (192, 168) => Some(AddressNetwork::Home([a, b, c])),
                (172, 16..32) => Some(AddressNetwork::Office),
                (10, _) => Some(AddressNetwork::Large),
                (100, 64..128) => Some(AddressNetwork::Shared),
                _ => Some(AddressNetwork::Public4),
            }
        }
        IpAddr::V6(host) => network6(host),
    }
}

fn network6(host: Ipv6Addr) -> Option<AddressNetwork> {
    let octets = host.octets();
    if let Some(host) = host.to_ipv4_mapped() {
        return network(host.into());
    }
    // An address of a link says nothing without the name of an interface.
    if host.is_unspecified() || host.is_multicast() || host.is_unicast_link_local() {
        return None;
    }
    if host.is_loopback() {
        return Some(AddressNetwork::Loopback6);
    }
    if host.is_unique_local() {
        let global: [u8; 6] = octets[..6].try_into().expect("16 bytes have a first 6");
        return Some(AddressNetwork::Local6(global));
    }
    Some(AddressNetwork::Public6)
}

/// By which others may reach a node. Its loopback is for nodes of one machine that have no network.
fn hosts(info: &NodeInfo) -> Vec<IpAddr> {
    let all = info.addrs.iter().map(|addr| addr.ip());
    let (local, others): (Vec<_>, Vec<_>) = all.partition(IpAddr::is_loopback);
    if others.is_empty() { local } else { others }
}

/// The nodes among these that reach each other, `count` of them, the first that can, with the
/// addresses by which they do. `Err` names the networks that they are in.
pub fn seats(nodes: &[&NodeInfo], count: usize) -> Result<Vec<Seat>, String> {
    if count == 1 {
        // Nobody else has to reach it.
        let lone = nodes.first().map(|info| Seat {
            node: info.id,
            host: hosts(info)
                .into_iter()
                .find(|host| network(*host).is_some())
                .unwrap_or(IpAddr::from([127, 0, 0, 1])),
        });
        return lone.map(|seat| vec![seat]).ok_or_else(String::new);
    }
    let shared = |host: &IpAddr| {
        let with = nodes.iter().filter(|info| hosts(info).contains(host));
        with.count() > 1 && !host.is_loopback()
    };
    let seat_in = |info: &NodeInfo, wanted: AddressNetwork| {
        let mut own = hosts(info).into_iter();
        let host = own.find(|host| network(*host) == Some(wanted) && !shared(host))?;
        Some(Seat {
            node: info.id,
            host,
        })
    };
    let networks: BTreeSet<_> = nodes
        .iter()
        .flat_map(|info| hosts(info))
        .filter_map(network)
        .collect();
    // Of several, the one whose nodes come first.
    let best = networks
        .into_iter()
        .filter_map(|wanted| {
            let found = nodes
                .iter()
                .enumerate()
                .filter_map(|(place, info)| Some((place, seat_in(info, wanted)?)));
            let found: Vec<_> = found.take(count).collect();
            let last = found.get(count - 1)?.0;
            Some((last, wanted, found))
        })
        .min_by_key(|(last, wanted, _)| (*last, *wanted));
    let Some((_, _, found)) = best else {
        let list = nodes.iter().take(8).map(|info| {
            let own: Vec<_> = hosts(info).iter().take(4).map(IpAddr::to_string).collect();
            match own.as_slice() {
                [] => format!("{} has no address", info.name),
                own => format!("{} has {}", info.name, own.join(" and ")),
            }
        });
        return Err(list.collect::<Vec<_>>().join(", "));
    };
    Ok(found.into_iter().map(|(_, seat)| seat).collect())
}

/// Whether these seats can be those of a gang.
pub fn are_seats(seats: &[Seat], gang: Gang) -> bool {
    let nodes: BTreeSet<_> = seats.iter().map(|seat| seat.node).collect();
    (gang.nodes as usize..=gang.most as usize).contains(&seats.len())
        && nodes.len() == seats.len()
        && gang.per_node > 0
        && gang.ranks() > 0
        && gang.ranks() <= limits::MAX_RANKS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attempt, Resources};

    fn node(number: u8, addrs: &[&str]) -> NodeInfo {
        let addrs = addrs
            .iter()
            .map(|host| (host.parse::<IpAddr>().unwrap(), 7).into());
        NodeInfo {
            id: NodeId([number; 32]),
            version: 1,
            name: format!("box{number}"),
            software: String::new(),
            model: String::new(),
            addrs: addrs.collect(),
            resources: Resources::default(),
            gpus: Vec::new(),
            labels: Default::default(),
            draining: false,
            closed: None,
            admits: Default::default(),
            leaving: false,
            returning: false,
            problem: None,
            seeks_gpus: false,
        }
    }

    fn chosen(nodes: &[NodeInfo], count: usize) -> Result<Vec<String>, String> {
        let nodes: Vec<_> = nodes.iter().collect();
        let seats = seats(&nodes, count)?;
        Ok(seats.iter().map(|seat| seat.host.to_string()).collect())
    }

    #[test]
    fn nodes_are_named_by_addresses_of_a_network_that_they_share() {
        // Every machine with Docker has 172.17.0.1.
        let nodes = [
            node(1, &["172.17.0.1", "10.0.0.1"]),
            node(2, &["172.17.0.1", "192.168.7.2", "10.0.0.2"]),
        ];
        assert_eq!(chosen(&nodes, 2).unwrap(), ["10.0.0.1", "10.0.0.2"]);
        let one_machine = [node(1, &["127.0.0.1"]), node(2, &["127.0.0.1"])];
        assert_eq!(chosen(&one_machine, 2).unwrap(), ["127.0.0.1", "127.0.0.1"]);
        let apart = [
            node(1, &["192.168.1.1"]),
            node(2, &["10.0.0.2"]),
            node(3, &["192.168.1.3", "10.0.0.3"]),
        ];
        assert_eq!(chosen(&apart, 2).unwrap(), ["192.168.1.1", "192.168.1.3"]);
        assert_eq!(
            chosen(&apart, 3).unwrap_err(),
            "box1 has 192.168.1.1, box2 has 10.0.0.2, box3 has 192.168.1.3 and 10.0.0.3"
        );
        assert_eq!(chosen(&[node(1, &[])], 1).unwrap(), ["127.0.0.1"]);
    }

    #[test]
    fn a_rank_knows_its_place() {
        let seat = |number: u8| Seat {
            node: NodeId([number; 32]),
            host: IpAddr::from([10, 0, 0, number]),
        };
        let place = Place {
            rank: 3,
            per_node: 2,
            seats: vec![seat(1), seat(2)],
            port: 29_500,
            pmi: Some(PmiServer {
                port: 4_100,
                key: [7; 16],
            }),
            attempt: Attempt {
                epoch: 1,
                claim: 0,
                number: 5,
            },
        };
        let variables = place.variables("run-7");
        let value = |name: &str| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| value.as_str()).unwrap()
        };
        assert_eq!(value("RANK"), "3");
        assert_eq!(value("LOCAL_RANK"), "1");
        assert_eq!(value("GROUP_RANK"), "1");
        assert_eq!(value("WORLD_SIZE"), "4");
        assert_eq!(value("LOCAL_WORLD_SIZE"), "2");
        assert_eq!(value("MASTER_ADDR"), "10.0.0.1");
        assert_eq!(value("JAX_COORDINATOR_ADDRESS"), "10.0.0.1:29500");
        assert_eq!(value("TORCHELASTIC_RUN_ID"), "run-7");
        assert_eq!(value("PMI_PORT"), "10.0.0.1:4100");
        assert!(value("PMI_ID").parse::<i32>().unwrap() >= 0);
        assert_eq!(place.hostfile(), "10.0.0.1 slots=2\n10.0.0.2 slots=2\n");
        let shared = Place {
            seats: vec![seat(1), seat(2), seat(1)],
            ..place
        };
        assert_eq!(shared.hostfile(), "10.0.0.1 slots=4\n10.0.0.2 slots=2\n");
    }

    #[test]
    fn ids_differ_by_rank_and_by_key_and_are_not_shown() {
        let server = |key| PmiServer { port: 1, key };
        let ids: BTreeSet<_> = (0..256).map(|rank| server([1; 16]).id(rank)).collect();
        assert_eq!(ids.len(), 256);
        assert_ne!(server([1; 16]).id(0), server([2; 16]).id(0));
        assert_eq!(
            format!("{:?}", server([1; 16])),
            "PmiServer { port: 1, .. }"
        );
    }

    #[test]
    fn an_elastic_gang_has_any_number_of_nodes_between_its_bounds() {
        let gang = Gang::of(Some((2, 3)), Some(4)).unwrap();
        assert!(gang.is_elastic() && gang.ranks() == 12);
        let seats = |count: u8| {
            let seat = |number| Seat {
                node: NodeId([number; 32]),
                host: IpAddr::from([10, 0, 0, number]),
            };
            (1..=count).map(seat).collect::<Vec<_>>()
        };
        let fits = [1, 2, 3, 4].map(|count| are_seats(&seats(count), gang));
        assert_eq!(fits, [false, true, true, false]);
        assert!(!Gang::of(None, Some(2)).unwrap().is_elastic());
    }
}
