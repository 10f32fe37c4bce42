//! Links of HDF5 files: from a name in a file to the file and the name that it stands for, and how
//! far that may be from the file that the user named. A file comes from anybody; what it names is
//! read as the user, and travels with his job. So links, virtual datasets and lists of external
//! files lead to files below its own directory, or below others that the user named.
//!
//! Followed here and not by the library, which goes wherever a file says.

use super::hdf5;
use rust_hdf5::{H5File, LinkClass};
use std::path::{Component, Path, PathBuf};

/// The most links from a name to a dataset.
const MAX_LINKS: usize = 32;

/// Directories below which everything lies that a file may lead to.
#[derive(Clone, Debug)]
pub struct LinkBounds(Vec<PathBuf>);

impl LinkBounds {
    /// Of a file that the user named, and of directories that he named for it.
    pub fn of(path: &Path, others: &[PathBuf]) -> Self {
        let parent = |path: &Path| match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        // Of a link, the user has named both: the link and what is there.
        let own = [
            Some(parent(path)),
            path.canonicalize().ok().map(|real| parent(&real)),
        ];
        let all = own.into_iter().flatten().chain(others.iter().cloned());
        Self(
            all.filter_map(|directory| directory.canonicalize().ok())
                .collect(),
        )
    }

    /// Whether a file, which exists, lies below one of them.
    pub fn have(&self, target: &Path) -> bool {
        target
            .canonicalize()
            .is_ok_and(|real| self.0.iter().any(|directory| real.starts_with(directory)))
    }
}

/// Why a name leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// The file, the name in it, and the file that is not there.
    Missing {
        path: PathBuf,
        name: String,
        missing: PathBuf,
    },
    /// The file, the name in it, and the file that is out of bounds.
    Outside {
        path: PathBuf,
        name: String,
        outside: PathBuf,
    },
    Unreadable {
        path: PathBuf,
        why: String,
    },
    /// More links than a name may go through.
    TooMany {
        path: PathBuf,
        name: String,
    },
}

/// Where a name leads. `file` is open at `path`. What does not exist in a file is returned as it
/// is: opening it says why.
pub fn follow(
    file: &H5File,
    path: &Path,
    name: &str,
    bounds: &LinkBounds,
) -> Result<(PathBuf, String), LinkError> {
    let (mut place, mut name) = (path.to_path_buf(), clean(name));
    let mut other: Option<H5File> = None;
    for _ in 0..MAX_LINKS {
        match first_link(other.as_ref().unwrap_or(file), &name) {
            None => return Ok((place, name)),
            Some(LinkStep::Soft(next)) => name = next,
            Some(LinkStep::External(target, next)) => {
                let beside = tidy(place.parent().unwrap_or(Path::new("")).join(&target));
                if !beside.exists() {
                    return Err(LinkError::Missing {
                        path: place,
                        name,
                        missing: beside,
                    });
                }
                if !bounds.have(&beside) {
                    return Err(LinkError::Outside {
                        path: place,
                        name,
                        outside: beside,
                    });
                }
                let opened = hdf5::open(&beside);
                other = Some(opened.map_err(|why| LinkError::Unreadable {
                    path: beside.clone(),
                    why,
                })?);
                (place, name) = (beside, next);
            }
        }
    }
    Err(LinkError::TooMany {
        path: path.to_path_buf(),
        name,
    })
}

/// Without `..`: what leads there is also a file's place among those that travel.
pub fn tidy(path: PathBuf) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                plain.pop();
            }
            component => plain.push(component),
        }
    }
    // Behind a link, `..` is another directory than the one that is written before it.
    match path.canonicalize() {
        Ok(real) if plain.canonicalize().is_ok_and(|plain| plain == real) => plain,
        Ok(real) => real,
        Err(_) => path,
    }
}

impl std::fmt::Display for LinkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing { name, missing, .. } => {
                write!(
                    f,
                    "`{name}` leads to {}, which is not there",
                    missing.display()
                )
            }
            Self::Outside { name, outside, .. } => {
                write!(
                    f,
                    "`{name}` leads to {}, outside of the file's directory",
                    outside.display()
                )
            }
            Self::Unreadable { path, why } => write!(f, "{}: {why}", path.display()),
            Self::TooMany { name, .. } => {
                write!(f, "`{name}`: more than {MAX_LINKS} links follow each other")
            }
        }
    }
}

enum LinkStep {
    Soft(String),
    External(String, String),
}

/// The first part of a name that is a link, followed.
fn first_link(file: &H5File, name: &str) -> Option<LinkStep> {
    let mut group = file.root_group();
    let mut before = String::new();
    let mut rest = name;
    loop {
        let (leaf, onward_path) = rest.split_once('/').unwrap_or((rest, ""));
        let onward = |target: &str| clean(&format!("{target}/{onward_path}"));
        match group.link_class(leaf).ok()? {
            LinkClass::Soft { path } if path.starts_with('/') => {
                return Some(LinkStep::Soft(onward(&path)));
            }
            LinkClass::Soft { path } => {
                return Some(LinkStep::Soft(onward(&format!("{before}/{path}"))));
            }
            LinkClass::External { file, path } => {
                return Some(LinkStep::External(file, onward(&path)));
            }
            _ if onward_path.is_empty() => return None,
            _ => {
                before = format!("{before}/{leaf}");
                group = file
                    .root_group()
                    .group(before.trim_start_matches('/'))
                    .ok()?;
                rest = onward_path;
            }
        }
    }
}

/// Without empty parts and without slashes around it.
pub fn clean(name: &str) -> String {
    name.split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect::<Vec<_>>()
        .join("/")
}
