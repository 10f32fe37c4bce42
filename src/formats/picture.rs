//! Pictures as they are looked at, in PNG or JPEG: pixels of grey or of red, green and blue from 0
//! to 255. Transparency, colour profiles and orientation are left out.

use super::{Info, MAX_INFLATION, files, png};
use nodectl_types::Scalar;
use std::{
    fs::File,
    io::{BufReader, Read, Seek},
    ops::Range,
    path::Path,
};
use zune_jpeg::{
    JpegDecoder,
    zune_core::{
        bytestream::{ZByteReaderTrait, ZCursor},
        colorspace::ColorSpace,
        options::DecoderOptions,
    },
};

/// What the pixels of one picture may take while they are decoded.
const MOST_BYTES: u64 = 1 << 30;

/// What a file may claim however short it is.
const LEAST_BOUND: u64 = 1 << 20;

/// A decoded picture. `pixels` holds `rows` · `columns` · `channels` values, row by row, the
/// channels of a pixel together. One channel is grey; three are red, green and blue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    pub rows: u32,
    pub columns: u32,
    pub channels: u32,
    pub pixels: Vec<u8>,
}

impl Picture {
    /// Rows and columns, from the header alone.
    pub fn extent(path: &Path) -> Result<[u32; 2], String> {
        let file = files::open(path).map_err(|error| error.to_string())?;
        match ImageKind::of(&file)? {
            ImageKind::Png => {
                let [rows, columns, _] = png_shape(&png::inspect(&file)?)?;
                Ok([rows, columns])
            }
            ImageKind::Jpeg => {
                let (_, [rows, columns, _]) = jpeg(BufReader::new(&file), length(&file)?)?;
                Ok([rows, columns])
            }
        }
    }

    /// Decodes a file, whose first bytes tell its format. What claims more pixels than a file of
    /// its length has, or more than 1 GiB of them, is refused before they are allocated.
    pub fn read(path: &Path) -> Result<Self, String> {
        let file = files::open(path).map_err(|error| error.to_string())?;
        match ImageKind::of(&file)? {
            ImageKind::Png => read_png(&file),
            ImageKind::Jpeg => read_jpeg(&file),
        }
    }

    /// The picture with other numbers of rows and columns, which are not 0: linear between pixels,
    /// and averaged where there are fewer than before.
    pub fn resized(&self, [rows, columns]: [u32; 2]) -> Self {
        if [rows, columns] == [self.rows, self.columns] {
            return self.clone();
        }
        let channels = self.channels as usize;
        let lines = [1, self.rows as usize, self.columns as usize * channels];
        let tall = resample(&self.pixels, lines, rows as usize);
        let lines = [rows as usize, self.columns as usize, channels];
        let values = resample(&tall, lines, columns as usize);
        Self {
            rows,
            columns,
            channels: self.channels,
            pixels: values.into_iter().map(nearest).collect(),
        }
    }

    /// The luminance of each pixel.
    pub fn grey(&self) -> Vec<u8> {
        if self.channels == 1 {
            return self.pixels.clone();
        }
        // ITU-R BT.709-6, section 3.2.
        let luminance = |pixel: &[u8]| {
            let [red, green, blue] = [pixel[0], pixel[1], pixel[2]].map(f32::from);
            nearest(0.2126 * red + 0.7152 * green + 0.0722 * blue)
        };
        self.pixels.chunks_exact(3).map(luminance).collect()
    }

    /// One of red, green and blue, which are 0, 1 and 2, of each pixel.
    pub fn colour(&self, channel: usize) -> impl Iterator<Item = u8> {
        let channels = self.channels as usize;
        let first = channel.min(channels - 1);
        self.pixels.iter().skip(first).step_by(channels).copied()
    }
}

enum ImageKind {
    Png,
    Jpeg,
}

impl ImageKind {
    /// What a file's first bytes say. They are read once more afterwards.
    fn of(mut file: &File) -> Result<Self, String> {
        let mut first = [0; 8];
        file.read_exact(&mut first)
            .and_then(|()| file.rewind())
            .map_err(|_| "it is neither PNG nor JPEG")?;
        match first {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'] => Ok(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Ok(Self::Jpeg),
            _ => Err("it is neither PNG nor JPEG".into()),
        }
    }
}

fn length(file: &File) -> Result<u64, String> {
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    Ok(metadata.len())
}

/// Rows, columns and channels of the pixels as they are decoded, of which there are not too many.
fn png_shape(info: &Info) -> Result<[u32; 3], String> {
    let extent = |axis: usize| info.shape.get(axis).map_or(1, |extent| *extent as u32);
    let shape = [extent(0), extent(1), extent(2)];
    match info.bytes() {
        Some(bytes) if bytes <= MOST_BYTES => Ok(shape),
        _ => Err(too_large(shape)),
    }
}

