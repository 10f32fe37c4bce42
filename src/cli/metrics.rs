//! The node's numbers for Prometheus: printed, or put into a file whole or not at all, as
//! node_exporter's textfile collector wants it.

use super::exit::{CliError, Exit, print};
use clap::Args;
use nodectl_http::Client;
use std::{fs, path::PathBuf};

pub const METRICS_NOTES: &str = "\
Prometheus does not read Unix sockets: `nodectl ui --metrics` lets it read them from the web page's server, or have node_exporter's \
textfile collector read a file that this command writes every half minute (the guide's page on operating has both). One node tells of itself, of its own tasks, and of the jobs that it remembers.";

#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// Writes into this file, which is never there in part [default: prints]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

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
