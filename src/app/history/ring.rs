//! The memory of a machine's load: two rings of rows, one fine and one coarse. Pure: time and
//! measurements come in. Time is that since the machine's start, sleep included, so a wall clock
//! that jumps moves nothing; where it passed without a measurement, rows say that nothing was
//! measured.

use nodectl_types::{
    history::{GPU_SERIES, GpuPage, LoadPage, LoadSpan, MACHINE_SERIES, Series},
    limits::HISTORY_GPUS,
};
use std::time::Duration;

/// What one look at the machine gave: NaN for what could not be measured.
#[derive(Clone, Debug)]
pub struct MeasuredLoad {
    pub machine: [f32; MACHINE_SERIES.len()],
    pub gpus: Vec<MeasuredGpu>,
}

#[derive(Clone, Debug)]
pub struct MeasuredGpu {
    /// Of this GPU only.
    pub id: String,
    pub name: String,
    pub values: [f32; GPU_SERIES.len()],
}

/// Both rings.
#[derive(Debug)]
pub struct Rings {
    fine: LoadRing,
    coarse: LoadRing,
}

/// What all series take that there can be.
const MOST_BYTES: usize = (MACHINE_SERIES.len() + HISTORY_GPUS * GPU_SERIES.len())
    * (LoadSpan::Minutes.rows() + LoadSpan::Day.rows())
    * size_of::<f32>();
const _: () = assert!(MOST_BYTES <= 2_000_000, "a node's history is small");

impl Rings {
    pub fn new() -> Self {
        Self {
            fine: LoadRing::new(LoadSpan::Minutes),
            coarse: LoadRing::new(LoadSpan::Day),
        }
    }

    pub fn record(&mut self, now: Duration, measured: &MeasuredLoad) {
        self.fine.record(now, measured);
        self.coarse.record(now, measured);
    }

    /// At most so many rows from number `from` on, or from the oldest that there is. `wall_ms` is
    /// what the wall clock shows `now`.
    pub fn page(
        &self,
        (now, wall_ms): (Duration, u64),
        span: LoadSpan,
        from: u64,
        most: usize,
    ) -> LoadPage {
        match span {
            LoadSpan::Minutes => &self.fine,
            LoadSpan::Day => &self.coarse,
        }
        .page((now, wall_ms), from, most)
    }
}

#[derive(Debug)]
struct LoadRing {
    span: LoadSpan,
    /// The number of the first row that was ever measured; None before that.
    begun: Option<u64>,
    /// The number of the row after the newest.
    next: u64,
    machine: Vec<LoadColumn>,
    gpus: Vec<GpuColumns>,
}

#[derive(Debug)]
struct GpuColumns {
    id: String,
    name: String,
    columns: Vec<LoadColumn>,
}

/// One series: row `number` is at `number % rows`.
#[derive(Debug)]
struct LoadColumn {
    rows: Box<[f32]>,
    /// Of the newest row: what was measured in it so far.
    sum: f64,
    count: u32,
}

impl LoadRing {
    fn new(span: LoadSpan) -> Self {
        Self {
            span,
            begun: None,
            next: 0,
            machine: columns(span, MACHINE_SERIES.len()),
            gpus: Vec::new(),
        }
    }

    fn number(&self, now: Duration) -> u64 {
        now.as_secs() / self.span.step_s()
    }

    fn record(&mut self, now: Duration, measured: &MeasuredLoad) {
        let number = self.number(now);
        if number + 1 < self.next {
            // Such a clock never goes back; should it, what is there stays true.
            return;
        }
        self.begun.get_or_insert(number);
        self.advance(number);
        for gpu in &measured.gpus {
            self.learn(gpu);
        }
        for (column, value) in self.machine.iter_mut().zip(measured.machine) {
            column.add(number, value);
        }
        for gpu in &mut self.gpus {
            let Some(found) = measured.gpus.iter().find(|found| found.id == gpu.id) else {
                continue;
            };
            for (column, value) in gpu.columns.iter_mut().zip(found.values) {
                column.add(number, value);
            }
        }
    }

    /// Makes `number` the newest row; those that were passed over have nothing.
    fn advance(&mut self, number: u64) {
        if number < self.next {
            return;
        }
        let oldest = (number + 1).saturating_sub(self.span.rows() as u64);
        let passed = self.next.max(oldest)..=number;
        let of_gpus = self.gpus.iter_mut().flat_map(|gpu| &mut gpu.columns);
        for column in self.machine.iter_mut().chain(of_gpus) {
            passed.clone().for_each(|row| column.clear(row));
        }
        self.next = number + 1;
    }

    fn learn(&mut self, gpu: &MeasuredGpu) {
        let is_known = self.gpus.iter().any(|known| known.id == gpu.id);
        if !is_known && self.gpus.len() < HISTORY_GPUS {
            self.gpus.push(GpuColumns {
                id: gpu.id.clone(),
                name: gpu.name.clone(),
                columns: columns(self.span, GPU_SERIES.len()),
            });
        }
    }

    fn page(&self, (now, wall_ms): (Duration, u64), from: u64, most: usize) -> LoadPage {
        // The row that time is in is complete with the next one; time may have passed unmeasured.
        let end = match self.begun {
            Some(_) => self.number(now).max(self.next - 1),
            None => self.number(now),
        };
        let oldest = end.saturating_sub(self.span.rows() as u64 - 1);
        let first = self.begun.unwrap_or(end).max(oldest).max(from).min(end);
        let last = end.min(first.saturating_add(most as u64));
        let read = |column: &LoadColumn| -> Series {
            let known = |row| row < self.next;
            let rows = first..last;
            rows.map(|row| known(row).then(|| column.get(row)).flatten())
                .collect()
        };
        let gpu = |gpu: &GpuColumns| GpuPage {
            id: gpu.id.clone(),
            name: gpu.name.clone(),
            series: gpu.columns.iter().map(read).collect(),
        };
        let ends_at = Duration::from_secs(end * self.span.step_s());
        let ago = now.saturating_sub(ends_at).as_millis() as u64;
        LoadPage {
            first,
            end,
            end_ms: wall_ms.saturating_sub(ago),
            machine: self.machine.iter().map(read).collect(),
            gpus: self.gpus.iter().map(gpu).collect(),
        }
    }
}

fn columns(span: LoadSpan, count: usize) -> Vec<LoadColumn> {
    let column = || LoadColumn {
        rows: vec![f32::NAN; span.rows()].into(),
        sum: 0.0,
        count: 0,
    };
    std::iter::repeat_with(column).take(count).collect()
}

impl LoadColumn {
    fn place(&self, number: u64) -> usize {
        (number % self.rows.len() as u64) as usize
    }

    fn clear(&mut self, number: u64) {
        let place = self.place(number);
        self.rows[place] = f32::NAN;
        (self.sum, self.count) = (0.0, 0);
    }

    /// A row is the average of what was measured in its time.
    fn add(&mut self, number: u64, value: f32) {
        if !value.is_finite() {
            return;
        }
        self.sum += f64::from(value);
        self.count += 1;
        let place = self.place(number);
        self.rows[place] = (self.sum / f64::from(self.count)) as f32;
    }

    fn get(&self, number: u64) -> Option<f32> {
        let value = self.rows[self.place(number)];
        value.is_finite().then_some(value)
    }
}
