//! `doctor`: what the node says about the swarm, and what any process on this machine can see for
//! itself.
//!
//! | file | owns |
//! |---|---|
//! | `mod` | this machine and its node; how findings are shown |
//! | `job` | what the nodes lack of what a job needs |
//! | `needs` | what a job needs |
//! | `probe` | how nodes are asked what they have |

mod job;
mod needs;
mod probe;

use super::{
    args::DoctorArgs,
    exit::{CliError, Exit, print},
    output::{self, Look},
    run, solo,
};
use anstyle::{AnsiColor, Style};
use nodectl_app as app;
use nodectl_app::settings::{Environment, SYSTEM_FILE, Settings};
use nodectl_http::{Client, ClientError};
use nodectl_types::{GpuKind, text, units::counted};
use nodectl_wire::api::{Device, Doctor, Finding, Severity};
use std::{
    fs, io,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use unicode_width::UnicodeWidthStr;

/// How long drivers may take to say what they have.
const PROBE: Duration = Duration::from_secs(10);
/// What Python workers run with unless their job says otherwise, and the oldest version that will
/// do.
const PYTHON: &str = "python3";
const OLDEST_PYTHON: (u32, u32) = (3, 9);
/// 2026-01-01 and 2100-01-01, in seconds since 1970: a clock outside has no battery or no time
/// server.
const SANE_CLOCK: std::ops::Range<u64> = 1_767_225_600..4_102_444_800;

/// Exits with 1 if something does not work.
pub async fn doctor(
    client: &Client,
    settings: &Settings,
    args: DoctorArgs,
) -> Result<Exit, CliError> {
    match &args.job_file {
        Some(file) => of_job(settings, file, args.json).await,
        None => show(&of_machine(client, settings).await?, args.json),
    }
}

/// Whether the nodes have what the jobs of a file need; where no node runs, this machine.
async fn of_job(settings: &Settings, file: &Path, json: bool) -> Result<Exit, CliError> {
    let jobs = nodectl_workloads::load(file)?;
    let (client, mut stay) = solo::connect(settings, true).await?;
    if let Some(node) = stay.own() {
        node.gpus_known().await;
    }
    let examined = async {
        let jobs = run::with_what_there_is(&client, Some(file), jobs, None).await?;
        job::examine(&client, &jobs).await
    };
    let examined = examined.await;
    stay.end().await;
    show(&examined?, json)
}

async fn of_machine(client: &Client, settings: &Settings) -> Result<Doctor, CliError> {
    let mut doctor = match client.doctor().await {
        Ok(doctor) => doctor,
        Err(error @ ClientError::Unreachable { .. }) => without_node(settings, &error),
        Err(error) => return Err(error.into()),
    };
    doctor.findings.push(clock(SystemTime::now()));
    let node = client.node().await.ok();
    match node.map(|node| PathBuf::from(node.data_dir)) {
        // The service, or another user's: what this user may write, and his settings, are not its.
        Some(place) if place != settings.node.data_dir => {
            let mut theirs = settings.clone();
            theirs.node.data_dir = place;
            let file = Path::new(SYSTEM_FILE);
            doctor.findings.push(isolation(&theirs, file));
        }
        Some(_) | None => {
            doctor.findings.push(data_dir(&settings.node.data_dir));
            let file = settings.cluster.secret_file.as_deref();
            doctor.findings.extend(file.map(secret_file));
            let file = Environment::of_process().own_file();
            doctor.findings.push(isolation(settings, &file));
        }
    }
    doctor.findings.push(gpus(&settings.node.data_dir).await);
    // Without a node none rests.
    let devices = client.devices().await.unwrap_or_default();
    doctor.findings.extend(devices.iter().filter_map(resting));
    doctor.findings.push(python(PYTHON).await);
    Ok(doctor)
}

/// Exits with 1 if something is wrong.
pub fn show(doctor: &Doctor, json: bool) -> Result<Exit, CliError> {
    print(&if json {
        output::document(doctor)
    } else {
        text(doctor, Look::of(&io::stdout()))
    })?;
    let works = doctor
        .findings
        .iter()
        .all(|finding| finding.severity != Severity::Problem);
    Ok(if works { Exit::Done } else { Exit::Failed })
}

/// What can be said of the network while no node uses it.
fn without_node(settings: &Settings, error: &ClientError) -> Doctor {
    let error_text = error.to_string();
    let (why, own) = text::split_hint(&error_text);
    let hint = own
        .filter(|_| error.is_forbidden_socket())
        .unwrap_or("`nodectl join` starts a node; `nodectl run` works without");
    let mut findings = vec![Finding::warning("node", why, hint)];
    findings.push(interfaces());
    findings.push(tcp_port(settings.network.port));
    if settings.network.beacon_port != 0 {
        findings.push(udp_port(settings.network.beacon_port));
    }
    Doctor {
        suite: None,
        findings,
    }
}

fn interfaces() -> Finding {
    let hint = "connect the machine to a network; nodes on this machine are found without one";
    match if_addrs::get_if_addrs() {
        Err(error) => Finding::problem(
            "network",
            format!("the interfaces cannot be listed: {error}"),
            hint,
        ),
        Ok(all) => {
            let usable: Vec<_> = all
                .iter()
                .filter(|one| !one.is_loopback())
                .map(|one| format!("{} {}", one.name, one.ip()))
                .collect();
            match usable.as_slice() {
                [] => Finding::warning("network", "no interface but loopback has an address", hint),
                some => Finding::ok("network", format!("interfaces: {}", some.join(", "))),
            }
        }
    }
}

fn tcp_port(port: u16) -> Finding {
    let what = if port == 0 {
        "a free TCP port".to_string()
    } else {
        format!("TCP port {port}")
    };
    match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
        Ok(_) => Finding::ok("port.swarm", format!("{what} can be listened on")),
        Err(error) => Finding::problem(
            "port.swarm",
            format!("{what} cannot be listened on: {error}"),
            "set network.port (--port) to 0 or to a free port; `ss -ltnp` shows who has it",
        ),
    }
}

