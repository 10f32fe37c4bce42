//! What a task finds in its environment: a clean base, the job's own variables, ours.

use super::{
    attempt,
    error::WorkerError,
    isolation, package,
    protocol::{TASK_DIR_VARIABLE, WORKER_DIR_VARIABLE},
};
use data_encoding::HEXLOWER;
use nodectl_ports::drivers::{self, DRIVERS};
use nodectl_types::{StartTask, gang::HOSTFILE_VARIABLE, servers};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder},
    io,
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
};

/// The hosts of a gang, in the directory of each of its processes.
pub const HOSTFILE: &str = ".nodectl-hosts";
/// Where Python finds modules.
const PYTHONPATH: &str = "PYTHONPATH";
/// Variables that a task inherits from the node. A list of what may pass, not of what may not: the
/// rest may hold secrets.
const INHERITED: [&str; 19] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "XDG_RUNTIME_DIR",
    "XDG_CACHE_HOME",
    "XDG_DATA_DIRS",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    // Not all of that name: there are keys of NVIDIA's services among them.
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_TF32_OVERRIDE",
];
/// Variables with a user and a password, or where they name no user: what stands before the `@` is
/// a password.
const PROXIES: [&str; 6] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
];
/// Families of such variables: locale, Python, numerical libraries, GPU stacks.
const INHERITED_PREFIXES: [&str; 12] = [
    "LC_",
    "PYTHON",
    "CONDA_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "CUDA_",
    "ROCM_",
    "HIP_",
    "VK_",
    "MESA_",
    "OCL_",
];

/// What tasks of every job find.
pub struct BaseEnvironment {
    /// The part of this process's environment that tasks inherit, and where they find what is in
    /// the data directory.
    pub variables: BTreeMap<OsString, OsString>,
    /// The Python package that this program carries, as Python finds it.
    pub package: PathBuf,
    /// Where the manifest of a GPU's driver is, if the Vulkan loader does not know of it by itself.
    pub drivers: PathBuf,
}

impl BaseEnvironment {
    pub fn home(&self) -> Option<&OsStr> {
        self.variables
            .get(OsStr::new("HOME"))
            .map(OsString::as_os_str)
    }
}

/// `data_dir` is absolute, without links.
pub fn base(data_dir: &Path) -> Result<BaseEnvironment, WorkerError> {
    let mut base = inherited(std::env::vars_os());
    // A service's home is its data directory, which is no place for tasks.
    if let Some(home) = base.get_mut(OsStr::new("HOME"))
        && Path::new(home)
            .canonicalize()
            .is_ok_and(|home| home.starts_with(data_dir))
    {
        let own = data_dir.join(isolation::HOME);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&own);
        made.map_err(|source| WorkerError::Io {
            doing: "make tasks' home",
            path: own.clone(),
            source,
        })?;
        *home = own.into();
    }
    base.insert(
        servers::SOCKET_VARIABLE.into(),
        data_dir.join(servers::SOCKET).into(),
    );
    let package = package::place(data_dir).map_err(|source| WorkerError::Io {
        doing: "write the Python package to",
        path: data_dir.to_path_buf(),
        source,
    })?;
    Ok(BaseEnvironment {
        variables: base,
        package,
        drivers: data_dir.join(DRIVERS),
    })
}

fn inherited(all: impl Iterator<Item = (OsString, OsString)>) -> BTreeMap<OsString, OsString> {
    let passes = |name: &OsStr, value: &OsStr| {
        let name = name.to_string_lossy();
        INHERITED.contains(&&*name)
            || INHERITED_PREFIXES
                .iter()
                .any(|prefix| name.starts_with(prefix))
            || (PROXIES.contains(&&*name) && !value.as_bytes().contains(&b'@'))
    };
    all.filter(|(name, value)| passes(name, value)).collect()
}

/// The variables that each call of a persistent worker changes, without those of the job.
pub const OF_CALL: [&str; 3] = ["NODECTL_TASK_ID", "NODECTL_ATTEMPT", TASK_DIR_VARIABLE];

/// `NAME=value` for everything that a persistent worker gets: what a task does, and how it reaches
/// its node.
pub fn of_worker(
    base: &BaseEnvironment,
    own: &[(String, String)],
    task: &StartTask,
    dir: &Path,
    (socket, token): (&Path, &str),
) -> Vec<Vec<u8>> {
    let mut env = of_task(base, own, task, dir);
    let mut set = |name: &str, value: &[u8]| env.push([name.as_bytes(), b"=", value].concat());
    set(WORKER_DIR_VARIABLE, dir.as_os_str().as_bytes());
    set("NODECTL_WORKER_SOCKET", socket.as_os_str().as_bytes());
    set("NODECTL_WORKER_TOKEN", token.as_bytes());
    env
}

