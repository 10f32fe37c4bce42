//! What only the node itself knows of its health: how discovery does, who else is here. The command
//! line adds what any process on this machine can see (clock, disk, ports, driver).

use super::{
    cluster,
    error::ApiError,
    state::{NodeFacts, Shared},
};
use axum::{Json, extract::State};
use nodectl_ports::{NetReport, SWITCHED_OFF};
use nodectl_types::{query::MemberLine, text, units::counted};
use nodectl_wire::api::{Doctor, Finding};
use std::sync::Arc;

/// Findings about the swarm, with what to do.
#[utoipa::path(get, path = "/v1/doctor", tag = "cluster", responses((status = 200, body = Doctor)))]
pub(super) async fn doctor(State(shared): State<Arc<Shared>>) -> Result<Json<Doctor>, ApiError> {
    if shared.api.facts.solo {
        let finding = Finding::ok(
            "network",
            "this node works alone inside `nodectl run` and uses no network",
        );
        return Ok(Json(Doctor {
            suite: None,
            findings: vec![finding],
        }));
    }
    let report = shared.api.network.report();
    let members = cluster::members(&shared).await?;
    let mut findings = findings(&report, &members);
    findings.push(users(&shared.api.facts));
    Ok(Json(Doctor {
        suite: Some(report.suite.clone()),
        findings,
    }))
}

fn findings(report: &NetReport, members: &[MemberLine]) -> Vec<Finding> {
    let mut findings = vec![listening(report)];
    findings.extend(report.ways.iter().map(|way| {
        let check = format!("discovery.{}", way.name.trim_start_matches("--"));
        match &way.problem {
            Some(problem) if problem == SWITCHED_OFF => Finding::ok(check, problem),
            Some(problem) => Finding::warning(check, problem, way_hint(way.name)),
            None => Finding::ok(
                check,
                format!("works; found {}", counted(way.found.len(), "node")),
            ),
        }
    }));
    findings.extend(secret(report, members));
    findings.extend(admission(report));
    findings.extend(versions(report));
    findings.push(membership(report, members));
    findings.extend(members.iter().filter_map(troubled));
    findings.extend(members.iter().filter_map(owner));
    findings.extend(walls(report, members));
    findings
}

fn listening(report: &NetReport) -> Finding {
    if report.interfaces.is_empty() {
        let hint = "connect the machine to a network; nodes on this machine are found without one";
        return Finding::warning("network", "no usable network interface", hint);
    }
    if report.listening.is_empty() {
        let hint =
            "another program may have the port: set network.port to 0 (any) or to a free one";
        return Finding::problem("network", "nothing listens for other nodes", hint);
    }
    let addrs: Vec<_> = report.listening.iter().map(ToString::to_string).collect();
    Finding::ok(
        "network",
        format!(
            "listens on {} ({})",
            addrs.join(", "),
            report.interfaces.join(", ")
        ),
    )
}

fn way_hint(way: &str) -> &'static str {
    match way {
        "mdns" => "allow UDP port 5353 and multicast; the other ways work without it",
        "broadcast" | "loopback" => {
            "allow UDP to the beacon port (network.beacon_port); the other ways work without it"
        }
        "--peer" => "check the address, and that the node there runs and shares the secret",
        "remembered" => "nothing to do: nodes seen from now on are remembered",
        _ => "name a node with --peer HOST:PORT",
    }
}

/// Nodes that keep apart: a problem where this node is alone, since its secret may be the wrong
/// one.
fn secret(report: &NetReport, members: &[MemberLine]) -> Option<Finding> {
    let is_alone = members.iter().filter(|member| member.alive).count() <= 1;
    let others = report.foreign_nodes;
    let verb = if others == 1 { "does" } else { "do" };
    (others > 0).then(|| {
        let message = format!(
            "{} here {verb} not share this secret",
            counted(others, "node")
        );
        let hint = "join them with this node's secret, if they belong to the cluster";
        match is_alone {
            true => Finding::problem("secret", message, hint),
            false => Finding::warning("secret", message, hint),
        }
    })
}

/// Who is not let in: this node, or others.
fn admission(report: &NetReport) -> Vec<Finding> {
    let own = report.refused.as_ref().map(|why| {
        let (why, hint) = text::split_hint(why);
        Finding::problem(
            "admission",
            why,
            hint.unwrap_or("ask whoever runs the other nodes"),
        )
    });
    let waiting = report.waiting.iter().map(|(node, from)| {
        let from = from.map_or_else(
            || "through a member".to_string(),
            |from| format!("from {from}"),
        );
        let message = format!("node {} waits to be admitted, {from}", node.short());
        Finding::warning(
            "admission",
            message,
            format!(
                "nodectl admit {}, if it belongs to the cluster",
                node.short()
            ),
        )
    });
    own.into_iter().chain(waiting).collect()
}

