//! Numbers without a header: little-endian, row-major. The ending names their type, or the caller
//! does; the caller has the shape.

use super::{Array, Info, npy};
use nodectl_types::Scalar;
use std::{fs::File, os::unix::fs::FileExt};

/// Without a shape all of the file is one axis.
pub fn inspect(file: &File, scalar: Option<Scalar>, given: Option<&Info>) -> Result<Info, String> {
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    let Some(info) = given else {
        let scalar = scalar.ok_or(
            "its ending does not say of what type its numbers are\nhint: give `type` and `shape`",
        )?;
        let size = scalar.bytes() as u64;
        if !length.is_multiple_of(size) {
            return Err(format!(
                "its {length} bytes are not a whole number of {scalar}"
            ));
        }
        return Ok(Info {
            scalar,
            shape: vec![length / size],
        });
    };
    if info.bytes() != Some(length) {
        let wanted = info
            .bytes()
            .map_or("too many".to_string(), |bytes| bytes.to_string());
        return Err(format!(
            "{:?} of {} are {wanted} bytes, but it has {length}",
            info.shape, info.scalar
        ));
    }
    Ok(info.clone())
}

pub fn read(file: &File, scalar: Option<Scalar>, given: Option<&Info>) -> Result<Array, String> {
    let mut array = Array::zeros(inspect(file, scalar, given)?).ok_or("it is too large")?;
    file.read_exact_at(&mut array.bytes, 0)
        .map_err(|error| error.to_string())?;
    Ok(array)
}

pub fn read_block(
    file: &File,
    scalar: Option<Scalar>,
    given: Option<&Info>,
    start: &[u64],
    shape: &[u64],
) -> Result<Array, String> {
    let whole = inspect(file, scalar, given)?;
    whole.check_box(start, shape)?;
    npy::read_runs(
        file,
        0,
        &whole,
        start,
        Info {
            scalar: whole.scalar,
            shape: shape.to_vec(),
        },
    )
}
