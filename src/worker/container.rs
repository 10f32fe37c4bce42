//! Commands inside of a container: Apptainer runs them, which has to be installed on the node. The container sees the task's own directory
//! and its job's inputs at their usual places, the task's GPUs, the network, and nothing else of the machine.

use std::path::{Path, PathBuf};

/// What runs `NAME.sif`.
const PROGRAM: &str = "apptainer";
/// Each vendor's driver is there if this is, and is handed into the container with that option.
const GPU_DRIVERS: [(&str, &str); 2] = [("/proc/driver/nvidia/version", "--nv"), ("/dev/kfd", "--rocm")];

/// The options for GPUs that a machine has. `has` says whether there is a file.
pub fn gpu_options(has: impl Fn(&Path) -> bool) -> Vec<&'static str> {
    GPU_DRIVERS.iter().filter(|(driver, _)| has(Path::new(driver))).map(|(_, option)| *option).collect()
}

/// `command` in the container of `image`, which is relative to the task's directory `dir`. `read` is what its links lead to.
pub fn wrap(image: &str, dir: &Path, read: &[PathBuf], gpus: &[&str], command: Vec<String>) -> Vec<String> {
    let shown = |path: &Path| path.to_string_lossy().into_owned();
    let mut words: Vec<String> = [PROGRAM, "exec", "--contain", "--no-home", "--pwd"].map(str::to_string).into();
    words.push(shown(dir));
    let mut bind = |binding: String| words.extend(["--bind".to_string(), binding]);
    bind(shown(dir));
    read.iter().for_each(|path| bind(format!("{0}:{0}:ro", shown(path))));
    words.extend(gpus.iter().map(|option| option.to_string()));
    words.push(shown(&dir.join(image)));
    words.extend(command);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_sees_what_is_the_tasks_and_its_gpus() {
        let words = wrap("a.sif", Path::new("/d/t"), &["/d/input".into()], &["--nv"], vec!["ls".into(), "-l".into()]);
        let expected = "apptainer exec --contain --no-home --pwd /d/t --bind /d/t --bind /d/input:/d/input:ro --nv /d/t/a.sif ls -l";
        assert_eq!(words.join(" "), expected);
        assert_eq!(wrap("/images/b.sif", Path::new("/d/t"), &[], &[], vec![])[8..], ["/images/b.sif"]);
        assert_eq!(gpu_options(|path| path.ends_with("version")), ["--nv"]);
        assert!(gpu_options(|_| false).is_empty());
    }
}
