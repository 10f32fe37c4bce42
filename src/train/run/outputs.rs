//! What a run leaves: a line of `metrics.csv`, TensorBoard's numbers and a line for people as it
//! goes on; pictures and the confusion matrix at its end.

use super::{
    history::History,
    passes::steps_per_epoch,
    tensorboard::{self, Events},
    totals::Totals,
};
use crate::{data::Split, model::Loss, plan::TrainPlan};
use nodectl_plot::Curve;
use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// What every run leaves, without the metric's picture, the confusion matrix and checkpoints.
pub const FILES: [&str; 4] = ["model.safetensors", METRICS, LOSS_PLOT, tensorboard::FILE];
const METRICS: &str = "metrics.csv";
const LOSS_PLOT: &str = "loss.svg";
/// Where the node looks for what a task says.
const STDOUT: &str = ".nodectl.stdout";
/// Losses of single steps among TensorBoard's numbers.
const SHOWN_STEPS: u64 = 2000;

/// An epoch that has ended.
#[derive(Clone, Debug)]
pub struct EndedEpoch {
    /// From 1.
    pub number: u32,
    pub steps: u64,
    pub rate: f32,
    pub training: Totals,
    pub validation: Option<Totals>,
    pub seconds: f64,
    pub samples: u64,
}

impl EndedEpoch {
    /// One that is wholly known, which count from 0 here.
    pub fn known(plan: &TrainPlan, split: &Split, history: &History, epoch: u32) -> Self {
        let steps = steps_per_epoch(plan, split.training.len());
        let training = plan.optimizer.training(steps, plan.epochs);
        let done = u64::from(epoch + 1) * steps;
        let totals = history.training(epoch);
        Self {
            number: epoch + 1,
            steps: done,
            rate: training.rate * training.schedule.factor(done + 1),
            validation: split.validation.as_ref().map(|_| history.validation(epoch)),
            seconds: history.seconds(epoch),
            samples: totals.samples(),
            training: totals,
        }
    }
}

pub struct Outputs {
    directory: PathBuf,
    loss: Loss,
    metrics: csv::Writer<File>,
    events: Events,
    said: File,
    every: u64,
    curves: Vec<(f64, [f64; 4])>,
    has_validation: bool,
}

impl Outputs {
    /// `steps` is how many the whole run has.
    pub fn create(
        directory: &Path,
        loss: Loss,
        steps: u64,
        has_validation: bool,
    ) -> io::Result<Self> {
        let said = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(directory.join(STDOUT))?;
        let mut metrics = csv::Writer::from_path(directory.join(METRICS))?;
        let metric = loss.metric();
        let mut header = vec![
            "epoch".into(),
            "step".into(),
            "rate".into(),
            "loss".into(),
            metric.to_string(),
        ];
        if has_validation {
            header.extend(["validation_loss".into(), format!("validation_{metric}")]);
        }
        header.extend(["seconds".into(), "samples_per_second".into()]);
        metrics.write_record(header)?;
        let events = Events::create(&directory.join(tensorboard::FILE))?;
        let every = steps.div_ceil(SHOWN_STEPS).max(1);
        let directory = directory.to_path_buf();
        Ok(Self {
            directory,
            loss,
            metrics,
            events,
            said,
            every,
            curves: Vec::new(),
            has_validation,
        })
    }

