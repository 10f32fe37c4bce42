//! Detectors from NeXus files, as pyFAI's `Detector.save` writes them: an `NXdetector` with the
//! corners of each pixel.

use super::{MAX_PIXELS, PixelCorners, PixelLayout};
use crate::engine::{
    errors::ImageError,
    images::{Image, Mask},
};
use nodectl_formats::{Array, ArrayLocation, convert, hdf5};
use nodectl_types::Scalar;
use std::{path::Path, sync::Arc};

/// What a file says of a detector.
#[derive(Clone, Debug, PartialEq)]
pub struct DetectorFile {
    pub(in super::super) shape: [usize; 2],
    pub(in super::super) layout: PixelLayout,
    /// Not looked at. Also pixels without a place.
    pub mask: Option<Mask>,
    pub dark: Option<Image>,
    pub flat: Option<Image>,
    pub(in super::super) dummy: Option<(f64, Option<f64>)>,
}

impl DetectorFile {
    /// Reads the first detector of a file.
    ///
    /// # Errors
    /// Where there is no such file, no detector in it, or not what a detector needs.
    pub fn read(path: &Path) -> Result<Self, ImageError> {
        let invalid = |problem: String| ImageError::Invalid {
            path: path.to_path_buf(),
            problem,
        };
        let mut datasets =
            hdf5::guarded(|| Ok(hdf5::open(path)?.dataset_names())).map_err(invalid)?;
        datasets.sort();
        let group = |name: &str| {
            datasets
                .iter()
                .find_map(|dataset| dataset.strip_suffix(name))
                .map(str::to_owned)
        };
        let group = group("/pixel_corners").or_else(|| group("/pixel_size"));
        let group = group.ok_or_else(|| {
            invalid("it has no detector with pixel_corners or a pixel_size".into())
        })?;
        let reader = NexusReader {
            path,
            group,
            datasets,
        };
        let corners = reader
            .array("pixel_corners")?
            .map(|array| corners(array, reader.number("IS_FLAT")));
        let corners = corners.transpose().map_err(invalid)?;
        let image = |name: &str| reader.array(name).map(|array| array.map(Image::from_array));
        let read = |image: Result<Option<Result<Image, String>>, ImageError>| {
            image?.transpose().map_err(invalid)
        };
        let (dark, flat) = (read(image("darkcurrent"))?, read(image("flatfield"))?);
        let mask = read(image("mask"))?;
        let images = [&mask, &dark, &flat];
        let of_image = images.into_iter().flatten().map(|image| image.shape).next();
        let shape = match &corners {
            Some((shape, _)) => Some(*shape),
            None => reader.shape()?.or(of_image),
        };
        let shape = shape.ok_or_else(|| invalid("its detector has no shape".into()))?;
        if shape[0]
            .checked_mul(shape[1])
            .is_none_or(|pixels| pixels == 0 || pixels > MAX_PIXELS)
        {
            return Err(invalid(format!("its detector has {shape:?} pixels")));
        }
        let mut masked = mask.map(|mask| {
            let is_masked = mask.values.iter().map(|value| *value != 0.0);
            is_masked.collect::<Vec<bool>>()
        });
        let layout = match corners {
            Some((_, corners)) => {
                mask_placeless(&mut masked, &corners, shape);
                PixelLayout::Corners(Arc::new(corners))
            }
            None => reader.grid()?,
        };
        let mask = masked.map(|masked| Mask { shape, masked });
        let dummy = reader
            .number("dummy")
            .map(|value| (value, reader.number("delta_dummy")));
        Ok(Self {
            shape,
            layout,
            mask,
            dark,
            flat,
            dummy,
        })
    }
}

/// Masks pixels without a place.
fn mask_placeless(masked: &mut Option<Vec<bool>>, corners: &PixelCorners, shape: [usize; 2]) {
    let has_place = |pixel: &[[f32; 3]]| pixel.iter().flatten().all(|place| place.is_finite());
    if has_place(&corners.points) {
        return;
    }
    let masked = masked.get_or_insert_with(|| vec![false; shape[0] * shape[1]]);
    let pixels = corners.points.chunks(corners.per_pixel);
    masked
        .iter_mut()
        .zip(pixels)
        .for_each(|(masked, pixel)| *masked |= !has_place(pixel));
}

/// Reads what is in a detector's group.
struct NexusReader<'a> {
    path: &'a Path,
    group: String,
    /// All of the file.
    datasets: Vec<String>,
}

impl NexusReader<'_> {
    /// Rows and columns, where the file says so.
    fn shape(&self) -> Result<Option<[usize; 2]>, ImageError> {
        let said = self.numbers("shape")?.or(self.numbers("max_shape")?);
        let said = said.filter(|shape| shape.len() == 2);
        Ok(said.map(|shape| [shape[0] as usize, shape[1] as usize]))
    }

    /// Pixels of one size.
    fn grid(&self) -> Result<PixelLayout, ImageError> {
        let pixel = self.numbers("pixel_size")?.unwrap_or_default();
        match pixel[..] {
            [rows, columns] if rows > 0.0 && columns > 0.0 => Ok(PixelLayout::Regular {
                pixel: [rows, columns],
                rounds_centers: true,
            }),
            _ => Err(ImageError::Invalid {
                path: self.path.to_path_buf(),
                problem: format!("its detector has the pixel_size {pixel:?}"),
            }),
        }
    }

    fn array(&self, name: &str) -> Result<Option<Array>, ImageError> {
        let member = format!("{}/{name}", self.group);
        if !self.datasets.contains(&member) {
            return Ok(None);
        }
        Ok(Some(
            ArrayLocation {
                member: Some(member),
                ..ArrayLocation::new(self.path)
            }
            .read()?,
        ))
    }

    fn numbers(&self, name: &str) -> Result<Option<Vec<f64>>, ImageError> {
        let numbers = |array: Array| {
            let bytes = convert(array.bytes, array.info.scalar, Scalar::F64);
            bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|bytes| f64::from_le_bytes(*bytes))
                .collect()
        };
        Ok(self.array(name)?.map(numbers))
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.numbers(name)
            .ok()
            .flatten()
            .and_then(|numbers| numbers.first().copied())
    }
}

/// `pixel_corners` [rows, columns, corners, (depth, row, column)].
fn corners(array: Array, is_flat: Option<f64>) -> Result<([usize; 2], PixelCorners), String> {
    let shape = array.info.shape.clone();
    let [rows, columns, per_pixel @ (4 | 6), 3] = shape[..] else {
        return Err(format!(
            "its pixel_corners are {shape:?}, not [rows, columns, corners, 3]"
        ));
    };
    let bytes = convert(array.bytes, array.info.scalar, Scalar::F32);
    let numbers: Vec<f32> = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect();
    let points = numbers.as_chunks::<3>().0.to_vec();
    let is_flat = is_flat.map_or_else(
        || points.iter().all(|point| point[0] == 0.0),
        |is_flat| is_flat != 0.0,
    );
    let (per_pixel, columns) = (per_pixel as usize, columns as usize);
    Ok((
        [rows as usize, columns],
        PixelCorners {
            per_pixel,
            columns,
            points,
            is_flat,
        },
    ))
}
