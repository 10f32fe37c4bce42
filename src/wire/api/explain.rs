//! Why a job or a task is where it is, as JSON.

use nodectl_types::explain::{Reason, ReasonLine};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why a job or a task is where it is: the job first, then the task if one was asked for, then
/// copies of the results and nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// For people; the wording may change.
    pub lines: Vec<String>,
    /// For programs: what each of `lines` says.
    pub reasons: Vec<ReasonView>,
}

/// What a line of an explanation says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReasonView {
    pub reason: ReasonName,
    /// The node that it is about: its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// `ReasonName` has the same members as `Reason`, and their words.
macro_rules! reasons {
    ($($name:ident $word:literal,)*) => {
        /// A closed list of words. The guide explains each (`docs/guide/troubleshooting.md`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum ReasonName {
            $($name,)*
        }

        impl ReasonName {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The word that the JSON has.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }

        impl From<Reason> for ReasonName {
            fn from(reason: Reason) -> Self {
                match reason {
                    $(Reason::$name => Self::$name,)*
                }
            }
        }
    };
}

reasons! {
    JobRuns "job_runs",
    JobDone "job_done",
    JobFailed "job_failed",
    JobCancelled "job_cancelled",
    WaitsForNodes "waits_for_nodes",
    WaitsForJob "waits_for_job",
    WaitsForDisk "waits_for_disk",
    WaitsForTakeover "waits_for_takeover",
    WaitsForSuitableNode "waits_for_suitable_node",
    Detail "detail",
    TaskDone "task_done",
    TaskFailed "task_failed",
    TaskCancelled "task_cancelled",
    TaskRuns "task_runs",
    TaskQueued "task_queued",
    TaskEnvironment "task_environment",
    TaskNeeds "task_needs",
    TaskNeedFailed "task_need_failed",
    TaskRetries "task_retries",
    TaskWaits "task_waits",
    ReplicaFails "replica_fails",
    ReplicaBehind "replica_behind",
    GangWaits "gang_waits",
    GangMissed "gang_missed",
    NodeSuits "node_suits",
    NodeUnknown "node_unknown",
    NodeUnreachable "node_unreachable",
    NodeFailedToPrepare "node_failed_to_prepare",
    NodeSeeksGpus "node_seeks_gpus",
    NodeTrouble "node_trouble",
    NodeLacksResources "node_lacks_resources",
    NodeTakesNoWork "node_takes_no_work",
    NodeExcludesJob "node_excludes_job",
    NodeConditionUnmet "node_condition_unmet",
    NodeRefused "node_refused",
}

impl From<Vec<ReasonLine>> for Explanation {
    fn from(told: Vec<ReasonLine>) -> Self {
        let view = |line: &ReasonLine| ReasonView {
            reason: line.reason.into(),
            node: line.node.map(|node| node.to_string()),
        };
        Self {
            reasons: told.iter().map(view).collect(),
            lines: told.into_iter().map(|line| line.text).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_json_and_the_guide_explains_each() {
        let guide = include_str!("../../../docs/guide/troubleshooting.md");
        for reason in ReasonName::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.word());
            let word = format!("`{}`", reason.word());
            let is_explained = |line: &&str| line.starts_with("| ") && line.contains(&word);
            assert!(guide.lines().any(|line| is_explained(&line)), "{word}");
        }
    }
}
