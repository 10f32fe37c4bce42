//! IDX, the format of the MNIST files, also gzipped: <http://yann.lecun.com/exdb/mnist/>.
//! Big-endian.

use super::{Array, Info, MAX_INFLATION, array::MAX_AXES};
use flate2::read::GzDecoder;
use nodectl_types::Scalar;
use std::{
    fs::File,
    io::{BufReader, Read, Seek},
    path::Path,
};

/// Whether a file's name is that of such a file: `train-images-idx3-ubyte`, `labels.idx`, and `.gz`
/// after it.
pub fn is_named(path: &Path) -> bool {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let name = name.strip_suffix(".gz").unwrap_or(name);
    name.ends_with("-ubyte") || name.ends_with(".idx")
}

pub fn inspect(path: &Path, file: &File) -> Result<Info, String> {
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    let (info, header) = header(&mut stream(path, file)?)?;
    let claimed = info
        .bytes()
        .and_then(|bytes| bytes.checked_add(header))
        .ok_or("it is too large")?;
    let is_possible = if is_gzipped(path) {
        claimed <= length.saturating_mul(MAX_INFLATION)
    } else {
        claimed == length
    };
    if is_possible {
        Ok(info)
    } else {
        Err(format!(
            "its header describes {claimed} bytes, the file has {length}"
        ))
    }
}

pub fn read(path: &Path, file: &File) -> Result<Array, String> {
    let info = inspect(path, file)?;
    let mut stream = stream(path, file)?;
    header(&mut stream)?;
    let mut array = Array::zeros(info).ok_or("it is too large")?;
    stream
        .read_exact(&mut array.bytes)
        .map_err(|error| format!("it is cut off: {error}"))?;
    array
        .bytes
        .chunks_exact_mut(array.info.scalar.bytes())
        .for_each(<[u8]>::reverse);
    Ok(array)
}

fn is_gzipped(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "gz")
}

fn stream<'f>(path: &Path, mut file: &'f File) -> Result<Box<dyn Read + 'f>, String> {
    file.rewind().map_err(|error| error.to_string())?;
    let buffered = BufReader::new(file);
    Ok(if is_gzipped(path) {
        Box::new(GzDecoder::new(buffered))
    } else {
        Box::new(buffered)
    })
}

/// What the header says, and its length.
fn header(stream: &mut impl Read) -> Result<(Info, u64), String> {
    let mut word = || {
        let mut bytes = [0; 4];
        stream
            .read_exact(&mut bytes)
            .map(|()| bytes)
            .map_err(|error| format!("its header is cut off: {error}"))
    };
    let [first, second, kind, axes] = word()?;
    let scalar = match kind {
        _ if (first, second) != (0, 0) => {
            return Err("it is not an IDX file: it does not begin with two zeros".into());
        }
        0x08 => Scalar::U8,
        0x09 => Scalar::I8,
        0x0b => Scalar::I16,
        0x0c => Scalar::I32,
        0x0d => Scalar::F32,
        0x0e => Scalar::F64,
        other => return Err(format!("its numbers are of the unknown type {other:#04x}")),
    };
    if usize::from(axes) > MAX_AXES {
        return Err(format!("it has {axes} axes"));
    }
    let extents = (0..axes).map(|_| word().map(|bytes| u64::from(u32::from_be_bytes(bytes))));
    let shape = extents.collect::<Result<Vec<_>, _>>()?;
    Ok((Info { scalar, shape }, 4 + 4 * u64::from(axes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ArrayLocation;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    #[test]
    fn numbers_are_turned_around_and_files_checked() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            ArrayLocation::new(path).read()
        };
        let bytes = [
            &[0, 0, 0x0b, 2, 0, 0, 0, 1, 0, 0, 0, 2][..],
            &[1, 2, 255, 254],
        ]
        .concat();
        let array = read("a-idx2-ubyte", &bytes).unwrap();
        assert_eq!(
            (array.info.shape.as_slice(), array.info.scalar),
            (&[1, 2][..], Scalar::I16)
        );
        assert_eq!(array.into_f32(), [258.0, -2.0]);
        let mut gzipped = GzEncoder::new(Vec::new(), Compression::fast());
        gzipped.write_all(&bytes).unwrap();
        assert_eq!(
            read("b.idx.gz", &gzipped.finish().unwrap())
                .unwrap()
                .into_f32(),
            [258.0, -2.0]
        );
        for (name, bytes) in [
            ("cut.idx", &bytes[..14]),
            ("short.idx", &bytes[..7]),
            ("magic.idx", &[1, 0, 8, 0][..]),
            ("kind.idx", &[0, 0, 7, 0]),
            (
                "huge.idx",
                &[0, 0, 8, 2, 255, 255, 255, 255, 255, 255, 255, 255],
            ),
        ] {
            assert!(read(name, bytes).is_err(), "{name}");
        }
    }
}