fn udp_port(port: u16) -> Finding {
    match UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)) {
        Ok(_) => Finding::ok("port.beacon", format!("UDP port {port} is free")),
        // Nodes share it on purpose.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Finding::warning(
            "port.beacon",
            format!("UDP port {port} is in use"),
            "that is as it should be if another node runs here; if not, set network.beacon_port on every node",
        ),
        Err(error) => Finding::problem(
            "port.beacon",
            format!("UDP port {port} cannot be opened: {error}"),
            "set network.beacon_port to another port, the same on every node",
        ),
    }
}

fn clock(now: SystemTime) -> Finding {
    let seconds = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    if SANE_CLOCK.contains(&seconds) {
        return Finding::ok("clock", "shows a sane time");
    }
    let message = format!("shows {seconds} s since 1970, which cannot be right");
    Finding::warning(
        "clock",
        message,
        "set it, or run a time server's client; times in listings are wrong until then",
    )
}

fn data_dir(path: &Path) -> Finding {
    let hint = "choose another with --data-dir or node.data_dir, or give this user the right to write there";
    let failed = |error: io::Error| {
        Finding::problem(
            "data_dir",
            format!("{} cannot be written: {error}", path.display()),
            hint,
        )
    };
    let trial = || -> io::Result<()> {
        app::make_private_dir(path)?;
        let file = path.join(format!(".doctor-{}", std::process::id()));
        let written = fs::write(&file, b"nodectl doctor");
        let _ = fs::remove_file(&file);
        written
    };
    match trial() {
        Ok(()) => Finding::ok("data_dir", format!("{} can be written", path.display())),
        Err(error) => failed(error),
    }
}

fn secret_file(path: &Path) -> Finding {
    match fs::metadata(path) {
        Err(error) => Finding::problem(
            "secret",
            format!("{} cannot be read: {error}", path.display()),
            "write the cluster's secret there, or change cluster.secret_file",
        ),
        Ok(metadata) if metadata.permissions().mode() & 0o077 != 0 => {
            let hint = format!("chmod 600 {}", path.display());
            Finding::warning(
                "secret",
                format!("others may read {}", path.display()),
                hint,
            )
        }
        Ok(_) => Finding::ok("secret", format!("{} is there and private", path.display())),
    }
}

