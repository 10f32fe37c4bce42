//! Values over the epochs of a training.

use super::style::{DrawFailure, FONT, GRID, PALETTE, document, frame};
use plotters::prelude::*;

/// A line of a picture: its name and (epoch, value).
pub struct Curve {
    pub name: &'static str,
    pub points: Vec<(f64, f64)>,
}

/// The curves over epochs, as SVG text.
pub fn curves(title: &str, what: &str, curves: &[Curve]) -> Result<String, DrawFailure> {
    document((900, 560), |root| {
        let points = || {
            curves
                .iter()
                .flat_map(|curve| &curve.points)
                .filter(|point| point.1.is_finite())
        };
        let last = points().map(|point| point.0).fold(1.0, f64::max);
        let (low, high) = points().fold((f64::MAX, f64::MIN), |(low, high), point| {
            (low.min(point.1), high.max(point.1))
        });
        let margin = ((high - low) * 0.05).max(1e-6);
        let first = points().map(|point| point.0).fold(last, f64::min);
        let mut chart = frame(root, title)
            .build_cartesian_2d(first..last.max(first + 1.0), low - margin..high + margin)?;
        chart
            .configure_mesh()
            .x_desc("epoch")
            .y_desc(what)
            .label_style((FONT, 14))
            .axis_desc_style((FONT, 16))
            .light_line_style(WHITE)
            .bold_line_style(GRID)
            .draw()?;
        for (curve, colour) in curves.iter().zip(PALETTE) {
            let points = curve
                .points
                .iter()
                .copied()
                .filter(|point| point.1.is_finite());
            let series = chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
            series.label(curve.name).legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
            });
        }
        chart
            .configure_series_labels()
            .background_style(WHITE)
            .border_style(BLACK)
            .label_font((FONT, 14))
            .draw()?;
        Ok(())
    })
}
