//! A dataset's files: NeXus, a picture, the mean as a table and as a plot, its peaks. What was
//! begun and not ended is removed.

use super::kept::fingerprint;
use crate::{
    frames::Stack,
    plan::{DatasetPlan, IntegratePlan},
    results::{
        BadFrames, FileMetadata, HeatMap, NexusFile, Part, Preview, Total, nexus::RegionAxes, svg,
        table,
    },
};
use nodectl_types::units::{counted, format_duration};
use std::{
    fmt::Write as _,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Results that are being written.
pub struct OutputFiles<'p> {
    plan: &'p IntegratePlan,
    dataset: &'p DatasetPlan,
    dir: PathBuf,
    axes: Vec<RegionAxes>,
    file: NexusFile,
    totals: Vec<Total>,
    map: HeatMap,
    frames: u64,
    /// Frames that have no patterns, in no order.
    bad: Vec<BadFrames>,
}

impl<'p> OutputFiles<'p> {
    pub fn create(
        plan: &'p IntegratePlan,
        dataset: &'p DatasetPlan,
        stack: &Stack,
        dir: &Path,
        axes: Vec<RegionAxes>,
        engine: &str,
    ) -> Result<Self, String> {
        let fingerprint = fingerprint(plan, dataset, stack, dir).unwrap_or_default();
        let about = about(plan, dataset, stack, 0..stack.frames, &fingerprint, engine);
        let path = dir.join(&dataset.files()[0]);
        // Of what is followed, results lie in directories as the data do.
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| error.to_string())?;
        }
        let file = NexusFile::create(&path, about, axes.clone())?;
        let map = HeatMap::new(
            0,
            stack.frames,
            axes.first().map_or(1, |axes| axes.radial.len()),
        );
        let totals = vec![Total::default(); axes.len()];
        Ok(Self {
            plan,
            dataset,
            dir: dir.to_path_buf(),
            axes,
            file,
            totals,
            map,
            frames: stack.frames,
            bad: Vec::new(),
        })
    }

    /// Frames without patterns so far, in order.
    pub fn bad(&mut self) -> &[BadFrames] {
        self.bad = BadFrames::joined(std::mem::take(&mut self.bad));
        &self.bad
    }

    pub fn write(&mut self, part: &Part) -> Result<(), String> {
        self.file.write(part)?;
        self.map.add(part);
        self.bad.extend(part.bad.iter().cloned());
        self.totals
            .iter_mut()
            .zip(&part.regions)
            .for_each(|(total, region)| total.join(&region.total));
        Ok(())
    }

    /// Ends all files. Returns what is to be printed.
    pub fn finish(self, took: Duration, integrated: u64) -> Result<String, String> {
        let settings = &self.plan.settings;
        let [_, picture, list, plot, summary, log] =
            self.dataset.files().map(|file| self.dir.join(file));
        self.map
            .write(&picture)
            .map_err(|error| error.to_string())?;
        let unit = settings.unit.name();
        let mut text = format!("{}: {}", self.dataset.name, counted(self.frames, "frame"));
        if integrated > 0 {
            let rate = integrated as f64 / took.as_secs_f64().max(1e-9);
            let _ = write!(
                text,
                ", {integrated} of them integrated here in {}: {rate:.0} frames/s",
                format_duration(took)
            );
        }
        text.push('\n');
        if let Some(first) = self.bad.first() {
            let listed = BadFrames::listed(&self.bad);
            let _ = writeln!(text, "{}: {listed}\n    {}", self.dataset.name, first.why);
        }
        let (axes, total) = (&self.axes[0], &self.totals[0]);
        let (mean, sigma) = total.flattened(axes.radial.len()).mean();
        let wavelength = settings.geometry.wavelength_m;
        let of = self.plan.calibrant.map(|calibrant| (calibrant, wavelength));
        text += &table(&self.dataset.name, &axes.radial, &mean, unit, of);
        write_csv(&list, unit, &axes.radial, &mean, sigma.as_deref())
            .map_err(|error| error.to_string())?;
        let preview = Preview::new(self.plan, &self.dataset.name, axes, (&self.map, total));
        let rings: Vec<f64> = preview.rings().collect();
        if let Some(image) = svg(&self.dataset.name, &axes.radial, &mean, unit, &rings) {
            fs::write(&plot, image).map_err(|error| error.to_string())?;
        }
        fs::write(&summary, preview.json()).map_err(|error| error.to_string())?;
        fs::write(&log, &text).map_err(|error| error.to_string())?;
        // Last: who sees it sees the others.
        self.file.finish(&self.totals, &self.bad)?;
        Ok(text)
    }
}

/// What is said of a file with some frames of a dataset.
pub fn about(
    plan: &IntegratePlan,
    dataset: &DatasetPlan,
    stack: &Stack,
    frames: Range<u64>,
    fingerprint: &str,
    engine: &str,
) -> FileMetadata {
    FileMetadata {
        title: dataset.name.clone(),
        source_file: dataset.path.display().to_string(),
        source_dataset: stack.dataset.clone(),
        fingerprint: fingerprint.to_string(),
        first: frames.start,
        frames: frames.end - frames.start,
        configuration: serde_json::to_string_pretty(&plan.settings)
            .expect("plain data always encodes"),
        unit: plan.settings.unit.name().to_string(),
        has_errors: plan.has_errors(),
        date: now(),
        engine: engine.to_string(),
    }
}

fn write_csv(
    path: &Path,
    unit: &str,
    radial: &[f64],
    mean: &[f32],
    sigma: Option<&[f32]>,
) -> std::io::Result<()> {
    let mut text = format!(
        "{unit},intensity{}\n",
        if sigma.is_some() { ",sigma" } else { "" }
    );
    for (index, (place, value)) in radial.iter().zip(mean).enumerate() {
        let _ = write!(text, "{place},{value}");
        if let Some(sigma) = sigma {
            let _ = write!(text, ",{}", sigma[index]);
        }
        text.push('\n');
    }
    fs::write(path, text)
}

/// The time in ISO 8601, UTC.
fn now() -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (days, seconds) = (now / 86_400, now % 86_400);
    let (year, month, day) = civil(days as i64);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// Year, month and day of a day since 1970 (Hinnant, "chrono-compatible low-level date
/// algorithms").
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates() {
        assert_eq!(
            (civil(0), civil(19_782), civil(20_413)),
            ((1970, 1, 1), (2024, 2, 29), (2025, 11, 21))
        );
    }
}
