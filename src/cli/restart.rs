//! A node that comes back with another program: the same process executes it, so that whoever
//! started the node (systemd, a shell, a scheduler) still has the child that it knows.

use super::{
    exit::CliError,
    secret::{ChosenSecret, OWN_DESCRIPTORS, SecretSource},
};
use nodectl_app::settings::SECRET_VARIABLE;
use nodectl_ports::say::tell;
use rustix::{
    io::FdFlags,
    pipe::{PipeFlags, pipe_with},
};
use std::{
    ffi::OsString,
    fs::File,
    io::{self, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::Command,
};

/// Executes `program` with the arguments of the `join` that it takes the place of, secrets left
/// out, and has it find the secret. Returns only where that fails.
pub fn restart(program: &Path, args: Vec<OsString>, secret: &ChosenSecret) -> CliError {
    let execute = || -> io::Result<io::Error> {
        let mut command = Command::new(program);
        command
            .arg0("nodectl")
            .args(args)
            .env_remove(SECRET_VARIABLE);
        let _pipe = match &secret.source {
            SecretSource::File(path) => {
                command.arg("--secret-file").arg(path);
                None
            }
            SecretSource::Generated(_) | SecretSource::Changed | SecretSource::Kept(_) => None,
            SecretSource::Typed | SecretSource::Given => {
                let pipe = hand_over(&secret.text)?;
                let path = format!("{OWN_DESCRIPTORS}/{}", pipe.as_raw_fd());
                command.arg("--secret-file").arg(path);
                Some(pipe)
            }
        };
        tell!("the node comes back with {}", program.display());
        Ok(command.exec())
    };
    CliError::file("starting", program, execute().unwrap_or_else(|error| error))
}

/// The secret in a pipe: whoever comes next reads it, once, and nothing of it is left in a file or
/// in what others can see of the process. At most a pipe's capacity, which any secret fits into.
fn hand_over(secret: &str) -> io::Result<OwnedFd> {
    // The reader is not closed when the next program is executed.
    let (reader, writer) = pipe_with(PipeFlags::empty())?;
    rustix::io::fcntl_setfd(&writer, FdFlags::CLOEXEC)?;
    File::from(writer).write_all(secret.as_bytes())?;
    Ok(reader)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_secret_is_handed_over_once() {
        let reader = hand_over("velvet harbor").unwrap();
        let path = format!("{OWN_DESCRIPTORS}/{}", reader.as_raw_fd());
        assert_eq!(std::fs::read_to_string(path).unwrap(), "velvet harbor");
        let mut again = String::new();
        File::from(reader).read_to_string(&mut again).unwrap();
        assert_eq!(again, "");
    }
}
