//! `nodectl demo`: jobs of the templates, one after the other, as a user would run them, and what
//! came out of them.

use super::{
    args::{DemoArgs, RunArgs},
    exit::{CliError, Exit, print},
    files, run, solo,
};
use clap::{Args, FromArgMatches};
use nodectl_app::settings::Settings;
use nodectl_formats::Picture;
use nodectl_ports::say::tell;
use nodectl_wire::api::GpuKindName;
use std::path::{Path, PathBuf};

/// What a terminal of 80 columns has room for, in characters; they are about twice as high as wide.
const SHOWN: [u32; 2] = [26, 72];
/// From dark to light.
const SHADES: &[u8] = b" .:-=+*#%@";
const NEXT: &str = "
next:
  nodectl init && nodectl run job.toml    a job of your own, every key explained
  nodectl report last                     what the last job did, as a page
  nodectl join                            this machine becomes a node; others make a cluster
";

/// A template that is run.
struct Scene {
    kind: &'static str,
    /// The directory of its results, below the demo's.
    results: &'static str,
    says: &'static str,
    needs_device: bool,
}

const SCENES: [Scene; 2] = [
    Scene {
        kind: "train",
        results: "digits",
        says: "a small network learns to read handwritten digits",
        needs_device: false,
    },
    Scene {
        kind: "kernel",
        results: "zoom",
        says: "a compute shader draws a zoom into the Mandelbrot set",
        needs_device: true,
    },
];

pub async fn demo(args: DemoArgs, settings: &Settings) -> Result<Exit, CliError> {
    let dir = free_directory(&args.dir)?;
    let has_device = has_device(settings).await?;
    for scene in &SCENES {
        if scene.needs_device && !has_device {
            tell!("left out, as no GPU can be used: {}", scene.says);
            tell!("hint: `nodectl doctor` says why; Mesa's software device would do");
            continue;
        }
        let template = files::find(Some(scene.kind))?;
        files::write_template(template, &dir, true)?;
        let job_file = dir.join(template.files[0].0);
        let results = dir.join(scene.results);
        tell!("\n{}:", scene.says);
        tell!(
            "$ nodectl run {} --into {}",
            job_file.display(),
            results.display()
        );
        let exit = run::run(run_args(&job_file, &results)?, settings, None).await?;
        if !matches!(exit, Exit::Done) {
            return Ok(exit);
        }
    }
    let picture = dir.join("zoom/0/zoom-1.png");
    if picture.exists() {
        show(&picture)?;
    }
    print(NEXT)?;
    Ok(Exit::Done)
}

/// The directory, or where that has something in it the next that has not: `NAME-2`, `NAME-3`, …
fn free_directory(wanted: &Path) -> Result<PathBuf, CliError> {
    const MOST: u32 = 1000;
    let mut name = wanted.as_os_str().to_owned();
    for number in 2..MOST {
        let path = PathBuf::from(&name);
        let mut entries = match std::fs::read_dir(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(path),
            Err(source) => return Err(CliError::file("reading", &path, source)),
            Ok(entries) => entries,
        };
        if entries.next().is_none() {
            return Ok(path);
        }
        name = wanted.as_os_str().to_owned();
        name.push(format!("-{number}"));
    }
    Err(CliError::Usage(format!(
        "{} is there already, and so are {MOST} others\nhint: name another directory",
        wanted.display()
    )))
}

async fn has_device(settings: &Settings) -> Result<bool, CliError> {
    let (client, mut stay) = solo::connect(settings, true).await?;
    if let Some(node) = stay.own() {
        node.gpus_known().await;
    }
    let devices = client.devices().await;
    stay.end().await;
    // Kernels run on Mesa's software device, too, which counts as no GPU otherwise.
    Ok(devices?
        .iter()
        .any(|device| device.gpu.used || device.gpu.kind == GpuKindName::Software))
}

/// As if they had been typed.
fn run_args(job_file: &Path, results: &Path) -> Result<RunArgs, CliError> {
    let line = ["nodectl run".as_ref(), job_file.as_os_str()]
        .into_iter()
        .chain(["--into".as_ref(), results.as_os_str()]);
    let command = RunArgs::augment_args(clap::Command::new("nodectl run"));
    let matches = command.try_get_matches_from(line);
    matches
        .and_then(|matches| RunArgs::from_arg_matches(&matches))
        .map_err(|error| CliError::Usage(error.to_string()))
}

fn show(path: &Path) -> Result<(), CliError> {
    let picture = Picture::read(path).map_err(CliError::Usage)?;
    print(&format!("\n{}{}\n", drawn(&picture), path.display()))
}

/// A picture in characters, the lighter the fuller, its lightest place being white. Roots bring out
/// what is nearly dark.
fn drawn(picture: &Picture) -> String {
    let small = picture.resized(SHOWN).grey();
    let lightest = f32::from(small.iter().copied().max().unwrap_or(0).max(1));
    let shade = |grey: &u8| {
        let light = (f32::from(*grey) / lightest).sqrt();
        char::from(SHADES[(light * (SHADES.len() - 1) as f32) as usize])
    };
    let row = |row: &[u8]| row.iter().map(shade).collect::<String>();
    small
        .chunks(SHOWN[1] as usize)
        .map(|pixels| row(pixels).trim_end().to_string() + "\n")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demo_takes_nobodys_directory() {
        let parent = tempfile::tempdir().unwrap();
        let wanted = parent.path().join("demo");
        assert_eq!(free_directory(&wanted).unwrap(), wanted);
        std::fs::create_dir(&wanted).unwrap();
        assert_eq!(free_directory(&wanted).unwrap(), wanted);
        std::fs::write(wanted.join("mine"), "").unwrap();
        assert_eq!(
            free_directory(&wanted).unwrap(),
            parent.path().join("demo-2")
        );
    }

    #[test]
    fn a_picture_is_drawn_from_dark_to_its_lightest() {
        let [rows, columns] = SHOWN;
        let pixels = (0..rows * columns).map(|at| (at % columns) as u8);
        let picture = Picture {
            rows,
            columns,
            channels: 1,
            pixels: pixels.collect(),
        };
        let text = drawn(&picture);
        assert_eq!(text.lines().count(), rows as usize);
        let line = text.lines().next().expect("there are some");
        assert!(line.starts_with(' ') && line.ends_with('@'), "{line}");
    }

    #[test]
    fn every_scene_has_its_template() {
        for scene in &SCENES {
            assert!(files::find(Some(scene.kind)).is_ok(), "{}", scene.kind);
        }
        let args = run_args(Path::new("demo/train.toml"), Path::new("demo/digits")).unwrap();
        assert_eq!(args.job_file(), Path::new("demo/train.toml"));
    }
}
