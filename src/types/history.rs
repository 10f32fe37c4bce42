//! A node's load over time, as nodes tell it to each other: series of what was measured, row by
//! row. A row is a time of one step's length; rows are numbered by the node's own clock, which
//! counts from the machine's start and also while it sleeps.

use super::limits::HISTORY_GPUS;
use serde::{Deserialize, Serialize};

/// How far back, and how fine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoadSpan {
    /// 15 minutes, second by second.
    Minutes,
    /// 24 hours, every 10 seconds: averages.
    Day,
}

impl LoadSpan {
    /// The length of a row.
    pub const fn step_s(self) -> u64 {
        match self {
            Self::Minutes => 1,
            Self::Day => 10,
        }
    }

    /// The most rows that are kept.
    pub const fn rows(self) -> usize {
        match self {
            Self::Minutes => 15 * 60,
            Self::Day => 24 * 60 * 6,
        }
    }
}

/// What is measured of a machine, in the order of `LoadPage::machine`.
pub const MACHINE_SERIES: [&str; 9] = [
    "cpu",
    "memory_bytes",
    "disk_free_bytes",
    "disk_read_bytes_per_s",
    "disk_written_bytes_per_s",
    "network_received_bytes_per_s",
    "network_sent_bytes_per_s",
    "tasks_running",
    "tasks_queued",
];

/// What is measured of a GPU, in the order of `GpuPage::series`.
pub const GPU_SERIES: [&str; 4] = ["utilization", "memory_bytes", "temperature_c", "power_w"];

/// What was measured, oldest first; `None` where nothing was.
pub type Series = Vec<Option<f32>>;

/// Rows of a node's load. Every series has the same length, at most `limits::HISTORY_ROWS` in a
/// message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadPage {
    /// The number of the first row here.
    pub first: u64,
    /// The number that the next row will have, once there is one: the last page ends there.
    pub end: u64,
    /// When row `end` begins, by the wall clock of the node: milliseconds since 1970.
    pub end_ms: u64,
    /// One of each of `MACHINE_SERIES`.
    pub machine: Vec<Series>,
    /// At most `limits::HISTORY_GPUS`.
    pub gpus: Vec<GpuPage>,
}

/// A page of the history of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuPage {
    /// Of this GPU only, on its node.
    pub id: String,
    pub name: String,
    /// One of each of `GPU_SERIES`.
    pub series: Vec<Series>,
}

impl LoadPage {
    pub fn rows(&self) -> usize {
        self.machine.first().map_or(0, Vec::len)
    }

    /// The number of the row after the last one here.
    pub fn next(&self) -> u64 {
        self.first + self.rows() as u64
    }

    /// Has rows and series as it says, and only numbers.
    pub fn is_sound(&self) -> bool {
        let rows = self.rows();
        let is_even = |series: &Series| {
            series.len() == rows && series.iter().flatten().all(|value| value.is_finite())
        };
        let is_gpu = |gpu: &GpuPage| gpu.series.len() == GPU_SERIES.len();
        self.machine.len() == MACHINE_SERIES.len()
            && self.gpus.len() <= HISTORY_GPUS
            && self.gpus.iter().all(is_gpu)
            && self.gpus.iter().flat_map(|gpu| &gpu.series).all(is_even)
            && self.machine.iter().all(is_even)
            && self
                .first
                .checked_add(rows as u64)
                .is_some_and(|next| next <= self.end)
    }

    /// Adds the page that comes next. One that does not begin where this ends takes its place: the
    /// node was started anew, or has dropped rows in between.
    pub fn append(&mut self, page: Self) {
        if page.first != self.next() {
            *self = page;
            return;
        }
        let (before, added) = (self.rows(), page.rows());
        (self.end, self.end_ms) = (page.end, page.end_ms);
        for (series, more) in self.machine.iter_mut().zip(page.machine) {
            series.extend(more);
        }
        for more in page.gpus {
            let is_room = self.gpus.len() < HISTORY_GPUS;
            match self.gpus.iter_mut().find(|gpu| gpu.id == more.id) {
                Some(gpu) => {
                    for (series, more) in gpu.series.iter_mut().zip(more.series) {
                        series.extend(more);
                    }
                }
                None if is_room => {
                    let late = |series| [vec![None; before], series].concat();
                    let series = more.series.into_iter().map(late).collect();
                    self.gpus.push(GpuPage { series, ..more });
                }
                None => {}
            }
        }
        for series in self.gpus.iter_mut().flat_map(|gpu| &mut gpu.series) {
            series.resize(before + added, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(first: u64, values: &[f32], gpus: &[&str]) -> LoadPage {
        let series: Series = values.iter().copied().map(Some).collect();
        let gpu = |id: &&str| GpuPage {
            id: (*id).into(),
            name: "a GPU".into(),
            series: vec![series.clone(); GPU_SERIES.len()],
        };
        LoadPage {
            first,
            end: 100,
            end_ms: 1,
            machine: vec![series.clone(); MACHINE_SERIES.len()],
            gpus: gpus.iter().map(gpu).collect(),
        }
    }

    #[test]
    fn pages_become_one() {
        let mut whole = page(5, &[1.0, 2.0], &["a"]);
        whole.append(page(7, &[3.0], &["b"]));
        assert!(whole.is_sound());
        assert_eq!((whole.first, whole.next()), (5, 8));
        assert_eq!(whole.machine[3], [Some(1.0), Some(2.0), Some(3.0)]);
        assert_eq!(whole.gpus[0].series[0], [Some(1.0), Some(2.0), None]);
        assert_eq!(whole.gpus[1].series[3], [None, None, Some(3.0)]);
    }

    #[test]
    fn a_page_of_another_life_takes_the_place_of_what_was_there() {
        let mut whole = page(5, &[1.0, 2.0], &["a"]);
        whole.append(page(0, &[3.0], &[]));
        assert_eq!(whole, page(0, &[3.0], &[]));
    }

    #[test]
    fn what_is_uneven_or_no_number_is_not_sound() {
        assert!(page(0, &[1.0], &["a"]).is_sound());
        assert!(
            LoadPage {
                end: 0,
                ..page(0, &[], &[])
            }
            .is_sound()
        );
        let mut uneven = page(0, &[1.0], &["a"]);
        uneven.gpus[0].series[2].push(None);
        assert!(!uneven.is_sound());
        assert!(!page(0, &[f32::NAN], &[]).is_sound());
        assert!(!page(0, &[1.0], &["a"; HISTORY_GPUS + 1]).is_sound());
        assert!(!page(u64::MAX, &[1.0], &[]).is_sound());
        assert!(
            !LoadPage {
                end: 0,
                ..page(0, &[1.0], &[])
            }
            .is_sound()
        );
        assert!(!LoadPage::default().is_sound());
    }
}
