//! Finished frames of a dataset that is not finished: `<output>/<dataset>.parts/`, or a folder of
//! the user's cache, with a NeXus file for some frames at a time. People look at them while a
//! dataset is integrated, and whoever begins with the dataset again, another attempt or another
//! run, goes on from them. They go when the dataset's results are whole.
//!
//! A file's name has its frames, and a hash of all that they depend on: those of other settings or
//! other data are no use.

use super::{
    engine::{cache, region_name},
    input,
    output::about,
};
use crate::{
    frames::Stack,
    plan::{DatasetPlan, ImageFile, IntegratePlan, Integrated, PARTS, PLAN_VERSION},
    results::{NexusFile, Part, Total, finished, nexus::RegionAxes},
};
use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    process,
    time::{Duration, Instant},
};

/// Frames wait at most so long before they are written.
const INTERVAL: Duration = Duration::from_secs(2);

/// Parts in the cache that have not changed for so long are nobody's.
const KEEP: Duration = Duration::from_secs(30 * 24 * 3600);

/// A file with the patterns of some frames.
pub struct PatternsFile {
    pub frames: Range<u64>,
    path: PathBuf,
}

/// Where the parts of one dataset are.
pub struct Kept<'p> {
    plan: &'p IntegratePlan,
    dataset: &'p DatasetPlan,
    folder: PathBuf,
    key: String,
    /// Patterns that wait to be written, by their first frame.
    waiting: BTreeMap<u64, Part>,
    written: Instant,
}

impl<'p> Kept<'p> {
    /// Beside the results, if this node sees their directory; None elsewhere.
    pub fn beside_results(
        plan: &'p IntegratePlan,
        dataset: &'p DatasetPlan,
        stack: &Stack,
        dir: &Path,
    ) -> Option<Self> {
        let location = plan
            .location
            .as_ref()
            .filter(|location| location.is_dir())?;
        let key = fingerprint(plan, dataset, stack, dir)?;
        Some(Self::new(
            plan,
            dataset,
            location.join(format!("{}{PARTS}", dataset.name)),
            key,
        ))
    }

    /// Beside the results, or else in the cache.
    pub fn anywhere(
        plan: &'p IntegratePlan,
        dataset: &'p DatasetPlan,
        stack: &Stack,
        dir: &Path,
    ) -> Option<Self> {
        Self::beside_results(plan, dataset, stack, dir).or_else(|| {
            let (key, cache) = (fingerprint(plan, dataset, stack, dir)?, cache()?);
            forget(&cache);
            Some(Self::new(
                plan,
                dataset,
                cache.join(format!("{key}{PARTS}")),
                key,
            ))
        })
    }

    fn new(
        plan: &'p IntegratePlan,
        dataset: &'p DatasetPlan,
        folder: PathBuf,
        key: String,
    ) -> Self {
        Self {
            plan,
            dataset,
            folder,
            key,
            waiting: BTreeMap::new(),
            written: Instant::now(),
        }
    }

    /// The files with frames that are all among these: in order, no frame twice.
    pub fn within(&self, frames: &Range<u64>) -> Vec<PatternsFile> {
        let ending = format!(".{}.h5", self.key);
        let range = |path: &Path| -> Option<Range<u64>> {
            let (first, end) = path
                .file_name()?
                .to_str()?
                .strip_suffix(&ending)?
                .split_once('-')?;
            Some(first.parse().ok()?..end.parse().ok()?)
        };
        let entries = fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let mut found: Vec<PatternsFile> = entries
            .filter_map(|path| {
                Some(PatternsFile {
                    frames: range(&path)?,
                    path,
                })
            })
            .filter(|PatternsFile { frames: own, .. }| {
                frames.start <= own.start && own.start < own.end && own.end <= frames.end
            })
            .collect();
        found.sort_by_key(|found| (found.frames.start, u64::MAX - found.frames.end));
        let mut next = 0;
        found.retain(|PatternsFile { frames, .. }| {
            let is_new = frames.start >= next;
            next = if is_new { frames.end } else { next };
            is_new
        });
        found
    }

    /// The patterns of a file. None where it is damaged.
    pub fn read(&self, file: &PatternsFile) -> Option<Integrated> {
        let regions = self.plan.settings.regions();
        let names: Vec<Option<String>> = (0..regions.len())
            .map(|index| region_name(&regions, index))
            .collect();
        let (part, axes) = finished(&file.path, &names)?;
        let is_meant = file.frames == (part.first..part.first + part.frames);
        let has_errors =
            part.regions.iter().all(|region| region.sigma.is_some()) == self.plan.has_errors();
        (is_meant && has_errors).then(|| Integrated {
            part,
            axes,
            engine: "kept from before".into(),
        })
    }

