//! For nodes that share no file system with this machine: when their job runs, SLURM's `sbcast`
//! takes them this program, and the secret under a seal of MUNGE, which SLURM's hosts have in
//! common and which only this user can open there.

use super::{
    LIMIT, is_away, queue, refused,
    script::{SEALED, Script, sent_to},
};
use crate::{
    LaunchError,
    process::{Finished, Invocation},
    state::write_private,
};
use std::{fs, path::Path, time::Duration};

/// For the program's bytes, to all nodes of a job.
const COPY_LIMIT: Duration = Duration::from_secs(600);

/// Sends a running job's nodes what its script waits for. `id` is as `squeue` shows it.
pub async fn send(id: &str, script: &Script) -> Result<(), LaunchError> {
    let job = number(id).await?;
    let to = sent_to(&script.launch, &job);
    sbcast(&job, &script.facts.binary, &to).await?;
    let sealed = script.directory.join(format!("{job}{SEALED}"));
    write_private(&sealed, seal(&script.secret_file).await?.as_bytes())?;
    let sent = sbcast(&job, &sealed, &format!("{to}{SEALED}")).await;
    let _ = fs::remove_file(&sealed);
    sent
}

/// The job's own number: elements of arrays have one, too.
async fn number(id: &str) -> Result<String, LaunchError> {
    let said = ask(
        "squeue",
        Invocation::new("squeue", queue::number_args(id), LIMIT),
    )
    .await?;
    let number = said.stdout.trim();
    match !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Ok(number.to_string()),
        false => Err(LaunchError::Unparsable {
            program: "squeue",
            text: said.stdout,
        }),
    }
}

async fn sbcast(job: &str, from: &Path, to: &str) -> Result<(), LaunchError> {
    let args = [
        "--force".to_string(),
        format!("--jobid={job}"),
        from.display().to_string(),
        to.to_string(),
    ];
    ask("sbcast", Invocation::new("sbcast", args, COPY_LIMIT))
        .await
        .map(drop)
}

/// The secret as MUNGE's credential: encrypted, for this user alone.
async fn seal(secret_file: &Path) -> Result<String, LaunchError> {
    let config = ask(
        "scontrol",
        Invocation::new("scontrol", ["show", "config"], LIMIT),
    )
    .await?;
    let mut args = vec![
        format!("--restrict-uid={}", rustix::process::geteuid().as_raw()),
        "--ttl=-1".into(),
    ];
    args.extend(munge_socket(&config.stdout).map(|socket| format!("--socket={socket}")));
    let call = Invocation::new("munge", args, LIMIT).input_file(secret_file.to_path_buf());
    Ok(ask("munge", call).await?.stdout)
}

async fn ask(program: &str, call: Invocation) -> Result<Finished, LaunchError> {
    let finished = call.run_patiently(is_away).await;
    let finished = finished.map_err(|source| LaunchError::Call {
        doing: program.into(),
        source,
    })?;
    if finished.is_ok() {
        Ok(finished)
    } else {
        Err(refused(program, &finished))
    }
}

/// The socket of the MUNGE that SLURM uses, where `scontrol show config` says that it is not the
/// usual one.
fn munge_socket(config: &str) -> Option<&str> {
    let line = config.lines().find(|line| line.starts_with("AuthInfo"))?;
    line.split_once("socket=")?.1.split([' ', ',']).next()
}

#[cfg(test)]
mod tests {
    use super::munge_socket;

    #[test]
    fn the_socket_is_found_where_there_is_one() {
        // As slurm-wlm 22.05.8 of Debian 12 printed them.
        let config = "AuthAltTypes            = (null)\nAuthInfo                = socket=/run/m/socket,ttl=300\nAuthType = auth/munge\n";
        assert_eq!(munge_socket(config), Some("/run/m/socket"));
        assert_eq!(
            munge_socket(
                "AuthInfo                = (null)\nAuthType                = auth/munge\n"
            ),
            None
        );
        assert_eq!(munge_socket(""), None);
    }
}
