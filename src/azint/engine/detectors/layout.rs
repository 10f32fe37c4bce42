//! Where pixels are on a detector, in metres from its first corner. Rows, columns and, of detectors
//! that are not flat, depth: how much farther from the sample along the detector's normal.

use std::sync::Arc;

/// The pixels of a detector.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum PixelLayout {
    /// Side by side, all of one height and width.
    Regular {
        pixel: [f64; 2],
        rounds_centers: bool,
    },
    /// Side by side in straight rows and columns of differing sizes.
    Edges(Arc<PixelEdges>),
    /// Anywhere.
    Corners(Arc<PixelCorners>),
}

/// Where rows and columns begin, and the last one ends.
#[derive(Debug, PartialEq)]
pub(in super::super) struct PixelEdges {
    pub rows: Vec<f64>,
    pub columns: Vec<f64>,
    /// Of curved detectors, of the edges of columns.
    pub depth: Option<Vec<f64>>,
    /// See `Layout::rounds_centers`.
    pub rounds_centers: bool,
}

/// Corners of each pixel, in 32 bits as files have them.
#[derive(Debug, PartialEq)]
pub(in super::super) struct PixelCorners {
    /// 4, or 6 of hexagons.
    pub per_pixel: usize,
    pub columns: usize,
    /// Depth, row, column.
    pub points: Vec<[f32; 3]>,
    pub is_flat: bool,
}

impl PixelLayout {
    pub fn is_curved(&self) -> bool {
        matches!(self, Self::Edges(edges) if edges.depth.is_some())
    }

    /// Whether pyFAI takes centres from corners of 32 bits as soon as it has those.
    pub fn rounds_centers(&self) -> bool {
        match self {
            Self::Regular { rounds_centers, .. } => *rounds_centers,
            Self::Edges(edges) => edges.rounds_centers,
            Self::Corners(_) => false,
        }
    }

    pub fn is_flat(&self) -> bool {
        match self {
            Self::Regular { .. } => true,
            Self::Edges(edges) => edges.depth.is_none(),
            Self::Corners(corners) => corners.is_flat,
        }
    }
}

impl PixelCorners {
    /// Row, column and depth of the first four corners of a pixel.
    pub fn quadrangle(&self, row: usize, column: usize) -> [[f64; 3]; 4] {
        let first = (row * self.columns + column) * self.per_pixel;
        std::array::from_fn(|index| {
            let [depth, row, column] = self.points[first + index].map(f64::from);
            [row, column, depth]
        })
    }

    /// The middle of four corners (of hexagons too, as in pyFAI), in 32 bits.
    pub fn center(&self, row: usize, column: usize) -> [f64; 3] {
        let [a, b, c, d] = self.quadrangle(row, column);
        std::array::from_fn(|axis| {
            f64::from((0.25 * a[axis] + 0.25 * b[axis] + 0.25 * c[axis] + 0.25 * d[axis]) as f32)
        })
    }
}

/// How a type of detector puts its pixels.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arrangement {
    Regular {
        rounds_centers: bool,
    },
    /// Side by side; those at borders between modules are `border` times as large.
    WideBorders {
        module: [usize; 2],
        border: f64,
        turns: bool,
    },
    /// Modules with a space between rows of them; columns at borders between modules are `border`
    /// times as wide.
    SpacedModules {
        module: [usize; 2],
        border: f64,
        space_m: f64,
    },
    /// A part of a cylinder around a line along columns.
    Cylinder {
        radius_m: f64,
    },
    /// Hexagons, odd rows half a pixel farther.
    Hexagons,
}

impl Arrangement {
    /// Whether other orientations than pyFAI's 3 have a meaning.
    pub fn turns(self) -> bool {
        matches!(
            self,
            Self::Regular { .. } | Self::Cylinder { .. } | Self::WideBorders { turns: true, .. }
        )
    }

    /// `radius_m`: in place of the usual one.
    pub fn layout(self, shape: [usize; 2], pixel: [f64; 2], radius_m: Option<f64>) -> PixelLayout {
        match self {
            Self::Regular { rounds_centers } => PixelLayout::Regular {
                pixel,
                rounds_centers,
            },
            Self::WideBorders {
                module,
                border,
                turns,
            } => {
                let edges =
                    |axis: usize| edges(&sizes(shape[axis], module[axis], border, pixel[axis]));
                PixelLayout::Edges(Arc::new(PixelEdges {
                    rows: edges(0),
                    columns: edges(1),
                    depth: None,
                    rounds_centers: turns,
                }))
            }
            Self::SpacedModules {
                module,
                border,
                space_m,
            } => spaced(shape, pixel, module, border, space_m),
            Self::Cylinder { radius_m: usual } => cylinder(shape, pixel, radius_m.unwrap_or(usual)),
            Self::Hexagons => hexagons(shape, pixel[1]),
        }
    }
}

/// Sizes of rows or columns: on both sides of a border between modules larger ones (pyFAI's
/// `_calc_pixels_size`).
fn sizes(count: usize, module: usize, border: f64, pixel: f64) -> Vec<f64> {
    let is_at_border = |at: usize| {
        let border = (at + 1) / module;
        let is_beside = at.is_multiple_of(module) || (at + 1).is_multiple_of(module);
        is_beside && border > 0 && border < count / module
    };
    (0..count)
        .map(|at| {
            if is_at_border(at) {
                pixel * border
            } else {
                pixel
            }
        })
        .collect()
}

