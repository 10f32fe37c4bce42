//! Addresses of nodes, as `HOST:PORT`.

use std::net::SocketAddr;

/// Of these addresses, the ones that other machines may reach.
pub fn reachable<T: AsRef<str>>(addrs: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    addrs.into_iter().filter(|addr| !is_loopback(addr.as_ref()))
}

fn is_loopback(addr: &str) -> bool {
    addr.parse::<SocketAddr>()
        .is_ok_and(|addr| addr.ip().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::reachable;

    #[test]
    fn what_only_this_machine_reaches_is_left_out() {
        let addrs = [
            "127.0.0.1:1",
            "[::1]:1",
            "127.8.0.1:1",
            "192.0.2.1:1",
            "[2001:db8::1]:1",
            "lab.example:1",
        ];
        assert_eq!(
            reachable(addrs).collect::<Vec<_>>(),
            ["192.0.2.1:1", "[2001:db8::1]:1", "lab.example:1"]
        );
    }
}
