//! The node's identity: an ed25519 key in `<data_dir>/identity`, readable by its owner only and
//! bound to the machine and to its place on the disk, so that a copied data directory does not make
//! twins. The public key is the `NodeId`.

use super::place;
use libp2p::{
    PeerId,
    identity::{Keypair, PublicKey, ed25519},
};
use nodectl_ports::atomic;
use nodectl_types::NodeId;
use std::{
    fs, io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::PermissionsExt,
            net::{SocketAddr, UnixListener},
        },
    },
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

const MAGIC: &[u8; 8] = b"nodeid01";
/// Magic, hash of the machine id, ed25519 key pair.
const FILE_BYTES: usize = 8 + 32 + 64;

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(
        "cannot {doing} the identity file {path}: {source}\nhint: the data directory must be writable by this user and not full; --data-dir names another"
    )]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "the identity file {path} is damaged ({why})\nhint: remove it; the node then gets a new identity"
    )]
    Damaged { path: PathBuf, why: &'static str },
    #[error(
        "another node on this machine has the identity of {path}: the data directory is a copy\nhint: remove that file; the node then gets an identity of its own"
    )]
    Twin { path: PathBuf },
    #[error(
        "{path} is a copy of this node's identity: its data directory was copied, restored or moved to another disk\nhint: if the first one may still be used, remove {path}, and the node gets an identity of its own; if it will never be used again, remove {place}, and the node stays what it was"
    )]
    Copied { path: PathBuf, place: PathBuf },
}

/// Held while a node runs, so that no other on this machine can have its identity.
pub struct Claim {
    /// An address without a file: it is free again when its process is gone, however that ends.
    _address: Option<UnixListener>,
}

/// A node's key pair. Its secret half never leaves the process except into the identity file.
#[derive(Clone)]
pub struct Identity {
    pair: ed25519::Keypair,
}

impl Identity {
    /// The identity kept in the data directory. A new one is made if there is none, or if the
    /// directory was copied here from another machine. A copy on the machine of the original is
    /// refused: which of the two is to go on cannot be seen from here.
    pub fn load_or_create(data_dir: &Path) -> Result<Self, IdentityError> {
        Self::load_for_machine(data_dir, machine_hash())
    }

    /// Makes sure that nobody else on this machine runs with this identity: two nodes of one name
    /// undo each other's work.
    pub fn claim(&self, data_dir: &Path) -> Result<Claim, IdentityError> {
        let name = format!("nodectl-{}", self.node_id());
        match SocketAddr::from_abstract_name(name)
            .and_then(|address| UnixListener::bind_addr(&address))
        {
            Ok(address) => Ok(Claim {
                _address: Some(address),
            }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(IdentityError::Twin {
                path: data_dir.join("identity"),
            }),
            Err(error) => {
                tracing::debug!(
                    "whether another node here has this identity cannot be told: {error}"
                );
                Ok(Claim { _address: None })
            }
        }
    }

    /// An identity that is kept nowhere.
    pub fn ephemeral() -> Self {
        Self {
            pair: ed25519::Keypair::generate(),
        }
    }

    pub fn node_id(&self) -> NodeId {
        NodeId(self.pair.public().to_bytes())
    }

    pub(super) fn keypair(&self) -> Keypair {
        self.pair.clone().into()
    }

    fn load_for_machine(data_dir: &Path, machine: [u8; 32]) -> Result<Self, IdentityError> {
        let path = data_dir.join("identity");
        let bytes = match fs::read(&path) {
            Ok(bytes) => Zeroizing::new(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Self::create(&path, machine);
            }
            Err(source) => {
                return Err(IdentityError::Io {
                    doing: "read",
                    path,
                    source,
                });
            }
        };
        let damaged = |why| IdentityError::Damaged {
            path: path.clone(),
            why,
        };
        if bytes.len() != FILE_BYTES || bytes[..8] != *MAGIC {
            return Err(damaged("not 104 bytes that begin with `nodeid01`"));
        }
        if bytes[8..40] != machine {
            tracing::warn!(
                "{} was made on another machine: this node gets an identity of its own",
                path.display()
            );
            return Self::create(&path, machine);
        }
        let mut pair = Zeroizing::new(bytes[40..].to_vec());
        let pair = ed25519::Keypair::try_from_bytes(&mut pair)
            .map_err(|_| damaged("not an ed25519 key pair"))?;
        restrict(&path)?;
        let identity = Self { pair };
        identity.check_place(&path)?;
        Ok(identity)
    }

    /// Two nodes of one identity, each with its own idea of what it has on disk, would undo each
    /// other's work, also one after the other.
    fn check_place(&self, path: &Path) -> Result<(), IdentityError> {
        let place = place::note_beside(path);
        match place::is_copy(path, self.node_id()) {
            Ok(false) => Ok(()),
            Ok(true) => Err(IdentityError::Copied {
                path: path.to_path_buf(),
                place,
            }),
            Err(source) => Err(IdentityError::Io {
                doing: "note the place of",
                path: path.to_path_buf(),
                source,
            }),
        }
    }

    fn create(path: &Path, machine: [u8; 32]) -> Result<Self, IdentityError> {
        let identity = Self::ephemeral();
        let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_BYTES));
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&machine);
        bytes.extend_from_slice(Zeroizing::new(identity.pair.to_bytes()).as_slice());
        write_private(path, &bytes).map_err(|source| IdentityError::Io {
            doing: "write",
            path: path.to_path_buf(),
            source,
        })?;
        identity.check_place(path)?;
        Ok(identity)
    }
}

