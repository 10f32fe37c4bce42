//! `forget`: a person's word that a machine is dead for good, which no node can know of itself.

use super::{
    args::ForgetArgs,
    exit::{CliError, Exit},
    output::short_id,
};
use nodectl_http::Client;
use nodectl_ports::say::tell;
use std::io::{self, IsTerminal};

pub async fn forget(client: &Client, args: &ForgetArgs) -> Result<Exit, CliError> {
    let meant = client.forget(&args.node, false).await?;
    let node = format!("{} ({})", meant.name, short_id(&meant.id));
    if !args.yes && !confirm(&node)? {
        tell!("{node} is not forgotten");
        return Ok(Exit::Failed);
    }
    client.forget(&meant.id, true).await?;
    tell!("{node} is forgotten; trainings that waited for it go on");
    Ok(Exit::Done)
}

/// Asks on a terminal, and says what it is about.
fn confirm(node: &str) -> Result<bool, CliError> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        let hint = "hint: --yes if that machine will not come back as it was";
        return Err(CliError::Usage(format!(
            "forgetting {node} has to be confirmed, and there is no terminal\n{hint}"
        )));
    }
    tell!(
        "Every node will take {node} for dead, and trainings that wait for it will go on without it.\n\
         If that machine runs on, cut off, what it does in these trainings is lost when it comes back.\n\
         Will that machine never come back as it was? [y/N]"
    );
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    read.map_err(|source| CliError::File {
        doing: "reading the answer from the terminal".into(),
        source,
    })?;
    Ok(matches!(
        answer.trim().to_ascii_lowercase().as_str(),
        "y" | "yes"
    ))
}
