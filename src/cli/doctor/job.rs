//! `doctor JOB.toml`: whether the nodes have what a job needs, and what to type where one lacks it.

use super::{
    needs::{self, Requirement, Requirements},
    probe::{self, ProbeReply},
};
use crate::exit::CliError;
use futures::{StreamExt, TryStreamExt, stream};
use nodectl_http::Client;
use nodectl_jobfile::PlannedJob;
use nodectl_types::{JobDraft, Resources};
use nodectl_wire::api::{Doctor, Finding, Node, Severity};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes asked at once.
const ASKED_AT_ONCE: usize = 32;

/// What is to be said of the jobs of a file.
pub async fn examine(client: &Client, jobs: &[PlannedJob]) -> Result<Doctor, CliError> {
    let nodes = client.nodes().await?;
    let mut findings = Vec::new();
    let is_one = jobs.len() == 1;
    for job in jobs {
        let mut found = secrets(client, job).await?;
        found.extend(on_nodes(client, job, &nodes).await?);
        for finding in &mut found {
            if !is_one {
                finding.check = format!("{}: {}", job.name(), finding.check);
            }
        }
        findings.extend(found);
    }
    Ok(Doctor {
        suite: None,
        findings,
    })
}

/// The named secrets that the cluster does not have.
async fn secrets(client: &Client, job: &PlannedJob) -> Result<Vec<Finding>, CliError> {
    let wanted = &job.draft.work.secrets;
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let known: BTreeSet<String> = client
        .secrets()
        .await?
        .into_iter()
        .map(|known| known.name)
        .collect();
    let missing = wanted.iter().filter(|name| !known.contains(*name));
    let finding = |name: &String| {
        Finding::problem(
            "secrets",
            format!("the cluster has no secret `{name}`"),
            format!("nodectl secret put {name}"),
        )
    };
    Ok(missing.map(finding).collect())
}

