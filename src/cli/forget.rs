//! `forget`: a person's word that a machine is dead for good, which no node can know of itself.

use super::{
    args::ForgetArgs,
    confirm::confirm,
    exit::{CliError, Exit},
    output::short_id,
};
use nodectl_http::Client;
use nodectl_ports::say::tell;

pub async fn forget(client: &Client, args: &ForgetArgs) -> Result<Exit, CliError> {
    let meant = client.forget(&args.node, false).await?;
    let node = format!("{} ({})", meant.name, short_id(&meant.id));
    let warning = format!(
        "All nodes will regard {node} as dead, and trainings that wait for it will go on without it.\n\
         If that machine runs on, cut off, what it does in these trainings is lost when it comes back.\n\
         Will that machine never come back as it was?"
    );
    let hint = "add --yes if that machine will not come back as it was";
    if !args.yes && !confirm(&format!("forgetting {node}"), &warning, hint)? {
        tell!("{node} is not forgotten");
        return Ok(Exit::Failed);
    }
    client.forget(&meant.id, true).await?;
    tell!("{node} is forgotten; trainings that waited for it go on");
    Ok(Exit::Done)
}
