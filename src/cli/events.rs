//! `nodectl events`: what happened in the cluster.

use super::{
    args::EventsArgs,
    exit::{CliError, Exit, print},
    output::{self, table},
};
use nodectl_http::Client;

pub async fn events(client: &Client, args: EventsArgs) -> Result<Exit, CliError> {
    let events = client.cluster_events(args.within, args.lines).await?;
    print(&if args.json {
        output::document(&events)
    } else {
        table::events(&events)
    })?;
    Ok(Exit::Done)
}
