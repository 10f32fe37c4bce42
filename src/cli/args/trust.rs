//! The flags of commands about who belongs to the cluster, and of `doctor`.

use super::common::ListArgs;
use crate::candidates;
use clap::{Args, Subcommand, ValueEnum};
use clap_complete::ArgValueCandidates;
use std::path::PathBuf;

const SECRET_NOTES: &str = "\
A job that says `secrets = [\"HF_TOKEN\"]` finds the value in the file that NODECTL_SECRET_FILE_HF_TOKEN names. The file is in memory, and
open in the task's process and in those that inherit its files (of Python's subprocess: with close_fds=False).

    nodectl secret put HF_TOKEN < token.txt";
pub const FORGET_NOTES: &str = "\
A node that falls silent may be dead, or only cut off and going on by itself; nobody but you can tell. A training whose parameters it \
shared may have to wait for it: `nodectl job JOB` says so, `on hold`. Once you know that the machine is off, or will not come back as it \
was, forget it. If it runs on, cut off, what it does in these trainings is lost when it comes back; it joins again as any node does. \
Refused while any node reaches it.";

pub const BAN_NOTES: &str = "\
All nodes hang up on it and refuse it, also after they were started again; its tasks run elsewhere. Whoever runs it still has the secret, \
and could come with a new key: `nodectl secret rotate` makes that secret worthless.";

pub const ROTATE_NOTES: &str = "\
Only nodes that are members, or were since this node started, may come with the secret before, and are given the new one; anybody else \
who has it is refused at once. Ban whom you do not trust first. Nodes that were away for long, or whose change was ended without them, are \
told so in their log and by `nodectl doctor`: there, `nodectl leave`, then `nodectl join` with the new secret. Jobs that wait in SLURM's or \
HTCondor's queues find it when they begin; named secrets can be read by all who have it.";

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// In place of this machine: whether the nodes have what the jobs of this file need (programs,
    /// Python modules, cores, memory, GPUs, secrets)
    #[arg(value_name = "JOB_FILE", conflicts_with = "security")]
    pub job_file: Option<PathBuf>,
    /// Shows what is protected on this machine: handshake, the secret's strength, limits, who may
    /// use the socket, what is hidden from tasks
    #[arg(long)]
    pub security: bool,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct InviteArgs {
    /// Also shows the line to type as a QR code
    #[arg(long)]
    pub qr: bool,
}

#[derive(Debug, Args)]
pub struct NodeArgs {
    /// The node's name, its id, or the beginning of its id
    #[arg(add = ArgValueCandidates::new(candidates::nodes))]
    pub node: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AdmissionMode {
    /// Nodes that join from now on wait for `nodectl admit`, unless they come with an invitation;
    /// those that are members stay so
    Approve,
    /// Every node that has the secret is a member, unless it is banned
    Open,
}

#[derive(Debug, Subcommand)]
pub enum SecretCommand {
    #[command(flatten)]
    Named(NamedSecret),
    #[command(flatten)]
    Cluster(ClusterSecret),
}

#[derive(Debug, Subcommand)]
pub enum NamedSecret {
    /// Keeps a value under a name on all nodes, sealed; it comes by stdin or is asked for
    #[command(after_help = SECRET_NOTES)]
    Put {
        /// Letters, digits and `_`, such as HF_TOKEN
        name: String,
    },
    /// The names of all secrets; values are never shown
    List(ListArgs),
    /// Forgets a secret on all nodes
    Drop {
        /// The secret's name
        #[arg(add = ArgValueCandidates::new(candidates::secrets))]
        name: String,
    },
}

/// What is done with the secret that makes a node a member.
#[derive(Debug, Subcommand)]
pub enum ClusterSecret {
    /// Gives all nodes that are known a new secret; the one before is refused once all have it
    #[command(after_help = ROTATE_NOTES)]
    Rotate(RotateArgs),
    /// Prints the cluster's secret, if it is kept on this machine
    Show,
}

#[derive(Debug, Args)]
pub struct RotateArgs {
    /// Takes the new secret from a file [default: makes one, and prints it]
    #[arg(long, value_name = "FILE", conflicts_with = "finish")]
    pub new_secret_file: Option<PathBuf>,
    /// Ends a change that is under way: nodes that have not come yet are refused with the secret
    /// before
    #[arg(long)]
    pub finish: bool,
}

#[derive(Debug, Args)]
pub struct ForgetArgs {
    /// The node's name, its id, or the beginning of its id
    #[arg(add = ArgValueCandidates::new(candidates::nodes))]
    pub node: String,
    /// Forgets it without asking first
    #[arg(long)]
    pub yes: bool,
}
