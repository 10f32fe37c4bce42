//! Between libp2p's addresses and errors and ours.

use libp2p::{Multiaddr, core::transport::TransportError, multiaddr::Protocol, swarm::DialError};
use std::{error::Error, io, net::SocketAddr};

pub fn multiaddr(addr: SocketAddr) -> Multiaddr {
    Multiaddr::from(addr.ip()).with(Protocol::Tcp(addr.port()))
}

/// The `/ip4/…/tcp/…` or `/ip6/…/tcp/…` at the beginning. Link-local ones are left out: they mean nothing without a scope.
pub fn socket_addr(addr: &Multiaddr) -> Option<SocketAddr> {
    let mut parts = addr.iter();
    let ip = match parts.next()? {
        Protocol::Ip4(ip) => ip.into(),
        Protocol::Ip6(ip) if ip.is_unicast_link_local() => return None,
        Protocol::Ip6(ip) => ip.into(),
        _ => return None,
    };
    match parts.next()? {
        Protocol::Tcp(port) => Some(SocketAddr::new(ip, port)),
        _ => None,
    }
}

/// What a failed dial means to a person.
pub fn explain(error: &DialError) -> String {
    let DialError::Transport(errors) = error else { return error.to_string() };
    let reasons: Vec<_> = errors.iter().map(|(addr, error)| format!("{}: {}", place(addr), reason(error))).collect();
    if reasons.is_empty() { "no address to dial".into() } else { reasons.join("; ") }
}

fn place(addr: &Multiaddr) -> String {
    socket_addr(addr).map_or_else(|| addr.to_string(), |addr| addr.to_string())
}

fn reason(error: &TransportError<io::Error>) -> String {
    let TransportError::Other(outer) = error else { return "not an address that can be dialed".into() };
    let mut cause: Option<&(dyn Error + 'static)> = Some(outer);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<io::Error>().filter(|error| error.raw_os_error().is_some());
        match kind.map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionRefused) => return "nothing listens there".into(),
            Some(io::ErrorKind::ConnectionReset) | None => {}
            Some(_) => return error.to_string(),
        }
        cause = error.source();
    }
    // It listens, but we do not understand each other, or it says nothing until the time is over.
    format!("it does not accept us; probably it has another secret, or is no nodectl ({outer})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_convert_both_ways() {
        for text in ["10.1.2.3:456", "[2001:db8::1]:7"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(socket_addr(&multiaddr(addr)), Some(addr));
        }
        assert_eq!(socket_addr(&"/ip6/fe80::1/tcp/5".parse().unwrap()), None);
        assert_eq!(socket_addr(&"/dns4/example.org/tcp/5".parse().unwrap()), None);
    }
}
