//! How far a job's tasks are kept from the node that runs them and from its machine, as the job
//! says. What it does not say, the node's settings do.

use crate::text::is_unsafe;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// Whether programs such as sudo may gain rights that the node's user lacks. Where they may,
    /// nothing can be hidden from them.
    pub setuid: Option<bool>,
    /// Whether what is the node's alone is out of reach: its secret, its identity, other jobs, its
    /// API.
    pub hides_node: Option<bool>,
    /// Whether a program that crashes may leave a core dump.
    pub core_dumps: bool,
    /// Whether there is no network but one of its own, with nothing in it but loopback.
    pub offline: bool,
    /// Whether nothing can be changed but a task's own directory and what is temporary.
    pub read_only: bool,
    /// The container that its command runs in; see `is_image`.
    pub image: Option<String>,
}

/// Whether it can name a container: a file `NAME.sif` of Apptainer's, or what podman knows an image
/// by (`docker.io/library/python:3.12`, `oci-archive:FILE`).
pub fn is_image(image: &str) -> bool {
    if is_apptainers(image) {
        return !image.contains(is_unsafe);
    }
    // Podman would take what begins with a dash for an option.
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    image.starts_with(|c: char| c.is_ascii_alphanumeric()) && image.chars().all(is_part)
}

/// Whether Apptainer runs it, and not podman.
pub fn is_apptainers(image: &str) -> bool {
    image.ends_with(".sif")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_a_file_or_what_podman_knows() {
        for image in [
            "a.sif",
            "/images/my tools.sif",
            "docker.io/library/python:3.12",
            "oci-archive:a/b.tar",
            "localhost/a@sha256:0",
        ] {
            assert!(is_image(image), "{image}");
        }
        for image in [
            "",
            "-v",
            "--privileged",
            "a b",
            "a\n.sif",
            "$(id)",
            "/images/tools.tar",
        ] {
            assert!(!is_image(image), "{image}");
        }
    }
}