    /// Takes patterns, and writes those that wait if it is time. What cannot be written is only
    /// told: results do not need it.
    /// Bad frames are tried again by another attempt.
    pub fn keep(&mut self, part: Part, axes: &[RegionAxes], engine: &str, stack: &Stack) {
        if !part.bad.is_empty() {
            return;
        }
        self.waiting.insert(part.first, part);
        if self.written.elapsed() >= INTERVAL {
            self.flush(axes, engine, stack);
        }
    }

    /// Writes what waits.
    pub fn flush(&mut self, axes: &[RegionAxes], engine: &str, stack: &Stack) {
        let mut parts = std::mem::take(&mut self.waiting).into_values().peekable();
        while let Some(part) = parts.next() {
            let mut run = vec![part];
            let end = |run: &[Part]| run.last().map(|part| part.first + part.frames);
            while let Some(part) = parts.next_if(|part| Some(part.first) == end(&run)) {
                run.push(part);
            }
            if let Err(error) = self.write(&run, axes, engine, stack) {
                tracing::warn!(folder = %self.folder.display(), %error, "finished frames could not be kept");
            }
        }
        self.written = Instant::now();
    }

    /// A file for patterns of frames that follow each other.
    fn write(
        &self,
        run: &[Part],
        axes: &[RegionAxes],
        engine: &str,
        stack: &Stack,
    ) -> Result<(), String> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return Ok(());
        };
        let frames = first.first..last.first + last.frames;
        fs::create_dir_all(&self.folder).map_err(|error| error.to_string())?;
        let name = format!("{:08}-{:08}.{}.h5", frames.start, frames.end, self.key);
        // Several attempts may write the same frames at once.
        let own = self.folder.join(format!(".{}-{name}", process::id()));
        let mut file = NexusFile::create(
            &own,
            about(self.plan, self.dataset, stack, frames, &self.key, engine),
            axes.to_vec(),
        )?;
        let mut totals = vec![Total::default(); axes.len()];
        for part in run {
            file.write(part)?;
            totals
                .iter_mut()
                .zip(&part.regions)
                .for_each(|(total, region)| total.join(&region.total));
        }
        file.finish(&totals, &[])?;
        fs::rename(&own, self.folder.join(name)).map_err(|error| error.to_string())
    }

    /// Removes them all: the results are whole.
    pub fn remove(self) {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(folder = %self.folder.display(), %error, "the parts of a finished dataset stay");
            }
            _ => {}
        }
    }
}

/// Removes parts that nobody has come back for.
fn forget(cache: &Path) {
    let is_old = |path: &Path| {
        let age = path
            .metadata()
            .and_then(|metadata| metadata.modified())
            .ok()
            .and_then(|time| time.elapsed().ok());
        age.is_some_and(|age| age > KEEP)
    };
    let folders = fs::read_dir(cache)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let parts = folders.filter(|path| {
        path.as_os_str()
            .as_encoded_bytes()
            .ends_with(PARTS.as_bytes())
    });
    parts
        .filter(|path| is_old(path))
        .for_each(|path| drop(fs::remove_dir_all(path)));
}

/// A hash of what patterns depend on. None where an image cannot be read, which opening the engine
/// tells.
pub fn fingerprint(
    plan: &IntegratePlan,
    dataset: &DatasetPlan,
    stack: &Stack,
    dir: &Path,
) -> Option<String> {
    // Files that were brought have other times than where they come from.
    let seen = |path: &PathBuf| path.metadata().ok().map(|metadata| input::seen(&metadata));
    let sources: Vec<_> = if dataset.upload.is_some() {
        Vec::new()
    } else {
        stack
            .files()
            .iter()
            .map(|path| (path.clone(), seen(path)))
            .collect()
    };
    let what = serde_json::json!({
        "version": PLAN_VERSION,
        "settings": plan.settings,
        "monitor": plan.monitor,
        "path": dataset.path,
        "seen": dataset.seen,
        "sources": sources,
        "dataset": stack.dataset,
        "frames": stack.frames,
    });
    let mut hasher = blake3::Hasher::new();
    hasher.update(what.to_string().as_bytes());
    let images = &plan.images;
    let all = [
        &images.mask,
        &images.dark,
        &images.flat,
        &images.absorption,
        &images.variance,
    ];
    for (index, image) in all.into_iter().enumerate() {
        let Some(ImageFile { path, member }) = image else {
            continue;
        };
        hasher.update(format!("{index} {member:?}").as_bytes());
        hasher
            .update_reader(fs::File::open(dir.join(path)).ok()?)
            .ok()?;
    }
    Some(hasher.finalize().to_hex()[..16].to_string())
}
