//! What is wrong with the network: each host's own packet filter drops or refuses what comes in, so
//! that any pair and direction can be parted without a word to anybody, and `tc` makes links late
//! or slow.

use crate::common::netns::Lab;
use std::collections::BTreeMap;

/// A fault of the network; hosts are numbers of the lab.
#[derive(Clone, Debug, PartialEq)]
pub enum Wall {
    Cut { host: usize },
    Part { left: Vec<usize> },
    Oneway { from: usize, to: usize },
    Reset { host: usize },
    Loss { host: usize, percent: u64 },
    Delay { host: usize, ms: u64 },
    Slow { host: usize, kbit: u64 },
}

/// All faults of a lab's network at a time.
pub struct Walls {
    hosts: usize,
    up: BTreeMap<u64, Wall>,
}

impl Walls {
    /// Gives the hosts of a lab addresses that rules can name, whatever protocol they speak.
    pub fn new(lab: &Lab, hosts: usize) -> Result<Self, String> {
        for host in 0..hosts {
            run(
                lab,
                host,
                "ip",
                &["link", "set", "eth0", "address", &mac(host)],
            )?;
        }
        Ok(Self {
            hosts,
            up: BTreeMap::new(),
        })
    }

    pub fn raise(&mut self, lab: &Lab, number: u64, wall: Wall) -> Result<(), String> {
        match &wall {
            Wall::Delay { host, ms } => {
                let (delay, jitter) = (format!("{ms}ms"), format!("{}ms", ms / 3));
                qdisc(lab, *host, &["netem", "delay", &delay, &jitter])?;
            }
            Wall::Slow { host, kbit } => {
                let rate = format!("{kbit}kbit");
                qdisc(
                    lab,
                    *host,
                    &["tbf", "rate", &rate, "burst", "16kb", "latency", "400ms"],
                )?;
            }
            _ => {}
        }
        self.up.insert(number, wall);
        self.apply(lab)
    }

    pub fn fell(&mut self, lab: &Lab, number: u64) -> Result<(), String> {
        if let Some(Wall::Delay { host, .. } | Wall::Slow { host, .. }) = self.up.remove(&number) {
            run(lab, host, "tc", &["qdisc", "del", "dev", "eth0", "root"])?;
        }
        self.apply(lab)
    }

    fn apply(&self, lab: &Lab) -> Result<(), String> {
        (0..self.hosts).try_for_each(|host| lab.nft_at(host, &table(&self.rules(host))))
    }

    /// The rules for what comes in at a host.
    fn rules(&self, host: usize) -> Vec<String> {
        let mut rules = Vec::new();
        let anybody = "iifname \"eth0\"".to_string();
        let from = |other: usize| format!("ether saddr {}", mac(other));
        for wall in self.up.values() {
            match wall {
                Wall::Cut { host: alone } => {
                    rules.push(format!(
                        "{} drop",
                        if host == *alone {
                            anybody.clone()
                        } else {
                            from(*alone)
                        }
                    ));
                }
                Wall::Part { left } => {
                    let other_side = (0..self.hosts)
                        .filter(|other| left.contains(other) != left.contains(&host));
                    rules.extend(other_side.map(|other| format!("{} drop", from(other))));
                }
                Wall::Oneway { from: silent, to } if host == *to => {
                    rules.push(format!("{} drop", from(*silent)))
                }
                Wall::Reset { host: alone } => {
                    let whose = if host == *alone {
                        anybody.clone()
                    } else {
                        from(*alone)
                    };
                    // The resets themselves have to pass the wall of the other side.
                    rules.push(format!("{whose} tcp flags & rst == rst accept"));
                    rules.push(format!("{whose} meta l4proto tcp reject with tcp reset"));
                    rules.push(format!("{whose} drop"));
                }
                Wall::Loss {
                    host: unlucky,
                    percent,
                } if host == *unlucky => {
                    rules.push(format!("{anybody} numgen random mod 100 < {percent} drop"));
                }
                _ => {}
            }
        }
        rules
    }
}

/// A table that takes the place of the one before.
fn table(rules: &[String]) -> String {
    format!(
        "table inet nemesis\ndelete table inet nemesis\ntable inet nemesis {{\nchain input {{\ntype filter hook input priority 0\n{}\n}}\n}}\n",
        rules.join("\n")
    )
}

/// Why each way of spoiling a network cannot be had here, by the program that it needs.
pub fn lacking(lab: &Lab) -> BTreeMap<&'static str, String> {
    let mut lacking = BTreeMap::new();
    if let Err(why) = lab.nft_at(0, &table(&["numgen random mod 100 < 1 drop".into()])) {
        lacking.insert(
            "nft",
            format!("needs nftables (apt install nftables): {}", why.trim()),
        );
    }
    for (name, options) in [
        ("netem", &["netem", "delay", "1ms"][..]),
        (
            "tbf",
            &["tbf", "rate", "1mbit", "burst", "16kb", "latency", "400ms"],
        ),
    ] {
        if let Err(why) = qdisc(lab, 0, options) {
            lacking.insert(
                name,
                format!("needs `tc` and the kernel's {name}: {}", why.trim()),
            );
        } else {
            let _ = run(lab, 0, "tc", &["qdisc", "del", "dev", "eth0", "root"]);
        }
    }
    lacking
}

fn qdisc(lab: &Lab, host: usize, options: &[&str]) -> Result<(), String> {
    run(
        lab,
        host,
        "tc",
        &[&["qdisc", "replace", "dev", "eth0", "root"][..], options].concat(),
    )
}

fn run(lab: &Lab, host: usize, program: &str, arguments: &[&str]) -> Result<(), String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = lab.command(host, program);
    let output = command
        .args(arguments)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn mac(host: usize) -> String {
    format!("02:00:00:00:00:{:02x}", host + 1)
}