/// Whether tasks can reach what is the node's alone; `file` is where its settings are.
pub fn isolation(settings: &Settings, file: &Path) -> Finding {
    match app::why_node_is_open(settings) {
        None => Finding::ok(
            "isolation",
            "tasks gain no rights; the node's secret, files and API are hidden from them (Landlock)",
        ),
        Some(why) => Finding::warning(
            "isolation",
            format!("tasks can read the node's secret and files: {why}"),
            format!(
                "only run what you trust, or change [isolation] in {}; a data directory such as /var/lib/nodectl can be hidden",
                file.display()
            ),
        ),
    }
}

async fn gpus(data_dir: &Path) -> Finding {
    let nvidia = app::nvidia_version().map(|version| nvidia_hint(&version));
    match app::probe_gpus(data_dir, PROBE).await {
        Ok(gpus) => {
            let real: Vec<_> = gpus
                .iter()
                .filter(|gpu| gpu.kind != GpuKind::Software)
                .map(|gpu| gpu.name.as_str())
                .collect();
            match real.as_slice() {
                [] => Finding::warning(
                    "gpu",
                    "no GPU",
                    nvidia.as_deref().unwrap_or(
                        "if there is one, install its Vulkan driver; everything but GPU work runs without",
                    ),
                ),
                some => Finding::ok("gpu", some.join(", ")),
            }
        }
        Err(why) => {
            let (why, hint) = text::split_hint(&why);
            let usual = "install libvulkan1 and the GPU's Vulkan driver, if it has one";
            Finding::warning("gpu", why, nvidia.as_deref().or(hint).unwrap_or(usual))
        }
    }
}

/// A GPU that is not used for a while, since its driver gave it up.
fn resting(device: &Device) -> Option<Finding> {
    device.gpu.rests.then(|| {
        Finding::warning(
            "gpu",
            format!(
                "{} on {}: {}",
                device.gpu.name, device.node_name, device.gpu.why
            ),
            "`dmesg` on that machine says what the driver saw: a watchdog, heat, a fault; where it \
             happens again and again, look at cooling, power and the driver's version",
        )
    })
}

/// What is missing where NVIDIA's kernel module is loaded and none of its GPUs can be used.
fn nvidia_hint(version: &str) -> String {
    let series = version.split('.').next().unwrap_or(version);
    format!(
        "NVIDIA's kernel module {version} is loaded, so there is a GPU, but its Vulkan driver does not answer: install \
         nvidia-vulkan-icd (Debian), libnvidia-gl-{series} (Ubuntu) or nvidia-driver-libs (Fedora, Red Hat), and \
         libvulkan1; a container has to be started with NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility"
    )
}