fn too_large([rows, columns, _]: [u32; 3]) -> String {
    format!("{columns} × {rows} pixels are too many to be decoded")
}

fn read_png(mut file: &File) -> Result<Picture, String> {
    let [rows, columns, channels] = png_shape(&png::inspect(file)?)?;
    file.rewind().map_err(|error| error.to_string())?;
    let array = png::read(file)?;
    let mut pixels = array.bytes;
    if array.info.scalar == Scalar::U16 {
        let eight = |pair: &[u8]| (u32::from(u16::from_le_bytes([pair[0], pair[1]])) + 128) / 257;
        pixels = pixels
            .chunks_exact(2)
            .map(|pair| eight(pair) as u8)
            .collect();
    }
    // Grey or colours, and transparency behind them.
    let visible = if channels > 2 { 3 } else { 1 };
    if visible != channels {
        let whole = pixels.chunks_exact(channels as usize);
        pixels = whole
            .flat_map(|pixel| &pixel[..visible as usize])
            .copied()
            .collect();
    }
    Ok(Picture {
        rows,
        columns,
        channels: visible,
        pixels,
    })
}

fn read_jpeg(file: &File) -> Result<Picture, String> {
    let length = length(file)?;
    if length > MOST_BYTES {
        return Err(format!("{length} bytes are too many for a picture"));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    let (mut decoder, [rows, columns, channels]) = jpeg(ZCursor::new(&bytes), length)?;
    let pixels = decoder.decode().map_err(|error| error.to_string())?;
    Ok(Picture {
        rows,
        columns,
        channels,
        pixels,
    })
}

/// A decoder that has read the header of a file of `length` bytes, and what it will decode: rows,
/// columns and channels.
fn jpeg<T: ZByteReaderTrait>(from: T, length: u64) -> Result<(JpegDecoder<T>, [u32; 3]), String> {
    let failed = |error: zune_jpeg::errors::DecodeErrors| format!("as a JPEG: {error}");
    // As viewers do, what is there of a damaged file is shown.
    let options = DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(u16::MAX.into())
        .set_max_height(u16::MAX.into());
    let mut decoder = JpegDecoder::new_with_options(from, options);
    decoder.decode_headers().map_err(failed)?;
    let (color, channels) = match decoder.input_colorspace() {
        Some(ColorSpace::Luma) => (ColorSpace::Luma, 1),
        _ => (ColorSpace::RGB, 3),
    };
    decoder.set_options(options.jpeg_set_out_colorspace(color));
    let (columns, rows) = decoder.dimensions().ok_or("it has no size")?;
    // Neither is more than 65,535.
    let shape = [rows as u32, columns as u32, channels];
    let bytes = rows as u64 * columns as u64 * u64::from(channels);
    // Two bits make the smallest block, of 64 pixels; one of colour may count for four of them.
    let most = length.saturating_mul(MAX_INFLATION).max(LEAST_BOUND);
    if bytes > most.min(MOST_BYTES) {
        return Err(too_large(shape));
    }
    Ok((decoder, shape))
}

/// Values `[outer, extent, inner]` with `new` in place of `extent`: each is the mean of those
/// within reach, weighted by a triangle as wide as two of the larger pixels.
fn resample<T: Copy + Into<f32>>(values: &[T], lines: [usize; 3], new: usize) -> Vec<f32> {
    let [outer, extent, inner] = lines;
    let mut made = vec![0f32; outer * new * inner];
    for (at, (from, weights)) in (0..new).map(|at| (at, weights(at, extent, new))) {
        for block in 0..outer {
            let start = (block * new + at) * inner;
            let target = &mut made[start..start + inner];
            for (line, weight) in from.clone().zip(&weights) {
                let start = (block * extent + line) * inner;
                for (sum, value) in target.iter_mut().zip(&values[start..start + inner]) {
                    *sum += (*value).into() * weight;
                }
            }
        }
    }
    made
}

/// Which of `extent` lines make line `at` of `new`, and how much each counts; the sum is 1.
fn weights(at: usize, extent: usize, new: usize) -> (Range<usize>, Vec<f32>) {
    let ratio = extent as f32 / new as f32;
    let reach = ratio.max(1.0);
    let centre = (at as f32 + 0.5) * ratio;
    let first = ((centre - reach).floor().max(0.0) as usize).min(extent - 1);
    let end = ((centre + reach).ceil() as usize).clamp(first + 1, extent);
    let weight = |line: usize| (1.0 - ((line as f32 + 0.5 - centre) / reach).abs()).max(0.0);
    let mut weights: Vec<f32> = (first..end).map(weight).collect();
    let sum: f32 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum);
    (first..end, weights)
}

