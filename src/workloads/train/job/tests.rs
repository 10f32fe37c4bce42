//! Job files of trainings.
