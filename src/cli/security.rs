//! `doctor --security`: what holds on this machine of what `docs/internals/security.md` promises.

use super::{doctor, place, secret};
use nodectl_app as app;
use nodectl_app::settings::{Environment, Settings};
use nodectl_http::Client;
use nodectl_types::units::counted;
use nodectl_wire::api::{Doctor, Finding, Membership};
use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
};
use zeroize::Zeroizing;

/// Fewer descriptors than this, and a flood of strangers is felt by the node's own work.
const ENOUGH_DESCRIPTORS: u64 = 4096;

pub async fn examine(
    client: &Client,
    settings: &Settings,
    variable: Option<Zeroizing<String>>,
) -> Doctor {
    let node = client.node().await.ok();
    let suite = match &node {
        Some(node) if !node.solo => client.doctor().await.ok().and_then(|doctor| doctor.suite),
        _ => None,
    };
    let mut findings = vec![handshake(suite.as_deref()), strength(settings, variable)];
    if suite.is_some() {
        findings.extend(client.membership().await.iter().flat_map(membership));
    }
    findings.push(directory(&settings.node.data_dir));
    findings.push(socket(&place::socket(settings)));
    findings.extend(
        node.iter()
            .flat_map(|node| process(Path::new("/proc"), node.pid)),
    );
    let file = Environment::of_process().own_file();
    findings.push(doctor::isolation(settings, &file));
    Doctor { suite, findings }
}

fn handshake(suite: Option<&str>) -> Finding {
    match suite {
        Some(suite) => Finding::ok("security.handshake", suite),
        None => Finding::warning(
            "security.handshake",
            "no member of a cluster runs here",
            "`nodectl join` starts one",
        ),
    }
}

/// How much guessing the secret withstands, if it can be seen from here.
fn strength(settings: &Settings, variable: Option<Zeroizing<String>>) -> Finding {
    const CHECK: &str = "security.secret";
    let known = match secret::of_this_machine(variable, settings) {
        Ok(known) => known,
        Err(error) => {
            return Finding::warning(
                CHECK,
                error.to_string(),
                "this user need not be able to read it",
            );
        }
    };
    let Some(secret) = known else {
        let hint = "give it as `join` was given it (NODECTL_SECRET, cluster.secret_file) to have it judged";
        return Finding::warning(CHECK, "it is not kept where this command looks", hint);
    };
    let bits = app::secret_strength(&secret.text);
    match app::secret_weakness(&secret.text) {
        None => Finding::ok(
            CHECK,
            format!("it withstands some 2^{bits} guesses at 64 MiB each"),
        ),
        Some(why) => Finding::problem(
            CHECK,
            format!("it is easy to guess: {why}"),
            "nodectl secret rotate",
        ),
    }
}

fn membership(membership: &Membership) -> Vec<Finding> {
    let mode = match membership.approve {
        true => "nodes that have the secret wait until a member admits them",
        false => "who has the secret is a member",
    };
    let banned = membership.nodes.iter().filter(|node| node.banned).count();
    let mut findings = vec![Finding::ok(
        "security.admission",
        format!("{mode}; {banned} banned"),
    )];
    if let Some(rotation) = membership
        .rotation
        .as_ref()
        .filter(|rotation| rotation.under_way)
    {
        let message = format!(
            "the old secret is still accepted from {}",
            counted(rotation.missing.len(), "node")
        );
        let hint = "start them, or end the change without them: nodectl secret rotate --finish";
        findings.push(Finding::warning("security.rotation", message, hint));
    }
    findings
}

fn directory(path: &Path) -> Finding {
    const CHECK: &str = "security.data_dir";
    match fs::metadata(path) {
        Err(error) => Finding::warning(
            CHECK,
            format!("{}: {error}", path.display()),
            "`nodectl join` makes it",
        ),
        Ok(found) if found.mode() & 0o022 != 0 => {
            let hint = format!("chmod go-w {}", path.display());
            Finding::problem(
                CHECK,
                format!("others may write to {}", path.display()),
                hint,
            )
        }
        Ok(found) if found.mode() & 0o077 != 0 => {
            let hint = format!("chmod 700 {}", path.display());
            Finding::warning(
                CHECK,
                format!("others may look into {}", path.display()),
                hint,
            )
        }
        Ok(found) => Finding::ok(
            CHECK,
            format!(
                "only the user with id {} looks into {}",
                found.uid(),
                path.display()
            ),
        ),
    }
}

/// Who may use the local API, and so run programs on every node.
fn socket(path: &Path) -> Finding {
    const CHECK: &str = "security.api";
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Finding::ok(CHECK, "no node listens here")
        }
        Err(error) => Finding::warning(
            CHECK,
            format!("{}: {error}", path.display()),
            "look at the directory's mode",
        ),
        Ok(found) if !found.file_type().is_socket() => {
            let hint = "remove it, and start the node again";
            Finding::problem(CHECK, format!("{} is no socket", path.display()), hint)
        }
        Ok(found) if found.mode() & 0o007 != 0 => {
            let hint = "start the node again: it makes the socket anew";
            Finding::problem(
                CHECK,
                format!("every user of this machine may use {}", path.display()),
                hint,
            )
        }
        Ok(found) if found.mode() & 0o070 != 0 => Finding::ok(
            CHECK,
            format!(
                "the user with id {} and the members of the group with id {} may use it",
                found.uid(),
                found.gid()
            ),
        ),
        Ok(found) => Finding::ok(
            CHECK,
            format!("only the user with id {} may use it", found.uid()),
        ),
    }
}

