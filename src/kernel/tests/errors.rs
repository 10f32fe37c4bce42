//! Kernels' job files that are wrong, and what is said of each.

use super::{JOB, lab};
use nodectl_jobfile::parse;

/// What to change in a job that is right, and into what.
const WRONG: [(&str, &str); 50] = [
    ("shader = \"heat.wgsl\"\n", ""),
    ("heat.wgsl", "haet.wgsl"),
    ("heat.wgsl", "../heat.wgsl"),
    ("heat.wgsl", "broken.wgsl"),
    ("heat.wgsl", "blur.comp"),
    ("heat.wgsl", "bad.spv"),
    ("heat.wgsl", "none.wgsl"),
    ("heat.wgsl", "free.wgsl"),
    ("heat.wgsl", "wide.wgsl"),
    ("heat.wgsl", "tile.wgsl"),
    ("heat.wgsl", "mixed.wgsl"),
    ("space", "entry = \"mian\"\nspace"),
    ("space", "spaec"),
    ("space", "checks = \"bound\"\nspace"),
    ("space = [64, 48]\n", ""),
    ("[64, 48]", "[64, 0]"),
    ("[64, 48]", "[64, 48, 1, 1]"),
    ("[64, 48]", "[64, \"{h}\"]"),
    ("[64, 48]", "[64, 47]"),
    ("[64, 48]", "64.5"),
    ("space", "tile = [16, 16, 1]\nspace"),
    ("space", "tile = 0\nspace"),
    ("space", "tile = 4\nhalo = 5\nspace"),
    (
        "inputs.now = { file = \"field.npy\", cut = \"tile\" }",
        "inputs.now = \"field.npy\"\nhalo = 1",
    ),
    ("inputs.now", "inputs.nwo"),
    ("inputs.now", "inputs.heat"),
    (
        "inputs.now = { file = \"field.npy\", cut = \"tile\" }\n",
        "",
    ),
    ("field.npy", "none.npy"),
    ("field.npy", "short.npy"),
    ("field.npy", "turned.npy"),
    ("field.npy", "doubles.npy"),
    ("field.npy", "field.h5:/dta"),
    ("field.npy", "field.txt"),
    ("cut = \"tile\"", "cut = \"tiles\""),
    ("cut = \"tile\"", "zeros = true"),
    ("file = \"field.npy\", ", ""),
    ("alpha = 0.5, ", ""),
    ("alpha = 0.5", "alpah = 0.5"),
    ("wind = [1, 2]", "wind = 1"),
    ("alpha = 0.5", "alpha = \"much\""),
    ("alpha = 0.5", "alpha = true"),
    ("space", "constants.WIDHT = 4\nspace"),
    ("space", "constants.WIDTH = -4\nspace"),
    ("space", "constants.WIDTH = 0\nspace"),
    ("outputs.next = \"heat.npy\"", ""),
    ("outputs.next", "outputs.now"),
    ("\"heat.npy\"", "\"heat.txt\""),
    ("\"heat.npy\"", "{ shape = [3] }"),
    ("\"heat.npy\"", "{ per_cell = [5], file = \"heat.png\" }"),
    (
        "space",
        "iterate = { steps = 10, swap = [[\"next\", \"now\"]] }\nspace",
    ),
];

fn error(change: (&str, &str)) -> String {
    let dir = lab();
    let text = format!("kind = \"kernel\"\n{}", JOB.replacen(change.0, change.1, 1));
    assert_ne!(text, format!("kind = \"kernel\"\n{JOB}"));
    let error = parse(&text, &dir.path().join("job.toml"), crate::plan)
        .expect_err(&text)
        .to_string();
    let canonical = dir.path().canonicalize().unwrap();
    let error = error.replace(&format!("{}/", canonical.display()), "");
    error.replace(&canonical.display().to_string(), "DIR")
}

#[test]
fn errors_show_the_place_and_what_to_do() {
    if cfg!(feature = "glsl") {
        return println!(
            "SKIPPED: what is said of GLSL is another thing in builds that compile it"
        );
    }
    let all: Vec<String> = WRONG.into_iter().map(error).collect();
    insta::assert_snapshot!(all.join("\n\n"));
}
