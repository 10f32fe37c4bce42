//! The flags of commands about who belongs to the cluster, and of `doctor`.

use super::common::ListingArgs;
use crate::candidates;
use clap::{Args, Subcommand, ValueEnum};
use clap_complete::ArgValueCandidates;
use std::path::PathBuf;

const SECRET_NOTES: &str = "\
A job that says `secrets = [\"HF_TOKEN\"]` finds the value in the file that NODECTL_SECRET_FILE_HF_TOKEN names. The file is in
memory only. It is open in the task's process, and in processes that inherit open files (with Python's subprocess: close_fds=False).

    nodectl secret put HF_TOKEN < token.txt";
pub const FORGET_NOTES: &str = "\
A node that does not answer may be dead, or it may still work but be cut off; only a person can find out. A training that shared \
parameters with it may have to wait for it: `nodectl job JOB` then shows `on hold`. Once you know that the machine is off, or will not \
come back as it was, forget it. If it was only cut off, what it did in these trainings is lost when it comes back; it joins again as any \
node does. A node that any other node reaches is not forgotten.";

pub const BAN_NOTES: &str = "\
All nodes close their connections to it and refuse new ones, also after a restart; its tasks run elsewhere. Whoever runs it still has \
the secret and could join with a new key: `nodectl secret rotate` after the ban makes that secret useless.";

pub const ROTATE_NOTES: &str = "\
Nodes that are members now, or were since this node started, can still connect with the old secret, and are given the new one; \
anybody else who has the old secret is refused at once. First ban the nodes that you do not trust. A node that missed the change says so in \
its log and in `nodectl doctor`: type `nodectl leave` there, then `nodectl join` with the new secret. Jobs that wait in SLURM's or \
HTCondor's queues get the new secret when they start. Whoever has the old secret could have read the named secrets.";

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Checks whether the nodes have what the jobs of this file need (programs, Python modules,
    /// cores, memory, GPUs, secrets), and not this machine
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
    /// New nodes wait for `nodectl admit`, unless they have an invitation; members stay members
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
    /// Keeps a value under a name on all nodes, encrypted; it is read from stdin or asked for
    #[command(after_help = SECRET_NOTES)]
    Put {
        /// Letters, digits and `_`, such as HF_TOKEN
        name: String,
    },
    /// The names of all secrets; values are never shown
    List(ListingArgs),
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
    /// Gives all known nodes a new secret; once all have it, the old one is refused
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
    /// Ends a change that is under way: the old secret is refused, also from nodes that do not have
    /// the new one yet
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
