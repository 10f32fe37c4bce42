//! Links: from a name in a file to the file and the name that it stands for. Followed here, since what is relative in a virtual
//! dataset is so to the file that holds it.

use super::{FrameError, stack};
use rust_hdf5::{H5File, LinkClass};
use std::path::{Path, PathBuf};

/// The most links from a name to a dataset.
const MAX_LINKS: usize = 32;

/// Where a name leads. `file` is open at `path`. What does not exist is returned as it is: opening it says why.
pub(super) fn follow(file: &H5File, path: &Path, name: &str) -> Result<(PathBuf, String), FrameError> {
    let (mut place, mut name) = (path.to_path_buf(), clean(name));
    let mut other: Option<H5File> = None;
    for _ in 0..MAX_LINKS {
        match first_link(other.as_ref().unwrap_or(file), &name) {
            None => return Ok((place, name)),
            Some(Step::Soft(next)) => name = next,
            Some(Step::External(target, next)) => {
                let beside = place.parent().unwrap_or(Path::new("")).join(&target);
                if !beside.exists() {
                    return Err(FrameError::MissingSource { path: place, dataset: name, missing: beside });
                }
                other = Some(stack::open(&beside)?);
                (place, name) = (beside, next);
            }
        }
    }
    let why = format!("more than {MAX_LINKS} links follow each other");
    Err(FrameError::Dataset { path: path.to_path_buf(), dataset: name, why })
}

enum Step {
    Soft(String),
    External(String, String),
}

/// The first part of a name that is a link, followed.
fn first_link(file: &H5File, name: &str) -> Option<Step> {
    let mut group = file.root_group();
    let mut before = String::new();
    let mut rest = name;
    loop {
        let (leaf, behind) = rest.split_once('/').unwrap_or((rest, ""));
        let onward = |target: &str| clean(&format!("{target}/{behind}"));
        match group.link_class(leaf).ok()? {
            LinkClass::Soft { path } if path.starts_with('/') => return Some(Step::Soft(onward(&path))),
            LinkClass::Soft { path } => return Some(Step::Soft(onward(&format!("{before}/{path}")))),
            LinkClass::External { file, path } => return Some(Step::External(file, onward(&path))),
            _ if behind.is_empty() => return None,
            _ => {
                before = format!("{before}/{leaf}");
                group = file.root_group().group(before.trim_start_matches('/')).ok()?;
                rest = behind;
            }
        }
    }
}

/// Without empty parts and without slashes around it.
pub(super) fn clean(name: &str) -> String {
    name.split('/').filter(|part| !part.is_empty() && *part != ".").collect::<Vec<_>>().join("/")
}
