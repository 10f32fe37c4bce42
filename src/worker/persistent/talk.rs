//! Messages on the stream of a worker, for a thread that waits for one answer at a time.

use nodectl_wire::frames::{self, FromWorker, HEADER_BYTES, Header, ToWorker};
use std::{
    io::{self, Read},
    os::unix::net::UnixStream,
    time::Duration,
};

/// Bytes of a message that are kept; the rest is counted. Values and errors that are kept in
/// records are smaller.
const KEPT_BYTES: usize = 1 << 20;
/// A worker waits for messages: one that does not take them for so long hangs.
const SEND_PATIENCE: Duration = Duration::from_secs(30);

pub struct Talk {
    stream: UnixStream,
    /// What has arrived and is no whole frame.
    received: Vec<u8>,
    partial: Option<WorkerMessage>,
    patience: Option<Duration>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct WorkerMessage {
    pub kind: FromWorker,
    pub id: u64,
    /// The first `KEPT_BYTES` of the payload.
    pub payload: Vec<u8>,
    pub total_bytes: u64,
}

impl Talk {
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(SEND_PATIENCE))?;
        Ok(Self {
            stream,
            received: Vec::new(),
            partial: None,
            patience: None,
        })
    }

    pub fn send(&mut self, kind: ToWorker, id: u64, payload: &[u8]) -> io::Result<()> {
        frames::write(&self.stream, kind, id, payload)
    }

    /// The next message; `None` if it is not there within `patience`. The end of the stream is an
    /// error.
    pub fn receive(&mut self, patience: Duration) -> io::Result<Option<WorkerMessage>> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            let patience = patience.max(Duration::from_millis(1));
            if self.patience != Some(patience) {
                self.stream.set_read_timeout(Some(patience))?;
                self.patience = Some(patience);
            }
            let mut buffer = [0; 16 << 10];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// A whole message of what was received.
    fn take(&mut self) -> io::Result<Option<WorkerMessage>> {
        loop {
            let Some(header) = self.received.first_chunk::<HEADER_BYTES>() else {
                return Ok(None);
            };
            let header = Header::decode(header).map_err(invalid)?;
            let end = HEADER_BYTES + header.length as usize;
            if self.received.len() < end {
                return Ok(None);
            }
            let Header { kind, id, .. } = header;
            let fresh = WorkerMessage {
                kind,
                id,
                payload: Vec::new(),
                total_bytes: 0,
            };
            let mut message = self.partial.take().unwrap_or(fresh);
            if (message.kind, message.id) != (kind, id) {
                return Err(invalid("frames of two messages mixed"));
            }
            let room = KEPT_BYTES - message.payload.len();
            let payload = &self.received[HEADER_BYTES..end];
            message
                .payload
                .extend_from_slice(&payload[..payload.len().min(room)]);
            message.total_bytes += u64::from(header.length);
            self.received.drain(..end);
            if !header.has_more() {
                return Ok(Some(message));
            }
            self.partial = Some(message);
        }
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const SOON: Duration = Duration::from_secs(10);

    fn pair() -> (Talk, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Talk::new(ours).unwrap(), theirs)
    }

    #[test]
    fn a_message_in_pieces_comes_out_whole_and_a_long_one_is_cut() {
        let (mut talk, mut worker) = pair();
        let mut bytes = Vec::new();
        frames::encode(
            FromWorker::Done,
            7,
            &vec![1; 3 * frames::MAX_CHUNK_BYTES + 5],
            &mut bytes,
        );
        frames::encode(FromWorker::Failed, 8, b"short", &mut bytes);
        let writer = std::thread::spawn(move || {
            bytes
                .chunks(70_001)
                .try_for_each(|piece| worker.write_all(piece))
        });
        let long = talk.receive(SOON).unwrap().unwrap();
        assert_eq!(
            (long.kind, long.id, long.payload.len()),
            (FromWorker::Done, 7, KEPT_BYTES)
        );
        assert_eq!(long.total_bytes, 3 * frames::MAX_CHUNK_BYTES as u64 + 5);
        let short = WorkerMessage {
            kind: FromWorker::Failed,
            id: 8,
            payload: b"short".into(),
            total_bytes: 5,
        };
        assert_eq!(talk.receive(SOON).unwrap(), Some(short));
        writer.join().unwrap().unwrap();
        assert_eq!(
            talk.receive(SOON).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }

    #[test]
    fn silence_is_no_error_and_nonsense_is_one() {
        let (mut talk, mut worker) = pair();
        assert_eq!(talk.receive(Duration::from_millis(1)).unwrap(), None);
        worker.write_all(&[255; HEADER_BYTES]).unwrap();
        assert_eq!(
            talk.receive(SOON).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
