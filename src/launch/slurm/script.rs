//! Options of `sbatch`, and the script that becomes a node. Pure.

use crate::{
    node::{ClusterFacts, FORGET_NODE_SETTINGS, GPUS_BY_UUID, LaunchFacts},
    shell::{join, quote},
};
use std::{path::PathBuf, time::Duration};

/// What is asked of SLURM for each node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlurmRequest {
    pub partition: Option<String>,
    pub account: Option<String>,
    pub time: Option<Duration>,
    pub cpus: Option<u32>,
    pub gpus: Option<u32>,
    /// Bytes.
    pub memory: Option<u64>,
    /// One job of many nodes, which start together or not at all.
    pub together: bool,
    /// The allocation's nodes see no files of this machine: they are sent what they need.
    pub transfer: bool,
    /// Further options, as `sbatch` has them.
    pub more: Vec<String>,
}

/// The script of a launch.
#[derive(Clone, Debug)]
pub struct Script {
    pub launch: String,
    /// Where logs go; on a file system that the nodes see.
    pub directory: PathBuf,
    pub secret_file: PathBuf,
    pub facts: ClusterFacts,
    pub node: LaunchFacts,
    pub together: bool,
    /// The program's SHA-256, in hex, if it and the secret are sent.
    pub sent: Option<String>,
}

/// Where a job's nodes get what they are sent: there is a `/tmp` everywhere. `job` is SLURM's
/// number of it, or what stands for it.
pub fn sent_to(launch: &str, job: &str) -> String {
    format!("/tmp/nodectl-{launch}-{job}")
}

/// How often a job looks for what it is sent, each 0.2 s.
const TRIES: u32 = 600;

/// The sealed secret, beside the program; sent last.
pub const SEALED: &str = ".sealed";

/// Lines of shell that set `socket` to the MUNGE that SLURM uses, if that is not the usual one.
const MUNGE_SOCKET: &str = "socket=$(scontrol show config 2>/dev/null | sed -n 's/^AuthInfo.*socket=\\([^ ,]*\\).*/\\1/p' | head -n 1)";

impl SlurmRequest {
    pub fn sbatch_args(&self, job_name: &str, script: &Script, count: u32) -> Vec<String> {
        let mut args: Vec<String> = vec!["--parsable".into(), format!("--job-name={job_name}")];
        args.push(format!(
            "--comment={}",
            super::queue::comment(&script.launch)
        ));
        let log = if self.together {
            args.extend([
                format!("--nodes={count}"),
                format!("--ntasks={count}"),
                "--ntasks-per-node=1".into(),
            ]);
            "%j.log"
        } else {
            args.extend([
                format!("--array=0-{}", count - 1),
                "--nodes=1".into(),
                "--ntasks=1".into(),
            ]);
            "%A_%a.log"
        };
        args.push(match self.transfer {
            true => format!("--output={}.log", sent_to(&script.launch, "%j")),
            false => format!("--output={}/{log}", script.directory.display()),
        });
        args.extend(self.transfer.then(|| "--chdir=/tmp".to_string()));
        let mut option = |name: &str, value: Option<String>| {
            args.extend(value.map(|value| format!("--{name}={value}")))
        };
        option("partition", self.partition.clone());
        option("account", self.account.clone());
        option("time", self.time.map(super::queue::format_time));
        option("cpus-per-task", self.cpus.map(|cpus| cpus.to_string()));
        option(
            "gpus-per-node",
            self.gpus
                .filter(|gpus| *gpus > 0)
                .map(|gpus| gpus.to_string()),
        );
        // SLURM's M is MiB.
        option(
            "mem",
            self.memory
                .map(|bytes| format!("{}M", bytes.div_ceil(1 << 20))),
        );
        args.extend(self.more.iter().cloned());
        args
    }
}

