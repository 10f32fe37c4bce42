//! Job files of trainings: what they become, and what is wrong with them, at its place.

use crate::{
    data::{ClassWeights, Column, Source, Validation},
    exchange,
    model::{Layer, Loss, WindowSpec},
    plan::{DecayPlan, Every, Outer, Sharing, Streaming, TrainPlan},
    set_team,
    team::Team,
};
use nodectl_formats::{self as formats, Array, Info};
use nodectl_jobfile::{self, PlannedJob, UploadSource};
use nodectl_types::{
    Scalar, WorkerSpec,
    servers::{Compression, Consistency, MAX_WORKERS, Merge, Shares, TopKValues},
};
use std::fs;
use tempfile::TempDir;

const MODEL: &str = "[model]\nlayers = [{ dense = 4 }, \"relu\", { dense = 3 }]\n";

/// A directory with a table of two inputs and three classes.
fn directory() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("a.csv"),
        "x,y,kind\n1,2,a\n3,4,b\n5,6,c\n7,8,a\n",
    )
    .unwrap();
    dir
}

#[test]
fn several_workers_are_a_task_each_with_their_way_of_sharing() {
    let dir = directory();
    let data = "[data]\ntable = \"a.csv\"\n";
    let sharing = |keys: &str| {
        let job = parse(&dir, &format!("{keys}\n{data}{MODEL}"))?;
        Ok::<_, String>((plan_of(&job).sharing, job))
    };
    let (usual, job) = sharing("").unwrap();
    assert_eq!((usual, job.draft.repeat), (Sharing::default(), 1));
    assert_eq!(
        job.draft.work.env,
        [(
            "NODECTL_PSERVER".to_string(),
            "{{\"workers\":1}}".to_string()
        )]
    );
    let (sharing_of, mut job) = sharing(
        "workers = 3\nservers = 2\nconsistency = { local = 20, rate = 0.5 }\ncompression = { topk = 0.1, values = \"int2\" }\n\
         shares = \"pace\"\nblock_size = \"64 KiB\"\nreplicas = 3\nuse_sfb = false\nnum_push_threads = 4\nnum_pull_threads = 8",
    )
    .unwrap();
    let wanted = Sharing {
        consistency: Consistency::Local {
            steps: 20,
            merge: None,
        },
        streaming: Streaming::default(),
        shares: Shares::Pace,
        outer: Outer {
            rate: 0.5,
            momentum: 0.9,
        },
        compression: Compression::TopK {
            fraction: 0.1,
            values: TopKValues::Int2,
        },
        block_bytes: 64 << 10,
        replicas: 3,
        num_push_threads: 4,
        num_pull_threads: 8,
        use_sfb: Some(false),
    };
    assert_eq!(
        (sharing_of, job.draft.repeat, job.task_count()),
        (wanted, 3, 3)
    );
    assert_eq!(job.draft.work.env[0].1, "{{\"workers\":3,\"servers\":2}}");
    set_team(&mut job, 5, 0);
    assert_eq!(
        (job.draft.repeat, job.draft.work.env[0].1.as_str()),
        (5, "{{\"workers\":5}}")
    );
}

#[test]
fn mistakes_in_how_workers_share_are_named() {
    let dir = directory();
    for (keys, wanted) in [
        ("workers = 0", "workers"),
        ("num_push_threads = 65", "more than 64"),
        ("consistency = \"ssp\"", "{ ssp = 2 }"),
        ("consistency = { ssp = 2, rate = 1 }", "rate"),
        ("consistency = { local = 9, quorum = 0 }", "`quorum`"),
        (
            "consistency = { local = 9, grace = \"2 s\" }",
            "needs a `quorum`",
        ),
        (
            "consistency = { local = 9, quorum = 2, grace = \"2 h\" }",
            "at most an hour",
        ),
        (
            "consistency = { local = 9, fragments = 10 }",
            "10 fragments",
        ),
        (
            "consistency = { local = 9, fragments = 2, delay = 5 }",
            "at most 4",
        ),
        ("consistency = { local = 9, mix = 1.5 }", "`mix`"),
        ("compression = \"f8\"", "there is no `compression` \"f8\""),
        (
            "compression = { topk = 0.1, values = \"int8\" }",
            "`values` of `compression`",
        ),
        ("compression = { topk = 2 }", "above 0, at most 1"),
        ("shares = \"speed\"", "\"equal\" or \"pace\""),
        (
            "shares = \"pace\"\nconsistency = \"async\"",
            "end their steps together",
        ),
        (
            "shares = \"pace\"\nconsistency = { local = 9, quorum = 2 }",
            "end their steps together",
        ),
        ("block_size = 100", "multiple of 64"),
        ("use_sfb = \"yes\"", "`use_sfb`"),
        (
            "workers = 2\nresume_from = \"a.safetensors\"",
            "a.safetensors",
        ),
    ] {
        let text = format!("{keys}\n[data]\ntable = \"a.csv\"\n{MODEL}");
        let error = parse(&dir, &text).unwrap_err();
        assert!(error.contains(wanted), "{keys}: {error}");
    }
}