/// `NAME=value` for everything that a task gets. `own` are the job's variables, expanded.
pub fn of_task(
    base: &BaseEnvironment,
    own: &[(String, String)],
    task: &StartTask,
    dir: &Path,
) -> Vec<Vec<u8>> {
    let mut env = base.variables.clone();
    env.extend(own.iter().map(|(name, value)| (name.into(), value.into())));
    // Whatever the job says: these are ours, and the secret is nobody's.
    env.retain(|name, _| !name.as_bytes().starts_with(b"NODECTL_"));
    // An image has a Python, and a path, of its own; workers have stand-ins for the package.
    if task.work.isolation.image.is_none() && task.work.worker.is_none() {
        let path = env.get(OsStr::new(PYTHONPATH)).map(OsString::as_os_str);
        let path = package::before(&base.package, path);
        env.insert(PYTHONPATH.into(), path);
    }
    let mut set = |name: &str, value: OsString| env.insert(name.into(), value);
    // Tasks that train together find each other through their node.
    if let Some((name, value)) = own.iter().find(|(name, _)| name == servers::VARIABLE) {
        set(name, value.into());
        if let Some(socket) = base.variables.get(OsStr::new(servers::SOCKET_VARIABLE)) {
            set(servers::SOCKET_VARIABLE, socket.clone());
        }
    }
    set("NODECTL_JOB_ID", task.job.to_string().into());
    set("NODECTL_TASK_ID", task.task.to_string().into());
    set(
        "NODECTL_ATTEMPT",
        task.whole_attempt().number.to_string().into(),
    );
    set(TASK_DIR_VARIABLE, dir.into());
    if let Some(states) = &task.work.checkpoint_dir {
        set("NODECTL_CHECKPOINT_DIR", dir.join(states).into());
    }
    if let Some(place) = &task.place {
        let run = attempt::whole_name(task.job, task.task, place.attempt);
        for (name, value) in place.variables(&run) {
            set(name, value.into());
        }
        set(HOSTFILE_VARIABLE, dir.join(HOSTFILE).into());
    }
    for (name, value) in gpu_variables(&task.gpus, Path::new("/sys/bus/pci/devices")) {
        set(name, value.into());
    }
    let has_gpus = !task.gpus.is_empty();
    let manifest = has_gpus.then(|| drivers::manifest(&base.drivers)).flatten();
    for (name, path) in manifest.iter().flat_map(|path| drivers::variables(path)) {
        set(name, path.into());
    }
    env.into_iter()
        .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
        .collect()
}

/// The hosts of a gang, where its variable says.
pub fn write_hosts(dir: &Path, task: &StartTask) -> io::Result<()> {
    match &task.place {
        Some(place) => fs::write(dir.join(HOSTFILE), place.hostfile()),
        None => Ok(()),
    }
}

/// Variables whose programs are those of an environment at `prefix`, before all others.
pub fn with_python(env: Vec<Vec<u8>>, prefix: &Path) -> Vec<Vec<u8>> {
    let unset: [&[u8]; 5] = [
        b"PATH=",
        b"VIRTUAL_ENV=",
        b"PYTHONHOME=",
        b"PYTHONNOUSERSITE=",
        b"CONDA_",
    ];
    let is_kept = |variable: &Vec<u8>| !unset.iter().any(|name| variable.starts_with(name));
    let path = env
        .iter()
        .rev()
        .find_map(|variable| variable.strip_prefix(b"PATH="))
        .unwrap_or(b"/usr/local/bin:/usr/bin:/bin")
        .to_vec();
    let prefix = prefix.as_os_str().as_bytes();
    let mut env: Vec<Vec<u8>> = env.into_iter().filter(is_kept).collect();
    env.push([b"PATH=", prefix, b"/bin:", &path].concat());
    env.push([b"VIRTUAL_ENV=", prefix].concat());
    // What its user installed for another Python of that version is not part of it.
    env.push(b"PYTHONNOUSERSITE=1".to_vec());
    env
}

