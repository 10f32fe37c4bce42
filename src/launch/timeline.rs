//! What a launch asked for and got over time: lines of JSON in `timeline.jsonl` beside its
//! `launch.json`, written by whoever launches, read by this machine's node for people who look.

use super::{LaunchError, state::Launches};
use nodectl_wire::api::LaunchLook;
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

const FILE: &str = "timeline.jsonl";
/// The newest looks that are kept and shown; the file has at most twice as many.
pub const MOST_LOOKS: usize = 500;

/// The timeline of one launch, while it is written.
#[derive(Debug)]
pub struct Timeline {
    path: PathBuf,
    last: Option<LaunchLook>,
    written: usize,
}

impl Timeline {
    /// Goes on with what is there.
    pub fn of(launches: &Launches, id: &str) -> Result<Self, LaunchError> {
        let path = launches.directory(id)?.join(FILE);
        let mut looks = read(&path).unwrap_or_default();
        let written = looks.len();
        Ok(Self {
            path,
            last: looks.pop(),
            written,
        })
    }

    /// Notes what is seen now, if that differs from what was seen last or somebody decided
    /// something. The hours of nodes so far are counted here: `look.node_hours` is not read.
    pub fn note(&mut self, mut look: LaunchLook) -> io::Result<()> {
        let before = self.last.as_ref();
        look.node_hours = before.map_or(0.0, |before| before.node_hours_at(look.at_ms));
        let is_news = before.is_none_or(|before| {
            let seen = |look: &LaunchLook| (look.asked, look.pending, look.running, look.waiting);
            seen(before) != seen(&look) || look.submitted + look.released > 0
        });
        if !is_news {
            return Ok(());
        }
        if self.written >= 2 * MOST_LOOKS {
            let kept = read(&self.path)?;
            let newest = &kept[kept.len().saturating_sub(MOST_LOOKS)..];
            let new = self.path.with_extension("new");
            fs::write(&new, newest.iter().map(line).collect::<String>())?;
            fs::rename(new, &self.path)?;
            self.written = newest.len();
        }
        let mut file = fs::File::options()
            .create(true)
            .append(true)
            .open(&self.path)?;
        file.write_all(line(&look).as_bytes())?;
        (self.written, self.last) = (self.written + 1, Some(look));
        Ok(())
    }
}

impl Launches {
    /// The newest looks at a launch, oldest first; none where nobody looked.
    pub fn looks(&self, id: &str) -> Result<Vec<LaunchLook>, LaunchError> {
        let path = self.place(id).join(FILE);
        let mut looks = read(&path).map_err(|source| LaunchError::Unreadable { path, source })?;
        looks.drain(..looks.len().saturating_sub(MOST_LOOKS));
        Ok(looks)
    }
}

fn line(look: &LaunchLook) -> String {
    serde_json::to_string(look).expect("plain data always encodes") + "\n"
}

/// A line that was cut off when its writer was killed is passed over.
fn read(path: &Path) -> io::Result<Vec<LaunchLook>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    Ok(text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at_ms: u64, running: u32) -> LaunchLook {
        LaunchLook {
            at_ms,
            asked: 2,
            pending: 2 - running,
            running,
            waiting: 0,
            submitted: 0,
            released: 0,
            why: String::new(),
            node_hours: 0.0,
        }
    }

    #[test]
    fn what_changes_is_kept_and_the_hours_of_nodes_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let launches = Launches::below(directory.path());
        assert_eq!(launches.looks("a").unwrap(), []);
        let hour = 3_600_000;
        let mut timeline = Timeline::of(&launches, "a").unwrap();
        for (at_ms, running) in [(0, 0), (1, 0), (hour, 2), (hour + 1, 2)] {
            timeline.note(look(at_ms, running)).unwrap();
        }
        // Whoever goes on with it counts on.
        let mut timeline = Timeline::of(&launches, "a").unwrap();
        timeline.note(look(3 * hour, 1)).unwrap();
        let looks = launches.looks("a").unwrap();
        let seen: Vec<_> = looks
            .iter()
            .map(|look| (look.at_ms, look.running, look.node_hours))
            .collect();
        assert_eq!(seen, [(0, 0, 0.0), (hour, 2, 0.0), (3 * hour, 1, 4.0)]);
        assert_eq!(looks[2].node_hours_at(4 * hour), 5.0);
    }

    #[test]
    fn a_long_timeline_keeps_its_end_and_a_cut_line_does_no_harm() {
        let directory = tempfile::tempdir().unwrap();
        let launches = Launches::below(directory.path());
        let mut timeline = Timeline::of(&launches, "a").unwrap();
        for at_ms in 0..2500 {
            timeline.note(look(at_ms, (at_ms % 2) as u32)).unwrap();
        }
        let mut file = fs::File::options()
            .append(true)
            .open(&timeline.path)
            .unwrap();
        file.write_all(b"{\"at_ms\":").unwrap();
        let looks = launches.looks("a").unwrap();
        assert_eq!((looks.len(), looks[499].at_ms), (MOST_LOOKS, 2499));
        let lines = fs::read_to_string(&timeline.path).unwrap().lines().count();
        assert!(lines <= 2 * MOST_LOOKS + 1, "{lines}");
    }
}