/// What the kernel says of the node's process.
fn process(proc: &Path, pid: u32) -> Vec<Finding> {
    let of = proc.join(pid.to_string());
    let (Ok(own), Ok(limits)) = (fs::metadata(&of), fs::read_to_string(of.join("limits"))) else {
        return Vec::new();
    };
    let status = fs::read_to_string(of.join("status")).unwrap_or_default();
    let uid = status.lines().find_map(|line| {
        line.strip_prefix("Uid:")?
            .split_whitespace()
            .next()?
            .parse::<u32>()
            .ok()
    });
    let mut findings = Vec::new();
    if uid == Some(0) {
        let hint = "run it as a user made for it: packaging/install.sh does so";
        findings.push(Finding::warning(
            "security.user",
            "the node runs as root, and so does whatever members run here",
            hint,
        ));
    }
    let limit = |name: &str| {
        limits
            .lines()
            .find_map(|line| line.strip_prefix(name)?.split_whitespace().next())
    };
    let descriptors = limit("Max open files")
        .and_then(|text| text.parse().ok())
        .unwrap_or(u64::MAX);
    findings.push(if descriptors < ENOUGH_DESCRIPTORS {
        let hint = "raise the hard limit (ulimit -Hn, LimitNOFILE=): the node takes all that it may have";
        Finding::warning("security.limits", format!("the node may open {descriptors} files"), hint)
    } else {
        Finding::ok(
            "security.limits",
            "strangers hold at most 256 connections (128 of one address) for 3 s; 32 nodes are dialed at once",
        )
    });
    // The kernel gives files of a process that may not be looked into to root.
    let is_closed = own.uid() == 0 && uid != Some(0);
    let leaves_cores = limit("Max core file size").is_some_and(|most| most != "0");
    if uid != Some(0) {
        findings.push(match (is_closed, leaves_cores) {
            (true, false) => Finding::ok("security.memory", "other processes of its user do not look into the node"),
            _ => Finding::warning(
                "security.memory",
                "other processes of its user may look into the node, where the cluster's keys are, or find them in a core dump",
                "run as its user what you trust only",
            ),
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_app::settings::Flags;
    use nodectl_wire::api::Severity;
    use std::os::unix::{fs::PermissionsExt, net::UnixListener};

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn who_may_use_the_socket_and_the_directory_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        assert_eq!(socket(&path).severity, Severity::Ok);
        let _listener = UnixListener::bind(&path).unwrap();
        for (bits, severity) in [
            (0o600, Severity::Ok),
            (0o660, Severity::Ok),
            (0o666, Severity::Problem),
        ] {
            mode(&path, bits);
            assert_eq!(socket(&path).severity, severity, "{bits:o}");
        }
        assert!(
            {
                mode(&path, 0o660);
                socket(&path)
            }
            .message
            .contains("group")
        );
        for (bits, severity) in [
            (0o700, Severity::Ok),
            (0o755, Severity::Warning),
            (0o777, Severity::Problem),
        ] {
            mode(directory.path(), bits);
            assert_eq!(
                super::directory(directory.path()).severity,
                severity,
                "{bits:o}"
            );
        }
    }

    #[test]
    fn the_secret_is_judged_and_not_shown() {
        let directory = tempfile::tempdir().unwrap();
        let data_dir = directory.path().to_str().unwrap().to_string();
        let flags = Flags::default()
            .set("node.name", Some("n"))
            .set("node.data_dir", Some(data_dir));
        let (settings, _) = Settings::load_from(&Environment::default(), &flags).unwrap();
        let judged = |text: &str| strength(&settings, Some(Zeroizing::new(text.to_string())));
        assert_eq!(judged("123456").severity, Severity::Problem);
        let good = judged("x8Fk29qLm0TzPw4e");
        assert!(
            good.severity == Severity::Ok && !good.message.contains("x8Fk"),
            "{}",
            good.message
        );
        assert_eq!(strength(&settings, None).severity, Severity::Warning);
    }

    #[test]
    fn what_the_kernel_says_of_the_process_is_told() {
        let proc = tempfile::tempdir().unwrap();
        let of = proc.path().join("7");
        fs::create_dir(&of).unwrap();
        let put = |uid: u32, files: &str| {
            fs::write(
                of.join("status"),
                format!("Name:\tnodectl\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"),
            )
            .unwrap();
            let limits = format!(
                "Max core file size        0                    0    bytes\nMax open files            {files} 4096 files\n"
            );
            fs::write(of.join("limits"), limits).unwrap();
        };
        let found = |check: &str| {
            let findings = process(proc.path(), 7);
            findings
                .into_iter()
                .find(|finding| finding.check == check)
                .map(|finding| finding.severity)
        };
        put(1000, "65536");
        assert_eq!(found("security.limits"), Some(Severity::Ok));
        assert_eq!(found("security.user"), None);
        put(0, "1024");
        assert_eq!(found("security.limits"), Some(Severity::Warning));
        assert_eq!(found("security.user"), Some(Severity::Warning));
        assert!(process(proc.path(), 8).is_empty());
    }
}
