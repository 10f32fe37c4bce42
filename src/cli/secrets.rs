//! `secret`: values that jobs name and their tasks find in memory. They come by stdin or are asked
//! for, and are never shown again.

use super::{
    args::NamedSecret,
    exit::{CliError, Exit},
    listing, output,
};
use nodectl_http::Client;
use nodectl_ports::{say::tell, wall_ms};
use nodectl_types::{limits, secret};
use std::io::{self, IsTerminal, Read};
use zeroize::Zeroizing;

pub async fn secret(client: &Client, command: NamedSecret) -> Result<Exit, CliError> {
    match command {
        NamedSecret::Put { name } => {
            check(&name)?;
            let value = value(&name)?;
            client.put_secret(&name, value.to_vec().into()).await?;
            tell!(
                "{name} is kept; jobs that say `secrets = [\"{name}\"]` find it in the file that {} names",
                secret::variable(&name)
            );
        }
        NamedSecret::List(args) => {
            let output = output::choose(args.list);
            let make = async || Ok(output.secrets(&client.secrets().await?, wall_ms()));
            listing::show(args.repeat, make).await?;
        }
        NamedSecret::Drop { name } => {
            check(&name)?;
            client.drop_secret(&name).await?;
            tell!("{name} is dropped");
        }
    }
    Ok(Exit::Done)
}

fn check(name: &str) -> Result<(), CliError> {
    if secret::is_secret_name(name) {
        return Ok(());
    }
    let hint = "hint: a letter, then letters, digits and single `_`, such as HF_TOKEN; the value comes by stdin";
    Err(CliError::Usage(format!(
        "`{}` cannot be the name of a secret\n{hint}",
        nodectl_types::text::shown(name)
    )))
}

/// Typed at a terminal, or all of stdin but for its last line break.
fn value(name: &str) -> Result<Zeroizing<Vec<u8>>, CliError> {
    let failed = |source| CliError::File {
        doing: format!("reading the value of {name}"),
        source,
    };
    let mut value = Zeroizing::new(Vec::new());
    if io::stdin().is_terminal() {
        let typed = Zeroizing::new(
            rpassword::prompt_password(format!("The value of {name}: ")).map_err(failed)?,
        );
        value.extend_from_slice(typed.as_bytes());
    } else {
        io::stdin()
            .take(limits::MAX_SECRET_BYTES as u64 + 2)
            .read_to_end(&mut value)
            .map_err(failed)?;
        if value.last() == Some(&b'\n') {
            value.pop();
        }
    }
    match value.len() {
        0 => Err(CliError::Usage(format!(
            "the value of {name} is empty\nhint: `nodectl secret put {name} <FILE`"
        ))),
        1..=limits::MAX_SECRET_BYTES => Ok(value),
        _ => Err(CliError::Usage(format!(
            "the value of {name} has more than {} bytes\nhint: upload what is large, and keep the key to it as the secret",
            limits::MAX_SECRET_BYTES
        ))),
    }
}
