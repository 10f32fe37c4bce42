//! Images: height × width of grey, or × 2 (with alpha), 3 (RGB) or 4 (RGBA); u8 or u16.

use super::{Array, Info, MAX_INFLATION, convert};
use nodectl_types::Scalar;
use png::{BitDepth, ColorType, Decoder, Encoder, Limits, Reader, Transformations};
use std::{
    fs::File,
    io::{BufReader, BufWriter, Write},
    path::Path,
};

pub fn inspect(file: &File) -> Result<Info, String> {
    open(file).map(|(_, info)| info)
}

pub fn read(file: &File) -> Result<Array, String> {
    let (mut reader, info) = open(file)?;
    let mut array = Array::zeros(info).ok_or("it is too large")?;
    reader
        .next_frame(&mut array.bytes)
        .map_err(|error| error.to_string())?;
    if array.info.scalar == Scalar::U16 {
        // PNG is big-endian.
        array.bytes.chunks_exact_mut(2).for_each(<[u8]>::reverse);
    }
    Ok(array)
}

fn open(file: &File) -> Result<(Reader<BufReader<&File>>, Info), String> {
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    let most = length.saturating_mul(MAX_INFLATION);
    let limits = Limits {
        bytes: usize::try_from(most).unwrap_or(usize::MAX).max(1 << 20),
    };
    let mut decoder = Decoder::new_with_limits(BufReader::new(file), limits);
    // Palettes become RGB; one, two and four bits become eight.
    decoder.set_transformations(Transformations::EXPAND);
    let reader = decoder
        .read_info()
        .map_err(|error| format!("it is not a PNG image: {error}"))?;
    let (color, depth) = reader.output_color_type();
    let (width, height) = reader.info().size();
    let mut shape = vec![u64::from(height), u64::from(width)];
    if color.samples() > 1 {
        shape.push(color.samples() as u64);
    }
    let info = Info {
        scalar: if depth == BitDepth::Sixteen {
            Scalar::U16
        } else {
            Scalar::U8
        },
        shape,
    };
    let is_possible = info.bytes().is_some_and(|bytes| bytes <= most);
    let is_agreed = reader.output_buffer_size().map(|bytes| bytes as u64) == info.bytes();
    if !is_possible || !is_agreed {
        return Err(format!(
            "it claims to be {width} × {height} pixels in {length} bytes"
        ));
    }
    Ok((reader, info))
}

/// Floats: `scale` (0 and 1 unless given) become black and white. Whole numbers without a scale are
/// taken as they are, and saturate: u16 stays, everything else becomes u8.
pub fn write(path: &Path, array: &Array, scale: Option<[f64; 2]>) -> Result<(), String> {
    let Info { scalar, shape } = &array.info;
    let (height, width, color) = match shape[..] {
        [height, width] | [height, width, 1] => (height, width, ColorType::Grayscale),
        [height, width, 2] => (height, width, ColorType::GrayscaleAlpha),
        [height, width, 3] => (height, width, ColorType::Rgb),
        [height, width, 4] => (height, width, ColorType::Rgba),
        _ => {
            return Err(format!(
                "an image is height × width, or × 2, 3 or 4, not {shape:?}"
            ));
        }
    };
    let extent = |n: u64| {
        u32::try_from(n)
            .ok()
            .filter(|n| *n > 0)
            .ok_or(format!("an image cannot be {shape:?}"))
    };
    let target = if *scalar == Scalar::U16 {
        Scalar::U16
    } else {
        Scalar::U8
    };
    let mut bytes = match scale {
        None if *scalar == target => array.bytes.clone(),
        None if !scalar.is_float() && *scalar != Scalar::Bool => {
            convert(array.bytes.clone(), *scalar, target)
        }
        scale => convert::to_range(&array.bytes, *scalar, scale.unwrap_or([0.0, 1.0]), target),
    };
    if target == Scalar::U16 {
        bytes.chunks_exact_mut(2).for_each(<[u8]>::reverse);
    }
    let file = File::create(path).map_err(|error| error.to_string())?;
    let mut file = BufWriter::new(file);
    let mut encoder = Encoder::new(&mut file, extent(width)?, extent(height)?);
    encoder.set_color(color);
    encoder.set_depth(if target == Scalar::U16 {
        BitDepth::Sixteen
    } else {
        BitDepth::Eight
    });
    let mut writer = encoder.write_header().map_err(|error| error.to_string())?;
    writer
        .write_image_data(&bytes)
        .map_err(|error| error.to_string())?;
    writer.finish().map_err(|error| error.to_string())?;
    file.flush().map_err(|error| error.to_string())
}
