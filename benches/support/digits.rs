//! The shipped handwritten digits, trained by two workers on different nodes.

use super::common::{cluster::Cluster, job::write_job};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// `config/jobs/digits.toml` with `more` keys, and its data beside it.
pub fn job(cluster: &Cluster, name: &str, seed: u64, more: &str) -> PathBuf {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/jobs");
    let dir = cluster.dir.path();
    fs::create_dir_all(dir.join("quickstart")).expect("writable");
    let data = "quickstart/digits.csv.gz";
    fs::copy(shipped.join(data), dir.join(data)).expect("it is shipped");
    let text = fs::read_to_string(shipped.join("digits.toml")).expect("it is shipped");
    assert!(text.contains("\nseed = 1\n"), "the shipped job has a seed");
    let text = text.replace("\nseed = 1\n", &format!("\nseed = {seed}\n{more}\n"));
    write_job(dir, name, &text)
}

/// Validation loss and accuracy of a job whose results are in a directory, if a worker tells them.
pub fn validation(into: &Path) -> Option<(f64, f64)> {
    let text = fs::read_to_string(into.join("results.jsonl")).expect("results were fetched");
    let mut results = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    results.find_map(|result| {
        let value = &result["value"];
        Some((
            value["validation_loss"].as_f64()?,
            value["validation_accuracy"].as_f64()?,
        ))
    })
}
