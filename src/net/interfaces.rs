//! This machine's interfaces: which to announce on, which addresses to be reached at.

use super::config::NetError;
use if_addrs::{IfAddr, Interface};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Bridges and tunnels of containers and virtual machines: the same address on every machine,
/// reachable from none.
const VIRTUAL: [&str; 6] = ["docker", "br-", "veth", "virbr", "cni", "flannel"];

/// A snapshot; interfaces come and go.
#[derive(Clone, Debug, Default)]
pub struct Interfaces {
    /// The interfaces in use, loopback left out.
    used: Vec<Interface>,
    /// Every address of this machine.
    own: Vec<IpAddr>,
}

impl Interfaces {
    /// Reads them. `wanted` names those to use; empty means all but virtual ones, or these too if
    /// there are no others.
    pub fn read(wanted: &[String]) -> Result<Self, NetError> {
        let all = if_addrs::get_if_addrs().map_err(NetError::Interfaces)?;
        if let Some(name) = wanted
            .iter()
            .find(|name| !all.iter().any(|interface| interface.name == **name))
        {
            let mut have: Vec<_> = all.iter().map(|interface| interface.name.clone()).collect();
            have.dedup();
            return Err(NetError::NoInterface {
                name: name.clone(),
                have: have.join(", "),
            });
        }
        Ok(Self::select(all, wanted))
    }

    fn select(all: Vec<Interface>, wanted: &[String]) -> Self {
        let own = all.iter().map(Interface::ip).collect();
        let mut used: Vec<_> = all
            .into_iter()
            .filter(|interface| !interface.is_loopback())
            .collect();
        if !wanted.is_empty() {
            used.retain(|interface| wanted.contains(&interface.name));
        } else if used.iter().any(|interface| !is_virtual(interface)) {
            used.retain(|interface| !is_virtual(interface));
        }
        Self { used, own }
    }

    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self
            .used
            .iter()
            .map(|interface| interface.name.clone())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Where this node can be reached: loopback only if there is nothing else, link-local never (it
    /// needs a scope).
    pub fn addrs(&self, port: u16) -> Vec<SocketAddr> {
        let usable = self
            .used
            .iter()
            .filter(|interface| !interface.is_link_local());
        let mut addrs: Vec<_> = usable
            .map(|interface| SocketAddr::new(interface.ip(), port))
            .collect();
        if addrs.is_empty() {
            addrs.push(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        }
        addrs.sort_by_key(|addr| addr.is_ipv6());
        addrs.truncate(16);
        addrs
    }

    pub fn is_own(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.own.contains(&ip)
    }

    /// In one of this machine's networks.
    pub fn is_near(&self, ip: IpAddr) -> bool {
        let holds = |interface: &Interface| match (&interface.addr, ip) {
            (IfAddr::V4(own), IpAddr::V4(ip)) => {
                (own.ip.to_bits() ^ ip.to_bits()) & own.netmask.to_bits() == 0
            }
            (IfAddr::V6(own), IpAddr::V6(ip)) => {
                (own.ip.to_bits() ^ ip.to_bits()) & own.netmask.to_bits() == 0
            }
            _ => false,
        };
        self.is_own(ip) || self.used.iter().any(holds)
    }

    /// The IPv4 broadcast address of each interface that has one.
    pub fn broadcasts(&self) -> Vec<Ipv4Addr> {
        let broadcast = |interface: &Interface| match &interface.addr {
            IfAddr::V4(v4) => v4
                .broadcast
                .or((v4.prefixlen < 31).then(|| v4.ip | !v4.netmask)),
            IfAddr::V6(_) => None,
        };
        let mut all: Vec<_> = self.used.iter().filter_map(broadcast).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The IPv4 address of each interface.
    pub fn ipv4s(&self) -> Vec<Ipv4Addr> {
        let v4 = |interface: &Interface| match &interface.addr {
            IfAddr::V4(v4) => Some(v4.ip),
            IfAddr::V6(_) => None,
        };
        let mut all: Vec<_> = self.used.iter().filter_map(v4).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The indices of the interfaces that speak IPv6.
    pub fn ipv6_indices(&self) -> Vec<u32> {
        let v6 = self
            .used
            .iter()
            .filter(|interface| matches!(interface.addr, IfAddr::V6(_)));
        let mut all: Vec<_> = v6.filter_map(|interface| interface.index).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

fn is_virtual(interface: &Interface) -> bool {
    VIRTUAL
        .iter()
        .any(|prefix| interface.name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use if_addrs::{IfOperStatus, Ifv4Addr};

    fn interface(name: &str, ip: [u8; 4]) -> Interface {
        let addr = Ifv4Addr {
            ip: ip.into(),
            netmask: [255, 255, 255, 0].into(),
            prefixlen: 24,
            broadcast: None,
        };
        let (name, addr) = (name.to_string(), IfAddr::V4(addr));
        Interface {
            name,
            addr,
            index: Some(1),
            oper_status: IfOperStatus::Up,
            is_p2p: false,
        }
    }

    #[test]
    fn bridges_are_used_only_if_there_is_nothing_else() {
        let (lo, eth) = (
            interface("lo", [127, 0, 0, 1]),
            interface("eth0", [10, 0, 0, 1]),
        );
        let bridge = interface("docker0", [172, 17, 0, 1]);
        let names = |all: Vec<Interface>| Interfaces::select(all, &[]).names();
        assert_eq!(
            names(vec![lo.clone(), eth.clone(), bridge.clone()]),
            ["eth0"]
        );
        assert_eq!(names(vec![lo.clone(), bridge.clone()]), ["docker0"]);
        let named = Interfaces::select(vec![lo.clone(), eth, bridge], &["docker0".into()]);
        assert_eq!(named.names(), ["docker0"]);
        assert_eq!(named.broadcasts(), [Ipv4Addr::new(172, 17, 0, 255)]);
        assert!(named.is_own([10, 0, 0, 1].into()));
        assert!(named.is_near([172, 17, 0, 200].into()) && !named.is_near([172, 17, 1, 1].into()));
        let alone = Interfaces::select(vec![lo], &[]);
        assert_eq!(alone.addrs(5), ["127.0.0.1:5".parse().unwrap()]);
    }

    #[test]
    fn a_missing_interface_is_named() {
        let error = Interfaces::read(&["nosuch0".into()])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("nosuch0") && error.contains("hint:"),
            "{error}"
        );
    }
}