fn edges(sizes: &[f64]) -> Vec<f64> {
    let add = |end: &mut f64, size: &f64| {
        *end += size;
        Some(*end)
    };
    std::iter::once(0.0)
        .chain(sizes.iter().scan(0.0, add))
        .collect()
}

/// pyFAI's `Xpad_flat`.
fn spaced(
    shape: [usize; 2],
    pixel: [f64; 2],
    module: [usize; 2],
    border: f64,
    space_m: f64,
) -> PixelLayout {
    let sides = |sizes: &[f64], spaces: &dyn Fn(usize) -> f64| -> Vec<[f32; 2]> {
        let mut before = 0.0;
        let side = |(at, size): (usize, &f64)| {
            let center = (size / 2.0 + before) + spaces(at);
            before += size;
            [(center - size / 2.0) as f32, (center + size / 2.0) as f32]
        };
        sizes.iter().enumerate().map(side).collect()
    };
    let rows = sides(&vec![pixel[0]; shape[0]], &|row| {
        (row / module[0]) as f64 * space_m
    });
    let columns = sides(&sizes(shape[1], module[1], border, pixel[1]), &|_| 0.0);
    let of_row = |[top, bottom]: &[f32; 2]| {
        let (top, bottom) = (*top, *bottom);
        let corners = move |[left, right]: &[f32; 2]| {
            [
                [0.0, top, *left],
                [0.0, bottom, *left],
                [0.0, bottom, *right],
                [0.0, top, *right],
            ]
        };
        columns.iter().flat_map(corners).collect::<Vec<_>>()
    };
    let points = rows.iter().flat_map(of_row).collect();
    PixelLayout::Corners(Arc::new(PixelCorners {
        per_pixel: 4,
        columns: shape[1],
        points,
        is_flat: true,
    }))
}

/// pyFAI's `Aarhus` and `Rapid`.
fn cylinder(shape: [usize; 2], pixel: [f64; 2], radius: f64) -> PixelLayout {
    let round = |place: f64| f64::from(place as f32);
    let angle = |column: usize| column as f64 * (pixel[1] / radius);
    PixelLayout::Edges(Arc::new(PixelEdges {
        rows: (0..=shape[0])
            .map(|row| round(row as f64 * pixel[0]))
            .collect(),
        columns: (0..=shape[1])
            .map(|column| round(radius * angle(column).sin()))
            .collect(),
        depth: Some(
            (0..=shape[1])
                .map(|column| round(radius * (angle(column).cos() - 1.0)))
                .collect(),
        ),
        rounds_centers: true,
    }))
}

/// pyFAI's `HexDetector`: `pitch` from one pixel to the next in its row.
fn hexagons(shape: [usize; 2], pitch: f64) -> PixelLayout {
    let half_height = 0.5 * 3f64.sqrt();
    let corners: [[f64; 2]; 6] = std::array::from_fn(|index| {
        let angle = (index as f64 * (2.0 / 6.0) - 0.5) * std::f64::consts::PI;
        [angle.sin() / 3f64.sqrt(), angle.cos() / 3f64.sqrt()]
    });
    let least = |axis: usize| {
        corners
            .iter()
            .map(|corner| corner[axis])
            .fold(f64::INFINITY, f64::min)
    };
    let first = [least(0), least(1)];
    let pixel = |row: usize, column: usize| {
        let shift = if row % 2 == 1 { 0.5f32 } else { 0.0 };
        corners.map(|corner| {
            let y = (row as f64 * half_height + (corner[0] - first[0])) as f32;
            let x = (column as f64 + (corner[1] - first[1])) as f32 + shift;
            [0.0, y * pitch as f32, x * pitch as f32]
        })
    };
    let points = (0..shape[0])
        .flat_map(|row| (0..shape[1]).flat_map(move |column| pixel(row, column)))
        .collect();
    PixelLayout::Corners(Arc::new(PixelCorners {
        per_pixel: 6,
        columns: shape[1],
        points,
        is_flat: true,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_at_borders_are_wider() {
        let sizes = sizes(8, 4, 2.5, 1.0);
        assert_eq!(sizes, [1.0, 1.0, 1.0, 2.5, 2.5, 1.0, 1.0, 1.0]);
        assert_eq!(edges(&sizes)[4..6], [5.5, 8.0]);
    }

    #[test]
    fn hexagons_touch() {
        let PixelLayout::Corners(corners) = hexagons([2, 2], 1.0) else {
            panic!("they have corners")
        };
        let widths = |pixel: usize| {
            let x = corners.points[6 * pixel..6 * pixel + 6]
                .iter()
                .map(|point| point[2]);
            (
                x.clone().fold(f32::INFINITY, f32::min),
                x.fold(f32::NEG_INFINITY, f32::max),
            )
        };
        assert!((widths(0).1 - widths(1).0).abs() < 1e-6);
        assert!((widths(2).0 - 0.5).abs() < 1e-6);
    }
}
