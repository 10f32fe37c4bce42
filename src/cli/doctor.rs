//! `doctor`: what the node says about the swarm, and what any process on this machine can see for
//! itself.

use super::{
    exit::{CliError, Exit, print},
    output,
};
use nodectl_app as app;
use nodectl_app::settings::Settings;
use nodectl_http::{Client, ClientError};
use nodectl_types::GpuKind;
use nodectl_wire::api::{Doctor, Finding, Severity};
use std::{
    fs, io,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

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
pub async fn doctor(client: &Client, settings: &Settings, json: bool) -> Result<Exit, CliError> {
    let mut doctor = match client.doctor().await {
        Ok(doctor) => doctor,
        Err(error @ ClientError::Unreachable { .. }) => without_node(settings, &error),
        Err(error) => return Err(error.into()),
    };
    doctor.findings.push(clock(SystemTime::now()));
    doctor.findings.push(data_dir(&settings.node.data_dir));
    doctor
        .findings
        .extend(settings.cluster.secret_file.as_deref().map(secret_file));
    doctor.findings.push(isolation(settings));
    doctor.findings.push(gpus().await);
    doctor.findings.push(python(PYTHON).await);
    show(&doctor, json)
}

/// Exits with 1 if something is wrong.
pub fn show(doctor: &Doctor, json: bool) -> Result<Exit, CliError> {
    print(&if json {
        output::document(doctor)
    } else {
        text(doctor)
    })?;
    let works = doctor
        .findings
        .iter()
        .all(|finding| finding.severity != Severity::Problem);
    Ok(if works { Exit::Done } else { Exit::Failed })
}

/// What can be said of the network while no node uses it.
fn without_node(settings: &Settings, error: &ClientError) -> Doctor {
    let why = error.to_string();
    let why = why.lines().next().unwrap_or_default();
    let mut findings = vec![Finding::warning(
        "node",
        why,
        "`nodectl join` starts a node; `nodectl run` works without",
    )];
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
    let hint = "connect the machine to a network; nodes on this machine are found all the same";
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

/// Whether tasks can reach what is the node's alone.
pub fn isolation(settings: &Settings) -> Finding {
    match app::why_node_is_open(settings) {
        None => Finding::ok(
            "isolation",
            "tasks gain no rights; the node's secret, files and API are hidden from them (Landlock)",
        ),
        Some(why) => Finding::warning(
            "isolation",
            format!("tasks can read the node's secret and files: {why}"),
            "only run what you trust, or see [isolation] in config/nodectl.toml; a data directory such as /var/lib/nodectl can be hidden",
        ),
    }
}

async fn gpus() -> Finding {
    match app::probe_gpus(PROBE).await {
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
                    "if there is one, install its Vulkan driver; everything but GPU work runs without",
                ),
                some => Finding::ok("gpu", some.join(", ")),
            }
        }
        Err(why) => Finding::warning(
            "gpu",
            why,
            "install libvulkan1 and the GPU's Vulkan driver, if it has one",
        ),
    }
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

fn text(doctor: &Doctor) -> String {
    let mut text = String::new();
    for finding in &doctor.findings {
        let mark = match finding.severity {
            Severity::Ok => "ok      ",
            Severity::Warning => "warning ",
            Severity::Problem => "PROBLEM ",
        };
        text += &format!("{mark} {}: {}\n", finding.check, finding.message);
        if let Some(hint) = &finding.hint {
            text += &format!("         hint: {hint}\n");
        }
    }
    if let Some(suite) = &doctor.suite {
        text += &format!("the wire is protected by {suite}\n");
    }
    text
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
    fn the_text_has_a_line_a_finding_and_its_hint() {
        let findings = vec![
            Finding::ok("clock", "shows a sane time"),
            Finding::problem("secret", "3 nodes differ", "join them"),
        ];
        insta::assert_snapshot!(text(&Doctor { suite: Some("noise".into()), findings }), @r"
        ok       clock: shows a sane time
        PROBLEM  secret: 3 nodes differ
                 hint: join them
        the wire is protected by noise
        ");
    }
}