#[test]
fn outer_steps_may_have_a_quorum_and_fragments() {
    let dir = directory();
    let of = |keys: &str| {
        let text = format!("{keys}\n[data]\ntable = \"a.csv\"\n{MODEL}");
        let sharing = plan_of(&parse(&dir, &text).unwrap()).sharing;
        (sharing.consistency.merge(), sharing.streaming)
    };
    let merge = |quorum, grace_millis| {
        Some(Merge {
            quorum,
            grace_millis,
        })
    };
    let streaming = |fragments, delay, mix| Streaming {
        fragments,
        delay,
        mix,
    };
    let usual = Streaming::default();
    for (keys, wanted) in [
        ("local = 20", (None, usual)),
        ("local = 20, quorum = 3", (merge(3, 0), usual)),
        (
            "local = 20, quorum = 3, grace = \"2 s\"",
            (merge(3, 2000), usual),
        ),
        (
            "local = 20, fragments = 4",
            (merge(MAX_WORKERS, 0), streaming(4, 0, 0.0)),
        ),
        (
            "local = 20, quorum = 1, fragments = 4, delay = 5",
            (merge(1, 0), streaming(4, 5, 0.5)),
        ),
        (
            "local = 20, delay = 2, mix = 0.25",
            (merge(MAX_WORKERS, 0), streaming(1, 2, 0.25)),
        ),
    ] {
        assert_eq!(of(&format!("consistency = {{ {keys} }}")), wanted, "{keys}");
    }
}

#[test]
fn a_large_dense_layer_goes_as_factors_and_a_small_one_by_servers() {
    let dir = directory();
    let model =
        "[model]\nlayers = [{ dense = 512 }, \"relu\", { dense = 256 }, \"relu\", { dense = 3 }]\n";
    let text = format!("workers = 4\nbatch = 32\n[data]\ntable = \"a.csv\"\n{model}");
    let job = parse(&dir, &text).unwrap();
    let plan = plan_of(&job);
    let of = |workers, plan: &TrainPlan| {
        exchange::factored(
            plan,
            &Team {
                workers,
                ..Team::default()
            },
        )
    };
    // Weights and biases count.
    assert_eq!(
        (of(4, &plan), of(1, &plan)),
        (vec![2u32], Vec::<u32>::new())
    );
    let with = |sharing: Sharing| TrainPlan {
        sharing,
        ..plan.clone()
    };
    assert!(
        of(
            4,
            &with(Sharing {
                use_sfb: Some(false),
                ..Sharing::default()
            })
        )
        .is_empty()
    );
    assert!(
        of(
            4,
            &with(Sharing {
                consistency: Consistency::Async,
                ..Sharing::default()
            })
        )
        .is_empty()
    );
    let Some(WorkerSpec::Builtin(worker)) = &job.draft.work.worker else {
        panic!("{:?}", job.draft.work.worker)
    };
    assert!(
        worker.init.contains("\"layer\":\"2.weight\"") && worker.init.contains("factors_bytes"),
        "{}",
        worker.init
    );
}

fn parse(dir: &TempDir, text: &str) -> Result<PlannedJob, String> {
    let text = format!("kind = \"train\"\n{text}");
    let jobs = nodectl_jobfile::parse(&text, &dir.path().join("job.toml"), crate::plan)
        .map_err(|error| error.to_string())?;
    Ok(jobs.into_iter().next().unwrap())
}

