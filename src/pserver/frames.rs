//! Frames from workers on this machine.

use nodectl_wire::frames::{FrameKind, HEADER_BYTES, Header};
use std::{
    io::{self, Read},
    os::unix::net::UnixStream,
};

/// The next message, of at most `limit` bytes.
pub fn receive<K: FrameKind>(
    mut stream: &UnixStream,
    limit: usize,
) -> io::Result<(Header<K>, Vec<u8>)> {
    let mut payload = Vec::new();
    loop {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header)?;
        let header = Header::<K>::decode(&header).map_err(|error| invalid(error.to_string()))?;
        let start = payload.len();
        if start + header.length as usize > limit {
            return Err(invalid(format!(
                "a message {:?} of more than {limit} bytes",
                header.kind
            )));
        }
        payload.resize(start + header.length as usize, 0);
        stream.read_exact(&mut payload[start..])?;
        if !header.has_more() {
            return Ok((header, payload));
        }
    }
}

/// What a worker said cannot be.
pub fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