fn nearest(value: f32) -> u8 {
    value.round() as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::PathBuf};

    fn fixture(name: &str) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        root.join("../../tests/fixtures/arrays").join(name)
    }

    fn pixel(picture: &Picture, row: u32, column: u32) -> &[u8] {
        let start = ((row * picture.columns + column) * picture.channels) as usize;
        &picture.pixels[start..start + picture.channels as usize]
    }

    fn is_near(values: &[u8], expected: &[u8]) -> bool {
        let mut pairs = values.iter().zip(expected);
        values.len() == expected.len() && pairs.all(|(a, b)| a.abs_diff(*b) <= 3)
    }

    #[test]
    fn a_jpeg_has_the_colours_that_were_drawn() {
        let path = fixture("colour.jpg");
        assert_eq!(Picture::extent(&path).unwrap(), [16, 24]);
        let picture = Picture::read(&path).unwrap();
        assert_eq!(
            [picture.rows, picture.columns, picture.channels],
            [16, 24, 3]
        );
        for (row, column) in [(0, 0), (10, 20), (15, 0), (15, 23)] {
            let drawn =
                [column * 10, row * 15, 255 - column * 5 - row * 5].map(|value| value as u8);
            let read = pixel(&picture, row, column);
            assert!(is_near(read, &drawn), "{read:?} at {row}, {column}");
        }
        let grey = Picture::read(&fixture("grey.jpg")).unwrap();
        assert_eq!([grey.rows, grey.columns, grey.channels], [16, 24, 1]);
        assert!(is_near(pixel(&grey, 10, 20), &[180]));
        assert!(grey.colour(2).eq(grey.grey()));
    }

    #[test]
    fn pngs_of_every_kind_become_grey_or_colours() {
        let rgb = Picture::read(&fixture("rgb.png")).unwrap();
        let tens: Vec<u8> = (0..24).map(|number| number * 10).collect();
        assert_eq!((rgb.rows, rgb.columns, &rgb.pixels), (2, 4, &tens));
        assert!(rgb.colour(1).eq(tens.iter().skip(1).step_by(3).copied()));
        assert_eq!(rgb.grey()[..2], [9, 39]);
        assert_eq!(Picture::read(&fixture("palette.png")).unwrap().channels, 3);
        let sixteen = Picture::read(&fixture("gray16.png")).unwrap();
        assert_eq!((sixteen.channels, sixteen.pixels[11]), (1, 43));
    }

    /// The numbers are those of the crate `image`, resizing with a triangle.
    #[test]
    fn a_picture_is_resized() {
        let rgb = Picture::read(&fixture("rgb.png")).unwrap();
        let small = rgb.resized([1, 2]);
        assert_eq!(small.pixels, [81, 91, 101, 129, 139, 149]);
        let square = rgb.resized([3, 3]);
        let first = [9, 19, 29, 45, 55, 65, 81, 91, 101, 69, 79, 89];
        assert_eq!(square.pixels[..12], first);
        assert_eq!(square.grey(), [18, 54, 90, 78, 114, 150, 138, 174, 210]);
        let large = rgb.resized([4, 8]);
        assert_eq!(large.grey()[8..16], [39, 47, 62, 77, 92, 107, 122, 129]);
        assert_eq!(rgb.resized([2, 4]), rgb);
    }

    #[test]
    fn what_claims_too_much_is_refused_before_it_is_allocated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bomb");
        let mut bomb = fs::read(fixture("colour.jpg")).unwrap();
        // Behind SOF0, its length and the precision: rows and columns.
        let frame = bomb
            .windows(2)
            .position(|pair| pair == [0xff, 0xc0])
            .unwrap();
        bomb[frame + 5..frame + 9].fill(0xff);
        fs::write(&path, &bomb).unwrap();
        for error in [
            Picture::read(&path).unwrap_err(),
            Picture::extent(&path).unwrap_err(),
        ] {
            assert_eq!(error, "65535 × 65535 pixels are too many to be decoded");
        }
        let mut bomb = fs::read(fixture("rgb.png")).unwrap();
        bomb[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
        fs::write(&path, &bomb).unwrap();
        Picture::read(&path).unwrap_err();
        fs::write(&path, "no image").unwrap();
        let error = Picture::read(&path).unwrap_err();
        assert_eq!(error, "it is neither PNG nor JPEG");
    }

    #[test]
    fn what_is_cut_off_makes_no_panic() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("part");
        for name in ["colour.jpg", "grey.jpg", "rgb.png", "palette.png"] {
            let whole = fs::read(fixture(name)).unwrap();
            for length in (0..whole.len()).step_by(5) {
                fs::write(&path, &whole[..length]).unwrap();
                let _ = (Picture::read(&path), Picture::extent(&path));
            }
        }
    }
}