    /// A line for people, in the task's log.
    pub fn say(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.said, "{line}")
    }

    /// Writes lines to the same log from another thread.
    pub fn sayer(&self) -> io::Result<impl Fn(&str) + Send + 'static> {
        let said = self.said.try_clone()?;
        Ok(move |line: &str| {
            // A log that cannot be written stops nothing.
            let _ = writeln!(&said, "{line}");
        })
    }

    /// Nothing is left of the run here: another leaves it.
    pub fn discard(self) -> io::Result<()> {
        [METRICS, tensorboard::FILE]
            .iter()
            .try_for_each(|file| std::fs::remove_file(self.directory.join(file)))
    }

    /// A step's loss. Not all are kept.
    pub fn step(&mut self, step: u64, loss: f64) -> io::Result<()> {
        if step.is_multiple_of(self.every) {
            self.events.scalar(step, "loss/step", loss as f32)
        } else {
            Ok(())
        }
    }

    pub fn epoch(&mut self, epoch: &EndedEpoch, of: u32) -> io::Result<()> {
        let (loss, metric) = (epoch.training.loss(), epoch.training.metric());
        let validation = epoch
            .validation
            .as_ref()
            .map(|totals| [totals.loss(), totals.metric()]);
        let (name, step) = (self.loss.metric(), epoch.steps);
        let speed = epoch.samples as f64 / epoch.seconds.max(1e-9);
        let mut row = vec![
            epoch.number.to_string(),
            step.to_string(),
            epoch.rate.to_string(),
        ];
        row.extend([loss.to_string(), metric.to_string()]);
        row.extend(validation.iter().flatten().map(f64::to_string));
        row.extend([format!("{:.6}", epoch.seconds), format!("{speed:.1}")]);
        self.metrics.write_record(row)?;
        self.metrics.flush()?;
        let mut scalars = vec![
            ("loss/training".to_string(), loss),
            (format!("{name}/training"), metric),
        ];
        if let Some([loss, metric]) = validation {
            scalars.extend([
                ("loss/validation".to_string(), loss),
                (format!("{name}/validation"), metric),
            ]);
        }
        scalars.push(("rate".to_string(), epoch.rate.into()));
        scalars
            .iter()
            .try_for_each(|(name, value)| self.events.scalar(step, name, *value as f32))?;
        let [validation_loss, validation_metric] = validation.unwrap_or([f64::NAN; 2]);
        self.curves.push((
            epoch.number.into(),
            [loss, validation_loss, metric, validation_metric],
        ));
        let mut line = format!(
            "epoch {}/{of}: loss {loss:.4}, {name} {metric:.4}",
            epoch.number
        );
        if validation.is_some() {
            line +=
                &format!("; validation: loss {validation_loss:.4}, {name} {validation_metric:.4}");
        }
        self.say(&format!("{line}; {speed:.0} samples/s"))
    }

    /// The pictures of the curves.
    pub fn finish(&mut self, title: &str) -> io::Result<()> {
        let curve = |name, column: usize| {
            let points = self
                .curves
                .iter()
                .map(|(epoch, values)| (*epoch, values[column]))
                .collect();
            Curve { name, points }
        };
        let metric = self.loss.metric();
        for (file, what, first) in [
            (LOSS_PLOT.to_string(), self.loss.name(), 0),
            (format!("{metric}.svg"), metric, 2),
        ] {
            let mut curves = vec![curve("training", first)];
            if self.has_validation {
                curves.push(curve("validation", first + 1));
            }
            let svg = nodectl_plot::curves(title, what, &curves)
                .map_err(|error| io::Error::other(error.to_string()))?;
            std::fs::write(self.directory.join(file), svg)?;
        }
        Ok(())
    }

    /// `confusion.csv`, and the picture where that is readable.
    pub fn confusion(&self, title: &str, names: &[String], counts: &[Vec<u64>]) -> io::Result<()> {
        let mut table = csv::Writer::from_path(self.directory.join("confusion.csv"))?;
        table.write_record(
            ["class"]
                .into_iter()
                .chain(names.iter().map(String::as_str)),
        )?;
        for (name, row) in names.iter().zip(counts) {
            table.write_record(
                [name.clone()]
                    .into_iter()
                    .chain(row.iter().map(u64::to_string)),
            )?;
        }
        table.flush()?;
        if names.len() > nodectl_plot::MOST_CLASSES {
            return Ok(());
        }
        let svg = nodectl_plot::confusion(title, names, counts)
            .map_err(|error| io::Error::other(error.to_string()))?;
        std::fs::write(self.directory.join("confusion.svg"), svg)
    }
}
