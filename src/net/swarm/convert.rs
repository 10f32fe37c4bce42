//! Between libp2p's addresses and errors and ours.

use libp2p::{
    Multiaddr,
    core::transport::TransportError,
    multiaddr::Protocol,
    swarm::{DialError, ListenError},
};
use std::{io, net::SocketAddr};

/// What an error says of a node that has the key, and is not let in. libp2p's layers leave nothing
/// of it but its text.
pub const REFUSED: &str = "it is refused";

pub fn multiaddr(addr: SocketAddr) -> Multiaddr {
    Multiaddr::from(addr.ip()).with(Protocol::Tcp(addr.port()))
}

/// The `/ip4/…/tcp/…` or `/ip6/…/tcp/…` at the beginning. Link-local ones are left out: they mean
/// nothing without a scope; and circuits, which begin with the address of who relays.
pub fn socket_addr(addr: &Multiaddr) -> Option<SocketAddr> {
    if addr.iter().any(|part| part == Protocol::P2pCircuit) {
        return None;
    }
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
    let DialError::Transport(errors) = error else {
        return error.to_string();
    };
    let reasons: Vec<_> = errors
        .iter()
        .map(|(addr, error)| match relay(addr) {
            Some(relay) => format!("through {relay}: no way from there ({error})"),
            None => format!("{}: {}", place(addr), reason(error)),
        })
        .collect();
    if reasons.is_empty() {
        "no address to dial".into()
    } else {
        reasons.join("; ")
    }
}

/// Where the node listens that is to relay.
fn relay(addr: &Multiaddr) -> Option<SocketAddr> {
    let is_circuit = addr.iter().any(|part| part == Protocol::P2pCircuit);
    let before = addr
        .iter()
        .take_while(|part| !matches!(part, Protocol::P2p(_) | Protocol::P2pCircuit));
    is_circuit.then(|| socket_addr(&before.collect())).flatten()
}

fn place(addr: &Multiaddr) -> String {
    socket_addr(addr).map_or_else(|| addr.to_string(), |addr| addr.to_string())
}

fn reason(error: &TransportError<io::Error>) -> String {
    let TransportError::Other(outer) = error else {
        return "not an address that can be dialed".into();
    };
    let text = outer.to_string();
    if let Some((_, why)) = text.split_once(REFUSED) {
        return why.trim_start_matches(": ").to_string();
    }
    match os_error(&text).map(io::Error::from_raw_os_error) {
        Some(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            "nothing listens there".into()
        }
        Some(error) if error.kind() != io::ErrorKind::ConnectionReset => error.to_string(),
        // It listens, but we do not understand each other, or it says nothing until the time is
        // over.
        _ => format!(
            "it does not accept us; probably it has another secret, or is no nodectl ({text})"
        ),
    }
}

/// A connection from outside whose first words were not made with this cluster's key. One that
/// ended before it had said them proves nothing: whoever asks only whether we listen does so, and
/// members do that give up a dial of several.
pub fn is_foreign(error: &ListenError) -> bool {
    let ListenError::Transport(TransportError::Other(error)) = error else {
        return false;
    };
    // libp2p wraps its layers' errors so that only their text is left.
    format!("{error:?}").contains("InvalidData")
}

/// The kernel's error under libp2p's wrappings. Those (`Either`) hide it from `Error::source`, but
/// not from the text.
fn os_error(text: &str) -> Option<i32> {
    let (_, rest) = text.rsplit_once("(os error ")?;
    rest.split_once(')')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_error_is_found_under_wrappings() {
        let refused = || io::Error::from_raw_os_error(111);
        let wrapped =
            TransportError::Other(io::Error::other(io::Error::other(refused()).to_string()));
        assert_eq!(reason(&wrapped), "nothing listens there");
        assert!(
            reason(&TransportError::Other(io::Error::other("garbage"))).contains("another secret")
        );
    }

    #[test]
    fn a_circuit_that_fails_is_not_taken_for_another_secret() {
        let peer = libp2p::PeerId::random();
        let circuit = format!("/ip4/10.1.2.3/tcp/5/p2p/{peer}/p2p-circuit/p2p/{peer}");
        let error = TransportError::Other(io::Error::other("no reservation"));
        let failed = DialError::Transport(vec![(circuit.parse().unwrap(), error)]);
        assert!(explain(&failed).starts_with("through 10.1.2.3:5: no way from there ("));
    }

    #[test]
    fn addresses_convert_both_ways() {
        for text in ["10.1.2.3:456", "[2001:db8::1]:7"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(socket_addr(&multiaddr(addr)), Some(addr));
        }
        assert_eq!(socket_addr(&"/ip6/fe80::1/tcp/5".parse().unwrap()), None);
        assert_eq!(
            socket_addr(&"/dns4/example.org/tcp/5".parse().unwrap()),
            None
        );
        assert_eq!(
            socket_addr(&"/ip4/10.1.2.3/tcp/5/p2p-circuit".parse().unwrap()),
            None
        );
    }
}
