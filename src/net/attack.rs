//! The handshake as somebody tries it who should not get through, for `tests/attacks.rs`. Public
//! for that test alone.

use super::{
    Identity, Keys,
    swarm::handshake::{self, Handshake},
};
use futures::{AsyncRead, AsyncReadExt, AsyncWrite};
use std::io;
use tokio::net::TcpStream;
use tokio_util::compat::TokioAsyncReadCompatExt;

pub use handshake::{FIRST_BYTES, PROLOGUE, SECOND_BYTES, THIRD_BYTES};

/// The key of the handshake, and all others that come of a secret.
pub fn keys(keys: &Keys) -> ([u8; 32], [[u8; 32]; 2]) {
    (*keys.swarm, [*keys.beacon, keys.id])
}

/// Shakes hands as the end that dialed. Who got through may go on over what is returned.
pub async fn shake(
    socket: TcpStream,
    key: [u8; 32],
    prologue: &[u8],
) -> io::Result<impl AsyncRead + AsyncWrite + Unpin> {
    let handshake = Handshake::new(&Identity::ephemeral().keypair(), prologue)?;
    let (_, mut channel) = handshake.initiate(socket.compat(), &key).await?;
    let mut judged = [0; 1];
    channel.read_exact(&mut judged).await?;
    if judged != [super::invite::WELCOME] {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(channel)
}
