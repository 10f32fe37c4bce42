//! Where the identity file lies: its number on its file system, noted beside it when it was made.
//! A copy has another number, so a copied data directory is told from the original without asking
//! anybody. A file that another program wrote anew has another number, too: a person says which of
//! the two it is.

use super::identity::write_private;
use nodectl_types::NodeId;
use rustix::fs::major;
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// File systems on which a file keeps its number as long as it is there, by the magic numbers of
/// statfs(2): ext, XFS, Btrfs, ZFS, F2FS, bcachefs, NFS, overlayfs, tmpfs. On others, such as FAT
/// and what FUSE shows, numbers may be given out anew with every mount.
const LASTING: [u32; 9] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x2fc1_2fc1,
    0xf2f5_2010,
    0xca45_1a4e,
    0x6969,
    0x794c_7630,
    0x0102_1994,
];

/// What is known of an identity file, of whose node it is and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IdentityPlace {
    node: NodeId,
    file: u64,
    device: u64,
    /// During which run of the machine it was on that device: devices are numbered anew when the
    /// machine starts.
    boot: String,
}

impl IdentityPlace {
    fn of(identity: &Path, node: NodeId) -> io::Result<Self> {
        let metadata = fs::metadata(identity)?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Ok(Self {
            node,
            file: metadata.ino(),
            device: metadata.dev(),
            boot: boot.trim().into(),
        })
    }

    fn read(text: &str, node: NodeId) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let is_of = words.next()? == node.to_string();
        let (file, device) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let boot = words.next().unwrap_or_default().into();
        is_of.then_some(Self {
            node,
            file,
            device,
            boot,
        })
    }

    fn text(&self) -> String {
        let Self {
            node,
            file,
            device,
            boot,
        } = self;
        format!("{node} {file} {device} {boot}\n")
    }

    /// Whether the file that was there is not the one that is here. Devices whose major number is 0
    /// (NFS, Btrfs, overlays) are numbered anew with every mount.
    fn is_another(&self, here: &Self) -> bool {
        let is_lasting = |device| major(device) != 0;
        let same_boot = !self.boot.is_empty() && self.boot == here.boot;
        self.file != here.file
            || (same_boot
                && self.device != here.device
                && is_lasting(self.device)
                && is_lasting(here.device))
    }
}

/// The note beside an identity file.
pub(super) fn note_beside(identity: &Path) -> PathBuf {
    identity.with_file_name("identity-place")
}

/// Whether a node's identity file is another than the one that the note beside it is about. A place
/// of which nothing was noted, or that is another only since the machine started, is noted.
pub(super) fn is_copy(identity: &Path, node: NodeId) -> io::Result<bool> {
    let here = IdentityPlace::of(identity, node)?;
    let note = note_beside(identity);
    let noted = match fs::read_to_string(&note) {
        Ok(text) => IdentityPlace::read(&text, node),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => None,
        Err(error) => return Err(error),
    };
    if noted.as_ref() == Some(&here) {
        return Ok(false);
    }
    if noted.is_some_and(|noted| noted.is_another(&here)) && keeps_numbers(identity) {
        return Ok(true);
    }
    write_private(&note, here.text().as_bytes())?;
    Ok(false)
}

fn keeps_numbers(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|system| LASTING.contains(&(system.f_type as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId([7; 32]);

    fn place(file: u64, device: (u32, u32), boot: &str) -> IdentityPlace {
        IdentityPlace {
            node: NODE,
            file,
            device: rustix::fs::makedev(device.0, device.1),
            boot: boot.into(),
        }
    }

    #[test]
    fn a_note_is_read_as_it_was_written_and_is_of_one_node() {
        let noted = place(5, (8, 1), "a-boot");
        assert_eq!(
            IdentityPlace::read(&noted.text(), NODE),
            Some(noted.clone())
        );
        assert_eq!(IdentityPlace::read(&noted.text(), NodeId([8; 32])), None);
        let unknown = place(5, (8, 1), "");
        assert_eq!(IdentityPlace::read(&unknown.text(), NODE), Some(unknown));
        for damaged in [
            "",
            "x",
            &format!("{NODE} 5"),
            &format!("{NODE} five 2049 a"),
        ] {
            assert_eq!(IdentityPlace::read(damaged, NODE), None, "{damaged}");
        }
    }

    #[test]
    fn a_copy_has_another_number_or_another_device_in_the_same_run_of_the_machine() {
        let noted = place(5, (8, 1), "one");
        assert!(!noted.is_another(&place(5, (8, 1), "two")));
        assert!(noted.is_another(&place(6, (8, 1), "two")));
        assert!(noted.is_another(&place(5, (8, 2), "one")));
        assert!(!noted.is_another(&place(5, (8, 2), "two")), "renumbered");
        let mounted = place(5, (0, 40), "one");
        assert!(
            !mounted.is_another(&place(5, (0, 41), "one")),
            "mounted anew"
        );
        let unknown = place(5, (8, 1), "");
        assert!(!unknown.is_another(&place(5, (8, 2), "")));
    }

    #[test]
    fn what_is_noted_first_counts() {
        let directory = tempfile::tempdir().unwrap();
        let identity = directory.path().join("identity");
        fs::write(&identity, "one").unwrap();
        assert!(!is_copy(&identity, NODE).unwrap());
        assert!(!is_copy(&identity, NODE).unwrap());
        // Both are there at once, so that their numbers differ.
        let other = directory.path().join("other");
        fs::copy(&identity, &other).unwrap();
        fs::rename(&other, &identity).unwrap();
        assert_eq!(is_copy(&identity, NODE).unwrap(), keeps_numbers(&identity));
        assert!(
            !is_copy(&identity, NodeId([8; 32])).unwrap(),
            "the note was another node's"
        );
    }
}
