//! Who did what at a node: lines of its audit log, which is the same JSON.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One thing that a user of this node did, or was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditLine {
    pub at_ms: u64,
    pub user: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The name of the node at which it was said.
    pub node: String,
    pub what: AuditName,
    /// The job, the node, the named secret or the mode of admission that it was about: its id, or
    /// as it was named. Of `upgrade` and `replace`, also the program: its BLAKE3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// What went wrong, if it was not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditName {
    Submit,
    Pool,
    Cancel,
    /// An entry of a log, where it was refused.
    Append,
    /// Tasks for an open job, where they were refused.
    Add,
    /// No more tasks are added to an open job.
    Close,
    Remove,
    Retry,
    Attach,
    Drain,
    Undrain,
    Pause,
    Resume,
    Measure,
    Forget,
    Leave,
    /// A node was told to take another program.
    Upgrade,
    /// The program of the node was replaced, or could not be; the user is whoever wanted it.
    Replace,
    Ban,
    Unban,
    Admit,
    /// Whether nodes have to be admitted.
    Admission,
    /// The cluster's secret was changed.
    Rotate,
    /// The cluster's secret before is worth nothing any more.
    FinishRotation,
    Invite,
    PutSecret,
    DropSecret,
}

impl AuditName {
    pub fn word(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Pool => "pool",
            Self::Cancel => "cancel",
            Self::Append => "append",
            Self::Add => "add",
            Self::Close => "close",
            Self::Remove => "remove",
            Self::Retry => "retry",
            Self::Attach => "attach",
            Self::Drain => "drain",
            Self::Undrain => "undrain",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Measure => "measure",
            Self::Forget => "forget",
            Self::Leave => "leave",
            Self::Upgrade => "upgrade",
            Self::Replace => "replace",
            Self::Ban => "ban",
            Self::Unban => "unban",
            Self::Admit => "admit",
            Self::Admission => "admission",
            Self::Rotate => "rotate",
            Self::FinishRotation => "finish_rotation",
            Self::Invite => "invite",
            Self::PutSecret => "put_secret",
            Self::DropSecret => "drop_secret",
        }
    }
}
