//! Unix sockets that nobody but their owner may open, from their first moment.

use rustix::{
    fs::{Mode, fchmod},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with},
};
use std::{io, os::unix::net::UnixListener, path::Path};

/// Connections that wait to be accepted; the system has its own bound.
const BACKLOG: i32 = 1024;

/// Listens at `path`, 0600. The mode is that of the socket when it gets its name (unix_bind in the
/// kernel's net/unix/af_unix.c), so there is no moment in which others could connect, whatever
/// directory it is in.
pub fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::{fs::PermissionsExt, net::UnixStream};

    #[test]
    fn a_private_socket_is_its_owners_and_takes_connections() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _listener = bind_private(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        assert!(bind_private(&path).is_err(), "the name is taken");
    }
}
