//! `solo` and `join --while-stdin`: a node that lives as long as the program that started it, which holds the other end of
//! its standard input. However that program ends, the kernel closes the pipe.

use super::exit::{CliError, Exit, print};
use crate::app::{self, settings::Settings};
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
