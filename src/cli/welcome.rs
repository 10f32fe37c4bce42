//! `nodectl` alone: what it is, whether a node runs here, and what to type first.

use super::exit::{CliError, Exit, print};
use nodectl_http::Client;
use nodectl_types::units::counted;
use nodectl_wire::api::{JobLine, Node, NodeSelf};

const WHAT: &str = "nodectl turns the machines of a lab into a GPU cluster.\n\n";
const ALONE: &str = "\
No node runs on this machine. Jobs run here without one, too:

  nodectl demo                            something to look at, on what is here
  nodectl init && nodectl run job.toml    a job of your own
  nodectl join                            this machine becomes a node of a cluster
";
const AS_NODE: &str = "\n
  nodectl nodes                           who is there
  nodectl init && nodectl run job.toml    a job of your own, on all of them
  nodectl jobs                            what runs, and what has run
";
const MORE: &str = "\nnodectl --help lists all commands.\n";

pub async fn welcome(client: &Client) -> Result<Exit, CliError> {
    let node = client.node().await.ok().filter(|node| !node.solo);
    let text = match node {
        None => ALONE.into(),
        Some(node) => {
            let (nodes, jobs) = tokio::join!(client.nodes(), client.jobs());
            as_node(&node, &nodes.unwrap_or_default(), &jobs.unwrap_or_default())
        }
    };
    print(&format!("{WHAT}{text}{MORE}"))?;
    Ok(Exit::Done)
}

fn as_node(node: &NodeSelf, nodes: &[Node], jobs: &[JobLine]) -> String {
    let alive = nodes.iter().filter(|node| node.alive).count();
    let open = jobs.iter().filter(|job| !job.phase.is_ended()).count();
    format!(
        "This machine is the node {} of the cluster {}: {}, {} not ended.{AS_NODE}",
        node.name,
        node.cluster,
        counted(alive, "node"),
        counted(open, "job"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_whose_it_is_and_how_many_there_are() {
        let node = NodeSelf {
            id: "ab".repeat(32),
            name: "box-1".into(),
            cluster: "lab".into(),
            version: "0.1.0".into(),
            pid: 1,
            data_dir: "/d".into(),
            started_ms: 0,
            solo: false,
            addrs: Vec::new(),
            settings: Default::default(),
        };
        let text = as_node(&node, &[], &[]);
        let first =
            "This machine is the node box-1 of the cluster lab: 0 nodes, 0 jobs not ended.\n";
        assert!(text.starts_with(first), "{text}");
    }
}
