//! Frames of several workers: each once, however many run, die or are interrupted.

use super::*;

fn even_job(dir: &Path, name: &str, more: &str) -> PathBuf {
    let text = format!(
        "kind = \"integrate\"\nname = \"{name}\"\nponi = \"even.poni\"\npoints = 30\nengine = \"cpu\"\n\
         solid_angle = false\nsplitting = \"full\"\nthreads_per_worker = 1\ninput = \"shared\"\n{more}\n"
    );
    write_job(dir, name, &text)
}

/// Each frame has its own pattern, and each is in the mean once.
fn assert_each_frame_once(file: &Path, frames: usize) {
    assert_each_frame_once_in(file, "", frames);
}

/// `region`: what the names of its groups end in.
fn assert_each_frame_once_in(file: &Path, region: &str, frames: usize) {
    let data = read(file, &format!("entry/result{region}/data"));
    assert_eq!(data.info.shape, [frames as u64, 30]);
    for (frame, pattern) in f32s(&data).chunks(30).enumerate() {
        let value = f32::from(count_of(frame));
        let is_right = |found: &f32| *found == 0.0 || (found - value).abs() < 1e-5 * value;
        assert!(
            pattern.iter().all(is_right) && pattern.iter().any(|found| *found > 0.0),
            "frame {frame}: {pattern:?}"
        );
    }
    let sum_of = |name: &str| -> f64 {
        let values = read(file, &format!("entry/sums{region}/{name}"));
        f64s(&values).iter().sum()
    };
    let norm = sum_of("norm");
    let pixels = (FRAME[0] * FRAME[1] * frames) as f64;
    assert!(
        (norm - pixels).abs() < 1e-3 * pixels,
        "{norm} pixels for {pixels}"
    );
    let signal = sum_of("signal");
    let expected: f64 = (0..frames)
        .map(|frame| f64::from(count_of(frame)))
        .sum::<f64>()
        * pixels
        / frames as f64;
    assert!(
        (signal - expected).abs() < 1e-3 * expected,
        "{signal} counts for {expected}"
    );
}

/// The frames' job and the one that writes.
fn submit_split(cluster: &Cluster, number: usize, file: &Path) -> [String; 2] {
    let output = cluster.ok(
        number,
        &["run", "--detach", "--quiet", file.to_str().expect("UTF-8")],
    );
    let ids: Vec<String> = output.split_whitespace().map(str::to_string).collect();
    ids.try_into().unwrap_or_else(|ids| panic!("{ids:?}"))
}

fn fetch(cluster: &Cluster, number: usize, id: &str) -> PathBuf {
    let into = cluster.dir.path().join(format!("fetched-{id}"));
    cluster.ok(
        number,
        &["results", id, "--into", into.to_str().expect("UTF-8")],
    );
    into
}

/// The worker processes of this cluster's nodes.
fn workers(cluster: &Cluster) -> Vec<Pid> {
    let is_ours = |pid: &u32| {
        fs::read_link(format!("/proc/{pid}/cwd"))
            .is_ok_and(|place| place.starts_with(cluster.dir.path()))
    };
    let pids = processes_with("integrate-worker")
        .into_iter()
        .filter(is_ours);
    pids.filter_map(|pid| Pid::from_raw(pid.try_into().ok()?))
        .collect()
}

/// Eight nodes of five workers. Some workers stand still for a while, two of them are killed: one
/// in twenty.
#[test]
fn forty_workers_lose_no_frame_and_double_none() {
    const FRAMES: usize = 800;
    let mut cluster = Cluster::empty(Discovery::Beacon);
    for _ in 0..8 {
        cluster.add(&[("NODECTL_NODE__CORES", "5")]);
    }
    cluster.wait_members(8);
    let dir = lab(&cluster, &[]);
    even_frames(&dir, "even.h5", FRAMES);
    let file = even_job(
        &dir,
        "forty",
        "datasets = \"even.h5\"\nstrategy = \"split\"\nframes_per_task = 4\nworkers = 40",
    );
    let [frames, whole] = submit_split(&cluster, 0, &file);
    cluster.wait_done(0, &frames, 20, LATER);
    let found = workers(&cluster);
    assert!(found.len() >= 20, "{} workers", found.len());
    let send = |pids: &[Pid], signal: Signal| {
        for pid in pids {
            // It may have ended by itself.
            let _ = kill_process(*pid, signal);
        }
    };
    let (killed, slow) = (&found[..2], &found[2..7]);
    send(slow, Signal::STOP);
    send(killed, Signal::KILL);
    cluster.wait_done(0, &frames, 120, LATER);
    send(slow, Signal::CONT);
    assert_eq!(cluster.wait_end(0, &whole), "done");
    let into = fetch(&cluster, 3, &whole);
    assert_each_frame_once(&into.join("0/even.h5"), FRAMES);
    assert_eq!(cluster.results(5, &frames).len(), FRAMES / 4);
}