fn plan_of(job: &PlannedJob) -> TrainPlan {
    let upload = job
        .uploads
        .iter()
        .find(|upload| upload.path == "train.plan")
        .unwrap();
    let UploadSource::Bytes(bytes) = &upload.source else {
        panic!("planning makes it")
    };
    TrainPlan::decode(bytes).unwrap()
}

#[test]
fn a_job_file_becomes_a_plan() {
    let dir = directory();
    let text = "epochs = 3\nseed = 7\n[data]\ntable = \"a.csv\"\nvalidation = 0.25\nclass_weights = \"balanced\"\n\
                [optimizer]\nkind = \"momentum\"\nmomentum = 0.5\nclip_norm = 2\ndecay = { every = 2, factor = 0.1 }\n\
                [checkpoint]\nevery = \"2 min\"\n[resources]\ncpus = 1.5\n";
    let job = parse(&dir, &format!("{text}{MODEL}")).unwrap();
    let plan = plan_of(&job);
    assert_eq!(
        (plan.epochs, plan.batch, plan.seed, plan.threads),
        (3, 32, 7, 2)
    );
    assert_eq!(
        (plan.model.input.as_slice(), plan.model.loss),
        (&[2][..], Loss::CrossEntropy)
    );
    assert_eq!(plan.data.validation, Validation::Share(0.25));
    assert_eq!(plan.data.class_weights, ClassWeights::Balanced);
    assert_eq!(
        plan.optimizer.decay,
        DecayPlan::Step {
            epochs: 2,
            factor: 0.1
        }
    );
    assert_eq!(
        (plan.optimizer.rate, plan.optimizer.clip_norm),
        (0.01, Some(2.0))
    );
    assert_eq!(plan.checkpoints.unwrap().every, Every::Millis(120_000));
    let outputs = &job.draft.work.outputs[0];
    assert!(
        outputs.contains("confusion.*") && !outputs.contains("checkpoints"),
        "{outputs}"
    );
}

#[test]
fn layers_are_read_with_their_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let pixels = vec!["1"; 2 * 16 * 16].join(",");
    fs::write(
        dir.path().join("i.csv"),
        format!("{pixels},0\n{pixels},1\n"),
    )
    .unwrap();
    let text = "[data]\ntable = \"i.csv\"\nshape = [2, 16, 16]\n[model]\nlayers = [\n\
                { conv2d = 4, kernel = [3, 5], stride = 2, padding = \"same\", groups = 2, bias = false }, \"batch_norm\",\n\
                { residual = [{ conv2d = 4, kernel = 3, padding = 1 }, \"gelu\"], shortcut = [{ conv2d = 4, kernel = 1 }] },\n\
                { avg_pool = 2 }, { max_pool = 3, stride = 1, padding = 1 }, \"flatten\", { dropout = 0.25 },\n\
                { layer_norm = { epsilon = 0.5 } }, { dense = 2, bias = false }]\n";
    let layers = plan_of(&parse(&dir, text).unwrap()).model.layers;
    let window = WindowSpec {
        size: [3, 5],
        stride: [2, 2],
        padding: [1, 2],
        dilation: [1, 1],
    };
    assert_eq!(
        layers[0],
        Layer::Conv2d {
            channels: 4,
            window,
            groups: 2,
            bias: false
        }
    );
    let Layer::Residual {
        layers: inner,
        shortcut,
    } = &layers[2]
    else {
        panic!("{:?}", layers[2])
    };
    assert_eq!((inner.len(), shortcut.len()), (2, 1));
    assert_eq!(
        layers[3],
        Layer::AvgPool {
            window: WindowSpec {
                stride: [2; 2],
                ..WindowSpec::square(2)
            }
        }
    );
    assert_eq!(
        (&layers[6], &layers[7]),
        (
            &Layer::Dropout { share: 0.25 },
            &Layer::LayerNorm { epsilon: 0.5 }
        )
    );
    assert_eq!(
        layers[8],
        Layer::Dense {
            units: 2,
            bias: false
        }
    );
}

