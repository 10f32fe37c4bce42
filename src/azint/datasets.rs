//! Which files are integrated: paths, patterns, lists. Reads directories and headers of HDF5 files,
//! never frames.

use super::{
    frames::Stack,
    plan::{DatasetPlan, Existing, PARTS},
    run::seen,
};
use ignore::WalkBuilder;
use nodectl_formats::files as plain;
use nodectl_jobfile::Following;
use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

/// The most datasets of a job.
pub(super) const MAX_DATASETS: usize = 100_000;
/// The largest list of files.
const MAX_LIST_BYTES: u64 = 64 << 20;
/// Pixels that a task should not exceed, in bytes: what it has done is lost when its worker dies.
const TASK_BYTES: u64 = 1 << 30;
/// Frames that engines take at once.
const TOGETHER: u64 = 8;
/// So many tasks for each worker keep all busy until the end.
const TASKS_PER_WORKER: u64 = 4;

/// A file and, behind `::`, a place in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Named {
    pub(super) path: PathBuf,
    pub(super) dataset: Option<String>,
    /// What its results are called, whatever else is integrated.
    pub(super) name: Option<String>,
    /// Which part of the file it is, behind the name of its results.
    pub(super) part: Option<String>,
}

/// Everything that one word names, sorted: a path, a pattern, or with `@` before it a file with one
/// of these a line. Each may have `::/path/in/file` behind it. Relative to `base`. The error is a
/// sentence.
pub(super) fn named(word: &str, base: &Path) -> Result<Vec<Named>, String> {
    let Some(list) = word.strip_prefix('@') else {
        return pattern_or_path(word, base);
    };
    let path = base.join(list);
    let told = |why: String| format!("{}: {why}", path.display());
    let text = plain::text(&path, MAX_LIST_BYTES, "a list of files").map_err(told)?;
    let beside = path.parent().unwrap_or(base);
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        found.extend(
            pattern_or_path(line, beside)
                .map_err(|why| format!("{} line {}: {why}", path.display(), number + 1))?,
        );
    }
    if found.is_empty() {
        Err(told("it names no file".into()))
    } else {
        Ok(found)
    }
}

/// The files that `run --follow` gives. Their results have the same places below `output` as they
/// have below the directory that is followed, so that no two ever share one.
pub(super) fn following(following: &Following) -> Vec<Named> {
    let name = |path: &Path| {
        let below = path.strip_prefix(&following.root).unwrap_or(path);
        let parts = below.components().filter_map(|part| match part {
            Component::Normal(part) => Some(safe(&part.to_string_lossy())),
            _ => None,
        });
        let name = parts.collect::<Vec<_>>().join("/");
        name.strip_suffix(".h5").map(str::to_string).unwrap_or(name)
    };
    following
        .files
        .iter()
        .map(|path| Named {
            path: path.clone(),
            dataset: None,
            name: Some(name(path)),
            part: None,
        })
        .collect()
}

/// What becomes of results that are there: what is followed is not done twice, unless it has
/// changed.
pub(super) fn existing(following: Option<&Following>, existing: Existing) -> Existing {
    match following {
        Some(_) if existing != Existing::Overwrite => Existing::Outdated,
        _ => existing,
    }
}

/// HDF5 files below a directory with their lengths and times of change, by name; without Dectris'
/// data files that are read through a master file beside them, and without what is in the
/// directories `except`.
pub fn files_below(dir: &Path, depth: usize, except: &[PathBuf]) -> Vec<(PathBuf, (u64, u64))> {
    let mut builder = WalkBuilder::new(dir);
    builder
        .standard_filters(false)
        .hidden(true)
        .follow_links(true)
        .max_depth(Some(depth));
    let except = except.to_vec();
    builder.filter_entry(move |entry| {
        // Finished frames of datasets that are being integrated.
        let is_parts = entry
            .file_name()
            .as_encoded_bytes()
            .ends_with(PARTS.as_bytes());
        !is_parts && !except.iter().any(|except| except == entry.path())
    });
    let mut found = Vec::new();
    for entry in builder.build().flatten() {
        let path = entry.path();
        if !is_hdf5(path) || master_of(path).is_some_and(|master| master.exists()) {
            continue;
        }
        if let Ok(metadata) = path.metadata()
            && metadata.is_file()
        {
            found.push((path.to_path_buf(), seen(&metadata)));
        }
        if found.len() == MAX_DATASETS {
            break;
        }
    }
    found.sort();
    found
}

