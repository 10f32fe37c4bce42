//! A swarm's stream for code that blocks: the same sealing and opening then serves both ways of
//! transfer. Only for blocking threads.

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use std::{
    future::Future,
    io::{self, Read, Write},
    time::Duration,
};
use tokio::runtime::Handle;

/// A transfer that stands still for this long has failed.
pub const STALL: Duration = Duration::from_secs(10);

pub struct Blocking<S> {
    stream: S,
    runtime: Handle,
}

impl<S> Blocking<S> {
    pub fn new(stream: S, runtime: Handle) -> Self {
        Self { stream, runtime }
    }
}

fn wait<T>(runtime: &Handle, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    runtime
        .block_on(async { tokio::time::timeout(STALL, work).await })
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

impl<S: AsyncRead + Unpin> Read for Blocking<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        wait(&self.runtime, self.stream.read(buffer))
    }
}

impl<S: AsyncWrite + Unpin> Write for Blocking<S> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        wait(&self.runtime, self.stream.write(buffer))
    }

    fn flush(&mut self) -> io::Result<()> {
        wait(&self.runtime, self.stream.flush())
    }
}
