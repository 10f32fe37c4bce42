//! Streams to other nodes, and their directions for threads that block.

use futures::future::{BoxFuture, Either, select};
use nodectl_types::{NodeId, StreamToken};
use std::{
    io::{self, Read, Write},
    pin::pin,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf},
    runtime::Handle,
};
use tokio_util::sync::CancellationToken;

/// A stream of bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A stream to another node.
pub trait PeerStream: Duplex + 'static {
    /// Whether this is a connection of the other node's own kernel: nothing that may end by itself
    /// is in between.
    fn is_direct(&self) -> bool {
        false
    }
    /// The two directions for threads that block: where much goes over the stream that costs less.
    /// Called inside the runtime.
    fn blocking(self: Box<Self>) -> io::Result<Halves> {
        let (source, sink) = tokio::io::split(self);
        let (runtime, closed) = (Handle::current(), CancellationToken::new());
        let waiting = ThreadWait {
            runtime,
            closed: closed.clone(),
        };
        Ok(Halves {
            source: Box::new(BlockingSource(source, waiting.clone())),
            sink: Box::new(Sink(sink, waiting)),
            close: Box::new(move || closed.cancel()),
        })
    }
}

/// A stream's directions. Each is for a thread of its own.
pub struct Halves {
    pub source: Box<dyn Read + Send>,
    pub sink: Box<dyn Write + Send>,
    pub close: Close,
}

/// Ends both directions of a stream: whoever waits in them fails.
pub type Close = Box<dyn Fn() + Send + Sync>;

/// Streams to other nodes, sealed, for what does not fit messages: the workers of pools,
/// parameters.
pub trait Streams: Send + Sync {
    /// Opens a stream to a member for that token; `StreamHost::attach` gets the other end there.
    /// `NotFound` if the member answers that nothing there has the token.
    fn open(
        &self,
        to: NodeId,
        token: StreamToken,
    ) -> BoxFuture<'static, io::Result<Box<dyn PeerStream>>>;
}

/// Within one process, and between processes of one machine: as if they were of two.
impl PeerStream for tokio::io::DuplexStream {}
impl PeerStream for tokio::net::UnixStream {}

/// How a thread waits for what the runtime does.
#[derive(Clone)]
struct ThreadWait {
    runtime: Handle,
    closed: CancellationToken,
}

struct BlockingSource<S>(ReadHalf<S>, ThreadWait);

struct Sink<S>(WriteHalf<S>, ThreadWait);

impl ThreadWait {
    fn wait<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        self.runtime.block_on(async {
            match select(pin!(work), pin!(self.closed.cancelled())).await {
                Either::Left((done, _)) => done,
                Either::Right(_) => Err(io::ErrorKind::ConnectionAborted.into()),
            }
        })
    }
}

impl<S: AsyncRead> Read for BlockingSource<S> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.1.wait(self.0.read(out))
    }
}

impl<S: AsyncWrite> Write for Sink<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.wait(self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.1.wait(self.0.flush())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn threads_read_and_write_what_the_runtime_carries_until_it_is_closed() {
        let (one, two) = tokio::io::duplex(100);
        let (mut one, two) = (
            Box::new(one).blocking().unwrap(),
            Box::new(two).blocking().unwrap(),
        );
        let mut source = two.source;
        let reading = std::thread::spawn(move || {
            let mut bytes = vec![0; 1000];
            source.read_exact(&mut bytes).unwrap();
            (bytes, source.read(&mut [0]).map_err(|error| error.kind()))
        });
        let sent: Vec<u8> = (0..1000).map(|i| i as u8).collect();
        let (sink, written) = tokio::task::spawn_blocking(move || {
            let written = one.sink.write_all(&sent).and_then(|()| one.sink.flush());
            (one.sink, (sent, written))
        })
        .await
        .unwrap();
        written.1.unwrap();
        (two.close)();
        let (bytes, end) = tokio::task::spawn_blocking(|| reading.join().unwrap())
            .await
            .unwrap();
        assert_eq!(
            (bytes, end),
            (written.0, Err(io::ErrorKind::ConnectionAborted))
        );
        drop(sink);
    }
}
