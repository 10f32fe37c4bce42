//! What was learned of a device, and is kept in a file from process to process: how long kernels
//! take on it, and which of several ways was the fastest. A file for each device and driver; what
//! cannot be read or written is learned anew.

use super::{
    DeviceInfo,
    cut::KernelId,
    pace::{KernelPace, KernelShare, LIMIT, TARGET},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
    process,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// What a shorter submission teaches of workgroups that were tried before is mostly how long it
/// takes to submit one.
const WORTH_LEARNING: Duration = Duration::from_millis(5);
/// A file has at most so many of each; then those are dropped that were not needed this time.
const MOST_KEPT: usize = 4096;
/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// How often the file is written at most while the device is in use.
const WRITTEN_EVERY: Duration = Duration::from_secs(10);

/// Where workers keep what they learn of devices: in the user's cache. None where it is not known
/// whose that is.
pub fn learned_folder() -> Option<PathBuf> {
    let of = |name: &str| {
        env::var_os(name)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
    };
    let cache = of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache")))?;
    Some(cache.join("nodectl").join("gpus"))
}

/// How a submission's kernels share in it.
pub(super) type KernelShares = BTreeMap<KernelId, KernelShare>;

pub(super) struct Learned {
    file: Option<PathBuf>,
    /// The device's name and its driver's, for people.
    about: [String; 2],
    state: Mutex<LearnedState>,
    /// Counts what changes the way in which recordings are best cut.
    version: AtomicU64,
    /// Nanoseconds of the longest submission since somebody asked.
    longest_ns: AtomicU64,
}

#[derive(Default)]
struct LearnedState {
    kernels: BTreeMap<KernelId, KernelPace>,
    choices: BTreeMap<String, String>,
    is_changed: bool,
    written: Option<Instant>,
}

/// The file.
#[derive(Default, Serialize, Deserialize)]
struct LearnedFile {
    /// For people, since the file's name is a hash.
    device: String,
    driver: String,
    /// By 32 hexadecimal digits.
    kernels: BTreeMap<String, KernelPace>,
    choices: BTreeMap<String, String>,
}

impl Learned {
    /// What `folder` has of the device; nothing is kept without one.
    pub(super) fn open(folder: Option<&Path>, info: &DeviceInfo) -> Self {
        let (gpu, mut hasher) = (&info.gpu, blake3::Hasher::new());
        hasher.update(&gpu.uuid);
        hasher.update(gpu.name.as_bytes());
        hasher.update(gpu.driver.as_bytes());
        let name = format!("{}.json", &hasher.finalize().to_hex()[..32]);
        let file = folder.map(|folder| folder.join(name));
        let known = file.as_deref().map(read).unwrap_or_default();
        let mut kernels: BTreeMap<_, _> = known
            .kernels
            .iter()
            .filter_map(|(digits, pace)| Some((parse(digits)?, *pace)))
            .collect();
        kernels.retain(|_, pace| pace.is_plausible());
        Self {
            file,
            about: [gpu.name.clone(), gpu.driver.clone()],
            state: Mutex::new(LearnedState {
                kernels,
                choices: known.choices,
                ..LearnedState::default()
            }),
            version: AtomicU64::new(0),
            longest_ns: AtomicU64::new(0),
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    pub(super) fn pace(&self, kernel: &KernelId) -> Option<KernelPace> {
        self.state().kernels.get(kernel).copied()
    }

    /// A submission with these shares has ended. `one_of` parts of its recording.
    pub(super) fn took(&self, shares: &KernelShares, took: Duration, one_of: usize) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.longest_ns.fetch_max(nanoseconds, Ordering::Relaxed);
        let mut state = self.state();
        let is_new = |kernel: &KernelId| !state.kernels.contains_key(kernel);
        let news = shares.keys().any(is_new);
        // Pieces grow only by what is known of smaller ones, however short those were.
        let is_wider = |(kernel, share): (&KernelId, &KernelShare)| {
            let known = state.kernels.get(kernel);
            known.is_some_and(|known| known.is_narrower(*share))
        };
        let explores = news || shares.iter().any(is_wider);
        if shares.is_empty() || (took < WORTH_LEARNING && !explores && one_of == 1) {
            return;
        }
        let expected: Duration = shares
            .iter()
            .filter_map(|(kernel, share)| Some(state.kernels.get(kernel)?.time(share.groups)))
            .sum();
        let ratio = took.as_secs_f64() / expected.as_secs_f64().max(1e-9);
        for (kernel, share) in shares {
            match state.kernels.get_mut(kernel) {
                None => drop(
                    state
                        .kernels
                        .insert(*kernel, KernelPace::first(*share, took)),
                ),
                // What is new has taken the time that was not expected.
                Some(known) => known.learn(*share, took, if news { ratio.min(1.0) } else { ratio }),
            }
        }
        state.is_changed = true;
        drop(state);
        let is_short = one_of > 1 && took < TARGET / 4;
        if took > (TARGET + LIMIT) / 2 || is_short {
            self.version.fetch_add(1, Ordering::Relaxed);
        }
        self.write_in_time();
    }

    /// The device was lost, or given up, after a submission with these shares had run for so long:
    /// they take longer than that.
    pub(super) fn died(&self, shares: &KernelShares, after: Duration) {
        let mut state = self.state();
        for (kernel, share) in shares {
            let slower = KernelPace::first(*share, after.max(LIMIT) * 2);
            let known = state.kernels.entry(*kernel).or_insert(slower);
            if known.time(share.groups) < slower.time(share.groups) {
                *known = slower;
            }
        }
        state.is_changed = true;
        drop(state);
        self.write();
    }

    /// The longest submission since this was last asked.
    pub(super) fn take_longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.swap(0, Ordering::Relaxed))
    }

    /// The way that was found to be the fastest for `what`.
    pub(super) fn choice(&self, what: &str) -> Option<String> {
        self.state().choices.get(what).cloned()
    }

    pub(super) fn choose(&self, what: &str, way: &str) {
        let mut state = self.state();
        state.choices.insert(what.into(), way.into());
        state.is_changed = true;
        drop(state);
        self.write();
    }

    fn write_in_time(&self) {
        let is_time = self
            .state()
            .written
            .is_none_or(|written| written.elapsed() >= WRITTEN_EVERY);
        if is_time {
            self.write();
        }
    }

    /// Writes what has changed, if there is a file. What other processes have learned meanwhile of
    /// other kernels stays.
    pub(super) fn write(&self) {
        let Some(file) = &self.file else { return };
        let mut state = self.state();
        if !std::mem::take(&mut state.is_changed) {
            return;
        }
        state.written = Some(Instant::now());
        let kernels: BTreeMap<_, _> = state
            .kernels
            .iter()
            .map(|(kernel, pace)| (format!("{:032x}", u128::from_be_bytes(*kernel)), *pace))
            .collect();
        let choices = state.choices.clone();
        drop(state);
        let mut all = read(file);
        if all.kernels.len() + kernels.len() > MOST_KEPT {
            all = LearnedFile::default();
        }
        [all.device, all.driver] = self.about.clone();
        all.kernels.extend(kernels.into_iter().take(MOST_KEPT));
        all.choices.extend(choices.into_iter().take(MOST_KEPT));
        if let Err(error) = replace(file, &all) {
            tracing::debug!(file = %file.display(), %error, "what was learned of a GPU is not kept");
        }
    }

    fn state(&self) -> MutexGuard<'_, LearnedState> {
        // A panic while it was held left plain numbers.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Learned {
    fn drop(&mut self) {
        self.write();
    }
}

