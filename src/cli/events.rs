//! `nodectl events`: what happened in the cluster.

use super::{
    args::EventsArgs,
    exit::{CliError, Exit},
    listing,
    output::{self, table},
};
use nodectl_http::Client;

pub async fn events(client: &Client, args: EventsArgs) -> Result<Exit, CliError> {
    let make = async || {
        let events = client.cluster_events(args.within, args.lines).await?;
        Ok(match args.listing.json {
            true => output::document(&events),
            false => table::events(&events),
        })
    };
    listing::show(args.listing.repeat, make).await?;
    Ok(Exit::Done)
}
