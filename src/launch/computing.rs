//! Computing modes (Nabu, chapter Computing; ESRF integrator, section
//! `[computations distribution]`): how many parameter servers and workers, with how many threads
//! and which share of a GPU, and on whose machines. A mode is a TOML file, chosen with
//! `run --computing FILE` or `computing = "FILE"` in a job file.

use super::{
    LaunchError,
    cluster_file::{line_of, read},
    condor, slurm,
};
use nodectl_types::units::{counted, parse_bytes, parse_duration};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Integrator's: workers in an allocation of SLURM, and threads of each.
const WORKERS_PER_ALLOCATION: u32 = 8;
const CORES_PER_WORKER: u32 = 4;
/// Workers and servers; each is a process with a connection.
const MAX_COUNT: u32 = 100_000;
/// Integrator's word for "no SLURM, but this machine".
const LOCAL: &str = "local";

/// On whose machines.
#[derive(Clone, Debug, PartialEq)]
pub enum Machines {
    /// This machine.
    Here,
    /// The hosts of a cluster file.
    Hosts(PathBuf),
    Slurm(slurm::SlurmRequest),
    Condor(condor::CondorRequest),
}

/// A computing mode.
#[derive(Clone, Debug, PartialEq)]
pub struct Computing {
    pub machines: Machines,
    pub parameter_servers: u32,
    /// Nodes or allocations to start; 1 here, ignored for a cluster file, which has its own lines.
    pub allocations: u32,
    /// Workers on each of them.
    pub workers_per_allocation: u32,
    pub cores_per_worker: u32,
    /// Workers that share a GPU.
    pub workers_per_gpu: u32,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum System {
    Standard,
    Slurm,
    Condor,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum ComputingMode {
    NonDistributed,
    SingleMachine,
    MultiMachine,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ComputingFile {
    system: System,
    mode: ComputingMode,
    parameter_servers: Option<u32>,
    n_workers: Option<u32>,
    cores_per_worker: Option<u32>,
    workers_per_gpu: Option<u32>,
    workers_per_allocation: Option<u32>,
    cluster_file: Option<PathBuf>,
    #[serde(default)]
    slurm: SlurmTable,
    #[serde(default)]
    condor: CondorTable,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SlurmTable {
    partition: Option<String>,
    account: Option<String>,
    time: Option<String>,
    gpus_per_node: Option<u32>,
    memory: Option<String>,
    together: bool,
    transfer: bool,
    options: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CondorTable {
    time: Option<String>,
    gpus_per_node: Option<u32>,
    memory: Option<String>,
    requirements: Option<String>,
    create_environment: Option<PathBuf>,
    lines: Vec<String>,
}

pub fn load(path: &Path) -> Result<Computing, LaunchError> {
    let base = path.parent().unwrap_or(Path::new("")).to_path_buf();
    parse(&read(path)?, &path.display().to_string(), &base)
}

/// `base`: the directory to which the file's paths are relative.
pub fn parse(text: &str, name: &str, base: &Path) -> Result<Computing, LaunchError> {
    let file: ComputingFile = toml::from_str(text).map_err(|error| {
        let place = error.span().map_or_else(
            || name.to_string(),
            |span| format!("{name}:{}", line_of(text, span.start)),
        );
        LaunchError::bad_file(place, error.message().to_string(), None)
    })?;
    let bad = |key: &str, problem: String| {
        let line = text
            .lines()
            .position(|line| line.trim_start().starts_with(key));
        let place = line.map_or_else(|| name.to_string(), |line| format!("{name}:{}", line + 1));
        LaunchError::bad_file(place, problem, None)
    };
    file.into_computing(base)
        .map_err(|(key, problem)| bad(key, problem))
}

type ModeProblem = (&'static str, String);

impl ComputingFile {
    fn into_computing(self, base: &Path) -> Result<Computing, ModeProblem> {
        for (key, value) in [
            ("n_workers", self.n_workers),
            ("cores_per_worker", self.cores_per_worker),
            ("workers_per_gpu", self.workers_per_gpu),
            ("workers_per_allocation", self.workers_per_allocation),
        ] {
            if value.is_some_and(|value| !(1..=MAX_COUNT).contains(&value)) {
                return Err((
                    key,
                    format!("`{key}` is a whole number from 1 to {MAX_COUNT}"),
                ));
            }
        }
        if self
            .parameter_servers
            .is_some_and(|count| count > MAX_COUNT)
        {
            return Err((
                "parameter_servers",
                format!("`parameter_servers` is at most {MAX_COUNT}"),
            ));
        }
        let scheduled =
            self.system != System::Standard && self.slurm.partition.as_deref() != Some(LOCAL);
        let workers = self.n_workers.unwrap_or(1);
        let (allocations, workers_per_allocation) = match (self.mode, scheduled) {
            (ComputingMode::NonDistributed, _) => (1, 1),
            (ComputingMode::MultiMachine, true) => {
                let default = if self.system == System::Slurm {
                    WORKERS_PER_ALLOCATION
                } else {
                    1
                };
                (workers, self.workers_per_allocation.unwrap_or(default))
            }
            _ => (1, workers),
        };
        if self.mode == ComputingMode::NonDistributed && workers != 1 {
            return Err((
                "n_workers",
                "a computation that is not distributed has 1 worker".into(),
            ));
        }
        let default_cores = if self.system == System::Slurm {
            CORES_PER_WORKER
        } else {
            1
        };
        let cores_per_worker = self.cores_per_worker.unwrap_or(default_cores);
        let cpus = workers_per_allocation.saturating_mul(cores_per_worker);
        let workers_per_gpu =
            self.workers_per_gpu
                .unwrap_or(if scheduled { workers_per_allocation } else { 1 });
        let (parameter_servers, mode) = (self.parameter_servers.unwrap_or(0), self.mode);
        let machines = self.machines(
            base,
            scheduled,
            mode,
            cpus,
            workers_per_allocation.div_ceil(workers_per_gpu),
        )?;
        Ok(Computing {
            machines,
            parameter_servers,
            allocations,
            workers_per_allocation,
            cores_per_worker,
            workers_per_gpu,
        })
    }

    fn machines(
        self,
        base: &Path,
        scheduled: bool,
        mode: ComputingMode,
        cpus: u32,
        gpus: u32,
    ) -> Result<Machines, ModeProblem> {
        match self.cluster_file {
            Some(_) if self.system != System::Standard || mode != ComputingMode::MultiMachine => {
                let problem = "only `system = \"standard\"` with `mode = \"multi_machine\"` reads a cluster file";
                return Err(("cluster_file", problem.into()));
            }
            Some(file) => return Ok(Machines::Hosts(base.join(file))),
            None if self.system == System::Standard && mode == ComputingMode::MultiMachine => {
                let problem = "several machines need `cluster_file = \"FILE\"`, which names them";
                return Err(("mode", problem.into()));
            }
            None => {}
        }
        Ok(match self.system {
            System::Slurm if scheduled => Machines::Slurm(slurm::SlurmRequest {
                partition: self.slurm.partition,
                account: self.slurm.account,
                time: quantity("time", self.slurm.time, parse_duration)?,
                cpus: Some(cpus),
                gpus: Some(self.slurm.gpus_per_node.unwrap_or(gpus)),
                memory: quantity("memory", self.slurm.memory, parse_bytes)?,
                together: self.slurm.together,
                transfer: self.slurm.transfer,
                more: self.slurm.options,
            }),
            System::Condor => Machines::Condor(condor::CondorRequest {
                time: quantity("time", self.condor.time, parse_duration)?,
                cpus: Some(cpus),
                gpus: Some(self.condor.gpus_per_node.unwrap_or(gpus)),
                memory: quantity("memory", self.condor.memory, parse_bytes)?,
                requirements: self.condor.requirements,
                create_environment: self.condor.create_environment.map(|path| base.join(path)),
                more: self.condor.lines,
            }),
            System::Standard | System::Slurm => Machines::Here,
        })
    }
}

fn quantity<T, E: std::fmt::Display>(
    key: &'static str,
    text: Option<String>,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, ModeProblem> {
    text.map(|text| read(&text))
        .transpose()
        .map_err(|error| (key, error.to_string()))
}

impl Computing {
    /// All workers, where the mode itself says how many there are.
    pub fn workers(&self) -> u64 {
        u64::from(self.allocations) * u64::from(self.workers_per_allocation)
    }

    pub fn cores_per_allocation(&self) -> u32 {
        self.workers_per_allocation
            .saturating_mul(self.cores_per_worker)
    }

    /// What is asked for in all, before anything is submitted, for so many workers.
    pub fn total(&self, workers: u64) -> String {
        let Self {
            allocations,
            workers_per_allocation,
            cores_per_worker,
            ..
        } = self;
        if matches!(self.machines, Machines::Here | Machines::Hosts(_)) {
            let each = counted(u64::from(*cores_per_worker), "core");
            let all = counted(workers * u64::from(*cores_per_worker), "core");
            return format!("{} with {each} each: {all}", counted(workers, "worker"));
        }
        let gpus = match &self.machines {
            Machines::Slurm(request) => request.gpus,
            Machines::Condor(request) => request.gpus,
            Machines::Here | Machines::Hosts(_) => None,
        };
        let gpus = gpus
            .filter(|gpus| *gpus > 0)
            .map(|gpus| u64::from(gpus) * u64::from(*allocations))
            .map(|gpus| format!(", {}", counted(gpus, "GPU")));
        format!(
            "{} of {} with {} each: {}, {}{}",
            counted(*allocations, "allocation"),
            counted(*workers_per_allocation, "worker"),
            counted(*cores_per_worker, "core"),
            counted(workers, "worker"),
            counted(workers * u64::from(*cores_per_worker), "core"),
            gpus.unwrap_or_default()
        )
    }

    /// What to say where there are more workers than GPUs.
    pub fn gpu_warning(&self, workers: u64, gpus: u64) -> Option<String> {
        let room = gpus * u64::from(self.workers_per_gpu);
        (workers > room).then(|| {
            let left = workers - room;
            match gpus {
                0 => format!("no GPU was found: {} without one", counted(left, "worker")),
                _ => format!(
                    "room for {} on {}, {} on each: {left} of {} without a GPU",
                    counted(room, "worker"),
                    counted(gpus, "GPU"),
                    self.workers_per_gpu,
                    counted(workers, "worker")
                ),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn read(text: &str) -> Result<Computing, String> {
        parse(text, "c.toml", Path::new("/base")).map_err(|error| error.to_string())
    }

    #[test]
    fn shipped_modes_are_what_their_names_say() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/computing");
        for system in ["standard", "slurm", "condor"] {
            for mode in ["non_distributed", "single_machine", "multi_machine"] {
                let path = folder.join(system).join(format!("{mode}.toml"));
                let computing = load(&path).unwrap_or_else(|error| panic!("{error}"));
                let fits = match (system, mode, &computing.machines) {
                    ("standard", "multi_machine", Machines::Hosts(file)) => {
                        file.ends_with("cluster.csv")
                    }
                    ("standard", _, Machines::Here)
                    | ("slurm", _, Machines::Slurm(_))
                    | ("condor", _, Machines::Condor(_)) => true,
                    _ => false,
                };
                assert!(fits, "{}: {computing:?}", path.display());
                assert_eq!(
                    mode == "non_distributed",
                    computing.workers() == 1
                        && mode != "multi_machine"
                        && computing.parameter_servers == 0,
                    "{}",
                    path.display()
                );
            }
        }
    }

    #[test]
    fn in_slurm_n_workers_counts_allocations_of_eight_workers_with_four_cores() {
        let computing =
            read("system = 'slurm'\nmode = 'multi_machine'\nn_workers = 4\n[slurm]\npartition = 'p9gpu'\ntime = '1h'")
                .unwrap();
        assert_eq!((computing.allocations, computing.workers()), (4, 32));
        assert_eq!(
            computing.total(computing.workers()),
            "4 allocations of 8 workers with 4 cores each: 32 workers, 128 cores, 4 GPUs"
        );
        let Machines::Slurm(request) = computing.machines else {
            panic!("{computing:?}")
        };
        assert_eq!(
            (request.cpus, request.gpus, request.time),
            (Some(32), Some(1), Some(Duration::from_secs(3600)))
        );
        let local = read("system = 'slurm'\nmode = 'multi_machine'\nn_workers = 4\ncores_per_worker = 2\n[slurm]\npartition = 'local'").unwrap();
        assert_eq!(local.total(4), "4 workers with 2 cores each: 8 cores");
        assert_eq!(local.total(1), "1 worker with 2 cores each: 2 cores");
        assert_eq!(
            (
                local.machines.clone(),
                local.workers(),
                local.cores_per_allocation()
            ),
            (Machines::Here, 4, 8)
        );
    }

    #[test]
    fn more_workers_than_gpus_are_warned_about() {
        let computing = read(
            "system = 'standard'\nmode = 'single_machine'\nn_workers = 5\nworkers_per_gpu = 2",
        )
        .unwrap();
        assert_eq!(computing.gpu_warning(5, 3), None);
        let warning = computing.gpu_warning(5, 2).unwrap();
        assert_eq!(
            warning,
            "room for 4 workers on 2 GPUs, 2 on each: 1 of 5 workers without a GPU"
        );
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, said) in [
            (
                "system = 'standard'\nmode = 'multi_machine'",
                "c.toml:2: several machines need `cluster_file",
            ),
            (
                "system = 'slrum'\nmode = 'multi_machine'",
                "c.toml:1: unknown variant `slrum`",
            ),
            (
                "system = 'standard'\nmode = 'single_machine'\nn_wrokers = 1",
                "c.toml:3: unknown field `n_wrokers`",
            ),
            (
                "system = 'standard'\nmode = 'single_machine'\nn_workers = 0",
                "c.toml:3: `n_workers` is a whole number from 1",
            ),
            (
                "system = 'condor'\nmode = 'non_distributed'\n[condor]\ntime = 'soon'",
                "c.toml:4: `soon` is not a duration",
            ),
            (
                "system = 'condor'\nmode = 'single_machine'\ncluster_file = 'x'",
                "c.toml:3: only",
            ),
            ("mode = 'single_machine'", "missing field `system`"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(said), "{text}: {error}");
        }
        assert_eq!(
            read("system='standard'\nmode='multi_machine'\ncluster_file='x.csv'")
                .unwrap()
                .machines,
            Machines::Hosts("/base/x.csv".into())
        );
    }
}
