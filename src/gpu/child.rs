//! Looks for GPUs, and measures them, from a child process (`nodectl gpu-probe [--measure UUID]`,
//! hidden), so that a driver that crashes or hangs harms nobody. Owns that process and the line of
//! JSON that it answers with.

use super::{
    measure::measure,
    nvidia,
    presence::drivers_are_chosen,
    probe::{ProbeError, probe},
};
use data_encoding::HEXLOWER;
use nodectl_ports::{carried, drivers};
use nodectl_types::{Gpu, GpuRates};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, memfd_create},
    process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal},
};
use serde::de::DeserializeOwned;
use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// How much the child may write; more is cut off.
const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// How much of the child's stderr an error shows.
const SHOWN_STDERR_BYTES: usize = 2000;
/// How long a killed child may take to end. One stuck inside a driver's system call never does: it
/// is left behind.
const DEATH_LIMIT: Duration = Duration::from_secs(1);

/// The GPUs of this machine, software ones marked, or why they are not known. `drivers`: where a
/// driver's manifest is kept, should one have to be written. Each child that is asked has until
/// `deadline`; there are three at most. Needs a Tokio runtime; blocks one of its blocking threads,
/// not the caller.
pub async fn probe_in_child(drivers: &Path, deadline: Duration) -> Result<Vec<Gpu>, ProbeError> {
    let probe = |manifest| ask_nodectl(Vec::new(), manifest, deadline);
    if drivers_are_chosen() {
        return probe(None).await;
    }
    nvidia::repaired(drivers, Path::new("/"), probe).await
}

/// How fast the GPU with this UUID is. As `probe_in_child`; keeps the GPU busy for about a second.
pub async fn measure_in_child(
    uuid: [u8; 16],
    drivers: &Path,
    deadline: Duration,
) -> Result<GpuRates, ProbeError> {
    let arguments = vec!["--measure".into(), HEXLOWER.encode(&uuid)];
    ask_nodectl(arguments, drivers::manifest(drivers), deadline).await
}

/// The hidden subcommand of `nodectl` that looks for GPUs.
pub const PROBE_COMMAND: &str = "gpu-probe";

/// The body of `nodectl gpu-probe`: prints the result as one line of JSON. Always exits 0: the line
/// says what failed.
pub fn main(arguments: &[String]) -> ExitCode {
    // Without it, a hung driver would keep this process after its parent was killed.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let answer = match arguments {
        [] => serde_json::to_string(&probe()),
        [option, uuid] if option == "--measure" => serde_json::to_string(&measured(uuid)),
        other => serde_json::to_string(&Err::<(), _>(ProbeError::Spawn(format!(
            "unknown arguments {other:?}"
        )))),
    };
    let answer = answer.expect("plain data always encodes");
    // A driver may have written half a line before.
    match writeln!(io::stdout(), "\n{answer}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn measured(uuid: &str) -> Result<GpuRates, ProbeError> {
    let uuid = u128::from_str_radix(uuid, 16)
        .map_err(|error| ProbeError::Measure(format!("`{uuid}`: {error}")))?;
    measure(uuid.to_be_bytes()).map_err(|error| ProbeError::Measure(error.to_string()))
}

async fn ask_nodectl<T: DeserializeOwned + Send + 'static>(
    arguments: Vec<String>,
    manifest: Option<PathBuf>,
    deadline: Duration,
) -> Result<T, ProbeError> {
    let asked = tokio::task::spawn_blocking(move || {
        let program = carried::program().map_err(ProbeError::NoDrivers)?;
        let mut command = Command::new(program);
        command.arg0("nodectl").arg(PROBE_COMMAND).args(arguments);
        command.stdin(Stdio::null());
        command.envs(manifest.iter().flat_map(|path| drivers::variables(path)));
        ask(command, deadline)
    });
    asked
        .await
        .unwrap_or_else(|_| Err(ProbeError::Spawn("the node is stopping".into())))
}

/// Asks a part of this program that uses drivers, by its hidden command: `input` on its stdin, its
/// answer a line of JSON, `{"Ok": …}` or `{"Err": …}`. Blocks until the child has ended or
/// `deadline` has passed.
///
/// # Errors
/// What the part answers, or why there is no answer.
pub fn ask_in_child<T: DeserializeOwned>(
    arguments: &[&str],
    input: &[u8],
    deadline: Duration,
) -> Result<T, ProbeError> {
    let mut command = Command::new(carried::program().map_err(ProbeError::NoDrivers)?);
    command.arg0("nodectl").args(arguments);
    let read = file_in_memory(input).map_err(|error| ProbeError::Spawn(error.to_string()))?;
    command.stdin(read);
    ask(command, deadline)
}

