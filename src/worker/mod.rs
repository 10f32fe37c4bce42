pub mod protocol;
pub mod supervisor;
