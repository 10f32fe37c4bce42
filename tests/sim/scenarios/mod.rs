//! What went wrong once, or could have: a small world each.

pub mod cancel;
pub mod chains;
pub mod copies;
pub mod damage;
pub mod disks;
pub mod gangs;
pub mod graphs;
pub mod kills;
pub mod logs;
pub mod pools;
pub mod rest;
pub mod resync;
pub mod retention;
pub mod rows;
pub mod searches;
pub mod seeds;
pub mod submission;
pub mod versions;

use crate::script::Scenario;

/// All of them, by name.
pub fn all() -> Vec<Scenario> {
    [
        cancel::ALL,
        chains::ALL,
        copies::ALL,
        damage::ALL,
        disks::ALL,
        gangs::ALL,
        graphs::ALL,
        kills::ALL,
        logs::ALL,
        pools::ALL,
        rest::ALL,
        resync::ALL,
        retention::ALL,
        rows::ALL,
        searches::ALL,
        seeds::ALL,
        submission::ALL,
        versions::ALL,
    ]
    .concat()
}
