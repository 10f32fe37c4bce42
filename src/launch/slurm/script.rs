//! Options of `sbatch`, and the script that becomes a node. Pure.

use crate::launch::{
    node::{ClusterFacts, FORGET_NODE_SETTINGS, GPUS_BY_UUID, NodeFacts},
    shell::{join, quote},
};
use std::{path::PathBuf, time::Duration};

/// What is asked of SLURM for each node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    pub partition: Option<String>,
    pub account: Option<String>,
    pub time: Option<Duration>,
    pub cpus: Option<u32>,
    pub gpus: Option<u32>,
    /// Bytes.
    pub memory: Option<u64>,
    /// One job of many nodes, which start together or not at all.
    pub together: bool,
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
    pub node: NodeFacts,
    pub together: bool,
}

impl Request {
    pub fn sbatch_args(&self, job_name: &str, script: &Script, count: u32) -> Vec<String> {
        let mut args: Vec<String> = vec!["--parsable".into(), format!("--job-name={job_name}")];
        args.push(format!("--comment={}", super::queue::comment(&script.launch)));
        if self.together {
            args.extend([format!("--nodes={count}"), format!("--ntasks={count}"), "--ntasks-per-node=1".into()]);
            args.push(format!("--output={}/%j.log", script.directory.display()));
        } else {
            args.extend([format!("--array=0-{}", count - 1), "--nodes=1".into(), "--ntasks=1".into()]);
            args.push(format!("--output={}/%A_%a.log", script.directory.display()));
        }
        let mut option =
            |name: &str, value: Option<String>| args.extend(value.map(|value| format!("--{name}={value}")));
        option("partition", self.partition.clone());
        option("account", self.account.clone());
        option("time", self.time.map(super::queue::format_time));
        option("cpus-per-task", self.cpus.map(|cpus| cpus.to_string()));
        option("gpus-per-node", self.gpus.filter(|gpus| *gpus > 0).map(|gpus| gpus.to_string()));
        // SLURM's M is MiB.
        option("mem", self.memory.map(|bytes| format!("{}M", bytes.div_ceil(1 << 20))));
        args.extend(self.more.iter().cloned());
        args
    }
}

impl Script {
    /// What `sbatch` reads. The secret is in a file that only the user may read.
    pub fn text(&self) -> String {
        let args = self.node.join_args(&self.facts);
        let args = join(args.iter().map(String::as_str));
        let binary = quote(&self.facts.binary.display().to_string());
        let secret = quote(&self.secret_file.display().to_string());
        let cluster = quote(&self.facts.cluster);
        let node = format!(
            r#"umask 077
for f in {binary} {secret}; do
  [ -r "$f" ] || {{ echo "$f is not on $(uname -n): this program and the data directory must be on a file system that SLURM's nodes share" >&2; exit 1; }}
done
{FORGET_NODE_SETTINGS}
dir=$(mktemp -d "${{SLURM_TMPDIR:-${{TMPDIR:-/tmp}}}}/nodectl.XXXXXX") || exit 1
node=
trap '[ -z "$node" ] || kill -TERM "$node" 2>/dev/null' TERM INT
member=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
member=${{member:-$SLURM_JOB_ID.$SLURM_NODEID}}
gpus=${{CUDA_VISIBLE_DEVICES:-${{ROCR_VISIBLE_DEVICES:-none}}}}
{GPUS_BY_UUID}
memory=${{SLURM_MEM_PER_NODE:-$((${{SLURM_MEM_PER_CPU:-0}} * ${{SLURM_CPUS_ON_NODE:-0}}))}}
left=$(squeue -h -j "$SLURM_JOB_ID" -o %L 2>/dev/null | head -n 1)
set -- {args} --label "member=$member" --name "${{SLURMD_NODENAME:-$(uname -n)}}-$SLURM_JOB_ID"
set -- "$@" --gpus "$gpus" --secret-file {secret}
[ -z "$SLURM_CPUS_ON_NODE" ] || set -- "$@" --cores "$SLURM_CPUS_ON_NODE"
[ "$memory" = 0 ] || set -- "$@" --memory "${{memory}}MiB"
[ -z "$left" ] || set -- "$@" --walltime "$left"
NODECTL_CLUSTER__NAME={cluster} {binary} --data-dir "$dir" "$@" </dev/null &
node=$!
wait "$node"; status=$?
# A signal interrupts the wait: the node leaves, which takes a moment.
while kill -0 "$node" 2>/dev/null; do wait "$node"; status=$?; done
rm -rf "$dir"
exit $status"#
        );
        if self.together {
            let step = quote(&node);
            // `srun` hands a signal on to every node.
            format!(
                "#!/bin/sh\ntrap 'kill -TERM \"$step\" 2>/dev/null' TERM\nsrun --kill-on-bad-exit=0 sh -c {step} &\nstep=$!\n\
                 wait \"$step\"; status=$?\nwhile kill -0 \"$step\" 2>/dev/null; do wait \"$step\"; status=$?; done\nexit $status\n"
            )
        } else {
            format!("#!/bin/sh\n{node}\n")
        }
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
            },
            node: NodeFacts::default(),
            together,
        }
    }

    #[test]
    fn flags_become_sbatchs_own() {
        let request = Request {
            partition: Some("gpu".into()),
            time: Some(Duration::from_secs(3600)),
            cpus: Some(8),
            gpus: Some(1),
            memory: Some(3 << 30),
            more: vec!["--constraint=a100".into()],
            ..Request::default()
        };
        let args = request.sbatch_args("nodectl-ab12", &script(false), 4).join(" ");
        assert_eq!(
            args,
            "--parsable --job-name=nodectl-ab12 --comment=nodectl:c0ffee00 --array=0-3 --nodes=1 --ntasks=1 \
             --output=/d/launched/c0ffee00/%A_%a.log --partition=gpu --time=0-01:00:00 --cpus-per-task=8 \
             --gpus-per-node=1 --mem=3072M --constraint=a100"
        );
        let together = Request { together: true, ..Request::default() };
        let args = together.sbatch_args("n", &script(true), 4).join(" ");
        assert!(args.contains("--nodes=4 --ntasks=4 --ntasks-per-node=1"), "{args}");
    }

    #[test]
    fn a_node_that_does_not_see_the_program_says_so() {
        let run = std::process::Command::new("sh").args(["-c", &script(false).text()]).output();
        let run = run.expect("there is a shell");
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(run.status.code() == Some(1) && said.starts_with("/opt/nodectl is not on "), "{said}");
    }

    #[test]
    fn scripts_are_shell_and_have_no_secret() {
        for together in [false, true] {
            let text = script(together).text();
            assert!(text.contains("--peer 192.0.2.1:7000") && text.contains("/d/launched/c0ffee00/secret"), "{text}");
            let checked =
                std::process::Command::new("sh").args(["-n", "-c", &text]).status().expect("there is a shell");
            assert!(checked.success(), "{text}");
        }
    }
}
