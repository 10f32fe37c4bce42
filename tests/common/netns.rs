//! Network namespaces on a bridge, to cut and to part. Needs root and `ip`; partitions need `nft`.
//! Nothing else of the machine's network is touched: the bridge lives in a namespace too.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    ffi::OsStr,
    fs,
    net::{Ipv4Addr, UdpSocket},
    os::fd::AsFd,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

/// Hosts 0..count, each with `eth0` at 10.77.0.(i + 1)/24 and fd77::(i + 1)/64, multicast flooded.
/// Private ones are at 192.168.1.2/24, all of them, each behind an address translator of its own
/// that has such an address. Removed when dropped.
pub struct Lab {
    prefix: String,
    count: usize,
    private: Vec<usize>,
}

impl Lab {
    /// `None`, said with its reason, where it cannot be made.
    pub fn new(count: usize) -> Option<Self> {
        Self::with_private(count, &[])
    }

    /// A network with some hosts in private networks: they can connect to others, and nobody to
    /// them. Needs `nft`.
    pub fn with_private(count: usize, private: &[usize]) -> Option<Self> {
        if !super::is_root() {
            eprintln!("SKIPPED: network namespaces need root");
            return None;
        }
        if let Err(why) = ip(&["netns", "list"]) {
            eprintln!("SKIPPED: network namespaces need `ip` (apt install iproute2): {why}");
            return None;
        }
        let lab = Self {
            prefix: format!("nc{}", super::unique()),
            count,
            private: private.to_vec(),
        };
        if let Err(why) = lab.build() {
            eprintln!("SKIPPED: no network namespaces here: {why}");
            return None;
        }
        Some(lab)
    }

    /// A program inside a host's network. Its process is the one that is spawned: killing that
    /// kills the program.
    pub fn command(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(ip_program());
        command
            .args(["netns", "exec", &self.host(host)])
            .arg(program);
        command
    }

