//! What the person says who sits at a machine: `drain`, `pause`, `resume`; and what was said there:
//! `audit`.

use super::{
    args::{AuditArgs, DrainArgs, PauseArgs},
    exit::{CliError, Exit},
    listing,
    output::{self, table},
};
use nodectl_http::Client;
use nodectl_ports::say::tell;
use nodectl_types::units::format_duration;

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
    let make = async || {
        let lines = client.audit(args.lines).await?;
        Ok(match args.listing.json {
            true => output::document(&lines),
            false => table::audit(&lines),
        })
    };
    listing::show(args.listing.repeat, make).await?;
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
        "tasks that run here finish"
    } else {
        "tasks that run here are stopped where they are"
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
