//! Names that a program which is linked statically cannot look up by itself. glibc would load the
//! system's modules for it (NSS: LDAP, systemd, …), which belong to the system's own C library and
//! may crash beside the one inside of this program. `getent` asks them in a process of its own.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    process::{Command, Stdio},
};

/// Whether this program runs without a loader, and so without libraries of the system.
pub fn is_static() -> bool {
    // SAFETY: it reads what the kernel told this process. AT_BASE is where the loader is.
    unsafe { libc::getauxval(libc::AT_BASE) == 0 }
}

/// What a database of the system has under a name; empty if it has nothing. None: the C library may
/// be asked, since it is the system's own, or since there is no `getent`, and then no modules.
pub fn ask(database: &str, key: &str) -> Option<String> {
    if !is_static() {
        return None;
    }
    let mut command = Command::new("getent");
    command.args([database, "--", key]).stdin(Stdio::null());
    let output = command.output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The addresses of `HOST:PORT`; None as `ask`. May take as long as a network.
pub fn addresses(peer: &str) -> Option<io::Result<Vec<SocketAddr>>> {
    if !is_static() || peer.parse::<SocketAddr>().is_ok() {
        return None;
    }
    let (host, port) = peer.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let found = hosts(&ask("ahosts", host)?, port);
    Some(match found.is_empty() {
        true => Err(io::Error::other("getent knows no address of it")),
        false => Ok(found),
    })
}

/// Of the answer's lines, `ADDRESS STREAM NAME`, `ADDRESS DGRAM` …, each address once.
fn hosts(answer: &str, port: u16) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for line in answer.lines() {
        let address = line.split_whitespace().next().map(str::parse::<IpAddr>);
        let Some(Ok(address)) = address else { continue };
        let address = SocketAddr::new(address, port);
        if !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_of_an_answer_counts_once() {
        let answer =
            "192.0.2.7      STREAM lab\n192.0.2.7      DGRAM  \n2001:db8::7 STREAM \nnonsense\n";
        let found = hosts(answer, 80)
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>();
        assert_eq!(found, ["192.0.2.7:80", "[2001:db8::7]:80"]);
        assert!(hosts("", 80).is_empty());
    }

    #[test]
    fn a_program_with_a_loader_asks_the_system_itself() {
        assert!(!is_static());
        assert_eq!(ask("passwd", "0"), None);
        assert!(addresses("localhost:80").is_none());
    }
}
