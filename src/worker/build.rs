//! Packs the Python package of this project into one compressed file, for the program to carry.
//! The same sources give the same bytes.

use flate2::{Compression, write::GzEncoder};
use std::{
    env, fs,
    io::{self, Write},
    path::Path,
};

const SOURCES: &str = "../../packaging/python";
const PACKAGES: [&str; 3] = ["distributed_computing", "ludwigcluster", "nodectl"];

fn main() -> io::Result<()> {
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    for package in PACKAGES {
        let dir = Path::new(SOURCES).join(package);
        writeln!(io::stdout(), "cargo::rerun-if-changed={}", dir.display())?;
        let mut names: Vec<String> = fs::read_dir(&dir)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<_>>()?;
        names.retain(|name| name.ends_with(".py") || name == "py.typed");
        names.sort();
        for name in names {
            let content = fs::read(dir.join(&name))?;
            // As `package.rs` reads it: name, length and bytes of one file after the other.
            writeln!(packed, "{package}/{name}\n{}", content.len())?;
            packed.write_all(&content)?;
        }
    }
    fs::write(Path::new(&out).join("package.gz"), packed.finish()?)
}
