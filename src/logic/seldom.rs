//! What most of its owners have nothing of.

use std::ops::{Deref, DerefMut};

/// A value that takes memory of its own only from its first change to the next `give_back`.
#[derive(Clone, Debug, Default)]
pub struct Seldom<T>(Option<Box<T>>);

/// What has a value that stands for all that are as they were made.
pub trait Blank: Default + 'static {
    fn blank() -> &'static Self;
}

impl<T> Seldom<T> {
    /// Gives up the value's memory: what is read from now on is blank.
    pub fn give_back(&mut self) {
        self.0 = None;
    }
}

impl<T: Blank> Deref for Seldom<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(value) => value,
            None => T::blank(),
        }
    }
}

impl<T: Blank> DerefMut for Seldom<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}
