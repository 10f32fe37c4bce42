//! The node's numbers for Prometheus: printed, or put into a file whole or not at all, as
//! node_exporter's textfile collector wants it.

use super::{
    args::MetricsArgs,
    exit::{CliError, Exit, print},
};
use nodectl_http::Client;
use std::fs;

pub async fn metrics(client: &Client, args: MetricsArgs) -> Result<Exit, CliError> {
    let text = client.metrics().await?;
    let Some(file) = args.output else {
        print(&text)?;
        return Ok(Exit::Done);
    };
    // The collector reads files that end with `.prom` only.
    let mut temporary = file.clone().into_os_string();
    temporary.push(".new");
    let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &file));
    written.map_err(|source| CliError::file("writing", &file, source))?;
    Ok(Exit::Done)
}
