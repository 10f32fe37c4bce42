//! (app)

pub mod machine;
pub mod settings;
