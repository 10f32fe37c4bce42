//! Which dataset holds the frames: where NeXus' `default` and `signal` lead, an Eiger master file's
//! links, else the largest dataset of three axes.

use super::{FramesError, stack};
use nodectl_formats::links::{self, LinkBounds};
use rust_hdf5::{H5File, H5Group, LinkClass};
use std::path::{Path, PathBuf};

/// The most names of a file that are looked at.
const MAX_NAMES: usize = 100_000;
/// Files behind links that are opened in search of frames.
const MAX_LINKED: usize = 16;
/// How deep `default` may lead.
const MAX_DEFAULTS: usize = 8;

/// Datasets that together are the frames, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FoundDatasets {
    /// The file that holds them, which may be another than was asked.
    pub(super) path: PathBuf,
    pub(super) name: String,
    pub(super) datasets: Vec<String>,
}

/// Datasets of the file that was asked, which together are the frames.
struct LocalDataset {
    name: String,
    datasets: Vec<String>,
}

/// A file that is looked into. What a name in it leads to in others is asked of `links`, never of
/// the library, which goes wherever a file says.
#[derive(Clone, Copy)]
struct OpenedFile<'f> {
    file: &'f H5File,
    path: &'f Path,
    bounds: &'f LinkBounds,
}

/// `dataset` and `entry` are what the user said of them.
pub(super) fn frames(
    file: &H5File,
    path: &Path,
    dataset: Option<&str>,
    entry: Option<&str>,
    bounds: &LinkBounds,
) -> Result<FoundDatasets, FramesError> {
    let inside = entry.map_or(String::new(), links::clean);
    let told = match dataset.map(links::clean) {
        Some(name)
            if inside.is_empty() || name == inside || name.starts_with(&format!("{inside}/")) =>
        {
            Some(name)
        }
        Some(name) => Some(format!("{inside}/{name}")),
        None => None,
    };
    // A scan's group, or the dataset itself, may be a link to another file.
    let (place, target) = links::follow(file, path, told.as_deref().unwrap_or(&inside), bounds)?;
    let other = if place == path {
        None
    } else {
        Some(stack::open(&place)?)
    };
    let own = OpenedFile {
        file: other.as_ref().unwrap_or(file),
        path: &place,
        bounds,
    };
    let found = |here: LocalDataset| FoundDatasets {
        path: place.clone(),
        name: here.name,
        datasets: here.datasets,
    };
    if told.is_some() {
        return named(own, &target)
            .map(found)
            .ok_or_else(|| absent(own, &target));
    }
    if !target.is_empty() && own.group(&target).is_none() {
        let why = format!("it has no entry `{target}`");
        return Err(FramesError::File {
            path: place.clone(),
            why: with_entries(own.file, why),
        });
    }
    let below = |name: &str| links::clean(&format!("{target}/{name}"));
    let here = default(own, &target)
        .or_else(|| parts(own, &below("entry/data")).or_else(|| parts(own, &below("data"))))
        .or_else(|| largest(own, &target));
    if let Some(here) = here {
        return Ok(found(here));
    }
    linked(own, &target).ok_or_else(|| FramesError::File {
        path: place.clone(),
        why: without_frames(own, &target),
    })
}

/// Why no dataset of a file below a group has frames: what there is in their place.
fn without_frames(own: OpenedFile<'_>, below: &str) -> String {
    let is_stack = |name: &&String| {
        own.shape(name)
            .is_some_and(|shape| [3, 4].contains(&shape.len()))
    };
    match datasets_below(own, below).iter().find(is_stack) {
        Some(empty) => format!(
            "`/{}` has no frames\nhint: was the measurement given up, or has it not begun?",
            empty.trim_matches('/')
        ),
        None => {
            "it has no dataset of three axes: frames, rows, columns\nhint: name it with `dataset`"
                .into()
        }
    }
}