async fn on_nodes(
    client: &Client,
    job: &PlannedJob,
    nodes: &[Node],
) -> Result<Vec<Finding>, CliError> {
    let needs = needs::of(job);
    let alive: Vec<&Node> = nodes.iter().filter(|node| node.alive).collect();
    let each = stream::iter(alive.iter().map(|node| on_node(client, job, &needs, node)));
    let mut each: Vec<NodeSeen> = each.buffered(ASKED_AT_ONCE).try_collect().await?;
    let can_run = each.iter().filter(|seen| seen.may_run).count();
    let mut findings: Vec<Finding> = each.drain(..).flat_map(|seen| seen.findings).collect();
    let at_once = job.draft.work.gang.map_or(1, |gang| gang.nodes);
    let wanted = job.draft.min_nodes.max(at_once) as usize;
    if can_run < wanted {
        let nodes = if wanted == 1 { "node" } else { "nodes" };
        findings.push(Finding::problem(
            "job",
            format!("it needs {wanted} {nodes} that may run it; there are {can_run}"),
            "what keeps it from each node is listed here; `nodectl nodes` shows what they have",
        ));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(findings)
}

/// What was seen on a node.
struct NodeSeen {
    findings: Vec<Finding>,
    /// The cluster would give it tasks of the job.
    may_run: bool,
}

async fn on_node(
    client: &Client,
    job: &PlannedJob,
    needs: &Requirements,
    node: &Node,
) -> Result<NodeSeen, CliError> {
    let apart = |why: String| NodeSeen {
        findings: vec![note(&node.name, why, None)],
        may_run: false,
    };
    if let Some(closed) = &node.closed {
        return Ok(apart(format!("takes no work: it {}", closed.why)));
    }
    if let Some(problem) = &node.problem {
        return Ok(apart(format!("runs no tasks: {problem}")));
    }
    if let Some(lacking) = too_small(&job.draft, node) {
        return Ok(apart(lacking));
    }
    let work = &job.draft.work;
    let all: Vec<Requirement> = needs.keys().cloned().collect();
    let asked = probe::ask(client, &node.name, &job.draft.place, &work.env, &all).await?;
    let lacks = match asked {
        ProbeReply::None(why) => return Ok(apart(why)),
        ProbeReply::Lacks(lacks) => lacks,
    };
    Ok(NodeSeen {
        findings: told(&node.name, needs, &lacks),
        may_run: true,
    })
}

/// Of what the node has less than a task needs.
fn too_small(draft: &JobDraft, node: &Node) -> Option<String> {
    let milli = |amount: f64| (amount * 1e3).round() as u32;
    let view = &node.resources;
    let there = Resources {
        cpu_milli: milli(view.cpus),
        memory_bytes: view.memory_bytes,
        gpu_milli: milli(view.gpus),
        named_milli: view
            .named
            .iter()
            .map(|(name, amount)| (name.clone(), milli(*amount)))
            .collect(),
    };
    let of_kinds = draft.work.kinds.iter().map(|kind| kind.resources.clone());
    let mut needs: Vec<Resources> = of_kinds.collect();
    if needs.is_empty() {
        needs.push(draft.work.holds(&there));
    }
    // A node is of use that has room for one kind of tasks.
    let lacks = |need: &Resources| there.lacks(need);
    let lacking: Option<Vec<String>> = needs.iter().map(lacks).collect();
    let (need, lacking) = (&needs[0], lacking?.swap_remove(0));
    Some(format!(
        "is too small: a task needs {}, and it has {}",
        need.amount(&lacking),
        there.amount(&lacking)
    ))
}

/// Modules of an interpreter that is not there are not worth a word of their own.
fn told(node: &str, needs: &Requirements, lacks: &BTreeSet<Requirement>) -> Vec<Finding> {
    let lacks_program = |name: &String| lacks.contains(&Requirement::Program(name.clone()));
    let mut findings = Vec::new();
    let mut to_install: BTreeMap<(&String, bool), Vec<&str>> = BTreeMap::new();
    for need in lacks {
        let sure = needs.get(need).copied().unwrap_or_default();
        match need {
            Requirement::Program(name) if sure => findings.push(Finding::problem(
                node,
                format!("has no program `{name}` in PATH"),
                format!("install it there, or keep the job away: where = \"name != '{node}'\""),
            )),
            Requirement::Program(name) => findings.push(note(
                node,
                format!("has no program `{name}`, which the script seems to run"),
                None,
            )),
            Requirement::Python(version) => findings.push(Finding::problem(
                node,
                format!("has no Python {version} to make the job's environment with, and no uv"),
                "install one of them there: `pip install uv` fetches any Python where there is a network",
            )),
            Requirement::Module { python, module } if !lacks_program(python) => {
                to_install.entry((python, sure)).or_default().push(module);
            }
            Requirement::Package { python, package } if !lacks_program(python) => {
                to_install.entry((python, sure)).or_default().push(package);
            }
            Requirement::Module { .. } | Requirement::Package { .. } => {}
        }
    }
    for ((python, sure), modules) in to_install {
        let many = if modules.len() == 1 {
            "module"
        } else {
            "modules"
        };
        let what = format!("{python} has no {many} {}", modules.join(", "));
        let hint = format!("there: {python} -m pip install {}", modules.join(" "));
        findings.push(match sure {
            true => Finding::problem(node, what, hint),
            false => note(
                node,
                what + ", imported in a function or an attempt",
                Some(hint),
            ),
        });
    }
    if findings.is_empty() {
        findings.push(Finding::ok(node, "has all that the job needs"));
    }
    findings
}

fn note(node: &str, message: String, hint: Option<String>) -> Finding {
    Finding {
        check: node.into(),
        severity: Severity::Warning,
        message,
        hint,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_told_once_with_what_to_type() {
        let program = |name: &str| Requirement::Program(name.into());
        let module = |python: &str, module: &str| Requirement::Module {
            python: python.into(),
            module: module.into(),
        };
        let needs: Requirements = [
            (program("python3"), true),
            (program("python3.9"), true),
            (program("uniq"), false),
            (module("python3", "numpy"), true),
            (module("python3", "scipy"), true),
            (module("python3", "h5py"), false),
            (module("python3.9", "numpy"), true),
        ]
        .into();
        let mut lacks: BTreeSet<Requirement> = needs.keys().cloned().collect();
        lacks.remove(&program("python3"));
        let told = |lacks: &BTreeSet<Requirement>| {
            let line = |finding: Finding| {
                let hint = finding
                    .hint
                    .map(|hint| format!(" ({hint})"))
                    .unwrap_or_default();
                format!("{:?} {}{hint}", finding.severity, finding.message)
            };
            told("box", &needs, lacks)
                .into_iter()
                .map(line)
                .collect::<Vec<_>>()
        };
        let expected = [
            "Problem has no program `python3.9` in PATH (install it there, or keep the job away: where = \"name != 'box'\")",
            "Warning has no program `uniq`, which the script seems to run",
            "Warning python3 has no module h5py, imported in a function or an attempt (there: python3 -m pip install h5py)",
            "Problem python3 has no modules numpy, scipy (there: python3 -m pip install numpy scipy)",
        ];
        assert_eq!(told(&lacks), expected);
        assert_eq!(told(&BTreeSet::new()), ["Ok has all that the job needs"]);
    }
}