impl Script {
    /// What `sbatch` reads. The secret is in a file that only the user may read.
    pub fn text(&self) -> String {
        let args = self.node.join_args(&self.facts);
        let args = join(args.iter().map(String::as_str));
        let cluster = quote(&self.facts.cluster);
        let alive = if self.together {
            "--while-stdin <&3"
        } else {
            "</dev/null"
        };
        // Nobody comes for the log of a node that went well.
        let log = self
            .sent
            .as_ref()
            .map(|_| format!("[ $status != 0 ] || rm -f {}.log", self.sent_here()));
        let forget = log.unwrap_or_default();
        let (look, take) = match &self.sent {
            None => (self.look_for_files(), String::new()),
            Some(hash) => (String::new(), self.wait_for_files(hash)),
        };
        let node = format!(
            r#"umask 077
{look}
{FORGET_NODE_SETTINGS}
dir=$(mktemp -d "${{SLURM_TMPDIR:-${{TMPDIR:-/tmp}}}}/nodectl.XXXXXX" 2>/dev/null || mktemp -d /tmp/nodectl.XXXXXX) || exit 1
{take}
node=
trap '[ -z "$node" ] || kill -TERM "$node" 2>/dev/null' TERM INT
member=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
member=${{member:-$SLURM_JOB_ID.$SLURM_NODEID}}
gpus=${{CUDA_VISIBLE_DEVICES:-${{ROCR_VISIBLE_DEVICES:-none}}}}
{GPUS_BY_UUID}
memory=${{SLURM_MEM_PER_NODE:-$((${{SLURM_MEM_PER_CPU:-0}} * ${{SLURM_CPUS_ON_NODE:-0}}))}}
left=$(squeue -h -j "$SLURM_JOB_ID" -o %L 2>/dev/null | head -n 1)
set -- {args} --label "member=$member" --name "${{SLURMD_NODENAME:-$(uname -n)}}-$SLURM_JOB_ID"
set -- "$@" --gpus "$gpus" --secret-file "$secret"
[ -z "$SLURM_CPUS_ON_NODE" ] || set -- "$@" --cores "$SLURM_CPUS_ON_NODE"
[ "$memory" = 0 ] || set -- "$@" --memory "${{memory}}MiB"
[ -z "$left" ] || set -- "$@" --walltime "$left"
NODECTL_CLUSTER__NAME={cluster} "$program" --data-dir "$dir" "$@" {alive} &
node=$!
wait "$node"; status=$?
# A signal interrupts the wait: the node leaves, which takes a moment.
while kill -0 "$node" 2>/dev/null; do wait "$node"; status=$?; done
rm -rf "$dir"
{forget}
exit $status"#
        );
        if self.together {
            // A signal makes `srun` kill the nodes: they leave when their standard input ends,
            // which it hands on.
            let step = quote(&format!("exec 3<&0\n{node}"));
            format!(
                r#"#!/bin/sh
d=$(mktemp -d /tmp/nodectl.XXXXXX) && mkfifo "$d/alive" || exit 1
srun --kill-on-bad-exit=0 sh -c {step} <"$d/alive" &
step=$!
exec 3>"$d/alive"
trap 'exec 3>&-' TERM INT
wait "$step"; status=$?
while kill -0 "$step" 2>/dev/null; do wait "$step"; status=$?; done
rm -rf "$d"
exit $status
"#
            )
        } else {
            format!("#!/bin/sh\n{node}\n")
        }
    }

    /// Shell that sets `program` and `secret` to files that this machine and the job's share.
    fn look_for_files(&self) -> String {
        let [program, secret] =
            [&self.facts.binary, &self.secret_file].map(|path| quote(&path.display().to_string()));
        format!(
            r#"program={program} secret={secret}
for f in "$program" "$secret"; do
  [ -r "$f" ] || {{ echo "$f is not on $(uname -n): SLURM's nodes do not share this file system; --transfer sends them what they need" >&2; exit 1; }}
done"#
        )
    }

