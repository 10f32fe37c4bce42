//! The control channel's bytes: the hello that opens it and the frames that follow. Stable across protocol versions as far
//! as the hello goes, so that any two versions can tell each other apart. Pure encoding; sizes are checked before anything
//! is allocated.

use crate::types::limits;
use futures::{AsyncRead, AsyncReadExt};
use std::io;

const MAGIC: &[u8; 4] = b"ndct";
/// Magic, protocol version, listening port, length of the software version.
const HEAD_BYTES: usize = 4 + 4 + 2 + 1;

/// A frame whose length field has one of these values has no body.
const PING: u32 = u32::MAX;
const PONG: u32 = u32::MAX - 1;

/// What each side says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub protocol_version: u32,
    /// The TCP port at which the sender's swarm listens.
    pub listen_port: u16,
    pub software: String,
}

/// What follows the hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Message(Vec<u8>),
    Ping,
    Pong,
}

impl Hello {
    pub fn encode(&self) -> Vec<u8> {
        let software = &self.software.as_bytes()[..self.software.len().min(64)];
        let mut bytes = Vec::with_capacity(HEAD_BYTES + software.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.protocol_version.to_le_bytes());
        bytes.extend_from_slice(&self.listen_port.to_le_bytes());
        bytes.push(software.len() as u8);
        bytes.extend_from_slice(software);
        bytes
    }

    pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut head = [0; HEAD_BYTES];
        stream.read_exact(&mut head).await?;
        if head[..4] != *MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the control stream does not begin with a hello"));
        }
        let mut software = vec![0; usize::from(head[10])];
        stream.read_exact(&mut software).await?;
        Ok(Self {
            protocol_version: u32::from_le_bytes([head[4], head[5], head[6], head[7]]),
            listen_port: u16::from_le_bytes([head[8], head[9]]),
            software: String::from_utf8_lossy(&software).chars().filter(|c| !c.is_control()).collect(),
        })
    }
}

impl Frame {
    /// Appends the frame to what is about to be written.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        match self {
            Self::Message(body) => {
                out.extend_from_slice(&(body.len() as u32).to_le_bytes());
                out.extend_from_slice(body);
            }
            Self::Ping => out.extend_from_slice(&PING.to_le_bytes()),
            Self::Pong => out.extend_from_slice(&PONG.to_le_bytes()),
        }
    }

    /// The next frame; `None` at a clean end.
    pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let mut length = [0; 4];
        if stream.read(&mut length[..1]).await? == 0 {
            return Ok(None);
        }
        stream.read_exact(&mut length[1..]).await?;
        let length = match u32::from_le_bytes(length) {
            PING => return Ok(Some(Self::Ping)),
            PONG => return Ok(Some(Self::Pong)),
            length => length as usize,
        };
        if length > limits::MAX_MESSAGE_BYTES {
            let problem = format!("a frame of {length} bytes, more than {}", limits::MAX_MESSAGE_BYTES);
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        Ok(Some(Self::Message(body)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{executor::block_on, io::Cursor};
    use proptest::prelude::*;

    #[test]
    fn hello_survives_the_wire() {
        let hello = Hello { protocol_version: 7, listen_port: 4242, software: "1.2.3".into() };
        assert_eq!(block_on(Hello::read(&mut Cursor::new(hello.encode()))).unwrap(), hello);
    }

    #[test]
    fn frames_survive_the_wire_in_order() {
        let frames = [Frame::Message(vec![1, 2, 3]), Frame::Ping, Frame::Message(Vec::new()), Frame::Pong];
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.encode_into(&mut bytes));
        let mut reader = Cursor::new(bytes);
        for frame in frames {
            assert_eq!(block_on(Frame::read(&mut reader)).unwrap(), Some(frame));
        }
        assert_eq!(block_on(Frame::read(&mut reader)).unwrap(), None);
    }

    #[test]
    fn an_oversized_frame_is_refused_by_its_length_alone() {
        let length = limits::MAX_MESSAGE_BYTES as u32 + 1;
        let error = block_on(Frame::read(&mut Cursor::new(length.to_le_bytes().to_vec()))).unwrap_err();
        assert!(error.to_string().contains("more than"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = block_on(Hello::read(&mut Cursor::new(bytes.clone())));
            let mut reader = Cursor::new(bytes);
            while let Ok(Some(_)) = block_on(Frame::read(&mut reader)) {}
        }
    }
}
