//! A point for each result: axes, points, a legend of the colours, the best point with its caption.

use super::{
    axis::{self, Coordinate, PlotAxis},
    style::{Canvas, DrawFailure, FONT, GRID, PALETTE, bitmap, document, frame},
};
use plotters::{prelude::*, style::RGBColor};

const WIDTH: u32 = 900;
const HEIGHT: u32 = 560;
/// Viridis (van der Walt and Smith, matplotlib, CC0) at five places: dark for small, bright for
/// large.
const SCALE: [RGBColor; 5] = [
    RGBColor(68, 1, 84),
    RGBColor(59, 82, 139),
    RGBColor(33, 145, 140),
    RGBColor(94, 201, 98),
    RGBColor(253, 231, 37),
];

/// A result in the picture.
#[derive(Clone, Debug, PartialEq)]
pub struct PlotPoint {
    pub x: Coordinate,
    /// Also NaN or infinite.
    pub y: f64,
    pub colour: Option<Coordinate>,
    /// False where the task was given up or failed: its point is hollow.
    pub done: bool,
}

/// Points, and the names of what they show.
pub struct Scatter<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    /// What the colours stand for.
    pub colour: Option<&'a str>,
    pub points: &'a [PlotPoint],
    /// The index of the best point, and what is said of it.
    pub best: Option<(usize, String)>,
}

impl Scatter<'_> {
    /// The picture as SVG text.
    pub fn svg(&self) -> Result<String, DrawFailure> {
        document((WIDTH, HEIGHT), |root| draw(root, self))
    }

    /// The picture as a PNG file of 900 x 560 pixels.
    pub fn png(&self) -> Result<Vec<u8>, DrawFailure> {
        bitmap((WIDTH, HEIGHT), |root| draw(root, self))
    }
}

fn draw<B: DrawingBackend<ErrorType: 'static>>(
    root: &Canvas<B>,
    scatter: &Scatter<'_>,
) -> Result<(), DrawFailure> {
    let points = scatter.points;
    let (x_axis, y_axis) = (
        PlotAxis::of(points.iter().map(|point| &point.x)),
        PlotAxis::of_results(points.iter().map(|point| point.y)),
    );
    let colours = scatter
        .colour
        .map(|_| PlotAxis::of(points.iter().filter_map(|point| point.colour.as_ref())));
    let mut chart = frame(root, scatter.title)
        .margin_right(if colours.is_some() { 150 } else { 24 })
        .build_cartesian_2d(x_axis.range(), y_axis.range())?;
    chart
        .configure_mesh()
        .x_desc(named(scatter.x, &x_axis))
        .y_desc(named(scatter.y, &y_axis))
        .x_labels(x_axis.labels())
        .y_labels(y_axis.labels())
        .x_label_formatter(&|position| x_axis.label(*position))
        .y_label_formatter(&|position| y_axis.label(*position))
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 16))
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .draw()?;
    let place = |point: &PlotPoint| (x_axis.position(&point.x), y_axis.shown(point.y));
    let style = |point: &PlotPoint| {
        let colour = colour_of(point.colour.as_ref(), colours.as_ref());
        // Hollow: given up, or failed.
        if point.done {
            colour.mix(0.8).filled()
        } else {
            colour.stroke_width(1)
        }
    };
    let (within, beyond): (Vec<_>, Vec<_>) = points.iter().partition(|point| y_axis.holds(point.y));
    let circle = |point: &&PlotPoint| Circle::new(place(point), 4, style(point));
    chart.draw_series(within.iter().map(circle))?;
    let triangle = |point: &&PlotPoint| TriangleMarker::new(place(point), 7, style(point));
    chart.draw_series(beyond.iter().map(triangle))?;
    if !beyond.is_empty() {
        let told = told_beyond(&beyond);
        let font = (FONT, 14).into_font();
        root.draw(&Text::new(told, (WIDTH as i32 / 2, 46), font.color(&BLACK)))?;
    }
    if let Some((best, caption)) = &scatter.best {
        let point = &points[*best];
        chart.draw_series([Circle::new(place(point), 9, BLACK.stroke_width(2))])?;
        let below = format!("best: {caption}");
        root.draw(&Text::new(
            below,
            (88, 46),
            (FONT, 14).into_font().color(&BLACK),
        ))?;
    }
    match (scatter.colour, colours) {
        (Some(name), Some(colours)) => legend(root, name, &colours),
        _ => Ok(()),
    }
}