/// The frames of the first link to another file that has some: scans of a sample are often files of
/// their own.
fn linked(own: OpenedFile<'_>, below: &str) -> Option<FoundDatasets> {
    let frames = |link: String| {
        let (place, target) = links::follow(own.file, own.path, &link, own.bounds).ok()?;
        let file = stack::open(&place).ok()?;
        let other = OpenedFile {
            file: &file,
            path: &place,
            ..own
        };
        let here = default(other, &target)
            .or_else(|| parts(other, &target))
            .or_else(|| largest(other, &target))?;
        Some(FoundDatasets {
            name: here.name,
            datasets: here.datasets,
            path: place.clone(),
        })
    };
    external_links(own, below)
        .into_iter()
        .take(MAX_LINKED)
        .find_map(frames)
}

impl<'f> OpenedFile<'f> {
    /// A group of this file.
    fn group(self, name: &str) -> Option<H5Group> {
        let (place, name) = links::follow(self.file, self.path, name, self.bounds).ok()?;
        let root = self.file.root_group();
        match name.as_str() {
            _ if place != self.path => None,
            "" => Some(root),
            name => root.group(name).ok(),
        }
    }

    /// The shape of a dataset, of this file or another.
    fn shape(self, name: &str) -> Option<Vec<usize>> {
        let (place, name) = links::follow(self.file, self.path, name, self.bounds).ok()?;
        let other = if place == self.path {
            None
        } else {
            Some(stack::open(&place).ok()?)
        };
        Some(
            other
                .as_ref()
                .unwrap_or(self.file)
                .dataset(&name)
                .ok()?
                .shape(),
        )
    }
}

/// The dataset of this name, or what the group of this name holds.
fn named(own: OpenedFile<'_>, name: &str) -> Option<LocalDataset> {
    // What an external link or a virtual dataset lacks is told when it is opened.
    let is_link = || {
        let (group, leaf) = name.rsplit_once('/').unwrap_or(("", name));
        let group = own.group(group)?;
        let class = group.link_class(leaf).ok()?;
        (class != LinkClass::Hard).then_some(())
    };
    if let Some(group) = own.group(name).filter(|_| !name.is_empty()) {
        return signal(own, &group, name)
            .or_else(|| parts(own, name))
            .or_else(|| default(own, name))
            .or_else(|| largest(own, name));
    }
    let one = || LocalDataset {
        name: name.to_string(),
        datasets: vec![name.to_string()],
    };
    if own.shape(name).is_some() || is_link().is_some() {
        Some(one())
    } else {
        None
    }
}

/// What NeXus calls the default plot, if it has frames.
fn default(own: OpenedFile<'_>, from: &str) -> Option<LocalDataset> {
    let mut name = from.to_string();
    for _ in 0..MAX_DEFAULTS {
        let group = own.group(&name)?;
        let next = if name.is_empty() {
            own.file.attr_string("default")
        } else {
            group.attr_string("default")
        };
        match next {
            Ok(next) => {
                let next = next.trim_matches('/');
                name = if name.is_empty() {
                    next.to_string()
                } else {
                    format!("{name}/{next}")
                };
            }
            Err(_) => {
                let is_frames = |found: &LocalDataset| {
                    own.shape(&found.datasets[0])
                        .is_some_and(|shape| [3, 4].contains(&shape.len()))
                };
                return signal(own, &group, &name).filter(is_frames);
            }
        }
    }
    None
}

/// The dataset that a group's `signal` names, with those that it is one part of.
fn signal(own: OpenedFile<'_>, group: &H5Group, name: &str) -> Option<LocalDataset> {
    let signal = group.attr_string("signal").ok()?;
    if is_part(signal.trim_matches('/')) {
        return parts(own, name);
    }
    let dataset = format!("{name}/{}", signal.trim_matches('/'))
        .trim_matches('/')
        .to_string();
    Some(LocalDataset {
        name: dataset.clone(),
        datasets: vec![dataset],
    })
}