async fn python(program: &str) -> Finding {
    let hint = "Python workers need it: install it on this machine, or name another with `python` in the job";
    let (answer, answered) = tokio::sync::oneshot::channel();
    let mut asked = Command::new(program);
    asked.arg("--version").stdin(Stdio::null());
    // A thread that this process need not wait for, should the program hang.
    std::thread::spawn(move || drop(answer.send(asked.output())));
    let output = match tokio::time::timeout(PROBE, answered).await {
        Ok(Ok(Ok(output))) => output,
        Ok(Ok(Err(error))) => {
            return Finding::warning("python", format!("{program} cannot be run: {error}"), hint);
        }
        Ok(Err(_)) | Err(_) => {
            return Finding::warning(
                "python",
                format!("{program} does not say its version"),
                hint,
            );
        }
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let said = said.lines().next().unwrap_or_default().trim();
    let version = || {
        let (major, rest) = said.strip_prefix("Python ")?.split_once('.')?;
        Some((
            major.parse::<u32>().ok()?,
            rest.split('.').next()?.parse::<u32>().ok()?,
        ))
    };
    match version() {
        Some(version) if version >= OLDEST_PYTHON => {
            Finding::ok("python", format!("{program} is {said}"))
        }
        Some(_) => Finding::warning(
            "python",
            format!("{program} is {said}; workers need 3.9"),
            hint,
        ),
        None => Finding::warning(
            "python",
            format!("{program} does not say its version, but {said:?}"),
            hint,
        ),
    }
}

/// Findings below each other, the problems first, and how many of them there are.
fn text(doctor: &Doctor, look: Look) -> String {
    let findings = &doctor.findings;
    let widest = |finding: &Finding| finding.check.width();
    let check = findings.iter().map(widest).max().unwrap_or_default();
    let mut text = String::new();
    for severity in [Severity::Problem, Severity::Warning, Severity::Ok] {
        for finding in findings.iter().filter(|one| one.severity == severity) {
            let margin = MARK + check + GAP;
            let mark = mark(severity, look.colour);
            let pad = " ".repeat(check - finding.check.width() + GAP);
            let message = look.wrap(&finding.message, margin);
            text += &format!("{mark}{}{pad}{message}", text::one_line(&finding.check));
            if let Some(hint) = &finding.hint {
                let margin = margin + "hint: ".len();
                let hint = look.wrap(hint, margin);
                text += &format!("{}hint: {hint}", " ".repeat(margin - "hint: ".len()));
            }
        }
    }
    let count = |severity| {
        findings
            .iter()
            .filter(|one| one.severity == severity)
            .count()
    };
    let (problems, notes) = (count(Severity::Problem), count(Severity::Warning));
    text += &format!(
        "{}, {}\n",
        counted(problems, "problem"),
        counted(notes, "note")
    );
    if let Some(suite) = &doctor.suite {
        let words = format!("messages between nodes are encrypted: {suite}");
        text += &look.wrap(&words, 0);
    }
    text
}

/// Width of the first column with its gap, and of other gaps.
const MARK: usize = 9;
const GAP: usize = 2;

fn mark(severity: Severity, colour: bool) -> String {
    let (word, hue) = match severity {
        Severity::Ok => ("ok", AnsiColor::Green),
        Severity::Warning => ("note", AnsiColor::Yellow),
        Severity::Problem => ("PROBLEM", AnsiColor::Red),
    };
    let style = match colour {
        true => Style::new().fg_color(Some(hue.into())),
        false => Style::new(),
    };
    format!("{style}{word}{style:#}{}", " ".repeat(MARK - word.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_say_what_to_do() {
        assert_eq!(clock(UNIX_EPOCH).severity, Severity::Warning);
        assert_eq!(
            clock(UNIX_EPOCH + Duration::from_secs(1_800_000_000)).severity,
            Severity::Ok
        );
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(
            data_dir(&directory.path().join("new")).severity,
            Severity::Ok
        );
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(data_dir(&file.join("below")).severity, Severity::Problem);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(secret_file(&file).severity, Severity::Warning);
        assert_eq!(
            secret_file(&directory.path().join("none")).severity,
            Severity::Problem
        );
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        assert_eq!(
            tcp_port(listener.local_addr().unwrap().port()).severity,
            Severity::Problem
        );
        assert_eq!(tcp_port(0).severity, Severity::Ok);
    }

    #[tokio::test]
    async fn an_interpreter_is_what_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let program = |name: &str, says: &str| {
            let path = directory.path().join(name);
            fs::write(&path, format!("#!/bin/sh\necho {says}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path.to_str().unwrap().to_string()
        };
        for (says, severity) in [
            ("Python 3.12.1", Severity::Ok),
            ("Python 3.8.2", Severity::Warning),
            ("hello", Severity::Warning),
        ] {
            assert_eq!(
                python(&program(&says.replace(' ', "-"), says))
                    .await
                    .severity,
                severity,
                "{says}"
            );
        }
        assert_eq!(
            python("/nonexistent/python3").await.severity,
            Severity::Warning
        );
    }

    #[test]
    fn problems_come_first_and_lines_fit() {
        let findings = vec![
            Finding::ok("clock", "shows a sane time"),
            Finding::warning("discovery.mdns", "it does not work", "allow it"),
            Finding::problem(
                "secret",
                "3 nodes here do not share this secret, and so keep apart from this one",
                "join them with this node's secret, if they belong to the cluster",
            ),
        ];
        let suite = Some("noise".into());
        let look = Look {
            width: Some(80),
            colour: false,
        };
        insta::assert_snapshot!(text(&Doctor { suite, findings }, look), @r"
        PROBLEM  secret          3 nodes here do not share this secret, and so keep
                                 apart from this one
                                 hint: join them with this node's secret, if they belong
                                       to the cluster
        note     discovery.mdns  it does not work
                                 hint: allow it
        ok       clock           shows a sane time
        1 problem, 1 note
        messages between nodes are encrypted: noise
        ");
    }
}