const DATA: &str = "[data]\ntable = \"a.csv\"\n";

/// Each mistake: what the job file says, what the error says, the text that it points at.
#[track_caller]
fn refused(dir: &TempDir, cases: &[(String, &str, &str)]) {
    for (text, message, shown) in cases {
        let error = parse(dir, text).expect_err(text);
        assert!(
            error.contains(message) && error.contains(shown),
            "{text}\n{error}"
        );
    }
}

#[test]
fn mistakes_in_layers_are_shown_at_their_place() {
    let dir = directory();
    let data = DATA;
    refused(
        &dir,
        &[
            (
                format!("{data}[model]\nlayers = [\"relo\"]\n"),
                "there is no layer `relo`",
                "did you mean `relu`?",
            ),
            (
                format!("{data}[model]\nlayers = [\"dense\"]\n"),
                "`dense` needs a size",
                "{ dense = 64 }",
            ),
            (
                format!("{data}[model]\nlayers = [{{ dens = 3 }}]\n"),
                "no layer `dens` with a size",
                "did you mean `dense`?",
            ),
            (
                format!("{data}[model]\nlayers = [{{ dense = 3, units = 3 }}]\n"),
                "has no key `units`",
                "units",
            ),
            (
                format!("{data}[model]\nlayers = [{{ conv2d = 3, kernel = 3 }}]\n"),
                "layer 0 (from 0): `conv2d` takes",
                "is given 2",
            ),
            (
                format!(
                    "{data}[model]\nlayers = [{{ residual = [\"relu\", {{ dense = 5 }}, {{ max_pool = 2 }}] }}]\n"
                ),
                "layer 2 of layer 0 (from 0)",
                "{ max_pool = 2 }",
            ),
            (data.to_string(), "the job has no [model]", "layers ="),
        ],
    );
}

#[test]
fn mistakes_in_data_are_shown_at_their_place() {
    let dir = directory();
    fs::write(dir.path().join("wide.csv"), "1,2,9\n").unwrap();
    fs::write(dir.path().join("bad.csv"), "1,2,0\n1,oh,1\n").unwrap();
    let pixel = Array {
        info: Info {
            scalar: Scalar::U8,
            shape: vec![1, 1],
        },
        bytes: vec![7],
    };
    fs::create_dir_all(dir.path().join("one")).unwrap();
    for name in ["one/a.png", "one/b.png"] {
        formats::write(&dir.path().join(name), &[("", &pixel)], None).unwrap();
    }
    let data = DATA;
    refused(
        &dir,
        &[
            (
                format!("[data]\ntable = \"bad.csv\"\n{MODEL}"),
                "`bad.csv`, line 2, column 1 (from 0): `oh` is not a number",
                "bad",
            ),
            (
                format!("[data]\ntable = \"wide.csv\"\n{MODEL}"),
                "class 9, and the model has 3 outputs",
                "10 units",
            ),
            (
                format!("{data}target = \"sort\"\n{MODEL}"),
                "no column `sort`",
                "there are x, y, kind",
            ),
            (
                format!("{data}inputs = \"x.npy\"\n{MODEL}"),
                "one source of samples",
                "`table` and `inputs`",
            ),
            (
                format!("{data}size = 3\n{MODEL}"),
                "`size` does not go with `table`",
                "size",
            ),
            (
                format!("[data]\ninputs = \"a.csv\"\ntargets = \"a.csv\"\n{MODEL}"),
                "not that of a format of samples",
                ".npz",
            ),
            (
                format!("{data}shape = [3, 1]\n{MODEL}"),
                "samples have 2 numbers, which cannot be 3 x 1",
                "a.csv",
            ),
            (
                "[data]\nimages = \"one\"\n[model]\nlayers = [\"flatten\", { dense = 3 }]\n".into(),
                "all samples are of one class, `one`",
                "folder of its own",
            ),
        ],
    );
}

