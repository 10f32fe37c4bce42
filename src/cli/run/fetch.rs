//! A task's files: its stdout and stderr and what it made. They are gathered in a directory beside
//! the final one and renamed into its place, so that a task's directory is whole whenever it is
//! there.

use crate::exit::CliError;
use futures::TryStreamExt;
use nodectl_http::{
    Client, ClientError,
    client::{ByteStream, LogRequest},
};
use nodectl_types::manifest::safe_path;
use nodectl_wire::api::{OutputView, StreamView, TaskResult};
use std::{
    collections::BTreeMap,
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};
use tokio::{fs, io::AsyncWriteExt};

/// Brings the task's files into the task's own directory below this one; with `streams`, also its
/// stdout and stderr, where it wrote any. Returns how many files no node could give.
pub async fn task(
    client: &Client,
    (job, task): (&str, u32),
    directory: &Path,
    result: &TaskResult,
    streams: bool,
    flat: Option<&FlatNames>,
) -> Result<u32, CliError> {
    let streams = streams && (result.stdout.total_bytes > 0 || result.stderr.total_bytes > 0);
    if !streams && result.outputs.is_empty() {
        return Ok(0);
    }
    let gathering = Gathering {
        client,
        job,
        task,
        result,
        temporary: directory.join(format!(".{}.new", result.directory())),
        finished: directory.join(result.directory()),
    };
    gathering.begin().await?;
    let mut missing = 0;
    if streams {
        missing += gathering.stream("stdout", &result.stdout).await?;
        missing += gathering.stream("stderr", &result.stderr).await?;
    }
    for output in &result.outputs {
        missing += gathering.output(output).await?;
    }
    match flat {
        None => gathering.end().await?,
        Some(names) => missing += gathering.end_flat(directory, names).await?,
    }
    Ok(missing)
}

/// The names of files that lie side by side, and whose they are.
#[derive(Default)]
pub struct FlatNames(Mutex<BTreeMap<String, u32>>);

impl FlatNames {
    /// Whether the task may have the name: no other has it.
    fn take(&self, name: &str, task: u32) -> bool {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *names.entry(name.to_string()).or_insert(task) == task
    }
}

/// The files below a directory, with their paths in it.
fn files_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut files, mut ahead) = (Vec::new(), vec![directory.to_path_buf()]);
    while let Some(next) = ahead.pop() {
        for entry in std::fs::read_dir(next)? {
            let path = entry?.path();
            match path.is_dir() {
                true => ahead.push(path),
                false => files.push(path),
            }
        }
    }
    Ok(files)
}

/// A blob that memory has room for.
pub async fn blob_bytes(
    client: &Client,
    hash: &str,
    from: Option<&str>,
) -> Result<Vec<u8>, CliError> {
    let mut stream = client.blob(hash, from).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = stream.try_next().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

struct Gathering<'a> {
    client: &'a Client,
    job: &'a str,
    /// The task's number in the job, which may be another in `result`.
    task: u32,
    result: &'a TaskResult,
    temporary: PathBuf,
    finished: PathBuf,
}

impl Gathering<'_> {
    async fn begin(&self) -> Result<(), CliError> {
        remove(&self.temporary).await?;
        fs::create_dir(&self.temporary)
            .await
            .map_err(|source| CliError::file("making", &self.temporary, source))
    }

    async fn end(&self) -> Result<(), CliError> {
        remove(&self.finished).await?;
        let renamed = fs::rename(&self.temporary, &self.finished).await;
        renamed.map_err(|source| CliError::file("making", &self.finished, source))
    }

    /// Puts each file into the directory of all results, called by the task and its path. Returns
    /// how many could not be, because another task's is called so.
    async fn end_flat(&self, directory: &Path, names: &FlatNames) -> Result<u32, CliError> {
        let failed = |source| CliError::file("reading", &self.temporary, source);
        let mut refused = 0;
        for file in files_below(&self.temporary).map_err(failed)? {
            let path = file.strip_prefix(&self.temporary).unwrap_or(&file);
            let path = path.to_string_lossy().replace('/', "-");
            let name = format!("{}-{path}", self.result.directory());
            if !names.take(&name, self.result.task) {
                tell!(
                    "warning: task {}: another task has a file {name}",
                    self.result.task
                );
                refused += 1;
                continue;
            }
            let target = directory.join(&name);
            let renamed = fs::rename(&file, &target).await;
            renamed.map_err(|source| CliError::file("making", &target, source))?;
        }
        remove(&self.temporary).await?;
        Ok(refused)
    }

    async fn stream(&self, name: &str, stream: &StreamView) -> Result<u32, CliError> {
        if stream.total_bytes == 0 {
            return Ok(0);
        }
        // The task's own file of that name comes first.
        let taken = |output: &OutputView| output.path.split('/').next() == Some(name);
        let file = if self.result.outputs.iter().any(taken) {
            format!("{name}.log")
        } else {
            name.to_string()
        };
        let path = self.temporary.join(file);
        if stream.complete {
            let written = fs::write(&path, &stream.tail).await;
            return written
                .map(|()| 0)
                .map_err(|source| CliError::file("writing", &path, source));
        }
        let request = LogRequest {
            stderr: name == "stderr",
            ..LogRequest::default()
        };
        let log = self.client.log(self.job, self.task, request).await;
        self.store(log, &path, false).await
    }

    async fn output(&self, output: &OutputView) -> Result<u32, CliError> {
        // From the network: it must not lead out of the directory.
        if !safe_path(&output.path) {
            tell!(
                "warning: task {}: an output with the unsafe path {:?} is left out",
                self.result.task,
                output.path
            );
            return Ok(1);
        }
        let path = self.temporary.join(&output.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)
                .await
                .map_err(|source| CliError::file("making", parent, source))?;
        }
        let blob = self
            .client
            .blob(&output.hash, Some(&self.result.node))
            .await;
        self.store(blob, &path, output.executable).await
    }

    /// Writes the bytes to a file. What the cluster cannot give now is told and counted: it may be
    /// there later, and `nodectl results --into` fetches it then.
    async fn store(
        &self,
        bytes: Result<ByteStream, ClientError>,
        path: &Path,
        executable: bool,
    ) -> Result<u32, CliError> {
        let mut bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error @ ClientError::Refused { .. }) => return Ok(self.missing(path, &error)),
            Err(error) => return Err(error.into()),
        };
        let failed = |source| CliError::file("writing", path, source);
        let mut file = fs::File::create(path).await.map_err(failed)?;
        loop {
            match bytes.try_next().await {
                Ok(Some(piece)) => file.write_all(&piece).await.map_err(failed)?,
                Ok(None) => break,
                Err(error) => {
                    fs::remove_file(path).await.map_err(failed)?;
                    return Ok(self.missing(path, &error));
                }
            }
        }
        file.flush().await.map_err(failed)?;
        if executable {
            fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
                .await
                .map_err(failed)?;
        }
        Ok(0)
    }

    fn missing(&self, path: &Path, error: &ClientError) -> u32 {
        let name = path.strip_prefix(&self.temporary).unwrap_or(path).display();
        tell!(
            "warning: task {}: {name} could not be fetched: {error}",
            self.result.task
        );
        1
    }
}

async fn remove(directory: &Path) -> Result<(), CliError> {
    match fs::remove_dir_all(directory).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(CliError::file("removing", directory, error))
        }
        _ => Ok(()),
    }
}