/// A file with these bytes, open at its beginning.
fn file_in_memory(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("nodectl-input", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// Runs the command until it ends or `deadline` passes, and reads its answer.
fn ask<T: DeserializeOwned>(mut command: Command, deadline: Duration) -> Result<T, ProbeError> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let spawn_error = |error: io::Error| ProbeError::Spawn(error.to_string());
    let mut child = command.spawn().map_err(spawn_error)?;
    let collected = collect(&mut child, deadline);
    if !matches!(collected, Ok(Some(_))) {
        end(&mut child);
    }
    match collected.map_err(spawn_error)? {
        None => Err(ProbeError::TimedOut {
            limit_ms: deadline.as_millis() as u64,
        }),
        Some(output) => parse(&output),
    }
}

struct ChildOutput {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Reads both streams until the child has ended. `None`: it had not by the deadline. The end of the
/// child counts, not that of the streams: a driver may have started a helper that holds them open.
fn collect(child: &mut Child, deadline: Duration) -> io::Result<Option<ChildOutput>> {
    let end = Instant::now() + deadline;
    let death = watch_death(child)?;
    let mut stdout = child.stdout.take().expect("ask() pipes it");
    let mut stderr = child.stderr.take().expect("ask() pipes it");
    rustix::io::ioctl_fionbio(&stdout, true)?;
    rustix::io::ioctl_fionbio(&stderr, true)?;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let (mut out_open, mut err_open) = (true, true);
    loop {
        let mut fds = vec![PollFd::new(&death, PollFlags::IN)];
        if out_open {
            fds.push(PollFd::new(&stdout, PollFlags::IN));
        }
        if err_open {
            fds.push(PollFd::new(&stderr, PollFlags::IN));
        }
        let ready = wait_for_any(&mut fds, end)?;
        let ended = !fds[0].revents().is_empty();
        if !ready {
            return Ok(None);
        }
        out_open = out_open && drain(&mut stdout, &mut out)?;
        err_open = err_open && drain(&mut stderr, &mut err)?;
        if ended {
            return Ok(Some(ChildOutput {
                status: child.wait()?,
                stdout: out,
                stderr: err,
            }));
        }
    }
}

/// A descriptor that becomes readable when the child ends.
fn watch_death(child: &Child) -> io::Result<OwnedFd> {
    let pid = Pid::from_child(child);
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Whether one of them became ready before `end`.
fn wait_for_any(fds: &mut [PollFd<'_>], end: Instant) -> io::Result<bool> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(fds, Some(&timeout)) {
            Ok(count) => return Ok(count > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads what is there, keeps at most `MAX_OUTPUT_BYTES`. False at the end of the stream.
fn drain(from: &mut impl Read, kept: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => {
                let room = MAX_OUTPUT_BYTES - kept.len();
                kept.extend_from_slice(&buffer[..count.min(room)]);
                if room == 0 {
                    // Whoever writes this much is no probe: leave the pipe full, the deadline ends
                    // it.
                    return Ok(false);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Kills the child and reaps it, unless the kernel cannot end it.
fn end(child: &mut Child) {
    let _ = child.kill();
    let Ok(death) = watch_death(child) else {
        return;
    };
    let mut fds = [PollFd::new(&death, PollFlags::IN)];
    match wait_for_any(&mut fds, Instant::now() + DEATH_LIMIT) {
        Ok(true) => drop(child.wait()),
        _ => tracing::warn!(
            pid = child.id(),
            "a process stuck inside a Vulkan driver could not be ended"
        ),
    }
}

fn parse<T: DeserializeOwned>(output: &ChildOutput) -> Result<T, ProbeError> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let answer = stdout.lines().rev().find(|line| line.starts_with('{'));
    let answer = answer.and_then(|line| serde_json::from_str(line).ok());
    answer.unwrap_or_else(|| {
        let stderr =
            String::from_utf8_lossy(&output.stderr[..output.stderr.len().min(SHOWN_STDERR_BYTES)]);
        let stderr = if stderr.trim().is_empty() {
            "nothing".into()
        } else {
            stderr.trim().to_string()
        };
        Err(ProbeError::Crashed {
            status: output.status.to_string(),
            stderr,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::GpuKind;

    const PLENTY: Duration = Duration::from_secs(60);

    fn ask_shell(script: &str, deadline: Duration) -> Result<Vec<Gpu>, ProbeError> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        ask(command, deadline)
    }

    /// This test binary as `nodectl gpu-probe`, with the drivers that the variable names.
    fn ask_drivers(driver_files: Option<&str>) -> Result<Vec<Gpu>, ProbeError> {
        let mut command = Command::new("/proc/self/exe");
        command.args([
            "--exact",
            "child::tests::as_child",
            "--ignored",
            "--nocapture",
        ]);
        if let Some(files) = driver_files {
            command
                .env("VK_DRIVER_FILES", files)
                .env("VK_ICD_FILENAMES", files);
        }
        ask(command, PLENTY)
    }

    #[test]
    #[ignore = "not a test: the child of the tests below"]
    fn as_child() {
        main(&[]);
    }

    #[test]
    #[ignore = "not a test: the child of the one below"]
    fn as_measuring_child() {
        let uuid = std::env::var("MEASURED_UUID").unwrap();
        main(&["--measure".into(), uuid]);
    }

    /// This test binary as `nodectl gpu-probe --measure`.
    fn ask_rates(uuid: &str) -> Result<GpuRates, ProbeError> {
        let mut command = Command::new("/proc/self/exe");
        command.args([
            "--exact",
            "child::tests::as_measuring_child",
            "--ignored",
            "--nocapture",
        ]);
        let cache = tempfile::tempdir().unwrap();
        command.env("MEASURED_UUID", uuid);
        command.env("XDG_CACHE_HOME", cache.path());
        ask(command, PLENTY)
    }

    /// Lavapipe in the place of NVIDIA's library, found as the loader finds any.
    #[test]
    fn a_manifest_of_ours_brings_a_driver() {
        let directory = tempfile::tempdir().unwrap();
        let manifest = directory.path().join(drivers::MANIFEST);
        for (library, is_there) in [("libvulkan_lvp.so", true), ("libnothing.so.0", false)] {
            nvidia::write(&manifest, library).unwrap();
            let found = ask_drivers(manifest.to_str());
            if is_there && !Path::new("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json").exists() {
                eprintln!("SKIPPED: no software Vulkan driver here (Debian: mesa-vulkan-drivers)");
                continue;
            }
            assert_eq!(
                found.is_ok_and(|gpus| !gpus.is_empty()),
                is_there,
                "{library}"
            );
        }
    }

    #[test]
    fn a_gpu_is_measured() {
        let gpu = match ask_drivers(None) {
            Ok(gpus) if !gpus.is_empty() => gpus[0].clone(),
            other => return eprintln!("SKIPPED: no Vulkan here: {other:?}"),
        };
        let uuid = HEXLOWER.encode(&gpu.uuid);
        let rates = ask_rates(&uuid).unwrap();
        assert!(rates.copy_bytes_per_s > 0 && rates.gemm_f32_flops > 0 && rates.gemm_f16_flops > 0);
    }

    #[test]
    fn measuring_what_is_not_there_says_so() {
        let Err(ProbeError::Measure(why)) = ask_rates("0123456789abcdef0123456789abcdef") else {
            panic!()
        };
        assert!(why.starts_with("no "), "{why}");
        let Err(ProbeError::Measure(why)) = ask_rates("tea") else {
            panic!()
        };
        assert!(why.contains("`tea`"), "{why}");
    }

    #[test]
    fn software_devices_are_listed_and_marked() {
        let gpus = match ask_drivers(None) {
            Ok(gpus) => gpus,
            Err(error @ (ProbeError::NoLoader(_) | ProbeError::NoDriver)) => {
                return eprintln!("SKIPPED: no Vulkan here: {error}");
            }
            Err(other) => panic!("{other}"),
        };
        let Some(software) = gpus.iter().find(|gpu| gpu.name.contains("llvmpipe")) else {
            return eprintln!("SKIPPED: no lavapipe among {gpus:?}");
        };
        assert_eq!(software.kind, GpuKind::Software);
        assert_eq!(software.vendor, "Mesa");
        assert!(
            software.memory_bytes > 1 << 20
                && software.uuid != [0; 16]
                && !software.driver.is_empty()
        );
    }

    #[test]
    fn a_machine_without_driver_is_told_so() {
        match ask_drivers(Some("/nonexistent.json")) {
            Err(ProbeError::NoLoader(why)) => eprintln!("SKIPPED: no Vulkan loader here: {why}"),
            other => assert_eq!(other, Err(ProbeError::NoDriver)),
        }
    }

    #[test]
    fn a_hanging_driver_is_ended_at_the_deadline() {
        let before = Instant::now();
        let answer = ask_shell("exec sleep 1000", Duration::from_millis(50));
        assert_eq!(answer, Err(ProbeError::TimedOut { limit_ms: 50 }));
        assert!(before.elapsed() < PLENTY);
    }

    #[test]
    fn a_crash_shows_the_signal_and_what_was_written() {
        let crash = ask_shell("echo '{broken'; echo oh dear >&2; kill -SEGV $$", PLENTY);
        let Err(ProbeError::Crashed { status, stderr }) = crash else {
            panic!("{crash:?}")
        };
        assert!(status.contains("signal: 11"), "{status}");
        assert_eq!(stderr, "oh dear");
    }

    #[test]
    fn noise_of_drivers_and_helpers_that_live_on_do_no_harm() {
        let answer = ask_shell(
            "echo warning; echo '{\"Ok\":[]}'; echo bye; sleep 3 &",
            PLENTY,
        );
        assert_eq!(answer, Ok(Vec::new()));
    }

    #[test]
    fn a_flood_of_output_is_cut_off() {
        let flood = ask_shell("exec yes", Duration::from_millis(300));
        assert_eq!(flood, Err(ProbeError::TimedOut { limit_ms: 300 }));
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let missing = ask::<()>(Command::new("/nonexistent/nodectl"), PLENTY);
        assert!(matches!(missing, Err(ProbeError::Spawn(_))), "{missing:?}");
    }
}
