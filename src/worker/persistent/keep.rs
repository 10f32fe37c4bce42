//! Blobs for a worker of a pool: large results stay on its node, and it is given those of others.
//! A second connection to `workers.sock`, which it opens when it first needs it, with a token of
//! its own (`NODECTL_BLOBS_TOKEN`). On it the worker asks, one thing after the other:
//!
//! | what it sends | what it is answered |
//! |---|---|
//! | a line `{"keep": {"bytes": N}}`, and N bytes | a line `{"hash", "node"}` |
//! | a line `{"open": {"hash", "from": [NODE]}}` | a line `{"bytes": N}`, with a descriptor of the blob's file, to read |
//! | a line `{"release": {"results": [HASH], "brought": [HASH]}}` | nothing |
//!
//! Where it cannot have what it asks for, the line is `{"error": WHY}`. The Python side is
//! `packaging/python/nodectl/_remote.py`. How long blobs stay, `kept` says.

use super::listener::Invited;
use crate::{attempt::AttemptContext, blocking::blocking};
use nodectl_ports::{BlobWriter, KeptBlobs};
use nodectl_types::{BlobHash, JobId, NodeId};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::AsFd,
    sync::Arc,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest},
    net::UnixStream,
};

/// The longest line that a worker sends.
const LINE_BYTES: u64 = 64 << 10;
/// Bytes of a blob that are in memory at once.
const PIECE_BYTES: u64 = 1 << 20;

/// What a worker asks for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum BlobRequest {
    Keep {
        bytes: u64,
    },
    Open {
        hash: String,
        from: Vec<String>,
    },
    /// The client needs these no more.
    Release {
        results: Vec<String>,
        brought: Vec<String>,
    },
}

/// Answers one worker of a job until its process closes the connection. `most` bounds the bytes of
/// a blob that it has kept.
pub(super) async fn serve(
    context: &Arc<AttemptContext>,
    job: JobId,
    invited: &mut Invited,
    most: u64,
) {
    let Ok(stream) = (&mut invited.stream).await else {
        return;
    };
    let stream = BufReader::new(stream);
    let mut link = BlobLink {
        context,
        job,
        stream,
        most,
    };
    while let Ok(Some(request)) = link.request().await {
        let answered = match request {
            BlobRequest::Keep { bytes } => link.keep(bytes).await,
            BlobRequest::Open { hash, from } => link.open(&hash, &from).await,
            BlobRequest::Release { results, brought } => link.release(&results, &brought).await,
        };
        if answered.is_err() {
            return;
        }
    }
}

/// The connection of one worker.
struct BlobLink<'a> {
    context: &'a Arc<AttemptContext>,
    job: JobId,
    stream: BufReader<UnixStream>,
    most: u64,
}

impl BlobLink<'_> {
    /// None where the worker has closed the connection.
    async fn request(&mut self) -> io::Result<Option<BlobRequest>> {
        let mut line = Vec::new();
        let mut limited = (&mut self.stream).take(LINE_BYTES);
        if limited.read_until(b'\n', &mut line).await? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&line)?))
    }

    async fn keep(&mut self, bytes: u64) -> io::Result<()> {
        let kept = match self.receive(bytes).await? {
            Ok(hash) => json!({
                "hash": hash.to_string(),
                "node": self.context.node_id.to_string(),
            }),
            Err(why) => json!({ "error": why }),
        };
        self.answer(kept, None).await
    }

    /// Reads a blob to its end, also where it cannot be kept. The inner error says why.
    async fn receive(&mut self, bytes: u64) -> io::Result<Result<BlobHash, String>> {
        let mut writing = self.begin(bytes).await;
        let mut left = bytes;
        while left > 0 {
            let mut piece = vec![0; left.min(PIECE_BYTES) as usize];
            self.stream.read_exact(&mut piece).await?;
            left -= piece.len() as u64;
            if let Ok(mut writer) = writing {
                let write = move || writer.write(&piece).map(|()| writer);
                writing = self.on_disk(bytes, write).await;
            }
        }
        Ok(match writing {
            Ok(writer) => {
                let (kept, job) = (self.context.kept.clone(), self.job);
                self.on_disk(bytes, move || kept.finish(job, writer, None))
                    .await
            }
            Err(why) => Err(why),
        })
    }

    async fn begin(&self, bytes: u64) -> Result<Box<dyn BlobWriter>, String> {
        if bytes > self.most {
            return Err(format!(
                "it has {bytes} bytes, and a task's outputs no more than {}",
                self.most
            ));
        }
        let kept = self.context.kept.clone();
        self.on_disk(bytes, move || kept.writer()).await
    }

    /// Does what may block. An error of the disk is the node's business, too.
    async fn on_disk<T: Send + 'static>(
        &self,
        bytes: u64,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        let context = self.context.clone();
        blocking(move || {
            work().map_err(|error| {
                context.disk.suspect(&error, bytes);
                error.to_string()
            })
        })
        .await
    }

    async fn open(&mut self, hash: &str, from: &[String]) -> io::Result<()> {
        match self.bring(hash, from).await {
            Ok((bytes, file)) => self.answer(json!({ "bytes": bytes }), Some(file)).await,
            Err(why) => self.answer(json!({ "error": why }), None).await,
        }
    }

    /// The file of a blob, which is brought here first if need be.
    async fn bring(&self, hash: &str, from: &[String]) -> Result<(u64, File), String> {
        let hash: BlobHash = hash.parse().map_err(|error| format!("{error}"))?;
        let holders: Vec<NodeId> = from
            .iter()
            .map(|node| node.parse().map_err(|error| format!("{error}")))
            .collect::<Result<_, _>>()?;
        let file = self.context.kept.bring(self.job, hash, &holders).await?;
        let bytes = file.metadata().map_err(|error| error.to_string())?.len();
        Ok((bytes, file))
    }

    /// Names that are none are passed over: nobody waits for an answer.
    async fn release(&mut self, results: &[String], brought: &[String]) -> io::Result<()> {
        let hashes = |names: &[String]| -> Vec<BlobHash> {
            names.iter().filter_map(|name| name.parse().ok()).collect()
        };
        let (results, brought) = (hashes(results), hashes(brought));
        let (kept, job) = (self.context.kept.clone(), self.job);
        blocking(move || kept.release(job, &results, &brought)).await;
        Ok(())
    }

    async fn answer(&mut self, answer: Value, file: Option<File>) -> io::Result<()> {
        let line = format!("{answer}\n");
        let stream = self.stream.get_mut();
        let sent = stream
            .async_io(Interest::WRITABLE, || send(stream, &line, file.as_ref()))
            .await?;
        stream.write_all(&line.as_bytes()[sent..]).await
    }
}

/// Sends the beginning of a line, with the descriptor of a file.
fn send(stream: &UnixStream, line: &str, file: Option<&File>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let parts = [IoSlice::new(line.as_bytes())];
    Ok(sendmsg(stream, &parts, &mut control, SendFlags::NOSIGNAL)?)
}
