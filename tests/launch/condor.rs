//! Nodes that real HTCondor gives.

use super::*;

/// HTCondor, where it is. Its root is made by `tests/run`, from a mirror, which may be far away.
pub fn condor() -> Option<Testbed> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/lab-condor-root");
    if !root.join(".ready").exists() {
        let told = fs::read_to_string(root.with_extension("log")).unwrap_or_default();
        let why = told.lines().last().unwrap_or("tests/run unpacks it");
        eprintln!("SKIPPED: HTCondor is not in {}: {why}", root.display());
        return None;
    }
    let settings = "NODECTL_NETWORK__BEACON_PORT=0 NODECTL_NETWORK__MDNS=false \
                    NODECTL_NETWORK__INTERFACES=lo XDG_CONFIG_HOME=$(LOCAL_DIR)";
    let bed = Testbed::up(
        "condor",
        &[
            ("CONDOR_ROOT", &root.display().to_string()),
            ("CONDOR_SETENV", settings),
        ],
    )?;
    write_settings(&bed.path().join("local"));
    Some(bed)
}

pub fn condor_queue(bed: &Testbed) -> String {
    let condor_q = format!("{}/bin/condor_q", bed.path().display());
    both(&bed.run(&condor_q, &["-af", "ClusterId"]))
        .trim()
        .to_string()
}

#[test]
fn condor_gives_nodes_without_a_shared_file_system() {
    let Some(bed) = condor() else { return };
    let cluster = submitter();
    let environment = write(
        &cluster,
        "create_environment.sh",
        "#!/bin/sh\nexport GREETING=hello\n\"$@\"\n",
    );
    let request = [
        "up",
        "--condor",
        "--nodes",
        "2",
        "--cpus-per-node",
        "1",
        "--gpus-per-node",
        "1",
        "--memory",
        "200 MiB",
    ];
    let more = [
        "--time",
        "10m",
        "--create-environment",
        &environment,
        "--option",
        "getenv = NODECTL_*",
    ];
    let up = launch(&cluster, &bed, &[&request[..], &more].concat());
    assert_eq!(up.status.code(), Some(0), "{}", both(&up));
    assert_eq!(launched_nodes(&cluster), 2);
    run_squares(&cluster, 4, "true");
    let down = output_within(NEVER, &mut nodectl(&cluster, &bed, &["down"]));
    assert_eq!(down.status.code(), Some(0), "{}", both(&down));
    assert_eq!(condor_queue(&bed), "", "no job is left");
    wait_until(SOON, "only the submitter is left", || {
        launched_nodes(&cluster) == 0
    });
}
