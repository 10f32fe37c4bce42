//! (app)

pub mod settings;
