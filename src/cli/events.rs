//! `nodectl events`: what happened in the cluster.

use super::{
    exit::{CliError, Exit, print},
    output::{self, table},
};
use clap::Args;
use nodectl_http::Client;
use nodectl_types::units::parse_duration;
use std::time::Duration;

pub const EVENTS_NOTES: &str = "\
Each node remembers what it noticed since it started: nodes that joined, died, left or came back, jobs that began, changed their coordinator, \
failed, ran again or ended. All nodes that are here are asked; what several noticed is told once, at the time of the first, by its clock.";

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Shows so many of the newest events
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub lines: u32,
    /// Shows only what was noticed lately, such as `2h`
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub within: Option<Duration>,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

pub async fn events(client: &Client, args: EventsArgs) -> Result<Exit, CliError> {
    let events = client.cluster_events(args.within, args.lines).await?;
    print(&if args.json {
        output::document(&events)
    } else {
        table::events(&events)
    })?;
    Ok(Exit::Done)
}
