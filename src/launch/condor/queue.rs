//! What `condor_q` prints. Pure.

use crate::LaunchError;
use serde::Deserialize;

/// A job of HTCondor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CondorJob {
    /// `cluster.process`.
    pub id: String,
    pub state: JobState,
    /// The machine where it runs.
    pub host: Option<String>,
    /// Why it is held, if it is.
    pub hold_reason: Option<String>,
    /// The launch that it belongs to.
    pub launch: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    Idle,
    Running,
    Held,
    Ending,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Ad {
    cluster_id: u64,
    proc_id: u64,
    job_status: u8,
    remote_host: Option<String>,
    hold_reason: Option<String>,
    nodectl_launch: Option<String>,
}

/// This user's jobs of that batch name.
pub fn condor_q_args(batch_name: &str) -> Vec<String> {
    let constraint = format!("JobBatchName == \"{batch_name}\"");
    let attributes = "ClusterId,ProcId,JobStatus,RemoteHost,HoldReason,NodectlLaunch";
    [
        "-constraint",
        &constraint,
        "-json",
        "-attributes",
        attributes,
    ]
    .map(str::to_string)
    .to_vec()
}

/// The jobs that `condor_submit -terse` says it has made: `7.0 - 7.2`.
pub fn parse_submitted(text: &str, count: u32) -> Vec<String> {
    let first = text
        .lines()
        .last()
        .unwrap_or_default()
        .split(" - ")
        .next()
        .unwrap_or_default()
        .trim();
    match first.strip_suffix(".0") {
        Some(cluster)
            if !cluster.is_empty() && cluster.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            (0..count)
                .map(|process| format!("{cluster}.{process}"))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Reads the answer, which is empty, not an empty list, when there is no job.
pub fn parse_condor_q(text: &str) -> Result<Vec<CondorJob>, LaunchError> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let ads: Vec<Ad> = serde_json::from_str(text).map_err(|error| {
        let beginning: String = text.chars().take(200).collect();
        LaunchError::Unparsable {
            program: "condor_q",
            text: format!("{beginning} ({error})"),
        }
    })?;
    Ok(ads.into_iter().map(Ad::into_job).collect())
}

impl Ad {
    fn into_job(self) -> CondorJob {
        // Job status codes of HTCondor's manual, appendix "job ClassAd attributes".
        let state = match self.job_status {
            1 => JobState::Idle,
            2 | 6 | 7 => JobState::Running,
            5 => JobState::Held,
            _ => JobState::Ending,
        };
        // `slot1_1@machine`.
        let host = self
            .remote_host
            .map(|host| host.rsplit('@').next().unwrap_or_default().to_string());
        let id = format!("{}.{}", self.cluster_id, self.proc_id);
        CondorJob {
            id,
            state,
            host,
            hold_reason: self.hold_reason,
            launch: self.nodectl_launch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As HTCondor 23.9 of Debian 13 printed it.
    const CAPTURED: &str = include_str!("../../../tests/fixtures/launch/condor_q.json");

    #[test]
    fn jobs_are_known_before_the_queue_shows_them() {
        assert_eq!(parse_submitted("7.0 - 7.2\n", 3), ["7.0", "7.1", "7.2"]);
        assert_eq!(parse_submitted("7.0 - 7.0\n", 1), ["7.0"]);
        for text in ["", "1 job(s) submitted to cluster 7.\n", ".0 - .1"] {
            assert_eq!(parse_submitted(text, 2), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_captured_queue_is_read() {
        let jobs = parse_condor_q(CAPTURED).unwrap();
        let seen: Vec<_> = jobs
            .iter()
            .map(|job| (job.id.as_str(), job.state, job.host.as_deref()))
            .collect();
        let running = JobState::Running;
        assert_eq!(
            seen,
            [
                ("1.0", running, Some("n2.testbed")),
                ("1.1", running, Some("n1.testbed"))
            ]
        );
        assert_eq!(jobs[0].launch.as_deref(), Some("c0ffee00"));
        assert_eq!(parse_condor_q("\n").unwrap(), []);
        assert!(
            parse_condor_q("-- Failed")
                .unwrap_err()
                .to_string()
                .contains("condor_q")
        );
    }
}
