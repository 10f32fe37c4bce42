//! The mean pattern as SVG.

use super::nexus::radial_unit;
use nodectl_plot::Pattern;

/// The picture as text. `rings` are positions that are marked. None where there is nothing to draw.
pub fn svg(
    title: &str,
    radial: &[f64],
    pattern: &[f32],
    unit: &str,
    rings: &[f64],
) -> Option<String> {
    let picture = Pattern {
        title,
        radial_name: &radial_unit(unit).1,
        radial,
        intensity: pattern,
        rings,
    };
    picture.svg().ok()
}
