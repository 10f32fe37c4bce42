//! A port for the processes of a gang. The system gives those of its own range to whoever connects
//! to anything: one of these would often be taken before the first process listens there, and
//! whoever tries to connect to it on the same machine meanwhile may reach itself. So it is one of
//! the others.

use rand::{
    RngExt, SeedableRng,
    rngs::{StdRng, SysRng},
};
use std::{
    fs, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    ops::RangeInclusive,
};

/// Below these are those of well-known services.
const LOWEST: u16 = 10_000;
/// Ports that are tried before the system chooses one.
const TRIES: u32 = 64;
const SYSTEM_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// A TCP port at which nobody listens now, on any address. Fails where there is none.
pub fn free() -> io::Result<u16> {
    let text = fs::read_to_string(SYSTEM_RANGE).unwrap_or_default();
    let taken = range(&text).unwrap_or(32_768..=60_999);
    let mut rng = StdRng::try_from_rng(&mut SysRng).map_err(io::Error::other)?;
    for _ in 0..TRIES {
        let port = rng.random_range(LOWEST..=u16::MAX);
        if !taken.contains(&port) && bound(port).is_ok() {
            return Ok(port);
        }
    }
    bound(0)
}

/// Of the two numbers of the system's file.
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut bounds = text.split_whitespace().map(str::parse);
    let (Some(Ok(low)), Some(Ok(high))) = (bounds.next(), bounds.next()) else {
        return None;
    };
    Some(low..=high)
}

/// Listens at a port for a moment; the system chooses it in place of 0.
fn bound(port: u16) -> io::Result<u16> {
    let any = [
        (Ipv6Addr::UNSPECIFIED, port).into(),
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
    ];
    Ok(TcpListener::bind(any.as_slice())?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_none_that_the_system_gives_away() {
        assert_eq!(range("32768\t60999\n"), Some(32_768..=60_999));
        assert_eq!(range(""), None);
        let system = range(&fs::read_to_string(SYSTEM_RANGE).unwrap_or_default());
        let port = free().unwrap();
        let outside = (LOWEST..=u16::MAX).any(|port| {
            let all = system.as_ref();
            all.is_some_and(|all| !all.contains(&port))
        });
        match system {
            Some(system) if outside => assert!(!system.contains(&port), "{port}"),
            _ => println!("SKIPPED: the system gives all ports away"),
        }
        assert!(bound(port).is_ok());
    }
}