/// Which points have no place on the axis.
fn told_beyond(points: &[&PlotPoint]) -> String {
    let count = |is: fn(f64) -> bool| points.iter().filter(|point| is(point.y)).count();
    let (nan, infinite) = (count(f64::is_nan), count(f64::is_infinite));
    let finite: Vec<f64> = points
        .iter()
        .map(|point| point.y)
        .filter(|y| y.is_finite())
        .collect();
    let furthest = finite.iter().max_by(|a, b| a.abs().total_cmp(&b.abs()));
    let parts = [
        (nan > 0).then(|| format!("{nan} NaN")),
        (infinite > 0).then(|| format!("{infinite} infinite")),
        furthest.map(|y| format!("{} up to {}", finite.len(), axis::number(*y))),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let tasks = if points.len() == 1 { "task" } else { "tasks" };
    format!(
        "{} {tasks} beyond the axis: {}",
        points.len(),
        parts.join(", ")
    )
}

fn named(name: &str, axis: &PlotAxis) -> String {
    if axis.is_log() {
        format!("{name} (log scale)")
    } else {
        name.to_string()
    }
}

fn colour_of(cell: Option<&Coordinate>, axis: Option<&PlotAxis>) -> RGBColor {
    match (cell, axis) {
        (Some(cell), Some(axis @ PlotAxis::Words(_))) => {
            PALETTE[axis.position(cell) as usize % PALETTE.len()]
        }
        (Some(cell), Some(axis)) => {
            let range = axis.range();
            on_scale((axis.position(cell) - range.start) / (range.end - range.start))
        }
        _ => PALETTE[0],
    }
}

/// The colour at a share from 0 to 1 of the scale.
fn on_scale(share: f64) -> RGBColor {
    let place = share.clamp(0.0, 1.0) * (SCALE.len() - 1) as f64;
    let index = (place as usize).min(SCALE.len() - 2);
    let (RGBColor(r0, g0, b0), RGBColor(r1, g1, b1)) = (SCALE[index], SCALE[index + 1]);
    let mix = |a: u8, b: u8| {
        (f64::from(a) + (f64::from(b) - f64::from(a)) * (place - index as f64)).round() as u8
    };
    RGBColor(mix(r0, r1), mix(g0, g1), mix(b0, b1))
}

/// Colours and what they mean, at the right.
fn legend<B: DrawingBackend<ErrorType: 'static>>(
    root: &Canvas<B>,
    name: &str,
    colours: &PlotAxis,
) -> Result<(), DrawFailure> {
    const MOST: usize = 20;
    let entries: Vec<(String, RGBColor)> = match colours {
        PlotAxis::Words(words) => {
            let colour = |index: usize| PALETTE[index % PALETTE.len()];
            words
                .iter()
                .enumerate()
                .take(MOST)
                .map(|(index, word)| (word.clone(), colour(index)))
                .collect()
        }
        PlotAxis::Linear { min, max } => steps(|share| min + share * (max - min)),
        PlotAxis::Log { min, max } => steps(|share| min * (max / min).powf(share)),
    };
    let left = WIDTH as i32 - 140;
    root.draw(&Text::new(named(name, colours), (left, 60), (FONT, 15)))?;
    for (index, (word, colour)) in entries.iter().enumerate() {
        let y = 88 + index as i32 * 22;
        root.draw(&Circle::new((left + 6, y), 5, colour.filled()))?;
        let word: String = word.chars().take(16).collect();
        root.draw(&Text::new(word, (left + 18, y - 8), (FONT, 14)))?;
    }
    Ok(())
}

fn steps(value: impl Fn(f64) -> f64) -> Vec<(String, RGBColor)> {
    (0..SCALE.len())
        .map(|step| step as f64 / (SCALE.len() - 1) as f64)
        .map(|share| (axis::number(value(share)), on_scale(share)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_png_shows_points_and_letters() {
        let points: Vec<PlotPoint> = (1..=9)
            .map(|step| PlotPoint {
                x: Coordinate::Number(f64::from(step)),
                y: f64::from(step * step),
                colour: None,
                done: true,
            })
            .collect();
        let picture = Scatter {
            title: "Squares: θ / Å⁻¹",
            x: "step",
            y: "square",
            colour: None,
            points: &points,
            best: Some((8, "square = 81".into())),
        };
        let file = picture.png().expect("it can be drawn");
        let decoder = png::Decoder::new(std::io::Cursor::new(file));
        let mut reader = decoder.read_info().expect("a PNG file");
        let mut pixels = vec![0; reader.output_buffer_size().expect("it fits")];
        let info = reader.next_frame(&mut pixels).expect("a picture");
        assert_eq!((info.width, info.height), (WIDTH, HEIGHT));
        let dark = |rows: std::ops::Range<usize>| {
            let line = WIDTH as usize * 3;
            let pixels = pixels[rows.start * line..rows.end * line].chunks(3);
            pixels.filter(|rgb| rgb.iter().all(|c| *c < 96)).count()
        };
        assert!(dark(10..45) > 100, "the title");
        assert!(dark(500..560) > 50, "the name of an axis");
        let blue = |rgb: &&[u8]| rgb[2] > rgb[0].saturating_add(80);
        assert!(pixels.chunks(3).filter(blue).count() > 200, "the points");
    }
}
