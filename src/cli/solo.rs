//! Nodes that live as long as somebody needs them: inside of `run` and `devices` where no node runs; and of `solo` and
//! `join --while-stdin`, as long as the program that started it, which holds the other end of its standard input. However that
//! program ends, the kernel closes the pipe.

use super::exit::{CliError, Exit, print};
use crate::{
    app::{self, StartedNode, settings::Settings},
    http::{Client, ClientError, socket_path},
};
use std::io;

/// Runs a node without a network; prints the path of its socket once it answers there.
pub async fn solo(settings: &Settings) -> Result<Exit, CliError> {
    let mut node = app::start_solo(settings).await.map_err(CliError::Node)?;
    print(&format!("{}\n", node.socket.display()))?;
    tokio::select! {
        () = stdin_ends() => {}
        () = node.left() => {}
    }
    node.stop().await;
    Ok(Exit::Done)
}

/// The node that runs here, or one inside this process.
pub async fn connect(settings: &Settings, may_start: bool) -> Result<(Client, Option<StartedNode>), CliError> {
    let client = Client::new(socket_path(&settings.node.data_dir));
    match client.node().await {
        Ok(_) => Ok((client, None)),
        Err(ClientError::Unreachable { .. }) if may_start => {
            let node = app::start_solo(settings).await.map_err(CliError::Node)?;
            Ok((Client::new(node.socket.clone()), Some(node)))
        }
        Err(error) => Err(error.into()),
    }
}

pub async fn stop(own: Option<StartedNode>) {
    if let Some(node) = own {
        node.stop().await;
    }
}

/// Returns when nobody can write to the standard input any more. What is written there is passed over.
pub async fn stdin_ends() {
    let (ended, end) = tokio::sync::oneshot::channel();
    // A thread of its own: nothing interrupts a read, and the runtime would wait for it.
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = ended.send(());
    });
    let _ = end.await;
}