fn is_hdf5(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| {
        ["h5", "hdf5", "hdf", "nxs", "cxi"]
            .iter()
            .any(|known| ending.eq_ignore_ascii_case(known))
    })
}

/// By its name, a file of frames that a master file leads to.
pub fn is_data_file(path: &Path) -> bool {
    master_of(path).is_some()
}

/// `scan_master.h5` of `scan_data_000001.h5`, as Dectris' detectors write them.
fn master_of(path: &Path) -> Option<PathBuf> {
    let (scan, digits) = path.file_stem()?.to_str()?.rsplit_once("_data_")?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let ending = path.extension()?.to_str()?;
    is_number.then(|| path.with_file_name(format!("{scan}_master.{ending}")))
}

fn pattern_or_path(word: &str, base: &Path) -> Result<Vec<Named>, String> {
    let (file, dataset) = match word.split_once("::") {
        // Files may have such names, too.
        Some((file, dataset)) if !dataset.is_empty() && !base.join(word).exists() => {
            (file, Some(dataset.to_string()))
        }
        _ => (word, None),
    };
    let path = base.join(file);
    let name = |path: PathBuf| Named {
        path,
        dataset: dataset.clone(),
        name: None,
        part: None,
    };
    // A name with brackets in it is still a name. What does not exist is that dataset's problem,
    // not the others'.
    if path.exists() || !file.contains(['*', '?', '[', '{']) {
        return Ok(vec![name(path)]);
    }
    let found = matching(&path)?;
    if found.is_empty() {
        return Err(format!("no file matches `{file}` in {}", base.display()));
    }
    Ok(found.into_iter().map(name).collect())
}

