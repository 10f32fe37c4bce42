//! Nodes elsewhere: started and stopped through the system's `ssh`, SLURM's `sbatch` and HTCondor's
//! `condor_submit`. An adapter: it turns files and flags into calls of those programs, and what
//! they print into plain data. It knows nothing of the cluster beyond what each launched node is
//! told; the commands `up`, `down` and `psd-run` drive it, from processes of their own, so that no
//! node ever waits for a scheduler.
//!
//! | file | owns |
//! |---|---|
//! | `error` | what can go wrong, as people see it |
//! | `process` | a call of a program: time limit, bounded output, tries again |
//! | `shell` | words quoted for a POSIX shell |
//! | `node` | what a launched node is told: name, peers, labels, GPUs, walltime |
//! | `cluster_file` | Nabu's cluster files and our own inventories: hosts |
//! | `ssh` | nodes on hosts: copy the program, start, stop |
//! | `slurm/` | nodes in SLURM's allocations |
//! | `condor/` | nodes in HTCondor's jobs |
//! | `elastic` | how many allocations a queue of tasks deserves |
//! | `computing` | computing modes: how many servers and workers, where |
//! | `poseidon` | `psd-run`'s cluster file, and the words it adds to commands |
//! | `state` | what was launched, on disk, so that `down` finds it |
//! | `timeline` | what a launch asked for and got over time, for people who look |
//!
//! **Architecture invariant: the secret goes over a pipe or lies in a file of mode 0600.** It is in
//! no argument list and no environment variable.

pub mod cluster_file;
pub mod computing;
pub mod condor;
pub mod elastic;
mod error;
pub mod node;
pub mod poseidon;
pub mod process;
pub mod shell;
pub mod slurm;
pub mod ssh;
pub mod state;
pub mod timeline;

pub use error::LaunchError;
