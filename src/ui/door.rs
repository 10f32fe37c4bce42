//! Where browsers reach the page, and what follows from that: its address, the names that requests
//! may call it by, and how careful its cookie is.

use super::tls::PageCertificate;
use std::net::{IpAddr, Ipv4Addr};

/// Where browsers reach the page.
#[derive(Debug, Default)]
pub enum PageDoor {
    /// By HTTP on 127.0.0.1: browsers of this machine, and of others through `ssh -L`.
    #[default]
    Loopback,
    /// By TLS on an address that other machines reach.
    Network {
        /// What the page listens on; unspecified for all addresses.
        address: IpAddr,
        /// What this machine is called.
        host: String,
        certificate: PageCertificate,
    },
}

impl PageDoor {
    pub fn listens_on(&self) -> IpAddr {
        match self {
            Self::Loopback => Ipv4Addr::LOCALHOST.into(),
            Self::Network { address, .. } => *address,
        }
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        match self {
            Self::Loopback => "http",
            Self::Network { .. } => "https",
        }
    }

    /// The page's address without a path.
    pub fn origin(&self, port: u16) -> String {
        let scheme = self.scheme();
        match (self, self.listens_on()) {
            (Self::Network { host, .. }, address) if address.is_unspecified() => {
                format!("{scheme}://{host}:{port}")
            }
            (_, IpAddr::V4(address)) => format!("{scheme}://{address}:{port}"),
            (_, IpAddr::V6(address)) => format!("{scheme}://[{address}]:{port}"),
        }
    }

    /// Whether a request's `Host` names this page, with whatever port: through `ssh -L` it may be
    /// another one. Over a network any address does: only a name can be pointed here by somebody
    /// else after a browser has opened a page of theirs under it.
    pub fn is_named(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        if matches!(name, "127.0.0.1" | "[::1]") || name.eq_ignore_ascii_case("localhost") {
            return true;
        }
        match self {
            Self::Loopback => false,
            Self::Network { host, .. } => {
                let bare = name
                    .strip_prefix('[')
                    .and_then(|name| name.strip_suffix(']'));
                name.eq_ignore_ascii_case(host) || bare.unwrap_or(name).parse::<IpAddr>().is_ok()
            }
        }
    }

    /// The cookie's name. Browsers send the cookies of all of a machine's ports to each; what
    /// begins with `__Host-` they take by TLS only.
    pub fn cookie_name(&self, port: u16) -> String {
        match self {
            Self::Loopback => format!("nodectl-{port}"),
            Self::Network { .. } => format!("__Host-nodectl-{port}"),
        }
    }

    pub fn cookie_attributes(&self) -> &'static str {
        match self {
            Self::Loopback => "Path=/; HttpOnly; SameSite=Strict",
            Self::Network { .. } => "Path=/; HttpOnly; SameSite=Strict; Secure",
        }
    }
}