/// The files that a pattern matches, sorted.
fn matching(pattern: &Path) -> Result<Vec<PathBuf>, String> {
    let text = pattern.to_str().ok_or("the pattern is not UTF-8")?;
    let matcher = plain::matcher(text).map_err(|why| format!("`{text}` is no pattern: {why}"))?;
    let is_plain = |part: &Component<'_>| {
        !part
            .as_os_str()
            .to_string_lossy()
            .contains(['*', '?', '[', '{'])
    };
    let root: PathBuf = pattern.components().take_while(is_plain).collect();
    let depth =
        (!text.contains("**")).then(|| pattern.components().count() - root.components().count());
    let mut builder = WalkBuilder::new(&root);
    builder
        .standard_filters(false)
        .follow_links(true)
        .max_depth(depth);
    let mut found = Vec::new();
    for entry in builder.build().flatten() {
        let is_file = entry.file_type().is_some_and(|kind| kind.is_file());
        if is_file && matcher.is_match(entry.path()) {
            found.push(entry.into_path());
            if found.len() > MAX_DATASETS {
                return Err(format!("more than {MAX_DATASETS} files match `{text}`"));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// How datasets are looked at.
pub(super) struct DatasetProbe<'l> {
    /// Of all, unless a file says otherwise.
    pub(super) dataset: Option<&'l str>,
    pub(super) entry: Option<&'l str>,
    pub(super) directories: &'l [PathBuf],
    pub(super) location: Option<&'l Path>,
    pub(super) existing: Existing,
    /// For how many workers it is cut, and into how many frames a task.
    pub(super) workers: u32,
    pub(super) frames_per_task: Option<u64>,
    /// Whether it is cut at all.
    pub(super) is_split: bool,
}

/// A dataset, and every file that it needs.
pub(super) struct DatasetFiles {
    pub(super) plan: DatasetPlan,
    pub(super) files: Vec<PathBuf>,
    /// Of its decoded frames; 0 where there is nothing to do.
    pub(super) bytes: u64,
    /// Rows and columns of its frames, where it can be read.
    pub(super) shape: Option<[usize; 2]>,
}

/// Looks into each file. What is wrong with one is found again, and told, by the task that writes
/// its results.
pub(super) fn look(named: &[Named], look: &DatasetProbe<'_>) -> Vec<DatasetFiles> {
    let names = names(named);
    let seen = |(named, name): (&Named, String)| {
        let path = std::path::absolute(&named.path).unwrap_or_else(|_| named.path.clone());
        let dataset = named.dataset.as_deref().or(look.dataset);
        let mut plan = DatasetPlan {
            name,
            path: path.clone(),
            upload: None,
            seen: path.metadata().ok().map(|metadata| seen(&metadata)),
            dataset: dataset.map(str::to_string),
            entry: look.entry.map(str::to_string),
            frames: 0,
            frames_per_task: 1,
        };
        // Whether it is of these data and settings, the task knows that would write it.
        let is_done = look.existing != Existing::Overwrite
            && look
                .location
                .is_some_and(|location| is_newer(&location.join(&plan.files()[0]), plan.seen));
        let stack = Stack::open_within(&path, dataset, look.entry, look.directories);
        let files = stack.as_ref().map_or_else(|_| vec![path], Stack::files);
        let bytes = |stack: &Stack| stack.frames.saturating_mul(stack.frame_bytes() as u64);
        let bytes = stack.as_ref().ok().filter(|_| !is_done).map_or(0, bytes);
        let shape = stack.as_ref().ok().map(|stack| stack.shape);
        if let Ok(stack) = stack
            && look.is_split
            && !is_done
        {
            plan.frames = stack.frames;
            plan.frames_per_task = look
                .frames_per_task
                .unwrap_or_else(|| frames_per_task(&stack, look.workers));
        }
        DatasetFiles {
            plan,
            files,
            bytes,
            shape,
        }
    };
    named.iter().zip(names).map(seen).collect()
}

/// Whether results are there, and have changed since the data have.
fn is_newer(results: &Path, data: Option<(u64, u64)>) -> bool {
    let results = results.metadata().ok().map(|metadata| seen(&metadata).1);
    results.is_some_and(|results| data.is_none_or(|(_, data)| data <= results))
}

/// Enough tasks for all workers, none so large that much is lost with it, and whole chunks.
fn frames_per_task(stack: &Stack, workers: u32) -> u64 {
    let tasks = u64::from(workers.max(1)) * TASKS_PER_WORKER;
    let most = (TASK_BYTES / stack.frame_bytes().max(1) as u64).max(1);
    // Engines are quicker with several frames at once.
    let together = if stack.frames >= tasks * TOGETHER {
        TOGETHER
    } else {
        1
    };
    let unit = stack.unit().max(1).next_multiple_of(together);
    stack
        .frames
        .div_ceil(tasks)
        .min(most)
        .max(1)
        .div_ceil(unit)
        .saturating_mul(unit)
}

/// A name of a file or directory with nothing in it that shells, patterns or URLs take for more.
fn safe(name: &str) -> String {
    let is_plain = |c: &char| c.is_alphanumeric() || "-_.".contains(*c);
    name.chars()
        .map(|c| if is_plain(&c) { c } else { '_' })
        .collect()
}

/// What results are called: the file's name without its ending, with more of its path where that is
/// not enough.
fn names(named: &[Named]) -> Vec<String> {
    let with_part = |name: String, named: &Named| match &named.part {
        Some(part) => format!("{name}_{part}"),
        None => name,
    };
    let given = |named: &Named| Some(with_part(named.name.clone()?, named));
    let given: Option<Vec<String>> = named.iter().map(given).collect();
    if let Some(given) = given {
        return numbered(given);
    }
    let of = |named: &Named, parts: usize| {
        let stem = named.path.with_extension("");
        let components: Vec<String> = stem
            .components()
            .filter_map(|part| match part {
                Component::Normal(part) => Some(safe(&part.to_string_lossy())),
                _ => None,
            })
            .collect();
        let name = components[components.len().saturating_sub(parts)..].join("_");
        with_part(name, named)
    };
    let mut names: Vec<String> = Vec::new();
    for parts in 1..=3 {
        names = named.iter().map(|named| of(named, parts)).collect();
        let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
        names
            .iter()
            .for_each(|name| *counts.entry(name).or_default() += 1);
        if counts.values().all(|count| *count == 1) {
            return names;
        }
    }
    numbered(names)
}

/// Gives the names, with numbers behind those that come again.
fn numbered(names: Vec<String>) -> Vec<String> {
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    let numbered = |name: String| {
        let count = known
            .entry(name.clone())
            .and_modify(|count| *count += 1)
            .or_insert(1);
        if *count == 1 {
            name
        } else {
            format!("{name}_{count}")
        }
    };
    names.into_iter().map(numbered).collect()
}
