//! What all pictures share: fonts, colours, a white ground, a grid in grey.

use nodectl_types::text::xml;
use plotters::{coord::Shift, prelude::*, style::RGBColor};

pub const FONT: &str = "sans-serif";

/// The lines behind what is drawn.
pub const GRID: RGBColor = RGBColor(225, 225, 225);

/// Okabe and Ito, Color Universal Design (2008): eight colours that the colour-blind can tell
/// apart; black is the axes'.
pub const PALETTE: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(240, 228, 66),
];

/// Why a picture could not be drawn.
pub type DrawFailure = Box<dyn std::error::Error>;

/// What is drawn on.
pub type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// An SVG document of `size` in pixels, white, with what `draw` draws on it.
pub fn document(
    size: (u32, u32),
    draw: impl FnOnce(&Canvas<'_>) -> Result<(), DrawFailure>,
) -> Result<String, DrawFailure> {
    let mut text = String::new();
    {
        let canvas = SVGBackend::with_string(&mut text, size).into_drawing_area();
        canvas.fill(&WHITE)?;
        draw(&canvas)?;
        canvas.present()?;
    }
    Ok(xml(&text))
}

/// A chart's frame: the title above it, room for labels at the left and below.
pub fn frame<'a, 'b>(canvas: &'a Canvas<'b>, title: &str) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut chart = ChartBuilder::on(canvas);
    chart
        .caption(title, (FONT, 22))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(72);
    chart
}
