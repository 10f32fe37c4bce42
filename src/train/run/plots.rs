//! Pictures of a training: curves over epochs, a confusion matrix.

use nodectl_types::text::xml;
use plotters::{prelude::*, style::RGBColor};

const FONT: &str = "sans-serif";
/// Okabe and Ito, Color Universal Design (2008).
const COLOURS: [RGBColor; 2] = [RGBColor(0, 114, 178), RGBColor(213, 94, 0)];
/// More classes make no readable picture.
pub const MOST_CLASSES: usize = 40;

type Failed = Box<dyn std::error::Error>;

/// A line of a picture: its name and (epoch, value).
pub struct Curve {
    pub name: &'static str,
    pub points: Vec<(f64, f64)>,
}

/// The curves over epochs, as SVG text.
pub fn curves(title: &str, what: &str, curves: &[Curve]) -> Result<String, Failed> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (900, 560)).into_drawing_area();
        root.fill(&WHITE)?;
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
        let mut chart = ChartBuilder::on(&root)
            .caption(title, (FONT, 22))
            .margin(16)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(first..last.max(first + 1.0), low - margin..high + margin)?;
        chart
            .configure_mesh()
            .x_desc("epoch")
            .y_desc(what)
            .label_style((FONT, 14))
            .axis_desc_style((FONT, 16))
            .light_line_style(WHITE)
            .bold_line_style(RGBColor(225, 225, 225))
            .draw()?;
        for (curve, colour) in curves.iter().zip(COLOURS) {
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
        root.present()?;
    }
    Ok(xml(&text))
}

/// Rows are what samples are, columns what they are taken for. Dark is many, as a share of the row.
pub fn confusion(title: &str, names: &[String], counts: &[Vec<u64>]) -> Result<String, Failed> {
    let classes = counts.len();
    let cell = (560 / classes.max(1)).clamp(12, 48) as i32;
    let (left, top) = (110, 90);
    let side = cell * classes as i32;
    let mut text = String::new();
    {
        let size = ((left + side + 30) as u32, (top + side + 30) as u32);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)?;
        let label =
            |words: &str, place: (i32, i32)| Text::new(words.to_string(), place, (FONT, 13));
        root.draw(&Text::new(title.to_string(), (16, 12), (FONT, 20)))?;
        root.draw(&label("taken for", (left, top - 44)))?;
        for (row, of) in counts.iter().enumerate() {
            let total = of.iter().sum::<u64>().max(1) as f64;
            let y = top + row as i32 * cell;
            let short: String = names[row].chars().take(12).collect();
            root.draw(&label(&short, (10, y + cell / 2 - 7)))?;
            let head: String = names[row]
                .chars()
                .take((cell / 8).max(1) as usize)
                .collect();
            root.draw(&label(&head, (left + row as i32 * cell + 3, top - 20)))?;
            for (column, count) in of.iter().enumerate() {
                let x = left + column as i32 * cell;
                let share = *count as f64 / total;
                let fade = |to: u8| (255.0 - (255.0 - f64::from(to)) * share) as u8;
                let colour = RGBColor(fade(0), fade(80), fade(140));
                root.draw(&Rectangle::new(
                    [(x, y), (x + cell, y + cell)],
                    colour.filled(),
                ))?;
                if *count > 0 && cell >= 24 {
                    let ink = if share > 0.5 { WHITE } else { BLACK };
                    let style = (FONT, 12).into_font().color(&ink);
                    root.draw(&Text::new(
                        count.to_string(),
                        (x + 4, y + cell / 2 - 6),
                        style,
                    ))?;
                }
            }
        }
        root.present()?;
    }
    Ok(xml(&text))
}
