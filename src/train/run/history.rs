//! What all workers found, epoch by epoch, as sums that lie with the parameters, also in
//! checkpoints: so it is known to each of them, and to whoever takes another's place or goes on
//! later. Pure.

use super::totals::Totals;

/// Numbers of an epoch: sums of training, sums of validation, seconds.
const COLUMNS: usize = 9;
const VALIDATION: usize = 4;
const SECONDS: usize = 8;

/// The whole training's, or what one worker adds to it in a clock.
#[derive(Clone, Debug, PartialEq)]
pub struct History(Vec<f32>);

impl History {
    pub fn new(epochs: u32) -> Self {
        Self(vec![0.0; epochs as usize * COLUMNS])
    }

    /// As `numbers` has them.
    pub fn of(numbers: Vec<f32>) -> Self {
        Self(numbers)
    }

    /// The history of a training with more epochs, or fewer.
    pub fn resized(mut self, epochs: u32) -> Self {
        self.0.resize(epochs as usize * COLUMNS, 0.0);
        self
    }

    pub fn numbers(&self) -> &[f32] {
        &self.0
    }

    /// What was found while it learnt in an epoch, which count from 0.
    pub fn add_training(&mut self, epoch: u32, totals: &Totals) {
        self.add(epoch, 0, totals);
    }

    pub fn add_validation(&mut self, epoch: u32, totals: &Totals) {
        self.add(epoch, VALIDATION, totals);
    }

    pub fn add_seconds(&mut self, epoch: u32, seconds: f64) {
        self.0[epoch as usize * COLUMNS + SECONDS] += seconds as f32;
    }

    /// All that is known of an epoch: what was found while it learnt and in how many seconds, and
    /// of what is held back.
    pub fn put(
        &mut self,
        epoch: u32,
        training: &Totals,
        seconds: f64,
        validation: Option<&Totals>,
    ) {
        let start = epoch as usize * COLUMNS;
        self.0[start..start + COLUMNS].fill(0.0);
        self.add_training(epoch, training);
        self.add_seconds(epoch, seconds);
        validation
            .into_iter()
            .for_each(|totals| self.add_validation(epoch, totals));
    }

    fn add(&mut self, epoch: u32, column: usize, totals: &Totals) {
        let start = epoch as usize * COLUMNS + column;
        self.0[start..]
            .iter_mut()
            .zip(totals.sums())
            .for_each(|(sum, number)| *sum += number as f32);
    }

    pub fn training(&self, epoch: u32) -> Totals {
        self.totals(epoch, 0)
    }

    pub fn validation(&self, epoch: u32) -> Totals {
        self.totals(epoch, VALIDATION)
    }

    pub fn seconds(&self, epoch: u32) -> f64 {
        self.0[epoch as usize * COLUMNS + SECONDS].into()
    }

    fn totals(&self, epoch: u32, column: usize) -> Totals {
        let start = epoch as usize * COLUMNS + column;
        Totals::of_sums(std::array::from_fn(|index| self.0[start + index].into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_workers_add_up_is_what_one_would_have_found() {
        let (one, other) = (
            Totals::of_sums([3.0, 2.0, 1.0, 2.0]),
            Totals::of_sums([5.0, 2.0, 2.0, 2.0]),
        );
        let mut history = History::new(3);
        history.add_training(1, &one);
        history.add_training(1, &other);
        history.add_validation(1, &one);
        history.add_seconds(1, 0.5);
        let history = History::of(history.numbers().to_vec());
        assert_eq!(
            (history.training(1).loss(), history.training(1).metric()),
            (2.0, 0.75)
        );
        assert_eq!(
            (history.validation(1), history.seconds(1)),
            (one.clone(), 0.5)
        );
        assert_eq!(history.training(0), Totals::default());
        assert_eq!(history.training(2), Totals::default());
        let mut longer = history.clone().resized(4);
        assert_eq!(
            (longer.validation(1), longer.training(3)),
            (one, Totals::default())
        );
        longer.put(1, &other, 2.0, None);
        assert_eq!(
            (longer.training(1), longer.seconds(1), longer.validation(1)),
            (other, 2.0, Totals::default())
        );
        assert_eq!(longer.resized(3).numbers().len(), history.numbers().len());
    }
}
