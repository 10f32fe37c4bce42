//! The tables as a picture.

use super::{Scheme, nets::ExchangeNet};
use plotters::{coord::Shift, prelude::*, style::RGBColor};

const FONT: &str = "sans-serif";
/// Okabe and Ito, Color Universal Design (2008).
const COLOURS: [RGBColor; 4] = [
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(0, 158, 115),
    RGBColor(0, 114, 178),
];
const GREY: RGBColor = RGBColor(150, 150, 150);

type Failed = Box<dyn std::error::Error>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A row for each network: speed-up, and bytes; as SVG text.
pub fn picture(results: &[(ExchangeNet, Vec<Scheme>)], nodes: &[usize]) -> Result<String, Failed> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (1100, 860)).into_drawing_area();
        root.fill(&WHITE)?;
        for ((net, schemes), areas) in results.iter().zip(root.split_evenly((2, 2)).chunks(2)) {
            speedups(&areas[0], net, schemes, nodes)?;
            bytes(&areas[1], net, schemes, nodes)?;
        }
        root.present()?;
    }
    Ok(text)
}

fn speedups(
    area: &Area<'_>,
    net: &ExchangeNet,
    schemes: &[Scheme],
    nodes: &[usize],
) -> Result<(), Failed> {
    let most = nodes.last().copied().unwrap_or(1) as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(
            format!("{}: speed-up, 10 GbE (simulated)", net.name),
            (FONT, 18),
        )
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..most * 1.02, 0.0..most * 1.02)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("nodes")
        .y_desc("times one node")
        .max_light_lines(0)
        .bold_line_style(RGBColor(225, 225, 225));
    mesh.draw()?;
    let ideal = chart.draw_series(LineSeries::new([(0.0, 0.0), (most, most)], GREY))?;
    ideal
        .label("ideal")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], GREY));
    for (scheme, colour) in schemes.iter().zip(COLOURS) {
        let points = nodes
            .iter()
            .zip(&scheme.speedups)
            .map(|(nodes, times)| (*nodes as f64, *times));
        let series = chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        series
            .label(scheme.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    let published = net
        .published
        .iter()
        .map(|(nodes, times)| Cross::new((*nodes as f64, *times), 6, BLACK.stroke_width(2)));
    let series = chart.draw_series(published)?;
    series
        .label("Poseidon, published")
        .legend(|(x, y)| Cross::new((x + 9, y), 5, BLACK.stroke_width(2)));
    let labels = &mut chart.configure_series_labels();
    labels
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(GREY)
        .draw()?;
    Ok(())
}

fn bytes(
    area: &Area<'_>,
    net: &ExchangeNet,
    schemes: &[Scheme],
    nodes: &[usize],
) -> Result<(), Failed> {
    let all = || {
        schemes
            .iter()
            .flat_map(|scheme| scheme.gigabytes.iter().copied())
    };
    let (low, high) = (all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
    let most = nodes.last().copied().unwrap_or(1) as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(
            format!("{}: GB sent and received, a node and step", net.name),
            (FONT, 18),
        )
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..most * 1.02, (low / 2.0..high * 2.0).log_scale())?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("nodes")
        .y_desc("GB")
        .max_light_lines(0)
        .bold_line_style(RGBColor(225, 225, 225))
        .draw()?;
    for (scheme, colour) in schemes.iter().zip(COLOURS) {
        let points = nodes
            .iter()
            .zip(&scheme.gigabytes)
            .map(|(nodes, bytes)| (*nodes as f64, *bytes));
        chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
    }
    Ok(())
}