fn versions(report: &NetReport) -> impl Iterator<Item = Finding> + '_ {
    report.other_versions.iter().map(|(addr, version)| {
        let ours = nodectl_types::limits::PROTOCOL_VERSION;
        let message =
            format!("the node at {addr} speaks protocol version {version}, this one {ours}");
        Finding::problem("version", message, "run the same nodectl on every machine")
    })
}

fn membership(report: &NetReport, members: &[MemberLine]) -> Finding {
    let alive = members.iter().filter(|member| member.alive).count();
    // Who said goodbye is missed by nobody.
    let missing = |member: &&MemberLine| !member.alive && !member.info.leaving;
    let away = members.iter().filter(missing).count();
    if alive <= 1 && report.connected.is_empty() {
        let hint = "start nodectl join with the same secret elsewhere; if it runs there, name it: --peer HOST:PORT";
        return Finding::warning("members", "this node sees no other", hint);
    }
    if away > 0 {
        let names: Vec<_> = members
            .iter()
            .filter(missing)
            .take(5)
            .map(|member| member.info.name.as_str())
            .collect();
        let message = format!("{alive} alive, {away} away: {}", names.join(", "));
        return Finding::warning(
            "members",
            message,
            "start them again, or look at their logs",
        );
    }
    Finding::ok("members", format!("{} alive", counted(alive, "node")))
}

/// A member that runs no tasks because of its disk.
fn troubled(member: &MemberLine) -> Option<Finding> {
    let problem = member.info.problem.as_ref().filter(|_| member.alive)?;
    let hint = "make room there, or look at the disk; the node tries again by itself";
    Some(Finding::problem(
        "disk",
        format!("{} runs no tasks: {problem}", member.info.name),
        hint,
    ))
}

/// Whether this node takes work.
fn owner(member: &MemberLine) -> Option<Finding> {
    let info = Some(&member.info).filter(|_| member.this_node)?;
    Some(match (&info.closed, info.takes_no_work()) {
        (None, Some(why)) => {
            let hint = "`nodectl drain --off` undoes it; a drain that is typed at this node cannot be undone elsewhere";
            Finding::warning(
                "owner",
                format!("this node {why}, as another member asked"),
                hint,
            )
        }
        (Some(closed), _) => Finding::ok(
            "owner",
            format!("this node {closed}, and gives back all tasks that it is sent"),
        ),
        (None, None) => Finding::ok("owner", "this node takes work"),
    })
}

/// Who may ask this node for anything.
fn users(facts: &NodeFacts) -> Finding {
    let set = |key: &str| {
        let value = facts.settings.get(key).and_then(|value| value.as_str());
        value.filter(|value| !value.is_empty())
    };
    let Some(group) = set("api.group") else {
        return Finding::ok(
            "users",
            "only root and the user who runs it may use this node (api.group)",
        );
    };
    let admins = set("api.admins")
        .map(|admins| format!(", and the group {admins}"))
        .unwrap_or_default();
    let socket = set("api.socket").unwrap_or_default();
    Finding::ok(
        "users",
        format!(
            "the group {group} may use this node (at {socket}); others' jobs can be changed by root and the user who runs it{admins}"
        ),
    )
}

/// Members that are alive and that this node reaches through others, or not at all.
fn walls<'a>(
    report: &'a NetReport,
    members: &'a [MemberLine],
) -> impl Iterator<Item = Finding> + 'a {
    let names = |wanted: &dyn Fn(&MemberLine) -> bool| {
        let names = members
            .iter()
            .filter(|member| member.alive && wanted(member));
        names
            .take(5)
            .map(|member| member.info.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let relayed = names(&|member| report.relayed.contains(&member.info.id));
    let unreached =
        names(&|member| !member.this_node && !report.connected.contains(&member.info.id));
    let hint = "a firewall or an address translator lies between; open a TCP port (network.port) on one side, and name it \
                there with --peer HOST:PORT, to make it faster";
    let relayed = (!relayed.is_empty()).then(|| {
        Finding::warning(
            "relay",
            format!("reached through another node: {relayed}"),
            hint,
        )
    });
    let hint = "neither side can connect to the other, and no third node is connected to both: open a TCP port \
                (network.port) on one side, or start a node that both can reach";
    let unreached = (!unreached.is_empty()).then(|| {
        Finding::problem(
            "reach",
            format!("alive, but out of reach: {unreached}"),
            hint,
        )
    });
    relayed.into_iter().chain(unreached)
}
