//! The mean pattern as SVG.

use super::nexus::radial_unit;
use nodectl_types::text::xml;
use plotters::{prelude::*, style::RGBColor};

const WIDTH: u32 = 900;
const HEIGHT: u32 = 480;
const FONT: &str = "sans-serif";
/// Okabe and Ito, Color Universal Design (2008): the pattern, and where rings are expected.
const LINE: RGBColor = RGBColor(0, 114, 178);
const RINGS: RGBColor = RGBColor(230, 159, 0);

/// The picture as text. `rings` are positions that are marked. None where there is nothing to draw.
pub fn svg(
    title: &str,
    radial: &[f64],
    pattern: &[f32],
    unit: &str,
    rings: &[f64],
) -> Option<String> {
    let mut text = String::new();
    draw(&mut text, title, radial, pattern, unit, rings).ok()?;
    Some(xml(&text))
}

fn draw(
    text: &mut String,
    title: &str,
    radial: &[f64],
    pattern: &[f32],
    unit: &str,
    rings: &[f64],
) -> Result<(), Box<dyn std::error::Error>> {
    let (first, last) = (
        *radial.first().ok_or("no bins")?,
        *radial.last().ok_or("no bins")?,
    );
    let finite = || {
        pattern
            .iter()
            .map(|value| f64::from(*value))
            .filter(|value| value.is_finite())
    };
    let (low, high) = finite().fold((0.0f64, 1e-30f64), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    let root = SVGBackend::with_string(text, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, (FONT, 22))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(72)
        .build_cartesian_2d(first.min(last)..first.max(last), low..high * 1.05)?;
    chart
        .configure_mesh()
        .x_desc(radial_unit(unit).1)
        .y_desc("Intensity")
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 16))
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .draw()?;
    for ring in rings {
        chart.draw_series([PathElement::new(
            vec![(*ring, low), (*ring, high * 1.05)],
            RINGS.stroke_width(1),
        )])?;
    }
    let points = radial
        .iter()
        .zip(pattern)
        .map(|(place, value)| (*place, f64::from(*value)));
    chart.draw_series(LineSeries::new(
        points.filter(|(_, value)| value.is_finite()),
        LINE.stroke_width(1),
    ))?;
    root.present()?;
    Ok(())
}
