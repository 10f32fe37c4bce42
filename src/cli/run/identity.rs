//! What makes two tasks the same, for `--skip-done`: the command, what it is given and what is kept
//! of it. How much a task may use, where it runs and how often it is tried do not count.
//!
//! A file that a parameter names (or that lies in a directory that one names) counts for the tasks
//! that have this parameter, every other file for all tasks.

use nodectl_types::{BlobHash, FileEntry, JobDraft, JobId, Manifest, Value, WorkerSpec};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Raised whenever what counts changes: tasks of before are then not the same any more.
const VERSION: u32 = 1;

/// What all tasks of a job have in common.
#[derive(Serialize)]
struct JobCommon<'a> {
    version: u32,
    command: &'a [String],
    worker: Option<&'a WorkerSpec>,
    env: BTreeMap<&'a str, &'a str>,
    outputs: BTreeSet<&'a str>,
    /// The results of these are given to every task.
    after: BTreeMap<&'a str, JobId>,
    secrets: BTreeSet<&'a str>,
    image: Option<&'a str>,
    offline: bool,
    files: Vec<&'a FileEntry>,
}

#[derive(Serialize)]
struct Own<'a> {
    common: BlobHash,
    params: BTreeMap<&'a str, &'a Value>,
    files: BTreeSet<(&'a str, BlobHash, bool)>,
    /// How many tasks before it are given the same.
    same_before: u32,
}

/// The identity of each task, in order. `manifest` has the job's files.
pub fn of_tasks(draft: &JobDraft, manifest: &Manifest) -> Vec<BlobHash> {
    let files = Files::of(draft, manifest);
    let common = hash(&common(draft, &files));
    let mut same: BTreeMap<BlobHash, u32> = BTreeMap::new();
    (0..draft.task_count())
        .map(|task| {
            let params = draft.params.get(task);
            let mut own = Own {
                common,
                params: params
                    .iter()
                    .map(|(name, value)| (name.as_str(), value))
                    .collect(),
                files: params
                    .iter()
                    .flat_map(|(_, value)| files.named_by(value))
                    .map(|file| (file.path.as_str(), file.hash, file.executable))
                    .collect(),
                same_before: 0,
            };
            let before = same.entry(hash(&own)).or_default();
            own.same_before = *before;
            *before += 1;
            hash(&own)
        })
        .collect()
}

/// The files of some of a job's tasks: those of all tasks, and those that parameters of these name.
/// With these alone, the tasks are the same as among all.
pub fn files_left(draft: &JobDraft, left: &JobDraft, manifest: &Manifest) -> Manifest {
    let files = Files::of(draft, manifest);
    let sets = (0..left.params.len()).flat_map(|set| left.params.get(set));
    let mut kept: BTreeMap<&str, &FileEntry> = BTreeMap::new();
    kept.extend(files.common.iter().map(|file| (&*file.path, *file)));
    for (_, value) in sets {
        let named = files.named_by(&value).iter();
        kept.extend(named.map(|file| (&*file.path, *file)));
    }
    Manifest {
        files: kept.into_values().cloned().collect(),
    }
}

fn common<'a>(draft: &'a JobDraft, files: &Files<'a>) -> JobCommon<'a> {
    let work = &draft.work;
    JobCommon {
        version: VERSION,
        command: &work.command,
        worker: work.worker.as_ref(),
        env: work
            .env
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect(),
        outputs: work.outputs.iter().map(String::as_str).collect(),
        after: work
            .after
            .iter()
            // When its tasks run changes nothing of what they do.
            .filter(|after| after.beside().is_none())
            .map(|after| (after.results().map_or("", |(name, _)| name), after.job()))
            .collect(),
        secrets: work.secrets.iter().map(String::as_str).collect(),
        image: work.isolation.image.as_deref(),
        offline: work.isolation.offline,
        files: files.common.clone(),
    }
}

fn hash(data: &impl Serialize) -> BlobHash {
    BlobHash::of(&postcard::to_stdvec(data).expect("plain data always encodes"))
}

/// The files of a job: those of all tasks, and those of the tasks with a parameter.
struct Files<'a> {
    common: Vec<&'a FileEntry>,
    named: BTreeMap<String, Vec<&'a FileEntry>>,
}

impl<'a> Files<'a> {
    fn of(draft: &JobDraft, manifest: &'a Manifest) -> Self {
        let texts: BTreeSet<String> = (0..draft.params.len())
            .flat_map(|set| draft.params.get(set))
            .filter_map(|(_, value)| match value {
                Value::Text(text) => Some(tidy(&text).to_string()),
                _ => None,
            })
            .collect();
        let in_command = |path: &str| draft.work.command.iter().any(|word| tidy(word) == path);
        let mut files = Self {
            common: Vec::new(),
            named: BTreeMap::new(),
        };
        for file in &manifest.files {
            let names: Vec<&str> = above(&file.path)
                .filter(|path| texts.contains(*path))
                .collect();
            if names.is_empty() || in_command(&file.path) {
                files.common.push(file);
            }
            for name in names {
                files.named.entry(name.into()).or_default().push(file);
            }
        }
        files
    }