#[test]
fn no_more_workers_run_than_the_job_says() {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    cluster.add(&[("NODECTL_NODE__CORES", "6")]);
    let dir = lab(&cluster, &[]);
    for number in 0..8 {
        even_frames(&dir, &format!("e{number}.h5"), 40);
    }
    let file = even_job(
        &dir,
        "few",
        "datasets = \"e*.h5\"\nstrategy = \"whole\"\nworkers = 2",
    );
    let id = cluster.submit(0, &file);
    let mut seen: Vec<Pid> = Vec::new();
    wait_until(LATER, "the job ends", || {
        seen.extend(
            workers(&cluster)
                .into_iter()
                .filter(|pid| !seen.contains(pid))
                .collect::<Vec<_>>(),
        );
        cluster.phase(0, &id).as_deref() == Some("done")
    });
    assert!((1..=2).contains(&seen.len()), "{} workers", seen.len());
}

/// What is finished can be read while the rest is integrated, and is not done again after the node
/// was killed.
#[test]
fn a_killed_node_goes_on_where_it_was() {
    const FRAMES: usize = 6000;
    let mut cluster = Cluster::empty(Discovery::Beacon);
    cluster.add(&[("NODECTL_NODE__CORES", "1")]);
    let dir = lab(&cluster, &[]);
    even_frames(&dir, "even.h5", FRAMES);
    let out = cluster.dir.path().join("patterns");
    // So many patterns of each frame that most are to be made after 2 s, when the first are kept.
    let regions: Vec<String> = (0..30)
        .map(|region| format!("{{ name = \"r{region}\" }}"))
        .collect();
    let regions = regions.join(", ");
    let more = format!(
        "datasets = \"even.h5\"\nstrategy = \"whole\"\noutput = {out:?}\nregions = [{regions}]"
    );
    let file = even_job(&dir, "killed", &more);
    let id = cluster.submit(0, &file);
    let finished = || -> Vec<PathBuf> {
        let entries = fs::read_dir(out.join("even.parts"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        entries
            .filter(|path| {
                path.file_name()
                    .is_none_or(|name| name.as_encoded_bytes()[0] != b'.')
            })
            .collect()
    };
    wait_until(LATER, "some frames are finished", || !finished().is_empty());
    cluster.kill9(0);
    let part = &finished()[0];
    let numbers = read(part, "entry/result_r0/frame");
    let numbers: Vec<u64> = numbers
        .bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|bytes| u64::from_le_bytes(*bytes))
        .collect();
    for (frame, pattern) in numbers
        .iter()
        .zip(f32s(&read(part, "entry/result_r0/data")).chunks(30))
    {
        assert!(
            (pattern[10] - f32::from(count_of(*frame as usize))).abs() < 1.0,
            "frame {frame}: {pattern:?}"
        );
    }
    cluster.restart(0);
    assert_eq!(cluster.wait_end(0, &id), "done");
    let into = fetch(&cluster, 0, &id);
    assert_each_frame_once_in(&into.join("0/even.h5"), "_r0", FRAMES);
    let integrated = read_results(&into)[&0]["value"]["integrated"]
        .as_u64()
        .expect("a number");
    assert!(
        integrated as usize <= FRAMES - numbers.len(),
        "{integrated} frames were integrated again"
    );
    assert!(
        finished().is_empty(),
        "parts of a whole dataset are of no use"
    );
}

/// The whole cluster is killed; then the job is cancelled, and begun once more: nothing that was
/// done is done again.
#[test]
fn an_interrupted_run_goes_on_at_the_missing_frames() {
    const FRAMES: usize = 400;
    let mut cluster = Cluster::of(2);
    let dir = lab(&cluster, &[]);
    even_frames(&dir, "even.h5", FRAMES);
    let out = cluster.dir.path().join("patterns");
    let more = format!(
        "datasets = \"even.h5\"\nstrategy = \"split\"\nframes_per_task = 4\noutput = {out:?}"
    );
    let file = even_job(&dir, "interrupted", &more);
    let [frames, whole] = submit_split(&cluster, 0, &file);
    cluster.wait_done(0, &frames, 10, LATER);
    (0..2).for_each(|number| cluster.kill9(number));
    (0..2).for_each(|number| cluster.restart(number));
    cluster.wait_done(0, &frames, 20, LATER);
    cluster.ok(0, &["cancel", &frames]);
    cluster.run(0, &["cancel", &whole]);
    let kept = fs::read_dir(out.join("even.parts"))
        .expect("finished parts")
        .count();
    assert!(kept >= 20, "{kept} parts");
    let [frames, whole] = submit_split(&cluster, 1, &file);
    assert_eq!(cluster.wait_end(1, &whole), "done");
    let again: u64 = cluster
        .results(1, &frames)
        .values()
        .filter_map(|result| result["value"]["integrated"].as_u64())
        .sum();
    assert!(
        again as usize <= FRAMES - 4 * 20,
        "{again} frames were integrated again"
    );
    assert_each_frame_once(&fetch(&cluster, 0, &whole).join("0/even.h5"), FRAMES);
    assert!(!out.join("even.parts").exists());
}
