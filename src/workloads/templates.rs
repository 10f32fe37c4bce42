//! The job files that `nodectl init` writes: those of `config/jobs/`, which the tests load.

/// A file of a template: its path relative to the directory that `init` writes to, and its bytes.
pub type TemplateFile = (&'static str, &'static [u8]);

/// A job file with what it needs to run as it is.
pub struct Template {
    pub kind: &'static str,
    pub summary: &'static str,
    /// The job file first.
    pub files: &'static [TemplateFile],
}

/// Every template; the first is what `init` writes when no kind is named.
pub fn kinds() -> &'static [Template] {
    &TEMPLATES
}

/// The template of a kind.
pub fn find(kind: &str) -> Option<&'static Template> {
    TEMPLATES.iter().find(|template| template.kind == kind)
}

static TEMPLATES: [Template; 11] = [
    Template {
        kind: "map",
        summary: "a command over parameter sets, with every key explained",
        files: &[("job.toml", include_bytes!("../../config/jobs/map.toml"))],
    },
    Template {
        kind: "graph",
        summary: "tasks that differ, and need each other's results",
        files: &[("graph.toml", include_bytes!("../../config/jobs/graph.toml"))],
    },
    Template {
        kind: "worker",
        summary: "a Python class whose instances stay while tasks come and go",
        files: &[
            (
                "worker.toml",
                include_bytes!("../../config/jobs/worker.toml"),
            ),
            (
                "worker/primes.py",
                include_bytes!("../../config/jobs/worker/primes.py"),
            ),
        ],
    },
    Template {
        kind: "kernel",
        summary: "a compute shader over an index space, on every GPU",
        files: &[
            (
                "kernel.toml",
                include_bytes!("../../config/jobs/kernel.toml"),
            ),
            (
                "kernel/mandelbrot.wgsl",
                include_bytes!("../../config/jobs/kernel/mandelbrot.wgsl"),
            ),
        ],
    },
    Template {
        kind: "integrate",
        summary: "detector frames in HDF5 files to diffraction patterns: LaB6 at 30 keV",
        files: &[
            (
                "integrate.toml",
                include_bytes!("../../config/jobs/integrate.toml"),
            ),
            (
                "integrate/lab6.h5",
                include_bytes!("../../config/jobs/integrate/lab6.h5"),
            ),
            (
                "integrate/lab6.poni",
                include_bytes!("../../config/jobs/integrate/lab6.poni"),
            ),
        ],
    },
    Template {
        kind: "train",
        summary: "a model, trained on 1,797 handwritten digits",
        files: &[
            ("train.toml", include_bytes!("../../config/jobs/train.toml")),
            (
                "quickstart/digits.csv.gz",
                include_bytes!("../../config/jobs/quickstart/digits.csv.gz"),
            ),
            (
                "quickstart/SOURCE.md",
                include_bytes!("../../config/jobs/quickstart/SOURCE.md"),
            ),
        ],
    },
    Template {
        kind: "heat",
        summary: "a kernel that simulates: heat on a plate, in tiles that exchange their edges",
        files: &[
            ("heat.toml", include_bytes!("../../config/jobs/heat.toml")),
            (
                "kernel/heat.wgsl",
                include_bytes!("../../config/jobs/kernel/heat.wgsl"),
            ),
        ],
    },
    Template {
        kind: "nbody",
        summary: "a kernel over all pairs: gravity between stars, with its energy",
        files: &[
            ("nbody.toml", include_bytes!("../../config/jobs/nbody.toml")),
            (
                "kernel/nbody.wgsl",
                include_bytes!("../../config/jobs/kernel/nbody.wgsl"),
            ),
        ],
    },
    Template {
        kind: "option",
        summary: "a kernel whose parts are summed: an option's price by Monte Carlo",
        files: &[
            (
                "option.toml",
                include_bytes!("../../config/jobs/option.toml"),
            ),
            (
                "kernel/option.wgsl",
                include_bytes!("../../config/jobs/kernel/option.wgsl"),
            ),
            (
                "kernel/price.py",
                include_bytes!("../../config/jobs/kernel/price.py"),
            ),
        ],
    },
    Template {
        kind: "knn",
        summary: "a kernel on arrays from a file: nearest neighbours of handwritten digits",
        files: &[
            ("knn.toml", include_bytes!("../../config/jobs/knn.toml")),
            (
                "kernel/knn.wgsl",
                include_bytes!("../../config/jobs/kernel/knn.wgsl"),
            ),
            (
                "kernel/digits.npz",
                include_bytes!("../../config/jobs/kernel/digits.npz"),
            ),
            (
                "kernel/SOURCE.md",
                include_bytes!("../../config/jobs/kernel/SOURCE.md"),
            ),
        ],
    },
    Template {
        kind: "quickstart",
        summary: "nearest neighbours on 1,797 handwritten digits: a sweep, then a table",
        files: &[
            (
                "quickstart.toml",
                include_bytes!("../../config/jobs/quickstart.toml"),
            ),
            (
                "quickstart/knn.py",
                include_bytes!("../../config/jobs/quickstart/knn.py"),
            ),
            (
                "quickstart/table.py",
                include_bytes!("../../config/jobs/quickstart/table.py"),
            ),
            (
                "quickstart/digits.csv.gz",
                include_bytes!("../../config/jobs/quickstart/digits.csv.gz"),
            ),
            (
                "quickstart/SOURCE.md",
                include_bytes!("../../config/jobs/quickstart/SOURCE.md"),
            ),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map;
    use nodectl_types::{PythonWorker, WorkerRole, WorkerSpec};

    /// Every key stands in the text, be it commented out.
    fn assert_shows(text: &str, keys: &[&str]) {
        for key in keys {
            let shown = |line: &str| {
                let line = line.trim_start_matches("# ").trim_start_matches('[');
                line.strip_prefix(key)
                    .is_some_and(|rest| rest.starts_with([' ', ']']))
            };
            assert!(text.lines().any(shown), "{key} is not shown");
        }
    }

    /// Writes a template as `init` does and plans its jobs.
    fn plan(template: &Template) -> Vec<nodectl_jobfile::PlannedJob> {
        let dir = tempfile::tempdir().unwrap();
        for (path, bytes) in template.files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        crate::load(&dir.path().join(template.files[0].0)).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn every_template_is_a_valid_job_file() {
        for template in kinds() {
            assert!(!plan(template).is_empty(), "{}", template.kind);
        }
        assert_eq!(plan(find("map").unwrap())[0].task_count(), 6);
        assert!(find("nothing").is_none());
    }

    #[test]
    fn the_quickstart_ships_all_that_it_uploads() {
        let jobs = plan(find("quickstart").unwrap());
        let names: Vec<&str> = jobs.iter().map(|job| job.name()).collect();
        assert_eq!(names, ["knn", "table"]);
        assert_eq!((jobs[0].task_count(), jobs[1].task_count()), (15, 1));
        assert_eq!(jobs[1].after, ["knn"]);
        let paths: Vec<&str> = jobs[0]
            .uploads
            .iter()
            .map(|upload| upload.path.as_str())
            .collect();
        assert_eq!(paths, ["quickstart/digits.csv.gz", "quickstart/knn.py"]);
    }

    #[test]
    fn the_worker_template_ships_its_module() {
        let [job] = plan(find("worker").unwrap()).try_into().unwrap();
        assert_eq!((job.task_count(), job.draft.retries), (10, 3));
        assert_eq!(
            job.uploads
                .iter()
                .map(|upload| upload.path.as_str())
                .collect::<Vec<_>>(),
            ["worker/primes.py"]
        );
        let Some(WorkerSpec::Python(PythonWorker { role, .. })) = job.draft.work.worker else {
            panic!("no Python worker")
        };
        let init = r#"{"args":[],"kwargs":{"limit":1000000}}"#.into();
        assert_eq!(
            role,
            WorkerRole::Calls {
                class: "worker/primes.py:Primes".into(),
                init
            }
        );
    }

    #[test]
    fn the_kernel_template_shows_every_key_and_carries_its_plan() {
        let [job] = plan(find("kernel").unwrap()).try_into().unwrap();
        assert_eq!(
            (job.name(), job.task_count(), job.is_step()),
            ("zoom", 4, false)
        );
        assert_eq!(
            job.uploads
                .iter()
                .map(|upload| upload.path.as_str())
                .collect::<Vec<_>>(),
            ["kernel.plan"]
        );
        let text = std::str::from_utf8(find("kernel").unwrap().files[0].1).unwrap();
        assert_shows(text, &nodectl_kernel::KEYS);
    }

    #[test]
    fn the_integrate_template_shows_every_key() {
        let jobs = plan(find("integrate").unwrap());
        let names: Vec<(&str, u64)> = jobs
            .iter()
            .map(|job| (job.name(), job.task_count()))
            .collect();
        assert_eq!(
            (names.len(), names[0].0, names[1]),
            (2, "integrate.frames", ("integrate", 1))
        );
        let text = std::str::from_utf8(find("integrate").unwrap().files[0].1).unwrap();
        assert_shows(text, &nodectl_azint::KEYS);
    }

    #[test]
    fn the_train_template_shows_every_key_and_carries_its_plan() {
        let [job] = plan(find("train").unwrap()).try_into().unwrap();
        let paths: Vec<&str> = job
            .uploads
            .iter()
            .map(|upload| upload.path.as_str())
            .collect();
        assert_eq!(
            (job.task_count(), paths),
            (1, vec!["quickstart/digits.csv.gz", "train.plan"])
        );
        let text = std::str::from_utf8(find("train").unwrap().files[0].1).unwrap();
        assert_shows(text, &nodectl_train::KEYS);
    }

    #[test]
    fn the_map_and_worker_templates_show_every_key() {
        let text = |kind| std::str::from_utf8(find(kind).unwrap().files[0].1).unwrap();
        let text = [text("map"), text("worker"), text("graph")].concat();
        assert_shows(&text, &map::KEYS);
    }

    /// Every commented key, uncommented on its own, is accepted; of `params` the commented forms
    /// replace the first.
    #[test]
    fn what_the_map_template_comments_out_is_valid() {
        let text = std::str::from_utf8(find("map").unwrap().files[0].1).unwrap();
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("sweep.csv", "width,height\n1,2\n"),
            ("corpus/a.txt", ""),
            ("src/a.py", ""),
            ("mode.toml", ""),
        ] {
            std::fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
            std::fs::write(dir.path().join(path), text).unwrap();
        }
        std::fs::create_dir_all(dir.path().join("images")).unwrap();
        std::fs::write(dir.path().join("images/a.tif"), "").unwrap();
        std::fs::create_dir_all(dir.path().join("tables")).unwrap();
        std::fs::write(dir.path().join("tables/a.csv"), "").unwrap();
        let is_key = |line: &&str| {
            map::KEYS
                .iter()
                .any(|key| line.starts_with(&format!("# {key} = ")))
        };
        let is_instead = |line: &str| line.starts_with("# params") || line.starts_with("# open");
        let mut tried = 0;
        for line in text
            .lines()
            .filter(is_key)
            .filter(|line| !line.starts_with("# after"))
        {
            let bare: String = text
                .lines()
                .filter(|own| !(is_instead(line) && own.starts_with("params")))
                .map(|own| format!("{own}\n"))
                .collect();
            let job = format!("{bare}{}\n", &line[2..]);
            crate::parse(&job, &dir.path().join("job.toml"))
                .unwrap_or_else(|error| panic!("{line}\n{error}"));
            tried += 1;
        }
        assert!(tried > 15, "{tried}");
    }
}
