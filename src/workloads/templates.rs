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

static TEMPLATES: [Template; 2] = [
    Template {
        kind: "map",
        summary: "a command over parameter sets, with every key explained",
        files: &[("job.toml", include_bytes!("../../config/jobs/map.toml"))],
    },
    Template {
        kind: "quickstart",
        summary: "nearest neighbours on 1,797 handwritten digits: a sweep, then a table",
        files: &[
            ("quickstart.toml", include_bytes!("../../config/jobs/quickstart.toml")),
            ("quickstart/knn.py", include_bytes!("../../config/jobs/quickstart/knn.py")),
            ("quickstart/table.py", include_bytes!("../../config/jobs/quickstart/table.py")),
            ("quickstart/digits.csv.gz", include_bytes!("../../config/jobs/quickstart/digits.csv.gz")),
            ("quickstart/SOURCE.md", include_bytes!("../../config/jobs/quickstart/SOURCE.md")),
        ],
    },
];