/// What programs find that make an environment at `root`: what tasks inherit, without what is of
/// another Python, and what the node's owner set for pip and uv, unless it has a password.
pub fn with_node_tools(base: &BTreeMap<OsString, OsString>, root: &Path) -> Vec<Vec<u8>> {
    let is_of_python = |name: &OsStr| {
        let name = name.to_string_lossy();
        name.starts_with("PYTHON") || name.starts_with("CONDA_") || name.starts_with("NODECTL_")
    };
    let mut env: BTreeMap<OsString, OsString> = base
        .iter()
        .filter(|(name, _)| !is_of_python(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let is_of_tools = |name: &OsStr, value: &OsStr| {
        let name = name.to_string_lossy();
        let is_secret = ["PASSWORD", "TOKEN", "USERNAME", "CREDENTIALS"]
            .iter()
            .any(|word| name.contains(word));
        (name.starts_with("PIP_") || name.starts_with("UV_"))
            && !is_secret
            && !value.as_bytes().contains(&b'@')
    };
    env.extend(std::env::vars_os().filter(|(name, value)| is_of_tools(name, value)));
    let own = [
        ("PIP_NO_INPUT", OsString::from("1")),
        ("NO_COLOR", "1".into()),
        ("UV_NO_PROGRESS", "1".into()),
        ("UV_PYTHON_INSTALL_DIR", root.join("python").into()),
    ];
    env.extend(own.map(|(name, value)| (name.into(), value)));
    env.into_iter()
        .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
        .collect()
}

/// The names in a task's environment of which its machine's own differs.
pub fn own_names(base: &BaseEnvironment, env: &[Vec<u8>]) -> Vec<String> {
    let split = |variable: &[u8]| {
        let end = variable
            .iter()
            .position(|byte| *byte == b'=')
            .unwrap_or(variable.len());
        (
            OsStr::from_bytes(&variable[..end]).to_owned(),
            variable.get(end + 1..).unwrap_or_default().to_vec(),
        )
    };
    let is_own = |(name, value): &(OsString, Vec<u8>)| {
        base.variables
            .get(name)
            .is_none_or(|of_base| of_base.as_bytes() != value)
    };
    let own = env.iter().map(|variable| split(variable)).filter(is_own);
    own.map(|(name, _)| name.to_string_lossy().into_owned())
        .collect()
}

/// Shows a task its GPUs and hides the others. An empty list hides all of them.
fn gpu_variables(gpus: &[[u8; 16]], pci_devices: &Path) -> Vec<(&'static str, String)> {
    let list = |names: Vec<String>| names.join(",");
    let cuda = list(
        gpus.iter()
            .map(|uuid| format!("GPU-{}", hyphenated(uuid)))
            .collect(),
    );
    let mut variables = vec![
        ("CUDA_VISIBLE_DEVICES", cuda),
        (
            "NODECTL_GPU_UUID",
            list(gpus.iter().map(hyphenated).collect()),
        ),
    ];
    // ROCm has ids of its own. One that it does not know would hide every card, so none is given
    // where none is found.
    let rocm: Option<Vec<String>> = gpus
        .iter()
        .map(|uuid| rocm_name(uuid, pci_devices))
        .collect();
    variables.extend(rocm.map(|names| ("ROCR_VISIBLE_DEVICES", list(names))));
    variables
}

fn hyphenated(uuid: &[u8; 16]) -> String {
    let hex = HEXLOWER.encode(uuid);
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// Mesa's driver for AMD makes a device's UUID of its PCI address (`ac_compute_device_uuid`:
/// domain, bus, device, function, a native `u32` each); the kernel has the id that ROCm goes by at
/// that address.
fn rocm_name(uuid: &[u8; 16], pci_devices: &Path) -> Option<String> {
    let part = |at: usize| u32::from_ne_bytes(uuid[at..at + 4].try_into().expect("four bytes"));
    let address = format!(
        "{:04x}:{:02x}:{:02x}.{:x}",
        part(0),
        part(4),
        part(8),
        part(12)
    );
    let id = std::fs::read_to_string(pci_devices.join(address).join("unique_id")).ok()?;
    Some(format!("GPU-{}", id.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_strangers_do_not_pass() {
        let all = [
            "PATH",
            "LC_ALL",
            "NODECTL_SECRET",
            "AWS_SECRET_ACCESS_KEY",
            "PYTHONPATH",
        ];
        let passed = inherited(
            all.iter()
                .map(|name| (OsString::from(name), OsString::from("x"))),
        );
        assert_eq!(
            passed.keys().collect::<Vec<_>>(),
            ["LC_ALL", "PATH", "PYTHONPATH"]
        );
        let all = [
            ("NVIDIA_API_KEY", "k"),
            ("NVIDIA_VISIBLE_DEVICES", "all"),
            ("http_proxy", "http://me:pass@proxy:3128"),
            ("https_proxy", "http://proxy:3128"),
        ];
        let passed = inherited(all.iter().map(|(name, value)| (name.into(), value.into())));
        assert_eq!(
            passed.keys().collect::<Vec<_>>(),
            ["NVIDIA_VISIBLE_DEVICES", "https_proxy"]
        );
    }

    #[test]
    fn cuda_sees_the_cards_granted_and_none_without_any() {
        let nowhere = Path::new("/nonexistent");
        let uuid = [0xab, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        let variables = gpu_variables(&[uuid], nowhere);
        assert_eq!(variables[0].1, "GPU-ab010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(variables[1].1, "ab010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(
            variables.len(),
            2,
            "an id unknown to ROCm would hide every card"
        );
        let none = gpu_variables(&[], nowhere);
        assert!(none.len() == 3 && none.iter().all(|(_, value)| value.is_empty()));
    }

    #[test]
    fn rocm_goes_by_the_kernels_id_of_the_card() {
        let devices = tempfile::tempdir().unwrap();
        let device = devices.path().join("0000:03:00.0");
        std::fs::create_dir(&device).unwrap();
        std::fs::write(device.join("unique_id"), "d7a1c0ffee123456\n").unwrap();
        let mut uuid = [0; 16];
        uuid[4..8].copy_from_slice(&3u32.to_ne_bytes());
        let variables = gpu_variables(&[uuid], devices.path());
        assert_eq!(
            variables[2],
            ("ROCR_VISIBLE_DEVICES", "GPU-d7a1c0ffee123456".into())
        );
    }
}
