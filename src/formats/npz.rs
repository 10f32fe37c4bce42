//! Zip archives of `.npy` files, stored or deflated, as `numpy.savez` and `savez_compressed` make
//! them.

use super::{Array, Info, MAX_INFLATION, npy};
use std::{
    fs::File,
    io::{BufReader, BufWriter, Write},
    path::Path,
};
use zip::{CompressionMethod, ZipArchive, ZipWriter, read::ZipFile, write::SimpleFileOptions};

type Archive<'f> = ZipArchive<BufReader<&'f File>>;

pub fn inspect(file: &File, member: Option<&str>) -> Result<Info, String> {
    let mut archive = open(file)?;
    let mut entry = find(&mut archive, member)?;
    npy::NpyHeader::read(&mut entry).map(|header| header.info)
}

pub fn read(file: &File, member: Option<&str>) -> Result<Array, String> {
    let mut archive = open(file)?;
    let entry = find(&mut archive, member)?;
    let length = entry.size();
    npy::read_stream(entry, length)
}

pub fn write(path: &Path, arrays: &[(&str, &Array)]) -> Result<(), String> {
    let file = File::create(path).map_err(|error| error.to_string())?;
    let mut archive = ZipWriter::new(BufWriter::new(file));
    for (name, array) in arrays {
        let large = array.bytes.len() as u64 > u64::from(u32::MAX) - (1 << 16);
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(large);
        archive
            .start_file(format!("{name}.npy"), options)
            .map_err(|error| error.to_string())?;
        archive
            .write_all(&npy::encode(array))
            .map_err(|error| error.to_string())?;
    }
    archive
        .finish()
        .map_err(|error| error.to_string())?
        .flush()
        .map_err(|error| error.to_string())
}

fn open(file: &File) -> Result<Archive<'_>, String> {
    ZipArchive::new(BufReader::new(file))
        .map_err(|error| format!("it is not an .npz archive: {error}"))
}

/// The array of that name, or the only one; its claimed size is possible.
fn find<'a, 'f>(
    archive: &'a mut Archive<'f>,
    member: Option<&str>,
) -> Result<ZipFile<'a, BufReader<&'f File>>, String> {
    let files = archive.file_names().flatten();
    let names: Vec<String> = files
        .filter_map(|name| name.strip_suffix(".npy").map(str::to_string))
        .collect();
    let listed = || {
        names
            .iter()
            .take(20)
            .map(|name| format!("`{name}`"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let name = match (member, names.as_slice()) {
        (Some(member), names) if names.iter().any(|name| name == member) => member.to_string(),
        (Some(member), _) => {
            return Err(format!(
                "it has no array `{member}`\nhint: there are {}",
                listed()
            ));
        }
        (None, [only]) => only.clone(),
        (None, []) => return Err("it has no arrays".into()),
        (None, names) => {
            let hint = format!("write `FILE.npz:NAME`; there are {}", listed());
            return Err(format!("it has {} arrays\nhint: {hint}", names.len()));
        }
    };
    let entry = archive
        .by_name(&format!("{name}.npy"))
        .map_err(|error| format!("`{name}`: {error}"))?;
    if entry.size() > entry.compressed_size().saturating_mul(MAX_INFLATION) {
        let message = format!(
            "`{name}` claims to have {} bytes in {}",
            entry.size(),
            entry.compressed_size()
        );
        return Err(message);
    }
    Ok(entry)
}