/// Libp2p's name for a node. `None` if the 32 bytes are no point on the curve.
pub(super) fn peer_id(node: NodeId) -> Option<PeerId> {
    let key = ed25519::PublicKey::try_from_bytes(&node.0).ok()?;
    Some(PublicKey::from(key).to_peer_id())
}

/// The node behind a libp2p peer. `None` if its key is not ed25519.
pub(super) fn node_id(peer: &PeerId) -> Option<NodeId> {
    // Keys this short are inside the id: multihash code 0 (identity), then the protobuf of the key.
    let hash = peer.as_ref();
    let key = PublicKey::try_decode_protobuf(hash.digest()).ok()?;
    Some(NodeId(key.try_into_ed25519().ok()?.to_bytes()))
}

/// Replaces a file of the data directory, which is made if it is missing; never readable by others.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    // Its own folder only: a data directory that somebody removed does not come back.
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    atomic::write(path, bytes, 0o600)
}

fn restrict(path: &Path) -> Result<(), IdentityError> {
    let io = |source| IdentityError::Io {
        doing: "check",
        path: path.to_path_buf(),
        source,
    };
    let mode = fs::metadata(path).map_err(io)?.permissions().mode();
    if mode & 0o077 != 0 {
        tracing::warn!(
            "{} was readable by other users; it no longer is",
            path.display()
        );
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(io)?;
    }
    Ok(())
}

/// Tells machines apart. Where there is no machine id (minimal containers) all count as one
/// machine.
fn machine_hash() -> [u8; 32] {
    let id = fs::read("/etc/machine-id").unwrap_or_default();
    blake3::derive_key("nodectl identity: machine id", id.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_claimed_once_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let identity = Identity::load_or_create(directory.path()).unwrap();
        let claim = identity.claim(directory.path()).unwrap();
        let error = identity.claim(directory.path()).err().unwrap().to_string();
        assert!(
            error.contains("identity") && error.contains("hint:"),
            "{error}"
        );
        drop(claim);
        identity.claim(directory.path()).unwrap();
    }

    #[test]
    fn survives_a_restart_but_not_a_copy() {
        let directory = tempfile::tempdir().unwrap();
        let first = Identity::load_for_machine(directory.path(), [1; 32]).unwrap();
        let again = Identity::load_for_machine(directory.path(), [1; 32]).unwrap();
        assert_eq!(first.node_id(), again.node_id());
        let copied = Identity::load_for_machine(directory.path(), [2; 32]).unwrap();
        assert_ne!(first.node_id(), copied.node_id());
    }

    #[test]
    fn a_copy_on_the_same_machine_is_refused_until_a_person_has_decided() {
        let directory = tempfile::tempdir().unwrap();
        let [first, copy] = ["first", "copy"].map(|name| directory.path().join(name));
        let load = |path: &Path| Identity::load_for_machine(path, [1; 32]);
        let original = load(&first).unwrap().node_id();
        let copied = || {
            let _ = fs::remove_dir_all(&copy);
            fs::create_dir(&copy).unwrap();
            for file in ["identity", "identity-place"] {
                fs::copy(first.join(file), copy.join(file)).unwrap();
            }
            load(&copy).err().unwrap().to_string()
        };
        let refused = copied();
        for file in ["identity,", "identity-place,"] {
            let path = copy.join(file).display().to_string();
            assert!(refused.contains(&format!("remove {path}")), "{refused}");
        }
        fs::remove_file(copy.join("identity")).unwrap();
        assert_ne!(load(&copy).unwrap().node_id(), original);
        assert_ne!(load(&copy).unwrap().node_id(), original, "and stays so");
        assert_eq!(load(&first).unwrap().node_id(), original);
        copied();
        fs::remove_file(copy.join("identity-place")).unwrap();
        assert_eq!(load(&copy).unwrap().node_id(), original);
        assert_eq!(load(&copy).unwrap().node_id(), original, "and stays so");
    }

    #[test]
    fn is_private_even_if_it_was_not() {
        let directory = tempfile::tempdir().unwrap();
        Identity::load_or_create(directory.path()).unwrap();
        let path = directory.path().join("identity");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        Identity::load_or_create(directory.path()).unwrap();
        assert_eq!(mode(), 0o600);
    }

    #[test]
    fn damage_is_told_with_the_path() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("identity"), b"short").unwrap();
        let error = Identity::load_or_create(directory.path())
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("identity") && error.contains("hint:"),
            "{error}"
        );
    }

    #[test]
    fn names_convert_both_ways() {
        let identity = Identity::ephemeral();
        let peer = peer_id(identity.node_id()).unwrap();
        assert_eq!(peer, identity.keypair().public().to_peer_id());
        assert_eq!(node_id(&peer), Some(identity.node_id()));
    }
}