fn parse(digits: &str) -> Option<KernelId> {
    (digits.len() == 32).then_some(())?;
    Some(u128::from_str_radix(digits, 16).ok()?.to_be_bytes())
}

/// What a file has, or nothing.
fn read(file: &Path) -> LearnedFile {
    let is_ours = fs::metadata(file).is_ok_and(|metadata| metadata.len() <= MAX_FILE_BYTES);
    let bytes = is_ours.then(|| fs::read(file).ok()).flatten();
    let read = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    read.unwrap_or_default()
}

/// Writes a file as a whole: other processes read it meanwhile.
fn replace(file: &Path, content: &LearnedFile) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let own = folder.join(format!(".{}-{name}", process::id()));
    fs::write(&own, serde_json::to_vec(content)?)?;
    fs::rename(&own, file).inspect_err(|_| drop(fs::remove_file(&own)))
}

#[cfg(test)]
mod tests {
    use super::{
        super::cut::{CutPart, RecordingPlace, StepSize, next_part},
        *,
    };
    use proptest::prelude::*;

    const KERNEL: KernelId = [1; 16];

    fn nothing_learned() -> Learned {
        Learned {
            file: None,
            about: Default::default(),
            state: Mutex::default(),
            version: AtomicU64::new(0),
            longest_ns: AtomicU64::new(0),
        }
    }

    /// Runs a dispatch of so many workgroups as the device's thread does, on a device that takes
    /// `time` for some of them: how many submissions it became.
    fn run(learned: &Learned, groups: u32, time: impl Fn(u64) -> Duration) -> usize {
        let steps = [StepSize {
            kernel: Some(KERNEL),
            groups: [groups, 1, 1],
            divides: true,
        }];
        let next =
            |place: &mut RecordingPlace| next_part(&steps, place, |kernel| learned.pace(kernel));
        let took = |part: &CutPart, one_of| {
            let groups = part.pieces.iter().map(|piece| piece.groups());
            let share = KernelShare {
                groups: groups.clone().sum(),
                largest: groups.max().unwrap_or(0),
            };
            let shares = KernelShares::from([(KERNEL, share)]);
            learned.took(&shares, time(share.groups), one_of);
        };
        let mut place = RecordingPlace::default();
        let parts: Vec<CutPart> = std::iter::from_fn(|| next(&mut place)).collect();
        if !parts.iter().any(|part| part.tells) {
            parts.iter().for_each(|part| took(part, parts.len()));
            return parts.len();
        }
        let (mut place, mut submissions) = (RecordingPlace::default(), 0);
        while let Some(part) = next(&mut place) {
            took(&part, 1);
            submissions += 1;
        }
        submissions
    }

    proptest! {
        /// On a fast GPU, where a submission takes longer than what it does.
        #[test]
        fn what_takes_no_time_is_soon_one_submission(
            submission_us in 5u64..200, group_ns in 0u64..1000, groups in 1u32..100_000,
        ) {
            let learned = nothing_learned();
            let time = |groups| {
                Duration::from_micros(submission_us) + Duration::from_nanos(group_ns * groups)
            };
            let first = run(&learned, groups, time);
            prop_assert!(first <= 8, "{first} submissions at first");
            prop_assert_eq!(run(&learned, groups, time), 1);
        }
    }
}
