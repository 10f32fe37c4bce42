//! The control channel's bytes: the hello that opens it and the frames that follow. Stable across
//! protocol versions as far as the hello goes, so that any two versions can tell each other apart.
//! Pure encoding; sizes are checked before anything is allocated.

use crate::Versions;
use futures::{AsyncRead, AsyncReadExt};
use nodectl_types::{NodeId, limits};
use std::io;

const MAGIC: &[u8; 4] = b"ndct";
/// Magic, oldest and newest protocol version, listening port, length of the software version.
const HEAD_BYTES: usize = 4 + 4 + 4 + 2 + 1;

/// A frame whose length field has one of these values has no body.
const PING: u32 = u32::MAX;
const PONG: u32 = u32::MAX - 1;
/// And with these, a node: is it gone? And a node, and what is known of it.
const ASK: u32 = u32::MAX - 2;
const TELL: u32 = u32::MAX - 3;

/// What each side says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub versions: Versions,
    /// The TCP port at which the sender's swarm listens.
    pub listen_port: u16,
    pub software: String,
}

/// What follows the hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionFrame {
    Message(Vec<u8>),
    Ping,
    Pong,
    /// Is that node's process gone?
    Ask(NodeId),
    /// What the sender has found of it.
    Tell(NodeId, Opinion),
}

/// What a member says of a node that another cannot reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opinion {
    /// The node is connected to it.
    Here,
    /// Where it was reached, a kernel refuses connections.
    Gone,
    Unknown,
}

impl Hello {
    pub fn encode(&self) -> Vec<u8> {
        let software = &self.software.as_bytes()[..self.software.len().min(64)];
        let mut bytes = Vec::with_capacity(HEAD_BYTES + software.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.versions.oldest.to_le_bytes());
        bytes.extend_from_slice(&self.versions.newest.to_le_bytes());
        bytes.extend_from_slice(&self.listen_port.to_le_bytes());
        bytes.push(software.len() as u8);
        bytes.extend_from_slice(software);
        bytes
    }

    /// Why whoever says this is refused by a node that says `own`: they have no protocol version in
    /// common.
    pub fn refusal(&self, own: &Self) -> String {
        format!(
            "speaks protocol {} (nodectl {}), this node {} (nodectl {}): refused\n\
             hint: run the same nodectl on both",
            self.versions, self.software, own.versions, own.software
        )
    }

    pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut head = [0; HEAD_BYTES];
        stream.read_exact(&mut head).await?;
        if head[..4] != *MAGIC {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the control stream does not begin with a hello",
            ));
        }
        let mut software = vec![0; usize::from(head[14])];
        stream.read_exact(&mut software).await?;
        let version =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        Ok(Self {
            versions: Versions {
                oldest: version(4),
                newest: version(8),
            },
            listen_port: u16::from_le_bytes([head[12], head[13]]),
            software: String::from_utf8_lossy(&software)
                .chars()
                .filter(|c| !c.is_control())
                .collect(),
        })
    }
}

impl SessionFrame {
    /// Appends the frame to what is about to be written.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        match self {
            Self::Message(body) => {
                out.extend_from_slice(&(body.len() as u32).to_le_bytes());
                out.extend_from_slice(body);
            }
            Self::Ping => out.extend_from_slice(&PING.to_le_bytes()),
            Self::Pong => out.extend_from_slice(&PONG.to_le_bytes()),
            Self::Ask(node) => {
                out.extend_from_slice(&ASK.to_le_bytes());
                out.extend_from_slice(&node.0);
            }
            Self::Tell(node, opinion) => {
                out.extend_from_slice(&TELL.to_le_bytes());
                out.extend_from_slice(&node.0);
                out.push(*opinion as u8);
            }
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
            ASK => return Ok(Some(Self::Ask(node(stream).await?))),
            TELL => {
                let (node, mut opinion) = (node(stream).await?, [0]);
                stream.read_exact(&mut opinion).await?;
                return Ok(Some(Self::Tell(node, Opinion::read(opinion[0])?)));
            }
            length => length as usize,
        };
        if length > limits::MAX_MESSAGE_BYTES {
            let problem = format!(
                "a frame of {length} bytes, more than {}",
                limits::MAX_MESSAGE_BYTES
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        Ok(Some(Self::Message(body)))
    }
}