    /// Shell that sets them to what the launcher sends once the job runs. Whoever sends something
    /// else is not heard: the files are to be this user's, the program is known by its hash, and
    /// only this user can open the secret's seal.
    fn wait_for_files(&self, hash: &str) -> String {
        let (at, sealed) = (self.sent_here(), format!("{}{SEALED}", self.sent_here()));
        format!(
            r#"program=$dir/nodectl secret=$dir/sent
trap 'rm -rf "$dir" {at} {sealed}; exit 1' TERM INT
{MUNGE_SOCKET}
i=0
# MUNGE says of a seal that was opened before, elsewhere, that it was, and opens it all the same.
until [ -O {sealed} ] && {{ unmunge ${{socket:+"--socket=$socket"}} -m /dev/null -i {sealed} >"$secret" 2>/dev/null; [ -s "$secret" ]; }}; do
  i=$((i + 1))
  [ $i -lt {TRIES} ] || {{ echo "nobody sent the program to $(uname -n): 'nodectl up' has to run when the job starts" >&2; rm -rf "$dir"; exit 1; }}
  sleep 0.2
done
[ -O {at} ] && mv {at} "$program" && chmod 700 "$program" && h=$(sha256sum <"$program") && [ "${{h%% *}}" = {hash} ] || {{ echo "what was sent to $(uname -n) is not the program" >&2; exit 1; }}
rm -f {sealed}"#
        )
    }

    fn sent_here(&self) -> String {
        sent_to(&self.launch, "$SLURM_JOB_ID")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(together: bool) -> Script {
        Script {
            launch: "c0ffee00".into(),
            directory: "/d/launched/c0ffee00".into(),
            secret_file: "/d/launched/c0ffee00/secret".into(),
            facts: ClusterFacts {
                cluster: "lab".into(),
                peers: vec!["192.0.2.1:7000".into()],
                launch: "c0ffee00".into(),
                binary: "/opt/nodectl".into(),
                weak_secret: false,
            },
            node: LaunchFacts::default(),
            together,
            sent: None,
        }
    }

    #[test]
    fn flags_become_sbatchs_own() {
        let request = SlurmRequest {
            partition: Some("gpu".into()),
            time: Some(Duration::from_secs(3600)),
            cpus: Some(8),
            gpus: Some(1),
            memory: Some(3 << 30),
            more: vec!["--constraint=a100".into()],
            ..SlurmRequest::default()
        };
        let args = request
            .sbatch_args("nodectl-ab12", &script(false), 4)
            .join(" ");
        assert_eq!(
            args,
            "--parsable --job-name=nodectl-ab12 --comment=nodectl:c0ffee00 --array=0-3 --nodes=1 --ntasks=1 \
             --output=/d/launched/c0ffee00/%A_%a.log --partition=gpu --time=0-01:00:00 --cpus-per-task=8 \
             --gpus-per-node=1 --mem=3072M --constraint=a100"
        );
        let transfer = SlurmRequest {
            transfer: true,
            ..SlurmRequest::default()
        };
        let args = transfer.sbatch_args("n", &script(false), 4).join(" ");
        assert!(
            args.ends_with("--output=/tmp/nodectl-c0ffee00-%j.log --chdir=/tmp"),
            "{args}"
        );
        let together = SlurmRequest {
            together: true,
            ..SlurmRequest::default()
        };
        let args = together.sbatch_args("n", &script(true), 4).join(" ");
        assert!(
            args.contains("--nodes=4 --ntasks=4 --ntasks-per-node=1"),
            "{args}"
        );
    }

    #[test]
    fn a_node_that_does_not_see_the_program_says_so() {
        let run = std::process::Command::new("sh")
            .args(["-c", &script(false).text()])
            .output();
        let run = run.expect("there is a shell");
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(
            run.status.code() == Some(1) && said.starts_with("/opt/nodectl is not on "),
            "{said}"
        );
    }

    #[test]
    fn scripts_are_shell_and_have_no_secret() {
        for (together, sent) in [(false, false), (true, false), (false, true), (true, true)] {
            let text = Script {
                sent: sent.then(|| "ab".repeat(32)),
                ..script(together)
            }
            .text();
            assert!(text.contains("--peer 192.0.2.1:7000"), "{text}");
            assert_eq!(
                text.contains("/d/launched/c0ffee00/secret"),
                !sent,
                "{text}"
            );
            let checked = std::process::Command::new("sh")
                .args(["-n", "-c", &text])
                .status()
                .expect("there is a shell");
            assert!(checked.success(), "{text}");
        }
    }
}
