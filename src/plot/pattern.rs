//! A diffraction pattern as a line, and where its rings are expected.

use super::style::{Canvas, DrawFailure, FONT, GRID, PALETTE, document, frame};
use plotters::prelude::*;

/// Intensity over the radial axis.
pub struct Pattern<'a> {
    pub title: &'a str,
    /// The radial axis with its unit, in words.
    pub radial_name: &'a str,
    /// The centres of the bins.
    pub radial: &'a [f64],
    /// One for each bin; what is not finite is left out.
    pub intensity: &'a [f32],
    /// Positions that are marked.
    pub rings: &'a [f64],
}

impl Pattern<'_> {
    /// The picture as text.
    pub fn svg(&self) -> Result<String, DrawFailure> {
        document((900, 480), |root| draw(root, self))
    }
}

fn draw(root: &Canvas<SVGBackend<'_>>, picture: &Pattern<'_>) -> Result<(), DrawFailure> {
    let (first, last) = (
        *picture.radial.first().ok_or("no bins")?,
        *picture.radial.last().ok_or("no bins")?,
    );
    let finite = || {
        picture
            .intensity
            .iter()
            .map(|value| f64::from(*value))
            .filter(|value| value.is_finite())
    };
    let (low, high) = finite().fold((0.0f64, 1e-30f64), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    let mut chart = frame(root, picture.title)
        .build_cartesian_2d(first.min(last)..first.max(last), low..high * 1.05)?;
    chart
        .configure_mesh()
        .x_desc(picture.radial_name)
        .y_desc("Intensity")
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 16))
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .draw()?;
    for ring in picture.rings {
        chart.draw_series([PathElement::new(
            vec![(*ring, low), (*ring, high * 1.05)],
            PALETTE[4].stroke_width(1),
        )])?;
    }
    let points = picture
        .radial
        .iter()
        .zip(picture.intensity)
        .map(|(place, value)| (*place, f64::from(*value)));
    chart.draw_series(LineSeries::new(
        points.filter(|(_, value)| value.is_finite()),
        PALETTE[0].stroke_width(1),
    ))?;
    Ok(())
}