    fn named_by(&self, value: &Value) -> &[&'a FileEntry] {
        match value {
            Value::Text(text) => self.named.get(tidy(text)).map_or(&[], Vec::as_slice),
            _ => &[],
        }
    }
}

/// A path and the directories that it is in.
fn above(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('/').map(|(end, _)| end);
    std::iter::once(path).chain(ends.map(|end| &path[..end]))
}

fn tidy(path: &str) -> &str {
    let mut path = path;
    while let Some(rest) = path.strip_prefix("./") {
        path = rest;
    }
    path.trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::{After, ParamSpace, WorkSpec};

    fn job(command: &[&str], files: &[&str]) -> JobDraft {
        let mut draft = JobDraft::new(WorkSpec::plain("job", command));
        draft.params = ParamSpace::Rows {
            columns: vec!["file".into()],
            cells: files
                .iter()
                .map(|file| Value::Text((*file).into()))
                .collect(),
        };
        draft
    }

    fn manifest(files: &[(&str, &str)]) -> Manifest {
        let entry = |(path, text): &(&str, &str)| FileEntry {
            path: (*path).into(),
            bytes: text.len() as u64,
            hash: BlobHash::of(text.as_bytes()),
            executable: false,
        };
        Manifest {
            files: files.iter().map(entry).collect(),
        }
    }

    /// Which tasks are the same.
    fn same(one: &[BlobHash], other: &[BlobHash]) -> Vec<bool> {
        one.iter().zip(other).map(|(a, b)| a == b).collect()
    }

    #[test]
    fn a_file_of_one_task_changes_that_task_and_another_file_all_of_them() {
        let job = job(&["python3", "count.py", "{file}"], &["a/1", "./a/2", "b"]);
        let files = |one: &str, code: &str, deep: &str| {
            let all = [
                ("a/1", one),
                ("a/2", "2"),
                ("b/deep/3", deep),
                ("count.py", code),
            ];
            of_tasks(&job, &manifest(&all))
        };
        let before = files("1", "code", "3");
        assert_eq!(same(&before, &files("1", "code", "3")), [true; 3]);
        assert_eq!(same(&before, &files("x", "code", "3")), [false, true, true]);
        assert_eq!(same(&before, &files("1", "code", "x")), [true, true, false]);
        assert_eq!(same(&before, &files("1", "more", "3")), [false; 3]);
    }

    #[test]
    fn what_is_left_of_a_job_is_the_same_as_in_the_whole() {
        let whole = job(&["cat", "{file}"], &["a", "b", "c"]);
        let files = manifest(&[("a", "1"), ("b", "2"), ("c", "3"), ("more", "4")]);
        let left = job(&["cat", "{file}"], &["b"]);
        let kept = files_left(&whole, &left, &files);
        let paths: Vec<_> = kept.files.iter().map(|file| &*file.path).collect();
        assert_eq!(paths, ["b", "more"]);
        assert_eq!(of_tasks(&left, &kept)[0], of_tasks(&whole, &files)[1]);
        assert_ne!(of_tasks(&left, &files)[0], of_tasks(&whole, &files)[1]);
    }

    #[test]
    fn what_a_task_does_counts_and_what_it_may_use_does_not() {
        let files = manifest(&[]);
        let usual = job(&["f", "{file}"], &["a", "b"]);
        let before = of_tasks(&usual, &files);
        let mut other = usual.clone();
        (other.retries, other.work.timeout_ms, other.place) = (7, Some(1), "cores > 2".into());
        other.work.name = "other".into();
        assert_eq!(same(&before, &of_tasks(&other, &files)), [true; 2]);
        let changes: [fn(&mut JobDraft); 5] = [
            |job| job.work.command.push("-v".into()),
            |job| job.work.env.push(("A".into(), "b".into())),
            |job| job.work.outputs.push("*.npy".into()),
            |job| job.work.after.push(After::End(JobId(7))),
            |job| job.work.isolation.image = Some("tools.sif".into()),
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut other = usual.clone();
            change(&mut other);
            assert_eq!(
                same(&before, &of_tasks(&other, &files)),
                [false; 2],
                "{number}"
            );
        }
    }

    #[test]
    fn tasks_that_are_given_the_same_are_as_many_as_they_are() {
        let files = manifest(&[]);
        let three = of_tasks(&job(&["f"], &["a", "a", "a"]), &files);
        assert_eq!(three.iter().collect::<BTreeSet<_>>().len(), 3);
        assert_eq!(three[..2], of_tasks(&job(&["f"], &["a", "a"]), &files));
    }
}
