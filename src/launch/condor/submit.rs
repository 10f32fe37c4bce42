//! The submit description, and the script that becomes a node. Pure, but for writing that script
//! down.

use crate::{
    LaunchError,
    node::{ClusterFacts, FORGET_NODE_SETTINGS, GPUS_BY_UUID, LaunchFacts},
    shell::{join, quote},
};
use std::{fs, path::PathBuf, time::Duration};

/// How long a removed job's node may take to give its work back, in seconds.
pub const VACATE: u32 = 25;
const SCRIPT: &str = "node.sh";

/// What is asked of HTCondor for each node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CondorRequest {
    pub time: Option<Duration>,
    pub cpus: Option<u32>,
    pub gpus: Option<u32>,
    /// Bytes.
    pub memory: Option<u64>,
    pub requirements: Option<String>,
    /// A script that prepares the environment and then executes its arguments.
    pub create_environment: Option<PathBuf>,
    /// Further lines, as submit descriptions have them.
    pub more: Vec<String>,
}

/// A launch's files and facts.
#[derive(Clone, Debug)]
pub struct CondorSubmission {
    pub launch: String,
    /// For the script and for logs.
    pub directory: PathBuf,
    pub secret_file: PathBuf,
    pub facts: ClusterFacts,
    pub node: LaunchFacts,
}

impl CondorSubmission {
    /// What `condor_submit` reads.
    pub fn description(&self, request: &CondorRequest, batch_name: &str, count: u32) -> String {
        let directory = self.directory.display();
        let mut files = vec![self.facts.binary.clone(), self.secret_file.clone()];
        files.extend(request.create_environment.clone());
        let files: Vec<String> = files
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let mut lines = vec![
            "universe = vanilla".to_string(),
            format!("executable = {directory}/{SCRIPT}"),
            "arguments = $(Cluster).$(Process)".into(),
            format!("transfer_input_files = {}", files.join(", ")),
            format!("encrypt_input_files = {}", file_name(&self.secret_file)),
            "should_transfer_files = YES".into(),
            "when_to_transfer_output = ON_EXIT".into(),
            "transfer_output_files = \"\"".into(),
            format!("output = {directory}/$(Cluster)_$(Process).log"),
            format!("error = {directory}/$(Cluster)_$(Process).err"),
            "stream_output = True".into(),
            "stream_error = True".into(),
            format!("log = {directory}/events.log"),
            "kill_sig = SIGTERM".into(),
            format!("job_max_vacate_time = {VACATE}"),
            format!("batch_name = {batch_name}"),
            format!("+NodectlLaunch = \"{}\"", self.launch),
        ];
        let mut option = |name: &str, value: Option<String>| {
            lines.extend(value.map(|value| format!("{name} = {value}")))
        };
        option("request_cpus", request.cpus.map(|cpus| cpus.to_string()));
        option(
            "request_gpus",
            request
                .gpus
                .filter(|gpus| *gpus > 0)
                .map(|gpus| gpus.to_string()),
        );
        // In MiB, as HTCondor counts.
        option(
            "request_memory",
            request
                .memory
                .map(|bytes| bytes.div_ceil(1 << 20).to_string()),
        );
        option(
            "allowed_job_duration",
            request.time.map(|time| time.as_secs().to_string()),
        );
        option("requirements", request.requirements.clone());
        lines.extend(request.more.iter().cloned());
        lines.push(format!("queue {count}\n"));
        lines.join("\n")
    }

    /// Writes the script where the description names it.
    pub fn write_script(&self, request: &CondorRequest) -> Result<(), LaunchError> {
        let path = self.directory.join(SCRIPT);
        fs::write(&path, self.script(request))
            .map_err(|source| LaunchError::Unwritable { path, source })
    }

    /// What runs on the machine that HTCondor found. The node leaves when its standard input ends:
    /// that also reaches it through the environment script.
    fn script(&self, request: &CondorRequest) -> String {
        let args = self.node.join_args(&self.facts);
        let args = join(args.iter().map(String::as_str));
        let cluster = quote(&self.facts.cluster);
        let binary = quote(&format!("./{}", file_name(&self.facts.binary)));
        let secret = quote(&file_name(&self.secret_file));
        let environment = request
            .create_environment
            .as_ref()
            .map(|path| quote(&format!("./{}", file_name(path))));
        let environment = environment.unwrap_or_default();
        let executable = format!("chmod 755 {binary} {environment}");
        let cores = request
            .cpus
            .map(|cpus| format!(" --cores {cpus}"))
            .unwrap_or_default();
        let memory = request
            .memory
            .map(|bytes| format!(" --memory '{bytes} B'"))
            .unwrap_or_default();
        let walltime = request
            .time
            .map(|time| format!(" --walltime {}s", time.as_secs()))
            .unwrap_or_default();
        format!(
            r#"#!/bin/sh
umask 077
{FORGET_NODE_SETTINGS}
cd "${{_CONDOR_SCRATCH_DIR:-.}}" || exit 1
{executable}
gpus=${{CUDA_VISIBLE_DEVICES:-${{ROCR_VISIBLE_DEVICES:-none}}}}
{GPUS_BY_UUID}
set -- {args} --label "member=$1" --name "$(uname -n)-$1" --gpus "$gpus"{cores}{memory}{walltime}
mkfifo alive || exit 1
NODECTL_CLUSTER__NAME={cluster} {environment} {binary} --data-dir "$PWD/node" "$@" --secret-file {secret} --while-stdin <alive &
node=$!
exec 3>alive
trap 'exec 3>&-' TERM INT
wait "$node"; status=$?
while kill -0 "$node" 2>/dev/null; do wait "$node"; status=$?; done
exit $status
"#
        )
    }
}

fn file_name(path: &std::path::Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submission() -> CondorSubmission {
        CondorSubmission {
            launch: "c0ffee00".into(),
            directory: "/d/launched/c0ffee00".into(),
            secret_file: "/d/launched/c0ffee00/secret".into(),
            facts: ClusterFacts {
                cluster: "lab".into(),
                launch: "c0ffee00".into(),
                binary: "/opt/nodectl".into(),
                ..ClusterFacts::default()
            },
            node: LaunchFacts::default(),
        }
    }

    #[test]
    fn the_description_transfers_all_that_a_node_needs() {
        let request = CondorRequest {
            cpus: Some(2),
            gpus: Some(1),
            memory: Some(1 << 30),
            time: Some(Duration::from_secs(3600)),
            create_environment: Some("/e/create_environment.sh".into()),
            more: vec!["+ProjectName = \"x\"".into()],
            ..CondorRequest::default()
        };
        let text = submission().description(&request, "nodectl-ab12", 3);
        for line in [
            "transfer_input_files = /opt/nodectl, /d/launched/c0ffee00/secret, /e/create_environment.sh",
            "encrypt_input_files = secret",
            "request_cpus = 2",
            "request_gpus = 1",
            "request_memory = 1024",
            "allowed_job_duration = 3600",
            "batch_name = nodectl-ab12",
            "+NodectlLaunch = \"c0ffee00\"",
            "+ProjectName = \"x\"",
            "queue 3",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in {text}");
        }
        let script = submission().script(&request);
        assert!(
            script.contains("./create_environment.sh ./nodectl --data-dir"),
            "{script}"
        );
        let checked = std::process::Command::new("sh")
            .args(["-n", "-c", &script])
            .status()
            .expect("there is a shell");
        assert!(checked.success(), "{script}");
    }
}
