//! What all pictures share: fonts, colours, a white ground, a grid in grey.

use nodectl_types::text::xml;
use plotters::{
    coord::Shift,
    prelude::*,
    style::{RGBColor, register_font},
};

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

/// Letters of Latin and Greek, digits and signs of mathematics, with which pixels are written and
/// text is measured: a machine need not have any font.
static LETTERS: &[u8] = include_bytes!("font/DejaVuSans.ttf");

/// Why a picture could not be drawn.
pub type DrawFailure = Box<dyn std::error::Error>;

/// What is drawn on.
pub type Canvas<B> = DrawingArea<B, Shift>;

/// An SVG document of `size` in pixels, white, with what `draw` draws on it.
pub fn document(
    size: (u32, u32),
    draw: impl FnOnce(&Canvas<SVGBackend<'_>>) -> Result<(), DrawFailure>,
) -> Result<String, DrawFailure> {
    let mut text = String::new();
    on_white(SVGBackend::with_string(&mut text, size), draw)?;
    Ok(xml(&text))
}

/// The same picture as a PNG file, eight bits for each of red, green and blue.
pub fn bitmap(
    size: (u32, u32),
    draw: impl FnOnce(&Canvas<BitMapBackend<'_>>) -> Result<(), DrawFailure>,
) -> Result<Vec<u8>, DrawFailure> {
    let (width, height) = size;
    let mut pixels = vec![0; width as usize * height as usize * 3];
    on_white(BitMapBackend::with_buffer(&mut pixels, size), draw)?;
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header()?.write_image_data(&pixels)?;
    Ok(file)
}

fn on_white<B: DrawingBackend<ErrorType: 'static>>(
    backend: B,
    draw: impl FnOnce(&Canvas<B>) -> Result<(), DrawFailure>,
) -> Result<(), DrawFailure> {
    register_font(FONT, FontStyle::Normal, LETTERS).map_err(|_| "the letters are damaged")?;
    let canvas = backend.into_drawing_area();
    canvas.fill(&WHITE)?;
    draw(&canvas)?;
    Ok(canvas.present()?)
}

/// A chart's frame: the title above it, room for labels at the left and below.
pub fn frame<'a, 'b, B: DrawingBackend>(
    canvas: &'a Canvas<B>,
    title: &str,
) -> ChartBuilder<'a, 'b, B> {
    let mut chart = ChartBuilder::on(canvas);
    chart
        .caption(title, (FONT, 22))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(72);
    chart
}
