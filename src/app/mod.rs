//! (app)

pub mod machine;
