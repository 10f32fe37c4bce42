//! What the person says who sits at a machine: `drain`, `pause`, `resume`; and what was said there:
//! `audit`.

use super::{
    args::duration,
    complete,
    exit::{CliError, Exit, print},
    output::{self, table},
};
use clap::Args;
use clap_complete::ArgValueCandidates;
use nodectl_http::Client;
use nodectl_ports::say::tell;
use nodectl_types::units::format_duration;
use std::time::Duration;

pub const DRAIN_NOTES: &str = "\
Said at the node itself it is its owner's word: the node keeps it, also over a restart, returns whatever it is ordered, and nobody can take \
it back elsewhere. Said of another node it is a request that any member can make and take back; `nodectl nodes` shows which it is. \
What waits there goes to other nodes.";

pub const PAUSE_NOTES: &str = "\
This machine takes no tasks until the pause ends, and those that run here stand still (SIGSTOP) or, with --finish, go on to their ends. \
What waited here runs elsewhere. The time does not count against tasks' time limits, a restart of the node changes nothing, and nobody can \
end it elsewhere. `nodectl nodes` shows it to all. For what should happen by itself see node.policy in the settings.";

pub const AUDIT_NOTES: &str = "\
Who submitted and changed jobs at this node, drained, paused or stopped it, forgot, banned or admitted others, invited them, changed the secret \
or named ones, and what of that was refused. Each node keeps its own, in audit.jsonl of its data directory, the newest 20 MiB; for the user \
who runs it, root and api.admins.";

#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Shows so many of the newest lines
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub lines: u32,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Undoes it: the node takes work again
    #[arg(long)]
    pub off: bool,
    /// The node's name, its id, or the beginning of its id [default: this node]
    #[arg(add = ArgValueCandidates::new(complete::nodes))]
    pub node: Option<String>,
}

#[derive(Debug, Args)]
pub struct PauseArgs {
    /// Ends by itself after this long, e.g. `2h` [default: when `nodectl resume` ends it]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub span: Option<Duration>,
    /// Lets running tasks go on to their ends
    #[arg(long)]
    pub finish: bool,
}

pub async fn drain(client: &Client, args: DrainArgs) -> Result<Exit, CliError> {
    client.drain(args.node.as_deref(), !args.off).await?;
    let node = args.node.as_deref().unwrap_or("this node");
    if args.off {
        tell!("{node} takes work again");
    } else {
        let named = args
            .node
            .as_deref()
            .map(|node| format!(" {node}"))
            .unwrap_or_default();
        tell!("{node} takes no new work; `nodectl drain --off{named}` undoes it");
    }
    Ok(Exit::Done)
}

pub async fn audit(client: &Client, args: AuditArgs) -> Result<Exit, CliError> {
    let lines = client.audit(args.lines).await?;
    print(&if args.json {
        output::document(&lines)
    } else {
        table::audit(&lines)
    })?;
    Ok(Exit::Done)
}

pub async fn pause(client: &Client, args: PauseArgs) -> Result<Exit, CliError> {
    client
        .pause(
            args.span
                .map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
            args.finish,
        )
        .await?;
    let tasks = if args.finish {
        "what runs here goes on to its end"
    } else {
        "what runs here stands still"
    };
    match args.span {
        Some(span) => tell!(
            "paused for {}: {tasks}; `nodectl resume` ends it sooner",
            format_duration(span)
        ),
        None => tell!("paused: {tasks}; `nodectl resume` ends it"),
    }
    Ok(Exit::Done)
}

pub async fn resume(client: &Client) -> Result<Exit, CliError> {
    client.unpause().await?;
    tell!("the pause is over");
    Ok(Exit::Done)
}