impl Opinion {
    fn read(byte: u8) -> io::Result<Self> {
        let known = [Self::Here, Self::Gone, Self::Unknown]
            .into_iter()
            .find(|opinion| *opinion as u8 == byte);
        known.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("an opinion numbered {byte}"),
            )
        })
    }
}

async fn node(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<NodeId> {
    let mut node = [0; 32];
    stream.read_exact(&mut node).await?;
    Ok(NodeId(node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{executor::block_on, io::Cursor};
    use proptest::prelude::*;

    #[test]
    fn hello_survives_the_wire() {
        let hello = Hello {
            versions: Versions {
                oldest: 5,
                newest: 7,
            },
            listen_port: 4242,
            software: "1.2.3".into(),
        };
        assert_eq!(
            block_on(Hello::read(&mut Cursor::new(hello.encode()))).unwrap(),
            hello
        );
    }

    #[test]
    fn who_has_no_version_in_common_is_told_what_to_do() {
        let hello = |oldest, newest, software: &str| Hello {
            versions: Versions { oldest, newest },
            listen_port: 4242,
            software: software.into(),
        };
        let (old, new) = (hello(4, 5, "0.9"), hello(6, 7, "1.2"));
        assert_eq!(old.versions.common(new.versions), None);
        assert_eq!(
            old.refusal(&new),
            "speaks protocol versions 4 to 5 (nodectl 0.9), \
             this node versions 6 to 7 (nodectl 1.2): refused\n\
             hint: run the same nodectl on both"
        );
    }

    /// Any two versions must read each other's hello, to say why they do not go on.
    #[test]
    fn the_hello_has_the_bytes_that_it_always_has() {
        let hello = Hello {
            versions: Versions {
                oldest: 5,
                newest: 0x102,
            },
            listen_port: 4242,
            software: "1.2".into(),
        };
        assert_eq!(hello.encode(), b"ndct\x05\0\0\0\x02\x01\0\0\x92\x10\x031.2");
    }

    #[test]
    fn frames_survive_the_wire_in_order() {
        let (ask, tell) = (
            SessionFrame::Ask(NodeId([3; 32])),
            SessionFrame::Tell(NodeId([4; 32]), Opinion::Unknown),
        );
        let frames = [
            SessionFrame::Message(vec![1, 2, 3]),
            SessionFrame::Ping,
            ask,
            SessionFrame::Message(Vec::new()),
            tell,
            SessionFrame::Pong,
        ];
        let mut bytes = Vec::new();
        frames
            .iter()
            .for_each(|frame| frame.encode_into(&mut bytes));
        let mut reader = Cursor::new(bytes);
        for frame in frames {
            assert_eq!(
                block_on(SessionFrame::read(&mut reader)).unwrap(),
                Some(frame)
            );
        }
        assert_eq!(block_on(SessionFrame::read(&mut reader)).unwrap(), None);
    }

    #[test]
    fn an_oversized_frame_is_refused_by_its_length_alone() {
        let length = limits::MAX_MESSAGE_BYTES as u32 + 1;
        let error = block_on(SessionFrame::read(&mut Cursor::new(
            length.to_le_bytes().to_vec(),
        )))
        .unwrap_err();
        assert!(error.to_string().contains("more than"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = block_on(Hello::read(&mut Cursor::new(bytes.clone())));
            let mut reader = Cursor::new(bytes);
            while let Ok(Some(_)) = block_on(SessionFrame::read(&mut reader)) {}
        }
    }
}