    /// A UDP socket inside a host's network, for use from anywhere.
    pub fn socket(&self, host: usize) -> UdpSocket {
        let namespace =
            fs::File::open(format!("/run/netns/{}", self.host(host))).expect("attach() made it");
        // A thread's network namespace is its own, and so are the sockets that it makes.
        let made = thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            UdpSocket::bind((Ipv4Addr::new(10, 77, 0, host as u8 + 1), 0))
        });
        let socket = made
            .join()
            .expect("it does not panic")
            .expect("root may enter it");
        socket
            .set_read_timeout(Some(Duration::from_millis(300)))
            .expect("not zero");
        socket
    }

    /// Pulls a host's cable out, silently for the others: their connections stay open and nothing
    /// arrives.
    pub fn cut(&self, host: usize) {
        self.hub(&["link", "set", &format!("p{host}"), "down"])
            .expect("the link is there");
    }

    pub fn mend(&self, host: usize) {
        self.hub(&["link", "set", &format!("p{host}"), "up"])
            .expect("the link is there");
    }

    /// Hosts of different groups lose every packet to each other. False, said with its reason,
    /// without `nft`.
    pub fn part(&self, groups: [&[usize]; 2]) -> bool {
        let ports = groups.map(|group| {
            let names: Vec<String> = group.iter().map(|host| format!("\"p{host}\"")).collect();
            format!("{{ {} }}", names.join(", "))
        });
        let [left, right] = ports;
        let rules = format!(
            "table bridge lab {{ chain cut {{ type filter hook forward priority 0; policy accept;\n\
             iifname {left} oifname {right} drop\niifname {right} oifname {left} drop\n}}\n}}\n"
        );
        let parted = self.nft(&rules);
        if let Err(why) = &parted {
            eprintln!("SKIPPED: partitions need nftables (apt install nftables): {why}");
        }
        parted.is_ok()
    }

    /// From now on each of the two hosts refuses TCP of the other, as a firewall does that answers
    /// with resets. False, said with its reason, without `nft`.
    pub fn refuse(&self, one: usize, two: usize) -> bool {
        let refused = [(one, two), (two, one)].iter().try_for_each(|(at, from)| {
            let number = from + 1;
            self.nft_in(
                &self.host(*at),
                &format!(
                    "table inet refusing {{ chain input {{ type filter hook input priority 0; policy accept;\n\
                     ip saddr 10.77.0.{number} tcp flags & rst == 0 reject with tcp reset\n\
                     ip6 saddr fd77::{number:x} tcp flags & rst == 0 reject with tcp reset\n}}\n}}\n"
                ),
            )
        });
        if let Err(why) = &refused {
            eprintln!("SKIPPED: walls need nftables (apt install nftables): {why}");
        }
        refused.is_ok()
    }

    pub fn heal(&self) {
        self.nft("delete table bridge lab").expect("part() made it");
    }

    fn nft(&self, rules: &str) -> Result<(), String> {
        self.nft_in(&self.name("hub"), rules)
    }

    /// Gives rules to a host's own packet filter.
    pub fn nft_at(&self, host: usize, rules: &str) -> Result<(), String> {
        self.nft_in(&self.host(host), rules)
    }

    fn nft_in(&self, namespace: &str, rules: &str) -> Result<(), String> {
        let mut nft = command_in(namespace, "nft");
        nft.args(["-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = nft.spawn().map_err(|error| error.to_string())?;
        let mut stdin = child.stdin.take().expect("it is piped");
        std::io::Write::write_all(&mut stdin, rules.as_bytes())
            .map_err(|error| error.to_string())?;
        drop(stdin);
        let output = child
            .wait_with_output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    fn build(&self) -> Result<(), String> {
        let hub = self.name("hub");
        ip(&["netns", "add", &hub])?;
        self.hub(&["link", "set", "lo", "up"])?;
        self.hub(&[
            "link",
            "add",
            "br0",
            "type",
            "bridge",
            "stp_state",
            "0",
            "forward_delay",
            "0",
            "mcast_snooping",
            "0",
        ])?;
        self.hub(&["link", "set", "br0", "up"])?;
        (0..self.count).try_for_each(|host| self.attach(host))
    }

    fn attach(&self, host: usize) -> Result<(), String> {
        if self.private.contains(&host) {
            return self.attach_private(host);
        }
        self.attach_to_bridge(host, &self.host(host))
    }

    /// Between the host and the bridge stands a router that translates addresses and lets nobody
    /// in.
    fn attach_private(&self, host: usize) -> Result<(), String> {
        let (name, router) = (self.host(host), self.router(host));
        self.attach_to_bridge(host, &router)?;
        ip(&["netns", "add", &name])?;
        ip(&[
            "-n", &router, "link", "add", "eth1", "type", "veth", "peer", "name", "eth0", "netns",
            &name,
        ])?;
        for (namespace, step) in [
            (
                &router,
                &["addr", "add", "192.168.1.1/24", "dev", "eth1"][..],
            ),
            (&router, &["link", "set", "eth1", "up"]),
            (&name, &["link", "set", "lo", "up"]),
            (
                &name,
                &["addr", "add", "192.168.1.2/24", "brd", "+", "dev", "eth0"],
            ),
            (&name, &["link", "set", "eth0", "up"]),
            (&name, &["route", "add", "default", "via", "192.168.1.1"]),
        ] {
            ip(&[&["-n", namespace][..], step].concat())?;
        }
        let mut forwarding = command_in(&router, "sh");
        let told = forwarding
            .args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])
            .status();
        if !told.is_ok_and(|status| status.success()) {
            return Err("a router that does not forward".into());
        }
        let rules = "table ip wall { chain out { type nat hook postrouting priority 100; oifname \"eth0\" masquerade\n}\n\
                     chain through { type filter hook forward priority 0; iifname \"eth0\" ct state established,related \
                     accept\niifname \"eth0\" drop\n}\n}\n";
        self.nft_in(&router, rules)
    }

    fn attach_to_bridge(&self, host: usize, name: &str) -> Result<(), String> {
        let port = format!("p{host}");
        ip(&["netns", "add", name])?;
        self.hub(&[
            "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", name,
        ])?;
        self.hub(&["link", "set", &port, "master", "br0", "up"])?;
        let (ipv4, ipv6) = (
            format!("10.77.0.{}/24", host + 1),
            format!("fd77::{:x}/64", host + 1),
        );
        for step in [
            &["link", "set", "lo", "up", "multicast", "on"][..],
            &["link", "set", "eth0", "up", "multicast", "on"],
            &["addr", "add", &ipv4, "brd", "+", "dev", "eth0"],
            // nodad: an address that can be used at once.
            &["addr", "add", &ipv6, "dev", "eth0", "nodad"],
            &["route", "add", "224.0.0.0/4", "dev", "eth0"],
        ] {
            ip(&[&["-n", name][..], step].concat())?;
        }
        Ok(())
    }

    fn hub(&self, arguments: &[&str]) -> Result<(), String> {
        ip(&[&["-n", &self.name("hub")][..], arguments].concat())
    }

    fn host(&self, host: usize) -> String {
        self.name(&host.to_string())
    }

    fn router(&self, host: usize) -> String {
        self.name(&format!("r{host}"))
    }

    fn name(&self, part: &str) -> String {
        format!("{}-{part}", self.prefix)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let hosts = (0..self.count).map(|host| self.host(host));
        let routers = self.private.iter().map(|host| self.router(*host));
        for name in hosts.chain(routers).chain([self.name("hub")]) {
            // One that was never made is no problem. The links go with their namespaces.
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

fn command_in(namespace: &str, program: &str) -> Command {
    let mut command = Command::new(ip_program());
    command.args(["netns", "exec", namespace, program]);
    // Where Debian keeps `nft`, which not every user's PATH has.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(ip_program())
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let output = output.map_err(|error| error.to_string())?;
    let complaint = || {
        format!(
            "ip {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        )
    };
    if output.status.success() {
        Ok(())
    } else {
        Err(complaint())
    }
}

fn ip_program() -> &'static str {
    ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists())
        .unwrap_or("ip")
}
