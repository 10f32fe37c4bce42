//! `nodectl ui`: the web page of the cluster, for browsers on this machine.

use super::exit::{CliError, Exit, print};
use clap::Args;
use nodectl_http::Client;
use nodectl_ports::say::tell;
use nodectl_ui::{PageError, PageServer, PageSettings};
use tokio::signal::unix::{SignalKind, signal};

pub const UI_NOTES: &str = "\
The address on stdout opens the page once, in one browser; when it was used, the next one is printed. The page is for this \
machine only. To see it from another one, keep the port: `ssh -N -L 8080:127.0.0.1:8080 HOST` there, `nodectl ui --port 8080` \
here. It ends with Ctrl-C; the node and its jobs go on.";

#[derive(Clone, Copy, Debug, Args)]
pub struct UiArgs {
    /// The port on 127.0.0.1 [default: any free one]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    /// Lets the page cancel and retry jobs, and drain nodes; otherwise it only reads
    #[arg(long)]
    pub write: bool,
}

/// Serves the page until Ctrl-C or SIGTERM.
pub async fn ui(client: &Client, args: UiArgs) -> Result<Exit, CliError> {
    let node = client.node().await?;
    let settings = PageSettings {
        port: args.port,
        may_write: args.write,
    };
    let next = |address: &str| {
        tell!("the page was opened; for another browser:");
        // A reader that has gone wants no other address.
        let _ = print(&format!("{address}\n"));
    };
    let server = PageServer::bind(client.clone(), settings, next)
        .await
        .map_err(refused)?;
    let stop = stop()?;
    let (name, port) = (node.name, server.port());
    print(&format!("{}\n", server.address()))?;
    tell!("the page of {name}'s cluster; the address opens it once, Ctrl-C ends it");
    tell!(
        "from another machine: `ssh -N -L {port}:127.0.0.1:{port} HOST` first, HOST being this one"
    );
    if args.write {
        tell!("whoever opens it may cancel and retry jobs, and drain nodes");
    }
    let served = server.serve(stop).await;
    served.map_err(|source| CliError::File {
        doing: "serving the page".into(),
        source,
    })?;
    Ok(Exit::Done)
}

/// Ready when somebody ends the page.
fn stop() -> Result<impl Future<Output = ()>, CliError> {
    let listen = |kind| {
        signal(kind).map_err(|source| CliError::File {
            doing: "listening for signals".into(),
            source,
        })
    };
    let (mut interrupt, mut end) = (
        listen(SignalKind::interrupt())?,
        listen(SignalKind::terminate())?,
    );
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = end.recv() => {}
        }
    })
}

fn refused(error: PageError) -> CliError {
    match error {
        PageError::Listen { .. } => CliError::Usage(error.to_string()),
        PageError::NoRandomness => CliError::Node(error.into()),
    }
}