#[test]
fn mistakes_in_losses_and_optimizers_are_shown_at_their_place() {
    let dir = directory();
    let data = DATA;
    refused(
        &dir,
        &[
            (
                format!("{data}[model]\nlayers = [{{ dense = 2 }}]\n"),
                "class 2, and the model has 2 outputs",
                "has 3 units",
            ),
            (
                format!("loss = \"mse\"\n{data}[model]\nlayers = [{{ dense = 1 }}]\n"),
                "not a number",
                "`a`",
            ),
            (
                format!("loss = \"mae\"\n{data}{MODEL}"),
                "there is no loss `mae`",
                "mse",
            ),
            (
                format!("{data}validation = 1.5\n{MODEL}"),
                "a fraction from 0 to below 1",
                "1.5",
            ),
            (
                format!("{data}[optimizer]\nkind = \"sgd\"\nmomentum = 0.9\n{MODEL}"),
                "`sgd` has no `momentum`",
                "0.9",
            ),
            (
                format!("{data}[optimizer]\nfloor = 0.1\n{MODEL}"),
                "`floor` is where",
                "0.1",
            ),
            (
                format!("{data}class_weights = [1.0, 2.0]\n{MODEL}"),
                "2 `class_weights` for 3 classes",
                "a.csv",
            ),
        ],
    );
}

#[test]
fn mistakes_in_what_a_training_begins_with_are_shown_at_their_place() {
    let dir = directory();
    fs::write(dir.path().join("model.safetensors"), "").unwrap();
    let start = dir.path().join("start");
    fs::create_dir_all(&start).unwrap();
    let garbage = "garbage and more of it";
    fs::write(start.join("garbage.safetensors"), garbage).unwrap();
    let array = Array::of_f32(vec![1], &[0.0]);
    formats::write(&start.join("other.safetensors"), &[("a", &array)], None).unwrap();
    let data = DATA;
    refused(
        &dir,
        &[
            (
                format!("init_from = \"a.csv\"\n{data}{MODEL}"),
                "is a .safetensors file",
                "a.csv",
            ),
            (
                format!("init_from = \"model.safetensors\"\n{data}{MODEL}"),
                "what the training itself writes",
                "start/model",
            ),
            (
                format!("init_from = \"start/garbage.safetensors\"\n{data}{MODEL}"),
                "not a safetensors file",
                "start/garbage",
            ),
            (
                format!("resume_from = \"start/garbage.safetensors\"\n{data}{MODEL}"),
                "not a safetensors file",
                "start/garbage",
            ),
            (
                format!("init_from = \"start/other.safetensors\"\n{data}{MODEL}"),
                "it has no array `0.weight`",
                "there are a",
            ),
            (
                format!("resume_from = \"start/other.safetensors\"\n{data}{MODEL}"),
                "does not say of which step",
                "not a checkpoint",
            ),
            (
                format!("{data}{MODEL}[checkpoint]\nevery = \"0s\"\n"),
                "at least a millisecond",
                "0s",
            ),
        ],
    );
}

#[test]
fn a_targets_column_has_a_name() {
    let text = format!("{DATA}target = \"kind\"\n{MODEL}");
    let source = plan_of(&parse(&directory(), &text).unwrap()).data.source;
    let Source::Table { target, .. } = source else {
        panic!("{source:?}")
    };
    assert_eq!(target, Column::Name("kind".into()));
}

/// What is read before a job is submitted is bounded by what it is when it is inflated, not by its
/// files.
#[test]
fn large_data_in_small_files_are_not_read_whole_before_a_job_is_submitted() {
    let dir = directory();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let line = b"1,2,a\n3,4,b\n5,6,c\n".repeat(1 << 12);
    for _ in 0..(super::CHECKED_BYTES as usize / line.len() + 2) {
        std::io::Write::write_all(&mut encoder, &line).unwrap();
    }
    let bytes = encoder.finish().unwrap();
    assert!((bytes.len() as u64) < super::CHECKED_BYTES / 10);
    fs::write(dir.path().join("large.csv.gz"), bytes).unwrap();
    let job = parse(&dir, &format!("[data]\ntable = \"large.csv.gz\"\n{MODEL}")).unwrap();
    let data = plan_of(&job).data;
    let most = super::CHECKED_BYTES;
    assert_eq!(
        data.bytes(dir.path(), most).unwrap(),
        most + 1,
        "it stops there"
    );
}