/// `data_000001`, of several.
fn is_part(leaf: &str) -> bool {
    leaf.strip_prefix("data_").is_some_and(|digits| {
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Dectris' master files: `data_000001`, `data_000002`, … in a group, mostly links to other files.
fn parts(own: OpenedFile<'_>, name: &str) -> Option<LocalDataset> {
    let group = own.group(name)?;
    let mut leaves: Vec<String> = group
        .link_names()
        .ok()?
        .into_iter()
        .filter(|leaf| is_part(leaf))
        .collect();
    leaves.sort_by_key(|leaf| (leaf.len(), leaf.clone()));
    if leaves.is_empty() {
        return None;
    }
    let datasets = leaves
        .iter()
        .map(|leaf| format!("{name}/{leaf}").trim_matches('/').to_string())
        .collect();
    Some(LocalDataset {
        name: name.to_string(),
        datasets,
    })
}

/// The dataset of three axes with the most numbers, below a group; of several the first by name.
/// Where there is none, one of four: a map.
fn largest(own: OpenedFile<'_>, below: &str) -> Option<LocalDataset> {
    let mut best: Option<((bool, u128), String)> = None;
    for name in datasets_below(own, below)
        .iter()
        .chain(&external_links(own, below))
    {
        let Some(shape) = own.shape(name) else {
            continue;
        };
        let pixels: u128 = shape.iter().map(|extent| *extent as u128).product();
        let rank = (shape.len() == 3, pixels);
        let most = best.as_ref().map_or((false, 0), |(most, _)| *most);
        if [3, 4].contains(&shape.len()) && pixels > 0 && rank > most {
            best = Some((rank, name.trim_matches('/').to_string()));
        }
    }
    best.map(|(_, name)| LocalDataset {
        name: name.clone(),
        datasets: vec![name],
    })
}

/// The names of a file's datasets below a group, in their order.
fn datasets_below(own: OpenedFile<'_>, below: &str) -> Vec<String> {
    let mut names = own.file.dataset_names();
    names.sort();
    names.truncate(MAX_NAMES);
    let prefix = format!("{below}/");
    names.retain(|name| below.is_empty() || name.trim_start_matches('/').starts_with(&prefix));
    names
}

/// Links to other files, which are not among a file's datasets.
fn external_links(own: OpenedFile<'_>, below: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![below.to_string()];
    let mut seen = 0;
    while let Some(name) = waiting.pop() {
        let Some(group) = own.group(&name) else {
            continue;
        };
        let path = |leaf: String| format!("{name}/{leaf}").trim_matches('/').to_string();
        waiting.extend(
            group
                .group_names()
                .unwrap_or_default()
                .into_iter()
                .map(path),
        );
        for leaf in group.link_names().unwrap_or_default() {
            if matches!(group.link_class(&leaf), Ok(LinkClass::External { .. })) {
                found.push(path(leaf));
            }
        }
        seen += 1;
        if seen > MAX_NAMES || found.len() > MAX_NAMES {
            break;
        }
    }
    found
}

fn absent(own: OpenedFile<'_>, name: &str) -> FramesError {
    let mut names = own.file.dataset_names();
    names.sort();
    names.truncate(20);
    let listed = names
        .iter()
        .map(|name| format!("`/{}`", name.trim_matches('/')))
        .collect::<Vec<_>>()
        .join(", ");
    let why = format!("it has no dataset `/{name}`\nhint: there are {listed}");
    FramesError::File {
        path: own.path.to_path_buf(),
        why,
    }
}

fn with_entries(file: &H5File, why: String) -> String {
    let mut names = file.root_group().group_names().unwrap_or_default();
    names.truncate(20);
    format!(
        "{why}\nhint: there are {}",
        names
            .iter()
            .map(|name| format!("`{name}`"))
            .collect::<Vec<_>>()
            .join(", ")
    )
}
