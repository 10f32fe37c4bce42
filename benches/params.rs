//! Parameter servers across the network path: a worker on one node, all blocks on another, 64 MiB
//! as 16 blocks of 4 MiB over loopback, sealed. Beside a plain TCP loop over one connection between
//! two processes, in turns in the same run. The worker is `python/params.py`, which has what one
//! machine is measured with, too. `-- --rounds N` (15).

mod support;

use serde_json::Value;
use std::{fs, path::Path};
use support::{
    common::{
        cluster::Cluster,
        job::{run_to_end, write_job},
    },
    nodes_of_one_core, number, report,
};

/// Of `num_push_threads` and `num_pull_threads`.
const STREAMS: [u32; 3] = [1, 2, 4];
const OPERATIONS: [&str; 3] = ["push", "pull", "push-pull"];
/// Of the plain loop's GB/s, over one stream; CPU-seconds a GB, both nodes and the worker.
const SHARE: f64 = 0.55;
const CPU: f64 = 1.0;

fn main() {
    report::title("parameter servers, worker and blocks on different nodes, 16 x 4 MiB");
    let rounds = number("--rounds", 15);
    let cluster = nodes_of_one_core(2);
    for streams in STREAMS {
        let found = measure(&cluster, rounds, streams);
        let of = |name: &str, place: usize| found[name][place].as_f64().expect("a number");
        let plain = of("plain TCP", 0);
        report::value(
            &format!("{streams} streams: plain TCP, median"),
            plain,
            "GB/s",
            "",
        );
        report::value("  its CPU", of("plain TCP", 1), "s/GB", "");
        report::value(
            "  of one block again and again, in the cache",
            of("plain TCP, one block", 0),
            "GB/s",
            "",
        );
        for name in OPERATIONS {
            let (rate, cpu) = (of(name, 0), of(name, 1));
            report::value(
                &format!("  {name}, median"),
                rate,
                "GB/s",
                &format!("{:.2} of plain TCP", rate / plain),
            );
            if streams == 1 {
                report::bar(
                    &format!("  {name}: plain TCP's share of time"),
                    SHARE * plain / rate,
                    1.0,
                    "",
                    "bar: 0.55",
                );
            }
            report::bar(&format!("  {name}: CPU of both ends"), cpu, CPU, "s/GB", "");
        }
    }
}

/// GB/s and CPU-seconds a GB of each operation, by the worker whose blocks are elsewhere: the
/// slower one.
fn measure(cluster: &Cluster, rounds: usize, streams: u32) -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = cluster.dir.path();
    fs::copy(root.join("benches/python/params.py"), dir.join("params.py")).expect("it is there");
    // Where `tests/run` puts what tests of the package need.
    let path = [root.join("packaging/python"), root.join("target/python")]
        .map(|path| path.display().to_string())
        .join(":");
    let nodes = [0, 1]
        .map(|number| cluster.pid(number).to_string())
        .join(",");
    let name = format!("streams-{streams}");
    let text = format!(
        "kind = \"train\"\nname = \"{name}\"\nworkers = 2\nservers = 1\noutputs = [\"found.json\"]\n\
         command = [\"python3\", \"params.py\", \"--elsewhere\", \"{nodes}\", \"--streams\", \"{streams}\", \"--rounds\", \"{rounds}\"]\n\
         env = {{ PYTHONPATH = \"{path}\" }}\n"
    );
    let into = dir.join(format!("into-{name}"));
    let (code, output) = run_to_end(cluster, 0, &write_job(dir, &name, &text), &into);
    assert_eq!(code, Some(0), "{output}");
    let read = |worker: u32| -> Value {
        let text = fs::read_to_string(into.join(worker.to_string()).join("found.json"))
            .expect("the worker wrote it");
        serde_json::from_str(&text).expect("JSON")
    };
    let rate = |found: &Value| found["push"][0].as_f64().expect("a number");
    let (one, other) = (read(0), read(1));
    if rate(&one) < rate(&other) {
        one
    } else {
        other
    }
}
